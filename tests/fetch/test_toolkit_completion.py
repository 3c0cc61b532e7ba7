"""Completing a toolkit that lacks parts."""

import json
import os
import platform
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.documents import assert_output_fits
from tests.support.index_server import Index, serving
from tests.support.machines import file, made_up_programs, program
from tests.support.nvidia_wheels import put, wheel
from tests.support.refusals import refused
from tests.support.silent_progress import SilentProgress
from torchmill.commands.toolkit import complete_toolkit
from torchmill.config.toolkit import ToolkitPart, ToolkitSource
from torchmill.fetch.toolkit import inherited, pypi
from torchmill.fetch.toolkit.completion import base_toolkit, make_complete_copy
from torchmill.fetch.toolkit.inherited import copied_bytes, inherited_files, place_inherited
from torchmill.fetch.toolkit.provision import ProvisionContext
from torchmill.host import cuda_toolkits
from torchmill.host.cuda_toolkits import FoundToolkit, lacking_toolkit_parts
from torchmill.host.programs import make_runner
from torchmill.host.provisioned import RECORD

ARCH = platform.machine()
TAG = f"manylinux1_{ARCH}"
CUBLAS = ToolkitPart(
    "cublas", "cuBLAS", "nvidia-cublas", ("cublas_v2.h",), ("libcublas.so",), None, "", ""
)
CCCL = ToolkitPart("cccl", "CCCL", "nvidia-cuda-cccl", ("thrust/version.h",), (), None, "", "")
CUPTI = ToolkitPart(
    "cupti", "CUPTI", "nvidia-cuda-cupti", ("cupti.h",), ("libcupti.so",), None, "", "no profiler"
)
PARTS = (CUBLAS, CCCL, CUPTI)
PACKAGES = ("nvidia-cublas-cu11==11.11.3.6.*", "nvidia-cuda-cccl-cu11==11.8.89.*")
WHEELS = {
    "nvidia_cublas_cu11-11.11.3.6": {
        "include/cublas_v2.h": "theirs",
        "lib/libcublas.so.11": "library",
    },
    "nvidia_cublas_cu11-11.10.3.66": {"include/cublas_v2.h": "of CUDA 11.7"},
    "nvidia_cuda_cccl_cu11-11.8.89": {"include/thrust/version.h": ""},
}

pytestmark = [
    made_up_programs,
    pytest.mark.skipif(not platform.libc_ver()[1], reason="the wheels are for glibc"),
    pytest.mark.skipif(shutil.which("cc") is None, reason="needs a C compiler"),
]


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    """Serve the packages of parts, and configure pip's index."""
    index = Index()
    for name, files in WHEELS.items():
        put(index, f"{name}-py3-none-{TAG}.whl", wheel(f"nvidia/{name[7:13]}", files, name=name))
    with serving(index):
        monkeypatch.setenv("PIP_INDEX_URL", index.url)
        yield index


@pytest.fixture
def bare(tmp_path: Path) -> FoundToolkit:
    """Return a toolkit that has little more than the compiler."""
    home = tmp_path / "cuda-11.8"
    program(home / "bin", "nvcc", "Cuda compilation tools, release 11.8, V11.8.89")
    file(home / "include/cuda_runtime_api.h")
    file(home / "include/cublas_v2.h", "its own")  # the library is missing, so the part is too
    file(home / "lib64/libcudart.so")
    return FoundToolkit("11.8", home, "system")


def shop(tmp_path: Path, *packages: str) -> ProvisionContext:
    source = ToolkitSource("pypi", "parts", ("11.8",), packages or PACKAGES, (ARCH,), (), None, "")
    cache = tmp_path / ".cache/torchmill"
    return ProvisionContext(
        {"pypi": pypi.offer}, (source,), cache, make_runner(os.environ), SilentProgress(), PARTS
    )


