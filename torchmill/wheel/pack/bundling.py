"""Bundle the libraries that a wheel needs and that are neither in it nor on every system of its tag.

Libraries are found as the loader of this machine finds them (`LibrarySearch`). Those of NVIDIA open others by
name, and some come from packages of PyPI that the wheel requires, instead of being bundled.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from torchmill.core.errors import VerifyError
from torchmill.core.files import hash_file, report_unwritable
from torchmill.core.process import capture
from torchmill.wheel.pack import elf
from torchmill.wheel.pack.elf import ElfInfo
from torchmill.wheel.pack.policy import INTERPRETER_LIBRARY, LOCAL_LIBRARY, PlatformTarget
from torchmill.wheel.pack.staging import StagedWheel

# torch, cuDNN and each other open these by name: renamed, they would not be found.
_OPENED_BY_NAME = re.compile(r"lib(cudnn\w*|cublas(Lt)?|nvrtc(-builtins)?|nvJitLink)\.so(\.\d+)*")
# What a library opens at run time, which its headers do not name.
NVRTC = re.compile(r"libnvrtc\.so\.\d+(\.\d+)*")
_OPENS_BY_NAME = ((re.compile(r"libcudnn\.so\.\d+"), "libcudnn_*.so.*"), (NVRTC, "libnvrtc-builtins.so.*"))
CUDNN_8, NVRTC_FOR_CUDNN_8 = "libcudnn.so.8", "libnvrtc.so"  # sdnext#539, facefusion-docker#9
# The libraries of packages that are not named after their only library.
_NVIDIA_LIBRARIES = {
    "cublas": ("cublas", "cublasLt", "nvblas"),
    "cuda_cupti": ("cupti", "nvperf_*", "checkpoint", "pcsamplingutil"),
    "cuda_nvrtc": ("nvrtc", "nvrtc-builtins"),
    "cuda_runtime": ("cudart",),
    "cudnn": ("cudnn*",),
    "cufft": ("cufft", "cufftw"),
    "cufile": ("cufile", "cufile_rdma"),
    "cusolver": ("cusolver", "cusolverMg"),
    "cusparselt": ("cusparseLt",),
    "nvjitlink": ("nvJitLink",),
    "nvshmem": ("nvshmem*",),
    "nvtx": ("nvToolsExt", "nvtx3interop"),
}
# extra of `cuda-toolkit` -> package
_TOOLKIT_EXTRAS = {"cudart": "cuda_runtime", "cupti": "cuda_cupti", "nvrtc": "cuda_nvrtc"}
_NVIDIA_PACKAGE = re.compile(r"nvidia-([a-z-]+)-cu\d+")
_HASHED_NAME = re.compile(r"-[0-9a-f]{8}\.so(\.\d+)*$")
LDCONFIG_LINE = re.compile(r"\s*(?P<name>\S+) \(.*\) => (?P<path>/.+)")
LDCONFIG_FOLDERS = "/sbin:/usr/sbin:/usr/bin"
STANDARD_FOLDERS = ("/usr/local/lib", "/lib64", "/usr/lib64", "/lib", "/usr/lib")
MULTIARCH_FOLDERS = ("usr/local/lib/*-linux-*", "usr/lib/*-linux-*", "lib/*-linux-*")  # below /


@dataclass(frozen=True, slots=True)
class LibrarySearch:
    """Where libraries are searched for when a file's own run path does not lead to them."""

    folders: tuple[Path, ...]  # of the caller, searched first
    cached: tuple[tuple[str, Path], ...]  # the loader's cache, in its order
    standard: tuple[Path, ...]

    def find(self, needed: str, user: Path, rpath: Iterable[str], machine: str) -> Path | None:
        """Return the library for `machine` that the file `user` needs, or None."""
        name = Path(needed).name
        run_path = [expand_origin(entry, user) for entry in rpath]
        folders = [*(folder for folder in run_path if folder.is_absolute()), *self.folders]
        named = [Path(needed)] if needed.startswith("/") else []  # others depend on the working directory
        first = _first_library([*named, *(folder / name for folder in folders)], machine)
        return first or self.find_by_default(name, machine)

    def find_by_default(self, name: str, machine: str) -> Path | None:
        """Return the library that the loader finds without run path and caller's folders, or None."""
        cached = [path for library, path in self.cached if library == name]
        return _first_library([*cached, *(folder / name for folder in self.standard)], machine)


def _first_library(candidates: Iterable[Path], machine: str) -> Path | None:
    for path in candidates:
        info = elf.read_elf(path)
        if info is not None and info.runs_on(machine):
            return path
    return None


