"""Toolkits and compilers from Debian's packages."""

import os
import platform
from pathlib import Path
from typing import cast

import pytest

from tests.support.debian_archive import DebianArchive, needs_apt
from tests.support.refusals import refused
from tests.support.silent_progress import SilentProgress
from torchmill.config.toolkit import ToolkitKind, ToolkitSource
from torchmill.fetch.source.apt_archives import BINARIES, AptArchive, parse_suite, suite_archives
from torchmill.fetch.toolkit.debian import (
    mend_links,
    offer,
    pinned_versions,
    unpack_packages,
)
from torchmill.fetch.toolkit.layout import place_files, placer
from torchmill.fetch.toolkit.request import ProviderOffer, ProviderRefusal, ToolkitRequest
from torchmill.host.provisioned import COMPILER, TOOLKIT

CUDA = ToolkitRequest(TOOLKIT, "11.8", None, "x86_64")
GCC = ToolkitRequest(COMPILER, "gcc-11", None, "x86_64")
LIB = "usr/lib/x86_64-linux-gnu"
NVIDIA = "usr/lib/nvidia-cuda-toolkit"
VERSION = "11.8.89~11.8.0-5~deb12u1"
MADE_FROM = "nvidia-cuda-toolkit (11.8.0-5~deb12u1)"
tried_here = pytest.mark.skipif(
    (platform.machine(), platform.libc_ver()[0]) != ("x86_64", "glibc"),
    reason="the packages are amd64's",
)
NVCC = "#!/bin/sh\necho release 11.8, V11.8.89\n"


def source(kind: ToolkitKind, *packages: str, suite: str = "bookworm") -> ToolkitSource:
    return ToolkitSource(
        "debian", kind, (), packages, ("x86_64",), (f"debian/{suite}/main",), None, "a test"
    )


def ask(archive: DebianArchive, request: ToolkitRequest, *packages: str) -> ProviderOffer:
    archive.publish()
    answer = offer(
        request,
        [source(cast("ToolkitKind", request.kind), *packages)],
        archive.folder / "cache",
        SilentProgress(),
        archive.etc,
    )
    assert isinstance(answer, ProviderOffer), answer
    return answer