@pytest.mark.usefixtures("index")
def test_a_toolkit_that_lacks_parts_is_completed(bare: FoundToolkit, tmp_path: Path) -> None:
    completed = make_complete_copy(
        bare, lacking_toolkit_parts(bare.home, "11.8", PARTS), ARCH, shop(tmp_path)
    )
    assert completed.name.startswith("11.8-completed-")
    assert (completed.home / "bin/nvcc").samefile(bare.home / "bin/nvcc")
    assert (completed.home / "lib64/libcublas.so").read_text() == "library"
    assert (completed.home / "include/thrust/version.h").exists()
    assert (completed.home / "lib64/stubs/libcuda.so").exists()
    assert [part.name for part in lacking_toolkit_parts(completed.home, "11.8", PARTS)] == [
        "cupti"
    ], "no package has it"
    assert (completed.home / "include/cublas_v2.h").read_text() == "theirs"
    assert (bare.home / "include/cublas_v2.h").read_text() == "its own", "the original is unchanged"
    record = json.loads((completed.home / RECORD).read_text())
    assert (record["kind"], record["version"], record["completes"]) == (
        "toolkit",
        "11.8",
        str(bare.home),
    )
    pieces = [(piece["name"], piece["version"], len(piece["sha256"])) for piece in record["pieces"]]
    assert pieces == [
        ("nvidia-cublas-cu11", "11.11.3.6", 64),
        ("nvidia-cuda-cccl-cu11", "11.8.89", 64),
    ]
    assert list((tmp_path / ".cache/torchmill/downloads").iterdir()) == []


@pytest.mark.usefixtures("index")
def test_a_completed_toolkit_is_found_before_the_original(
    bare: FoundToolkit, tmp_path: Path
) -> None:
    environ = {"PATH": str(tmp_path), "CUDA_HOME": str(bare.home)}
    machine = (environ, tmp_path, tmp_path, make_runner(os.environ))
    assert [toolkit.found_by for toolkit in cuda_toolkits.usable_toolkits(*machine)] == [
        "CUDA_HOME"
    ]
    output = complete_toolkit(bare, ARCH, shop(tmp_path))
    (completed, original) = cuda_toolkits.usable_toolkits(*machine)
    assert (completed.found_by, original.found_by) == (f"completed from {bare.home}", "CUDA_HOME")
    first_line, second_line = output.text.splitlines()
    assert first_line == (
        f"CUDA 11.8 in {bare.home} had no cuBLAS, CCCL: the copy in {completed.home} has them, and "
        "builds take it from there"
    )
    assert second_line == "CUPTI is not available: no profiler"
    assert output.data["kept"][0]["completes"] == str(bare.home)
    assert_output_fits(output.data, "toolkit")
    again = complete_toolkit(completed, ARCH, replace(shop(tmp_path), parts=(CUBLAS, CCCL)))
    assert again.text == f"CUDA 11.8 in {completed.home} lacks nothing that torch's build uses"
    assert_output_fits(again.data, "toolkit")


def test_a_wrong_download_leaves_no_toolkit(
    index: Index, bare: FoundToolkit, tmp_path: Path
) -> None:
    name = f"nvidia_cuda_cccl_cu11-11.8.89-py3-none-{TAG}.whl"
    content = index.files[name]
    index.files[name] = content[:-7] + b"changed"
    lacks = lacking_toolkit_parts(bare.home, "11.8", PARTS)
    with refused("wrong-digest"):
        make_complete_copy(bare, lacks, ARCH, shop(tmp_path))
    assert not list((tmp_path / ".cache/torchmill/toolkits").glob("11.8*"))
    index.files[name] = content
    index.requests.clear()
    make_complete_copy(bare, lacks, ARCH, shop(tmp_path))
    assert not any("cublas_cu11-11.11" in request for request in index.requests), (
        "the earlier download is used"
    )


