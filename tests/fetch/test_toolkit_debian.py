"""Toolkits and compilers out of packages of a small archive of our own, by the real apt and dpkg."""

import os
import platform
from pathlib import Path

import pytest

from tests.support.debian_archive import DebianArchive, needs_apt
from tests.support.refusals import refused
from tests.support.silent_progress import SilentProgress
from torchmill.config.delivery_model import ToolkitSource
from torchmill.fetch.toolkit.debian import DebianOffer, offer
from torchmill.fetch.toolkit.request import ProviderRefusal, ToolkitRequest
from torchmill.host.provisioned import COMPILER, TOOLKIT

CUDA, GCC = (
    ToolkitRequest(TOOLKIT, "11.8", None, "x86_64"),
    ToolkitRequest(COMPILER, "gcc-11", None, "x86_64"),
)
LIB, OWN = "usr/lib/x86_64-linux-gnu", "usr/lib/nvidia-cuda-toolkit"
VERSION = "11.8.89~11.8.0-5~deb12u1"
MADE_FROM = "nvidia-cuda-toolkit (11.8.0-5~deb12u1)"
tried_here = pytest.mark.skipif(
    (platform.machine(), platform.libc_ver()[0]) != ("x86_64", "glibc"), reason="the packages are amd64's"
)
NVCC = "#!/bin/sh\necho release 11.8, V11.8.89\n"


def source(kind: str, *packages: str, suite: str = "bookworm") -> ToolkitSource:
    return ToolkitSource("debian", kind, (), packages, ("x86_64",), (f"debian/{suite}/main",), None, "a test")


def ask(archive: DebianArchive, wanted: ToolkitRequest, *packages: str) -> DebianOffer:
    archive.publish()
    answer = offer(
        wanted, [source(wanted.kind, *packages)], archive.folder / "cache", SilentProgress(), archive.etc
    )
    assert isinstance(answer, DebianOffer), answer
    return answer


@pytest.fixture
def toolkit(tmp_path: Path) -> DebianArchive:
    archive = DebianArchive(tmp_path)
    programs = {
        f"{OWN}/bin/nvcc": NVCC,
        f"{OWN}/bin/cicc": "#!/bin/sh\n",
        f"{OWN}/bin/g++": "-> ../../../bin/g++-11",
        f"{OWN}/bin/nvcc.profile": "-> /etc/nvcc.profile",
        f"{OWN}/libdevice/libdevice.10.bc": "BC",
        "usr/bin/nvcc": "#!/bin/sh\nexec elsewhere\n",
        "usr/bin/ptxas": "#!/bin/sh\n",
    }
    needs = f"nvidia-cuda-dev (= {VERSION}), g++-11 | clang-14, libc6 (>= 2.34)"
    archive.add("nvidia-cuda-toolkit", VERSION, programs, MADE_FROM, needs)
    parts = {
        "usr/include/cuda_runtime_api.h": "#define CUDART_VERSION 11080\n",
        f"{LIB}/libcudart.so": "-> libcudart.so.11.0",
        f"{LIB}/libculibos.a": "!<arch>\n",
        f"{LIB}/libgone.so": "-> libgone.so.1",
        f"{LIB}/stubs/libcuda.so": "stub",
    }
    needs = "libcudart11.0 (= 11.8.89), libcuda1 (>= 520) | libcuda.so.1"
    archive.add("nvidia-cuda-dev", VERSION, parts, MADE_FROM, needs)
    runtime = {
        f"{LIB}/libcudart.so.11.0": "-> libcudart.so.11.8.89",
        f"{LIB}/libcudart.so.11.8.89": "library",
    }
    archive.add("libcudart11.0", VERSION, runtime, MADE_FROM)
    archive.add("libthrust-dev", "1.17.2-2", {"usr/include/thrust/version.h": "1"}, "libthrust")
    archive.add("g++-11", "11.3.0-12", {"usr/bin/g++-11": "#!/bin/sh\n"}, "gcc-11")
    archive.add("libcuda1", "535.1-1", {f"{LIB}/libcuda.so.1": "driver"}, "nvidia-graphics-drivers")
    return archive


@needs_apt
def test_a_toolkit(toolkit: DebianArchive) -> None:
    answer = ask(toolkit, CUDA, "nvidia-cuda-toolkit=11.8.89~11.8.0", "libthrust-dev")
    names = ["nvidia-cuda-toolkit", "libthrust-dev", "nvidia-cuda-dev", "libcudart11.0"]
    assert ([piece.name for piece in answer.pieces], answer.full) == (names, "11.8.0")
    home = toolkit.folder / "home"
    home.mkdir()
    answer.fill(home)
    for path in ("bin/nvcc", "bin/ptxas", "nvvm/bin/cicc", "nvvm/libdevice/libdevice.10.bc"):
        assert (home / path).is_file(), path
    for path in ("include/thrust/version.h", "lib64/libculibos.a", "lib64/stubs/libcuda.so"):
        assert (home / path).is_file(), path
    assert (home / "bin/nvcc").read_text() == NVCC
    assert os.access(home / "bin/nvcc", os.X_OK)
    assert (home / "lib64/libcudart.so").read_text() == "library"
    assert "nvvm/bin" in (home / "bin/nvcc.profile").read_text()
    assert '"version": "11.8.0"' in (home / "version.json").read_text()
    assert (home / "extras/CUPTI/include/cuda_runtime_api.h").is_file()
    assert not any(
        (home / path).is_symlink() for path in ("bin/g++", "lib64/libgone.so", "lib64/libcuda.so.1")
    )