@pytest.fixture
def toolkit(tmp_path: Path) -> DebianArchive:
    archive = DebianArchive(tmp_path)
    programs = {
        f"{NVIDIA}/bin/nvcc": NVCC,
        f"{NVIDIA}/bin/cicc": "#!/bin/sh\n",
        f"{NVIDIA}/bin/g++": "-> ../../../bin/g++-11",
        f"{NVIDIA}/bin/nvcc.profile": "-> /etc/nvcc.profile",
        f"{NVIDIA}/libdevice/libdevice.10.bc": "BC",
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
def test_a_toolkit_is_installed(toolkit: DebianArchive) -> None:
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
def test_intact_downloads_are_reused(toolkit: DebianArchive) -> None:
    answer = ask(toolkit, CUDA, "nvidia-cuda-toolkit")
    store = toolkit.folder / "cache/downloads/11.8-x86_64"
    home = toolkit.folder / "home"
    home.mkdir()
    answer.fill(home)
    again = toolkit.folder / "again"
    again.mkdir()
    for deb in (toolkit.folder / "pool").glob("*.deb"):
        deb.unlink()
    answer.fill(again)
    assert (again / "bin/nvcc").is_file()
    spoiled = store / answer.pieces[0].file
    spoiled.write_bytes(b"x" * spoiled.stat().st_size)
    with refused("apt-failed"):
        answer.fill(again)


@needs_apt
def test_the_refusal_names_what_suites_lack(toolkit: DebianArchive) -> None:
    toolkit.publish()
    sources = [source(TOOLKIT, "nvidia-cuda-toolkit=11.8.0"), source(TOOLKIT, "cuda-nvcc-11-8")]
    answer = offer(CUDA, sources, toolkit.folder / "cache", SilentProgress(), toolkit.etc)
    assert answer == ProviderRefusal(
        "debian",
        "Debian's bookworm now has nvidia-cuda-toolkit 11.8.89~11.8.0, but 11.8.0 is expected; "
        "Debian's bookworm lists no cuda-nvcc-11-8",
    )


@needs_apt
def test_an_unreachable_archive_is_refused(tmp_path: Path) -> None:
    archive = DebianArchive(tmp_path)
    answer = offer(
        CUDA,
        [source(TOOLKIT, "nvidia-cuda-toolkit")],
        tmp_path / "cache",
        SilentProgress(),
        archive.etc,
    )
    assert isinstance(answer, ProviderRefusal)
    assert answer.reason.startswith("Debian's bookworm cannot be asked (")


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
def test_a_compiler_is_installed(tmp_path: Path) -> None:
    answer = ask(
        compiler(DebianArchive(tmp_path), '#!/bin/sh\nexec c++ "$@"\n'), GCC, "g++-{major}"
    )
    home = tmp_path / "home"
    home.mkdir()
    answer.fill(home)
    assert (answer.full, sorted(path.name for path in home.iterdir())) == ("11.3.0", ["bin", "lib"])
    assert (home / "bin/g++-11").readlink() == Path("x86_64-linux-gnu-g++-11")


@needs_apt
@tried_here
def test_a_compiler_that_does_not_run_is_refused(tmp_path: Path) -> None:
    script = (
        "#!/bin/sh\necho cc1plus: error while loading shared libraries: libisl.so.1 >&2\nexit 1\n"
    )
    answer = ask(compiler(DebianArchive(tmp_path), script), GCC, "g++-{major}")
    home = tmp_path / "home"
    home.mkdir()
    with refused("compiler-does-not-work"):
        answer.fill(home)


@needs_apt
@tried_here
def test_a_compiler_that_needs_a_newer_glibc_is_refused(tmp_path: Path) -> None:
    archive = compiler(DebianArchive(tmp_path), "#!/bin/sh\n", "libc6 (>= 9.1)")
    archive.publish()
    answer = offer(
        GCC, [source(COMPILER, "g++-{major}")], tmp_path / "cache", SilentProgress(), archive.etc
    )
    assert isinstance(answer, ProviderRefusal)
    assert answer.reason.startswith(
        "the one of Debian's bookworm needs glibc 9.1, but this machine has "
    )


def test_a_machine_without_apt_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    answer = offer(CUDA, [source(TOOLKIT, "nvidia-cuda-toolkit")], tmp_path, SilentProgress())
    assert answer == ProviderRefusal("debian", "it needs apt-get, which this machine does not have")


@needs_apt
def test_magma_is_installed_for_static_linking_only(tmp_path: Path) -> None:
    archive = DebianArchive(tmp_path)
    files = {
        "usr/include/magma_v2.h": "",
        "usr/lib/libmagma.a": "static",
        "usr/lib/libmagma.so": "-> libmagma.so.2",
        "usr/lib/libmagma_sparse.a": "sparse",
        "usr/share/doc/libmagma-dev/copyright": "terms",
    }
    archive.add("libmagma-dev", "2.6.2+ds-1", files, "magma", "libmagma2 (= 2.6.2+ds-1)")
    archive.add(
        "libmagma2", "2.6.2+ds-1", {"usr/lib/libmagma.so.2": "shared"}, "magma", "libcublas11"
    )
    answer = ask(archive, ToolkitRequest("magma", "2.6", "11.8", "x86_64"), "libmagma-dev")
    assert ([path.name for path in answer.pieces], answer.full) == (["libmagma-dev"], "2.6.2")
    assert answer.request.name == "magma-2.6.2-cu118"
    home = archive.folder / "home"
    home.mkdir()
    answer.fill(home)
    names = {
        str(path.relative_to(home))
        for path in home.rglob("*")
        if not path.is_dir() or path.is_symlink()
    }
    assert names == {"include/magma_v2.h", "lib/libmagma.a", "licenses/magma/copyright"}
    other = offer(
        ToolkitRequest("magma", "2.7", "11.8", "x86_64"),
        [source("magma", "libmagma-dev")],
        archive.folder / "cache",
        SilentProgress(),
        archive.etc,
    )
    assert isinstance(other, ProviderRefusal)
    assert other.reason == "Debian's bookworm has magma 2.6.2"


@pytest.mark.parametrize(
    ("path", "new"),
    [
        ("usr/lib/nvidia-cuda-toolkit/bin/nvcc", "bin/nvcc"),
        ("usr/lib/nvidia-cuda-toolkit/bin/cicc", "nvvm/bin/cicc"),
        ("usr/lib/nvidia-cuda-toolkit/bin/crt/link.stub", "bin/crt/link.stub"),
        ("usr/lib/nvidia-cuda-toolkit/libdevice/libdevice.10.bc", "nvvm/libdevice/libdevice.10.bc"),
        ("usr/bin/cuobjdump", "bin/cuobjdump"),
        ("usr/bin/cudafe++", "bin/cudafe++"),
        ("usr/include/crt/host_config.h", "include/crt/host_config.h"),
        ("usr/include/nvvm.h", "nvvm/include/nvvm.h"),
        ("usr/lib/x86_64-linux-gnu/libcublas.so.11", "lib64/libcublas.so.11"),
        ("usr/lib/x86_64-linux-gnu/stubs/libcuda.so", "lib64/stubs/libcuda.so"),
        ("usr/lib/x86_64-linux-gnu/libnvvm.so.4", "nvvm/lib64/libnvvm.so.4"),
        ("usr/share/cmake/cub/cub-config.cmake", "lib64/cmake/cub/cub-config.cmake"),
        # files that would mislead nvcc or CMake, or that no build needs
        ("usr/bin/nvcc", None),
        ("usr/lib/nvidia-cuda-toolkit/bin/g++", None),
        ("usr/lib/nvidia-cuda-toolkit/bin/nvcc.profile", None),
        ("etc/nvcc.profile", None),
        ("usr/lib/cuda/include/cuda.h", None),
        ("usr/lib/x86_64-linux-gnu/pkgconfig/cuda.pc", None),
        ("usr/lib/aarch64-linux-gnu/libcublas.so.11", None),
        ("usr/share/doc/libcublas11/copyright", None),
        ("usr/lib/nvidia-cuda-toolkit/compute-sanitizer/include/sanitizer.h", None),
    ],
)
def test_files_of_a_toolkit_are_placed(path: str, new: str | None) -> None:
    assert placer("debian", "x86_64")(path) == new


def test_files_of_another_arch_are_placed() -> None:
    place = placer("debian", "aarch64")
    assert place("usr/lib/aarch64-linux-gnu/libcudart_static.a") == "lib64/libcudart_static.a"
    assert place("usr/lib/x86_64-linux-gnu/libcudart_static.a") is None


def test_files_of_a_compiler_are_placed() -> None:
    paths = [
        "usr/bin/g++-11",
        "usr/lib/gcc/x86_64-linux-gnu/11/cc1plus",
        "usr/include/c++/11/vector",
    ]
    place = placer("compiler")
    assert [place(path) for path in paths] == [path.removeprefix("usr/") for path in paths]
    assert place("usr/share/man/man1/g++-11.1.gz") is None
    assert place("etc/x") is None


@pytest.mark.parametrize(
    ("path", "target", "link"),
    [
        ("usr/lib/x86_64-linux-gnu/libcudart.so", "libcudart.so.11.0", "libcudart.so.11.0"),
        ("usr/lib/x86_64-linux-gnu/libnvvm.so", "libnvvm.so.4", "libnvvm.so.4"),
        ("usr/bin/cicc", "../lib/nvidia-cuda-toolkit/bin/cicc", "../nvvm/bin/cicc"),
        ("usr/bin/fatbinary", "/usr/lib/nvidia-cuda-toolkit/bin/fatbinary", None),  # the same place
        ("usr/bin/fatbin", "/usr/lib/nvidia-cuda-toolkit/bin/fatbinary", "fatbinary"),
        ("usr/lib/x86_64-linux-gnu/libx.so", "../../share/doc/x", None),
        ("usr/bin/nvcc", "ptxas", None),
        ("usr/bin/x", "../../../../../usr/bin/ptxas", "ptxas"),
    ],
)
def test_links_are_placed_with_their_targets(
    tmp_path: Path, path: str, target: str, link: str | None
) -> None:
    """A link leads to the same file in the toolkit, or is left out together with it."""
    place = placer("debian", "x86_64")
    home = tmp_path / "home"
    packed = tmp_path / "package" / path
    packed.parent.mkdir(parents=True)
    packed.symlink_to(target)
    place_files(tmp_path / "package", home, place)
    assert [str(path.readlink()) for path in home.rglob("*") if path.is_symlink()] == (
        [link] if link else []
    )


BOOKWORM = parse_suite(("debian/bookworm/main", "debian/bookworm/non-free"))
KEY = (("Signed-By", "/k.gpg"),)


def read(uri: str, options: tuple[tuple[str, str], ...] = KEY) -> AptArchive:
    return AptArchive(uri, "bookworm", ("main", "non-free"), options, BINARIES)


def test_a_suite_is_named_after_its_distribution() -> None:
    assert str(BOOKWORM) == "Debian's bookworm"


def test_the_archive_of_the_machine_is_read(tmp_path: Path) -> None:
    machine = (
        AptArchive("http://a/debian", "bookworm", ("main",), KEY),
        AptArchive("http://a/debian", "bookworm-updates", ("main",), KEY),
        AptArchive("http://vendor/apt", "bookworm", ("stable",)),
    )
    archives = suite_archives(BOOKWORM, machine, tmp_path)
    assert archives == (read("http://a/debian"),)
    assert archives[0].stanza() == (
        "Types: deb\nURIs: http://a/debian\nSuites: bookworm\n"
        "Components: main non-free\nSigned-By: /k.gpg\n"
    )


def test_an_archive_with_another_suite_is_read(tmp_path: Path) -> None:
    machine = (
        AptArchive("http://vendor/apt", "nodistro", ("main",)),
        AptArchive("http://mirror/debian", "trixie", ("main",), KEY),
    )
    assert suite_archives(BOOKWORM, machine, tmp_path) == (read("http://mirror/debian"),)


def test_another_distribution_needs_the_keys(tmp_path: Path) -> None:
    machine = (AptArchive("http://a/ubuntu", "noble", ("main",)),)
    assert suite_archives(BOOKWORM, machine, tmp_path) == ()
    key = tmp_path / "debian-archive-keyring.gpg"
    key.touch()
    debian = read("http://deb.debian.org/debian", (("Signed-By", str(key)),))
    assert suite_archives(BOOKWORM, machine, tmp_path) == (debian,)


def test_pinned_versions_are_parsed() -> None:
    assert pinned_versions(["libcub-dev", "nvidia-cuda-toolkit=11.2.2"], "11.2") == {
        "libcub-dev": "",
        "nvidia-cuda-toolkit": "11.2.2",
    }
    assert pinned_versions(["g++-{major}"], "gcc-11") == {"g++-11": ""}


def keep(path: str) -> str | None:
    return None if path.startswith("doc/") else path


@needs_apt
def test_packages_are_unpacked(tmp_path: Path) -> None:
    files = {
        "bin/tool": "#!/bin/sh\n",
        "lib/a.so": "-> a.so.1",
        "lib/a.so.1": "a",
        "doc/x": "x",
        "lib/no": "-> ../doc/x",
    }
    deb = DebianArchive(tmp_path).add("tool", "1", files)
    home = tmp_path / "home"
    home.mkdir()
    assert list(unpack_packages([deb], home, keep)) == [deb]
    assert sorted(str(path.relative_to(home)) for path in home.rglob("*")) == [
        "bin",
        "bin/tool",
        "lib",
        "lib/a.so",
        "lib/a.so.1",
    ]
    assert (home / "lib/a.so").read_text() == "a"
    assert (home / "bin/tool").stat().st_mode & 0o777 == 0o755


@needs_apt
def test_a_file_that_is_no_package_is_refused(tmp_path: Path) -> None:
    broken = tmp_path / "broken.deb"
    broken.write_text("not a package")
    with refused("damaged-archive"):
        list(unpack_packages([broken], tmp_path, keep))
    assert broken.exists(), "its digest was right: another dpkg-deb may unpack it"


@needs_apt
def test_a_truncated_package_is_refused(tmp_path: Path) -> None:
    deb = DebianArchive(tmp_path).add("tool", "1", {"bin/tool": "#!" + "x" * 100_000})
    deb.write_bytes(deb.read_bytes()[:50_000])
    home = tmp_path / "home"
    home.mkdir()
    with refused("damaged-archive"):
        list(unpack_packages([deb], home, keep))


def test_a_full_disk_is_recognised_in_any_language(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "bin/dpkg-deb"
    program.parent.mkdir()
    script = """#!/bin/sh
if [ "$LC_ALL" = C ]
then echo "No space left on device"
else echo "Auf dem Gerät ist kein Speicherplatz mehr"
fi
exit 2
"""
    program.write_text(script, encoding="utf-8")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(program.parent), prepend=os.pathsep)
    monkeypatch.setenv("LC_ALL", "de_DE.UTF-8")
    package = tmp_path / "whole.deb"
    package.touch()
    with refused("disk-full"):
        list(unpack_packages([package], tmp_path, keep))
    assert package.exists(), "the package itself is intact"


def test_dangling_links_are_mended_or_removed(tmp_path: Path) -> None:
    home = tmp_path / "home"
    machine = tmp_path / "machine"
    home.mkdir()
    machine.mkdir()
    (machine / "libstdc++.so.6").touch()
    (home / "whole").symlink_to("there")
    (home / "there").touch()
    (home / "libstdc++.so").symlink_to("../lib/libstdc++.so.6")
    (home / "libgone.so").symlink_to("libgone.so.1")
    mend_links(home, [tmp_path / "nowhere", machine])
    assert {path.name: path.resolve() for path in home.iterdir()} == {
        "whole": home / "there",
        "there": home / "there",
        "libstdc++.so": machine / "libstdc++.so.6",
    }
