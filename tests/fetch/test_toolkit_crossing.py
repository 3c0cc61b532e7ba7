"""A toolkit that compiles for another machine."""

import json
import os
import platform
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.index_server import Index, serving
from tests.support.machines import file, made_up_programs, program
from tests.support.nvidia_wheels import put, wheel
from tests.support.refusals import refused
from tests.support.silent_progress import SilentProgress
from torchmill.config.toolkit import ToolkitPart, ToolkitSource
from torchmill.core.paths import user_cache_folder
from torchmill.fetch.toolkit import pypi
from torchmill.fetch.toolkit.crossing import make_crossing_toolkit
from torchmill.fetch.toolkit.inherited import copied_bytes
from torchmill.fetch.toolkit.provision import ProvisionContext
from torchmill.host import crossing, cuda_toolkits
from torchmill.host.cuda_toolkits import FoundToolkit
from torchmill.host.programs import make_runner
from torchmill.host.provisioned import RECORD, list_provisioned

ARCH = "aarch64"
CUDART = ToolkitPart(
    "cudart", "CUDA runtime", "nvidia-cuda-runtime", (), ("libcudart.so",), None, ""
)
CUPTI = ToolkitPart(
    "cupti", "CUPTI", "nvidia-cuda-cupti", ("cupti.h",), ("libcupti.so",), None, "", "no profiler"
)
RUNTIME = {
    "include/cuda_runtime_api.h": "of the target",
    "lib/libcudart.so.13": "of the target",
    "lib/stubs/libcuda.so": "a stub",  # it is there, so that no cross compiler makes one
}

pytestmark = [
    made_up_programs,
    pytest.mark.skipif(platform.machine() != "x86_64", reason="crosses from x86_64"),
    pytest.mark.skipif(not platform.libc_ver()[1], reason="the wheels are for glibc"),
]


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """Serve a package for the target, and the same for this machine."""
    index = Index()
    for arch in (ARCH, "x86_64"):
        files = RUNTIME if arch == ARCH else {"lib/libcudart.so.13": "of this machine"}
        name = "nvidia_cuda_runtime-13.0.96"
        content = wheel("nvidia/cu13", files, name=name)
        put(index, f"{name}-py3-none-manylinux2014_{arch}.whl", content)
    with serving(index):
        monkeypatch.setenv("PIP_INDEX_URL", index.url)
        yield index


@pytest.fixture
def toolkit(tmp_path: Path) -> FoundToolkit:
    """Return a toolkit of this machine."""
    home = tmp_path / "cuda-13.0"
    program(home / "bin", "nvcc", "Cuda compilation tools, release 13.0, V13.0.88")
    file(home / "nvvm/bin/cicc", "cicc")
    file(home / "include/crt/host_config.h", "nvcc's own")
    file(home / "include/cuda_runtime_api.h", "of this machine")
    file(home / "lib64/libcudart.so.13", "of this machine")
    file(home / "lib64/libnvvm.so.4", "of this machine")
    return FoundToolkit("13.0", home, "system")


def shop(tmp_path: Path, *packages: str) -> ProvisionContext:
    """Return what a toolkit is made from: parts for the target, of one version of CUDA."""
    source = ToolkitSource("pypi", "parts", ("13.0",), packages, (ARCH,), (), None, "")
    environ = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    return ProvisionContext(
        {"pypi": pypi.offer},
        (source,),
        user_cache_folder(environ, tmp_path),
        make_runner(os.environ),
        SilentProgress(),
        (CUDART, CUPTI),
    )