@needs_apt
def test_what_was_downloaded_is_used_and_what_is_spoiled_is_not(toolkit: DebianArchive) -> None:
    answer = ask(toolkit, CUDA, "nvidia-cuda-toolkit")
    store, home = toolkit.folder / "cache/downloads/debian", toolkit.folder / "home"
    home.mkdir()
    answer.fill(home)
    (again := toolkit.folder / "again").mkdir()
    for deb in (toolkit.folder / "pool").glob("*.deb"):
        deb.unlink()
    answer.fill(again)
    assert (again / "bin/nvcc").is_file()
    spoiled = store / answer.pieces[0].file
    spoiled.write_bytes(b"x" * spoiled.stat().st_size)
    with refused("apt-failed"):
        answer.fill(again)


@needs_apt
def test_what_a_suite_does_not_have(toolkit: DebianArchive) -> None:
    toolkit.publish()
    sources = [source(TOOLKIT, "nvidia-cuda-toolkit=11.8.0"), source(TOOLKIT, "cuda-nvcc-11-8")]
    answer = offer(CUDA, sources, toolkit.folder / "cache", SilentProgress(), toolkit.etc)
    assert answer == ProviderRefusal(
        "debian",
        "Debian's bookworm has nvidia-cuda-toolkit 11.8.89~11.8.0 now, and 11.8.0 is expected; "
        "Debian's bookworm lists no cuda-nvcc-11-8",
    )


@needs_apt
def test_an_archive_that_does_not_answer(tmp_path: Path) -> None:
    archive = DebianArchive(tmp_path)
    answer = offer(
        CUDA, [source(TOOLKIT, "nvidia-cuda-toolkit")], tmp_path / "cache", SilentProgress(), archive.etc
    )
    assert isinstance(answer, ProviderRefusal)
    assert answer.sentence.startswith("Debian's bookworm cannot be asked (")


def compiler(archive: DebianArchive, script: str, depends: str = "libc6 (>= 2.2)") -> DebianArchive:
    files = {
        "usr/bin/x86_64-linux-gnu-g++-11": script,
        "usr/bin/g++-11": "-> x86_64-linux-gnu-g++-11",
        "usr/share/doc/g++-11/copyright": "GPL",
        "usr/lib/gcc/x86_64-linux-gnu/11/libstdc++.so": "-> ../../../x86_64-linux-gnu/libc.so.6",
    }
    archive.add("g++-11", "11.3.0-12", files, "gcc-11", depends)
    return archive


@needs_apt
def test_a_compiler(tmp_path: Path) -> None:
    answer = ask(compiler(DebianArchive(tmp_path), '#!/bin/sh\nexec c++ "$@"\n'), GCC, "g++-{major}")
    (home := tmp_path / "home").mkdir()
    answer.fill(home)
    assert (answer.full, sorted(one.name for one in home.iterdir())) == ("11.3.0", ["bin", "lib"])
    assert (home / "bin/g++-11").readlink() == Path("x86_64-linux-gnu-g++-11")


@needs_apt
@tried_here
def test_a_compiler_that_does_not_run_here(tmp_path: Path) -> None:
    script = "#!/bin/sh\necho cc1plus: error while loading shared libraries: libisl.so.1 >&2\nexit 1\n"
    answer = ask(compiler(DebianArchive(tmp_path), script), GCC, "g++-{major}")
    (home := tmp_path / "home").mkdir()
    with refused("compiler-does-not-work"):
        answer.fill(home)


@needs_apt
@tried_here
def test_a_compiler_for_a_newer_machine(tmp_path: Path) -> None:
    archive = compiler(DebianArchive(tmp_path), "#!/bin/sh\n", "libc6 (>= 9.1)")
    archive.publish()
    answer = offer(GCC, [source(COMPILER, "g++-{major}")], tmp_path / "cache", SilentProgress(), archive.etc)
    assert isinstance(answer, ProviderRefusal)
    assert answer.sentence.startswith("that of Debian's bookworm needs glibc 9.1, and this machine has ")


def test_a_machine_without_apt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    answer = offer(CUDA, [source(TOOLKIT, "nvidia-cuda-toolkit")], tmp_path, SilentProgress())
    assert answer == ProviderRefusal("debian", "it needs apt-get, which this machine does not have")


@needs_apt
def test_of_magma_the_static_library_is_taken_and_nothing_that_it_runs_with(tmp_path: Path) -> None:
    archive = DebianArchive(tmp_path)
    files = {
        "usr/include/magma_v2.h": "",
        "usr/lib/libmagma.a": "static",
        "usr/lib/libmagma.so": "-> libmagma.so.2",
        "usr/lib/libmagma_sparse.a": "sparse",
        "usr/share/doc/libmagma-dev/copyright": "terms",
    }
    archive.add("libmagma-dev", "2.6.2+ds-1", files, "magma", "libmagma2 (= 2.6.2+ds-1)")
    archive.add("libmagma2", "2.6.2+ds-1", {"usr/lib/libmagma.so.2": "shared"}, "magma", "libcublas11")
    answer = ask(archive, ToolkitRequest("magma", "2.6", "11.8", "x86_64"), "libmagma-dev")
    assert ([one.name for one in answer.pieces], answer.full) == (["libmagma-dev"], "2.6.2")
    assert answer.wanted.name == "magma-2.6.2-cu118"
    home = archive.folder / "home"
    home.mkdir()
    answer.fill(home)
    names = {str(one.relative_to(home)) for one in home.rglob("*") if not one.is_dir() or one.is_symlink()}
    assert names == {"include/magma_v2.h", "lib/libmagma.a", "licenses/magma/copyright"}
    other = offer(
        ToolkitRequest("magma", "2.7", "11.8", "x86_64"),
        [source("magma", "libmagma-dev")],
        archive.folder / "cache",
        SilentProgress(),
        archive.etc,
    )
    assert isinstance(other, ProviderRefusal)
    assert other.sentence == "Debian's bookworm has magma 2.6.2"