@pytest.mark.usefixtures("index")
def test_a_package_without_its_part_is_refused(bare: FoundToolkit, tmp_path: Path) -> None:
    older = shop(tmp_path, "nvidia-cublas-cu11==11.10.3.66", PACKAGES[1])
    with refused("incomplete-toolkit"):
        make_complete_copy(bare, lacking_toolkit_parts(bare.home, "11.8", PARTS), ARCH, older)


@pytest.mark.usefixtures("index")
@pytest.mark.parametrize(
    ("package", "code", "detail"),
    [
        ("nvidia-cublas-cu11==11.99", "no-provider", "nvidia-cublas-cu11==11.99"),
        ("nvidia-cufft-cu11==1", "part-not-on-pypi", "CCCL"),
    ],
)
def test_an_unavailable_part_is_named(
    package: str, code: str, detail: str, bare: FoundToolkit, tmp_path: Path
) -> None:
    packages = (package, PACKAGES[1]) if "cublas" in package else (PACKAGES[0], package)
    with refused(code) as raised:
        make_complete_copy(
            bare, lacking_toolkit_parts(bare.home, "11.8", PARTS), ARCH, shop(tmp_path, *packages)
        )
    assert detail in str(raised.value)
    assert str(raised.value).endswith("`invoke toolkit --cuda 11.8`")


def test_a_full_disk_is_reported_before_any_download(
    index: Index, bare: FoundToolkit, tmp_path: Path
) -> None:
    name = f"nvidia_cublas_cu11-11.11.3.6-py3-none-{TAG}.whl"
    index.attributes[name] = {**index.attributes[name], "size": 1 << 60}
    with refused("disk-full"):
        make_complete_copy(
            bare, lacking_toolkit_parts(bare.home, "11.8", PARTS), ARCH, shop(tmp_path)
        )
    assert not any(request.startswith("GET /files") for request in index.requests)


def test_a_compiler_that_does_not_run_is_reported_before_any_download(
    index: Index, bare: FoundToolkit, tmp_path: Path
) -> None:
    file(bare.home / "bin/nvcc", "of another machine")
    with refused("nvcc-does-not-run"):
        make_complete_copy(
            bare, lacking_toolkit_parts(bare.home, "11.8", PARTS), ARCH, shop(tmp_path)
        )
    assert index.requests == []


@pytest.mark.usefixtures("index")
def test_two_toolkits_of_one_version_are_completed_apart(
    bare: FoundToolkit, tmp_path: Path
) -> None:
    other = replace(bare, home=shutil.copytree(bare.home, tmp_path / "another"))
    lacks = lacking_toolkit_parts(bare.home, "11.8", PARTS)
    homes = {
        make_complete_copy(toolkit, lacks, ARCH, shop(tmp_path)).home
        for toolkit in (bare, other, bare)
    }
    assert len(homes) == 2


def test_the_toolkit_that_builds_use_is_completed() -> None:
    first = FoundToolkit("11.8", Path("/opt/cuda"), "CUDA_HOME")
    second = FoundToolkit("11.8", Path("/cuda"), "system")
    assert base_toolkit("11.8", (first, second)) == first
    with refused("no-toolkit-to-complete"):
        base_toolkit("12.4", (first, second))
    with refused("no-toolkit-to-complete"):
        base_toolkit("12.4", ())
    with refused("toolkit-spread-in-system"):
        base_toolkit("11.8", (FoundToolkit("11.8", Path("/usr"), "Debian"), first))


def place_all(home: Path, folder: Path, arch: str = "x86_64") -> Sequence[str]:
    folder.mkdir()
    place_inherited(home, folder, arch)
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