def system_search(folders: Iterable[Path] = ()) -> LibrarySearch:
    """Return the search order of this machine's loader, with `folders` first."""
    multiarch = [path for pattern in MULTIARCH_FOLDERS for path in sorted(Path("/").glob(pattern))]
    program = shutil.which("ldconfig", path=LDCONFIG_FOLDERS)
    listing = capture([program, "-p"]) if program else ""  # musl has no such cache
    standard = (*map(Path, STANDARD_FOLDERS), *multiarch)
    return LibrarySearch(tuple(folders), tuple(parse_ldconfig(listing)), standard)


def expand_origin(entry: str, user: Path) -> Path:
    """Return the folder of a run path's entry in the file `user`."""
    origin = str(user.parent)
    return Path(entry.replace("${ORIGIN}", origin).replace("$ORIGIN", origin))


def parse_ldconfig(listing: str) -> Iterator[tuple[str, Path]]:
    """Yield name and path of each library that `ldconfig -p` lists."""
    for line in listing.splitlines():
        if match := LDCONFIG_LINE.fullmatch(line):
            yield match["name"], Path(match["path"])


@dataclass(frozen=True, slots=True)
class PlainLinuxTarget:
    """The plain linux tag, for systems like this one: what this loader finds by default is not bundled."""

    tag: str
    arch: str
    search: LibrarySearch

    def on_system(self, library: str) -> bool:
        """Tell whether systems like this one have `library`."""
        local = LOCAL_LIBRARY.fullmatch(library) is not None
        return local or self.search.find_by_default(library, self.arch) is not None


@dataclass(frozen=True, slots=True)
class BundledLibrary:
    """A bundled library."""

    name: str  # in the wheel: "libfoo-0a1b2c3d.so.1"
    path: str  # in the wheel, from its root
    source: Path
    sha256: str  # of the source, before any edit


@dataclass
class Graft:
    """The state of bundling libraries into one wheel."""

    staged: StagedWheel
    target: PlatformTarget | PlainLinuxTarget
    search: LibrarySearch
    provided: frozenset[str]  # names of libraries that the package it depends on has loaded
    required_nvidia: Mapping[str, str]  # library -> folder, of packages that the wheel requires
    installed_nvidia: Mapping[str, str]  # library -> folder, of packages that the torch under it requires
    folder: Path  # for bundled libraries
    files: dict[Path, ElfInfo]
    own: frozenset[str]  # names of the libraries that the raw wheel has
    replaced: dict[Path, dict[str, str]] = field(default_factory=dict)  # user -> needed name -> new name
    bundled: dict[Path, BundledLibrary] = field(default_factory=dict)  # by resolved source
    notes: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def path_in_wheel(self, path: Path) -> str:
        """Return a path as the wheel spells it."""
        return path.relative_to(self.staged.root).as_posix()


def bundle_libraries(graft: Graft) -> None:
    """Bundle what the files need, then what those libraries need in turn, until nothing is missing.

    Raises VerifyError where a library is nowhere.
    """
    waiting = [(path, path) for path in graft.files]  # the file in the wheel, and the original
    while waiting:
        path, origin = waiting.pop(0)
        info = graft.files[path]
        for needed in _missing_libraries(graft, path):
            source = graft.search.find(needed, origin, info.rpath, info.machine)
            if source is None:
                graft.missing.append(f"{needed}, which {graft.path_in_wheel(path)} needs, is nowhere")
            else:
                waiting.extend(_bundle_with_companions(graft, path, needed, source))
    _alias_nvrtc(graft)
    if graft.missing:
        raise VerifyError(
            f"{'; '.join(graft.missing)}: install what provides them, or link with the folder that they "
            "are in (-- --set LDFLAGS=-Wl,-rpath,FOLDER)",
            code="library-not-found",
        )


def hashed_name(name: str, sha256: str) -> str:
    """Return the name of a bundled library, which no other library can have."""
    stem, dot, version = name.partition(".so")
    return f"{stem}-{sha256[:8]}{dot}{version}"


def is_bundled(name: str) -> bool:
    """Tell by its name whether a library in a finished wheel was bundled."""
    return keeps_name(name) or _HASHED_NAME.search(name) is not None


def _missing_libraries(graft: Graft, path: Path) -> Iterator[str]:
    """Yield the names that a file needs and neither the wheel, nor what it requires, nor the system has."""
    for needed in graft.files[path].needed:
        name = Path(needed).name
        if INTERPRETER_LIBRARY.fullmatch(name):
            graft.notes.append(
                f"{graft.path_in_wheel(path)} needed {needed}: removed, the interpreter provides it"
            )
        elif not (
            name in graft.own | graft.provided
            or graft.target.on_system(name)
            or nvidia_folder(graft.required_nvidia, name)
            or nvidia_folder(graft.installed_nvidia, name)
        ):
            yield needed
        elif needed != name:  # a path of the build, from the linker
            graft.replaced.setdefault(path, {})[needed] = name