@pytest.mark.usefixtures("index")
def test_programs_are_of_this_machine_and_libraries_of_the_target(
    toolkit: FoundToolkit, tmp_path: Path
) -> None:
    context = shop(tmp_path, "nvidia-cuda-runtime==13.0.96.*")
    made = make_crossing_toolkit(toolkit, ARCH, context)
    assert made.name.startswith("13.0-crossing-")
    assert (made.home / "bin/nvcc").samefile(toolkit.home / "bin/nvcc")
    assert (made.home / "nvvm/bin/cicc").read_text() == "cicc"
    assert (made.home / "include/crt/host_config.h").read_text() == "nvcc's own"
    assert (made.home / "include/cuda_runtime_api.h").read_text() == "of the target"
    assert (made.home / "lib64/libcudart.so").read_text() == "of the target"
    assert not list((made.home / "lib64").glob("libnvvm*")), "no library of this machine"
    # nvcc looks there, as it is given a compiler for aarch64: with -target-dir, and without.
    for name in ("sbsa-linux", "aarch64-linux"):
        assert (made.home / "targets" / name / "lib/libcudart.so").exists()
    record = json.loads((made.home / RECORD).read_text())
    assert (record["arch"], record["programs_of"]) == (ARCH, "x86_64")
    assert (toolkit.home / "include/cuda_runtime_api.h").read_text() == "of this machine"


def test_its_libraries_need_no_room(toolkit: FoundToolkit) -> None:
    """It gets those of the target's packages, and only programs and headers are copied."""
    home = toolkit.home
    libraries = sum(library.stat().st_size for library in home.glob("lib64/*"))
    all_files = copied_bytes(home, Path("/proc"), "x86_64")
    assert copied_bytes(home, Path("/proc"), "x86_64", programs_only=True) == all_files - libraries


@pytest.mark.usefixtures("index")
def test_it_is_no_toolkit_of_either_machine(toolkit: FoundToolkit, tmp_path: Path) -> None:
    """A cache may be shared by machines of both kinds, and neither can use it as its own."""
    context = shop(tmp_path, "nvidia-cuda-runtime==13.0.96.*")
    made = make_crossing_toolkit(toolkit, ARCH, context)
    assert list_provisioned(context.cache, ARCH) == {}
    assert list_provisioned(context.cache, "x86_64") == {}
    assert list(list_provisioned(context.cache, ARCH, "x86_64")) == [made.name]
    environ = {"PATH": str(tmp_path), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    run = make_runner(os.environ)
    assert not list(cuda_toolkits.usable_toolkits(environ, tmp_path, tmp_path, run))
    crossings = crossing.measure_crossings(environ, tmp_path, tmp_path, context.cache, run)
    assert crossings[ARCH].toolkits == {"13.0": str(made.home)}


@pytest.mark.usefixtures("index")
def test_it_is_made_once(index: Index, toolkit: FoundToolkit, tmp_path: Path) -> None:
    context = shop(tmp_path, "nvidia-cuda-runtime==13.0.96.*")
    made = make_crossing_toolkit(toolkit, ARCH, context)
    index.requests.clear()
    assert make_crossing_toolkit(toolkit, ARCH, context) == made
    assert index.requests == []


@pytest.mark.usefixtures("index")
def test_libraries_of_another_cuda_are_not_taken(toolkit: FoundToolkit, tmp_path: Path) -> None:
    """The facts list packages by the version of the toolkit: there are none for this one."""
    other = replace(toolkit, version="12.9")
    program(other.home / "bin", "nvcc", "Cuda compilation tools, release 12.9, V12.9.86")
    with refused("part-not-on-pypi"):
        make_crossing_toolkit(other, ARCH, shop(tmp_path, "nvidia-cuda-runtime==13.0.96.*"))


def test_a_toolkit_whose_nvcc_does_not_run_is_refused(
    toolkit: FoundToolkit, tmp_path: Path
) -> None:
    file(toolkit.home / "bin/nvcc", "of another machine")
    with refused("nvcc-does-not-run"):
        make_crossing_toolkit(toolkit, ARCH, shop(tmp_path, "nvidia-cuda-runtime==13.0.96.*"))


def test_a_toolkit_among_the_systems_files_is_refused(tmp_path: Path) -> None:
    home = tmp_path / "usr"
    program(home / "bin", "nvcc", "Cuda compilation tools, release 13.0, V13.0.88")
    with refused("toolkit-spread-in-system"):
        make_crossing_toolkit(FoundToolkit("13.0", home, "Debian"), ARCH, shop(tmp_path))