def test_the_layout_of_nvidia_becomes_one_folder(tmp_path: Path) -> None:
    home = tmp_path / "cuda-11.8"
    target = home / "targets/x86_64-linux"
    file(home / "bin/nvcc", "nvcc").chmod(0o755)
    file(target / "include/cuda.h")
    file(target / "lib/libcudart.so.11.0", "library")
    (target / "lib/libcudart.so").symlink_to("libcudart.so.11.0")
    (target / "lib/libcublas.so").symlink_to("libcublas.so.11")  # a dangling link
    file(home / "targets/aarch64-linux/lib/libcudart.so.11.0", "of another machine")
    file(home / "extras/CUPTI/include/cupti.h")
    for left_out in ("nsight/bin/ncu", "extras/demo_suite/bandwidthTest", "doc/x.pdf"):
        file(home / left_out)
    file(home / "version.json", "{}")
    (home / "include").symlink_to("targets/x86_64-linux/include")
    (home / "lib64").symlink_to("targets/x86_64-linux/lib")
    (target / "include/round").symlink_to("../include")  # a circle
    folder = tmp_path / "made"
    assert place_all(home, folder) == [
        "bin/nvcc",
        "include/cuda.h",
        "include/cupti.h",
        "lib64/libcudart.so",
        "lib64/libcudart.so.11.0",
        "version.json",
    ]
    assert (folder / "lib64/libcudart.so").readlink() == Path("libcudart.so.11.0")
    assert (folder / "lib64/libcudart.so").read_text() == "library"
    assert os.access(folder / "bin/nvcc", os.X_OK)


def test_files_are_linked_on_one_disk(tmp_path: Path) -> None:
    library = file(tmp_path / "cuda/lib64/libcudart.so.11.0", "library")
    outside = file(tmp_path / "elsewhere/nvcc", "nvcc")
    (tmp_path / "cuda/bin").mkdir()
    (tmp_path / "cuda/bin/nvcc").symlink_to(outside)
    assert place_all(tmp_path / "cuda", tmp_path / "made") == [
        "bin/nvcc",
        "lib64/libcudart.so.11.0",
    ]
    assert library.samefile(tmp_path / "made/lib64/libcudart.so.11.0")
    program = tmp_path / "made/bin/nvcc"
    assert not program.is_symlink(), "nvcc finds its parts by its real path"
    assert copied_bytes(tmp_path / "cuda", tmp_path, "x86_64") == 0
    assert copied_bytes(tmp_path / "cuda", Path("/proc"), "x86_64") == len("librarynvcc")


def test_a_link_to_a_file_without_a_place_becomes_a_file(tmp_path: Path) -> None:
    libraries = tmp_path / "cuda/lib64"
    file(libraries / "pkgconfig", "library")
    (libraries / "libcudart.so").symlink_to("pkgconfig")
    assert place_all(tmp_path / "cuda", tmp_path / "made") == ["lib64/libcudart.so"]
    assert (tmp_path / "made/lib64/libcudart.so").read_text() == "library"
    assert copied_bytes(tmp_path / "cuda", Path("/proc"), "x86_64") == len("library")


def test_only_files_of_nvidia_count_in_a_conda_environment(tmp_path: Path) -> None:
    nvcc = [
        "bin/nvcc",
        "targets/x86_64-linux/include/cuda.h",
        "nvvm/bin/cicc",
        "lib/pkgconfig/cudart.pc",
    ]
    for name, paths in {
        "cuda-nvcc-impl": nvcc,
        "python": ["bin/python", "include/python3/Python.h"],
    }.items():
        for path in paths:
            file(tmp_path / "env" / path)
        record = json.dumps({"name": name, "files": paths})
        file(tmp_path / "env/conda-meta" / f"{name}-1.json", record)
    assert [place for place, _ in inherited_files(tmp_path / "env", "x86_64")] == [
        "bin/nvcc",
        "include/cuda.h",
        "nvvm/bin/cicc",
    ]


def test_a_damaged_conda_record_names_no_files(tmp_path: Path) -> None:
    (tmp_path / "conda-meta").mkdir()
    (tmp_path / "conda-meta/cuda-nvcc-1.json").write_text("")
    assert list(inherited.inherited_files(tmp_path, "x86_64")) == []