def _bundle_with_companions(
    graft: Graft, user: Path, needed: str, source: Path
) -> Iterator[tuple[Path, Path]]:
    """Bundle `source` and what it opens by name, and note that `user` needs it by its new name."""
    if source.resolve() not in graft.bundled:
        for library in (source, *libraries_opened_by(source)):
            name = Path(needed).name if library == source else library.name
            yield from _bundle_library(graft, name, library.resolve())
    graft.replaced.setdefault(user, {})[needed] = graft.bundled[source.resolve()].name


def _bundle_library(graft: Graft, needed: str, real: Path) -> Iterator[tuple[Path, Path]]:
    """Copy a library that is `needed` by this name into the wheel, and yield the copy and the original."""
    if real in graft.bundled:
        return
    sha256 = hash_file(real)
    name = needed if keeps_name(needed) else hashed_name(needed, sha256)
    copy = graft.folder / name
    info = elf.read_elf(real)
    if info is not None and not copy.exists():
        _copy_library(real, copy)
        graft.files[copy] = info
        yield copy, real
    graft.bundled[real] = BundledLibrary(name, graft.path_in_wheel(copy), real, sha256)


def _alias_nvrtc(graft: Graft) -> None:
    """Copy libnvrtc to the name by which cuDNN 8 opens it: a wheel cannot hold a link."""
    names = {library.name: library for library in graft.bundled.values()}
    versioned = next((library for name, library in names.items() if NVRTC.fullmatch(name)), None)
    if versioned is not None and CUDNN_8 in names:
        copy = graft.folder / NVRTC_FOR_CUDNN_8
        _copy_library(versioned.source, copy)
        graft.files[copy] = graft.files[graft.staged.root / versioned.path]
        graft.bundled[copy] = replace(versioned, name=copy.name, path=graft.path_in_wheel(copy))


def _copy_library(source: Path, copy: Path) -> None:
    with report_unwritable(copy):
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy)
        copy.chmod(0o755)


def keeps_name(library: str) -> bool:
    """Tell whether other libraries open a library by its name."""
    return _OPENED_BY_NAME.fullmatch(library) is not None


def libraries_opened_by(library: Path) -> Iterator[Path]:
    """Yield the libraries in the same folder that a library opens by name."""
    patterns = [others for pattern, others in _OPENS_BY_NAME if pattern.fullmatch(library.name)]
    for path in (path for others in patterns for path in sorted(library.parent.glob(others))):
        info = elf.read_elf(path)
        if info is not None and info.soname == path.name:
            yield path


def required_nvidia_folders(requirements: Iterable[str]) -> dict[str, str]:
    """Return the libraries in packages that a wheel requires: "libcudnn*.so*" -> folder in site-packages.

    Requirements for other systems than this one are ignored.
    """
    folders: dict[str, str] = {}
    for requirement in map(Requirement, requirements):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            for package, folder in _nvidia_packages(requirement):
                libraries = _NVIDIA_LIBRARIES.get(package, (package,))
                folders |= {f"lib{library}.so*": f"nvidia/{folder}/lib" for library in libraries}
    return folders


def installed_nvidia_folders(site: Path) -> dict[str, str]:
    """Return the libraries of NVIDIA in site-packages: "libcublas.so.11" -> folder there.

    The CUDA runtime is left out: a package built with another toolkit than torch needs its own, and two
    runtimes do not interfere. Two copies of another library would: handles that torch passes on belong to
    one of them.
    """
    files = (path for path in site.glob("nvidia/*/lib/*.so*") if not path.name.startswith("libcudart."))
    return {path.name: path.parent.relative_to(site).as_posix() for path in files}


def nvidia_folder(folders: Mapping[str, str], library: str) -> str | None:
    """Return the folder of a library among required or installed `folders`, or None."""
    return next((folders[pattern] for pattern in folders if fnmatchcase(library, pattern)), None)


def _nvidia_packages(requirement: Requirement) -> Iterator[tuple[str, str]]:
    """Yield the packages of NVIDIA that a requirement installs, and their folders below nvidia/."""
    name = canonicalize_name(requirement.name)
    if match := _NVIDIA_PACKAGE.fullmatch(name):
        package = match[1].replace("-", "_")
        yield package, package
    if name == "cuda-toolkit":  # from CUDA 13 on, all packages of a toolkit share one folder
        major = re.search(r"\d+", str(requirement.specifier))
        for extra in sorted(requirement.extras):
            yield _TOOLKIT_EXTRAS.get(extra, extra), f"cu{major[0] if major else ''}"
