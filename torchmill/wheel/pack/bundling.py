"""Carry along the libraries that a wheel needs and that are neither in it nor on every system."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from torchmill.core.errors import HostError, VerifyError
from torchmill.core.files import hash_file
from torchmill.core.process import capture
from torchmill.wheel.pack import elf
from torchmill.wheel.pack.elf import ElfInfo
from torchmill.wheel.pack.policy import (
    DRIVER_LIBRARY,
    ELF_MACHINES,
    INTERPRETER_LIBRARY,
    LOADER_LIBRARY,
    PlatformTarget,
)
from torchmill.wheel.pack.staging import StagedWheel

# Opened by name from within torch, cuDNN and each other: by another name nobody would find them.
_OPENED_BY_NAME = re.compile(r"lib(cudnn\w*|cublas(Lt)?|nvrtc(-builtins)?|nvJitLink)\.so(\.\d+)*")
# What a library opens when it is used, so that nothing in its headers tells of it.
NVRTC = re.compile(r"libnvrtc\.so\.\d+(\.\d+)*")
_OPENS_BY_NAME = (
    (re.compile(r"libcudnn\.so\.\d+"), "libcudnn_*.so.*"),
    (NVRTC, "libnvrtc-builtins.so.*"),
)
CUDNN_8, NVRTC_FOR_CUDNN_8 = "libcudnn.so.8", "libnvrtc.so"  # sdnext#539, facefusion-docker#9
# The libraries of the packages whose name is not that of their only library.
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
_TOOLKIT_EXTRAS = {
    "cudart": "cuda_runtime",
    "cupti": "cuda_cupti",
    "nvrtc": "cuda_nvrtc",
}  # of `cuda-toolkit`
_NVIDIA_PACKAGE = re.compile(r"nvidia-([a-z-]+)-cu\d+")


def keeps_name(library: str) -> bool:
    """Tell whether others open a library by the very name that it has."""
    return _OPENED_BY_NAME.fullmatch(library) is not None


def libraries_opened_by(library: Path) -> Iterator[Path]:
    """Yield the libraries beside one that it opens by name when it is used."""
    for pattern, others in _OPENS_BY_NAME:
        if pattern.fullmatch(library.name):
            for path in sorted(library.parent.glob(others)):
                facts = elf.read_elf(path.resolve()) if elf.is_elf(path.resolve()) else None
                if facts is not None and facts.soname == path.name:
                    yield path


def required_nvidia_folders(requirements: Iterable[str]) -> dict[str, str]:
    """Return what the packages that a wheel requires bring: "libcudnn*.so*" -> its folder in site-packages.

    Requirements that are for other systems than this one do not count.
    """
    found: dict[str, str] = {}
    for requirement in map(Requirement, requirements):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            for package, folder in _nvidia_packages(requirement):
                libraries = _NVIDIA_LIBRARIES.get(package, (package,))
                found |= {f"lib{library}.so*": f"nvidia/{folder}/lib" for library in libraries}
    return found


def installed_nvidia_folders(site: Path) -> dict[str, str]:
    """Return what lies in site-packages for a torch that requires it: "libcublas.so.11" -> folder there.

    The CUDA runtime is left out: whoever is built with another toolkit than torch needs his own, and two of
    it do not get into each other's way. Two of any other would: torch hands out handles that belong to one.
    """
    files = (path for path in site.glob("nvidia/*/lib/*.so*") if not path.name.startswith("libcudart."))
    return {path.name: path.parent.relative_to(site).as_posix() for path in files}


def nvidia_folder(found: Mapping[str, str], library: str) -> str | None:
    """Return the folder of a library, by what `brought` or `beside` returned; None where it has none."""
    return next((found[pattern] for pattern in found if fnmatchcase(library, pattern)), None)


def _nvidia_packages(requirement: Requirement) -> Iterator[tuple[str, str]]:
    """Yield the packages of NVIDIA's that a requirement stands for, and their folders below nvidia/."""
    name = canonicalize_name(requirement.name)
    if match := _NVIDIA_PACKAGE.fullmatch(name):
        package = match[1].replace("-", "_")
        yield package, package
    if name == "cuda-toolkit":  # from CUDA 13 on: all that is of a toolkit shares one folder
        major = re.search(r"\d+", str(requirement.specifier))
        for extra in sorted(requirement.extras):
            yield _TOOLKIT_EXTRAS.get(extra, extra), f"cu{major[0] if major else ''}"


LDCONFIG_LINE = re.compile(r"\s*(?P<name>\S+) \(.*\) => (?P<path>/.+)")
LDCONFIG_PROGRAMS = ("/sbin/ldconfig", "/usr/sbin/ldconfig", "/usr/bin/ldconfig")
STANDARD_FOLDERS = ("/usr/local/lib", "/lib64", "/usr/lib64", "/lib", "/usr/lib")
MULTIARCH_FOLDERS = ("/usr/local/lib/*-linux-*", "/usr/lib/*-linux-*", "/lib/*-linux-*")


@dataclass(frozen=True, slots=True)
class LibrarySearch:
    """Where libraries are looked for once a file's own run path has not found them."""

    folders: tuple[Path, ...]  # named by the caller, tried first
    cached: tuple[tuple[str, Path], ...]  # the loader's cache, in its order
    standard: tuple[Path, ...]

    def find(self, needed: str, user: Path, rpath: Iterable[str], machine: str) -> Path | None:
        """Return the library that `user` needs, made for `machine`, or None where there is none."""
        return _first_library(self._candidates(needed, user, rpath), machine)

    def find_by_default(self, name: str, machine: str | None) -> Path | None:
        """Return the library that the loader finds with no run path and no folder named; None where none."""
        return _first_library(self._default_candidates(name), machine)

    def _candidates(self, needed: str, user: Path, rpath: Iterable[str]) -> Iterator[Path]:
        if needed.startswith("/"):  # from anywhere else the way would begin where this program was started
            yield Path(needed)
        name = Path(needed).name
        for entry in rpath:
            if (folder := expand_origin(entry, user)).is_absolute():
                yield folder / name
        for folder in self.folders:
            yield folder / name
        yield from self._default_candidates(name)

    def _default_candidates(self, name: str) -> Iterator[Path]:
        for cached, path in self.cached:
            if cached == name:
                yield path
        for folder in self.standard:
            yield folder / name


def _first_library(candidates: Iterable[Path], machine: str | None) -> Path | None:
    """Return the first that is a library made for `machine`."""
    for path in candidates:
        if elf.is_elf(path.resolve()):
            found = elf.read_elf(path.resolve())
            if found is not None and machine in {None, found.machine}:
                return path
    return None


def system_search(folders: Iterable[Path] = ()) -> LibrarySearch:
    """Return this machine's search order, with `folders` before everything but run paths."""
    root = Path("/")
    multiarch = [path for pattern in MULTIARCH_FOLDERS for path in sorted(root.glob(pattern.lstrip("/")))]
    return LibrarySearch(tuple(folders), tuple(_loader_cache()), (*map(Path, STANDARD_FOLDERS), *multiarch))


def expand_origin(entry: str, user: Path) -> Path:
    """Return the folder that a run path's entry means in the file `user`."""
    origin = str(user.parent)
    return Path(entry.replace("${ORIGIN}", origin).replace("$ORIGIN", origin))


def parse_ldconfig(listing: str) -> Iterator[tuple[str, Path]]:
    """Yield name and path of each library that `ldconfig -p` lists."""
    for line in listing.splitlines():
        if match := LDCONFIG_LINE.fullmatch(line):
            yield match["name"], Path(match["path"])


def _loader_cache() -> Iterator[tuple[str, Path]]:
    program = next((path for path in LDCONFIG_PROGRAMS if Path(path).exists()), None)
    if program is None:  # musl has no such cache
        return
    yield from parse_ldconfig(capture([program, "-p"]))


PLAIN_LINUX_TAG = re.compile(r"linux_(?P<arch>\w+)")


@dataclass(frozen=True, slots=True)
class PlainLinuxTarget:
    """The plain linux tag of one machine: what the loader of this system finds by itself stays outside."""

    tag: str
    arch: str
    search: LibrarySearch

    @property
    def machine(self) -> str | None:
        """Return the ELF machine of this arch, None where no name for it is known."""
        return ELF_MACHINES.get(self.arch)

    def on_system(self, library: str) -> bool:
        """Say whether the wheel may rely on `library` being where it runs."""
        if LOADER_LIBRARY.fullmatch(library) or DRIVER_LIBRARY.fullmatch(library):
            return True
        return self.search.find_by_default(library, self.machine) is not None


def plain_linux_target(tag: str, search: LibrarySearch) -> PlainLinuxTarget | None:
    """Return the target of a plain linux tag, None for any other tag."""
    match = PLAIN_LINUX_TAG.fullmatch(tag)
    return PlainLinuxTarget(tag, match["arch"], search) if match else None


_HASHED_NAME = re.compile(r"-[0-9a-f]{8}\.so(\.\d+)*$")


@dataclass(frozen=True, slots=True)
class BundledLibrary:
    """A library that came along, and where from."""

    name: str  # in the wheel: "libfoo-0a1b2c3d.so.1"
    path: str  # in the wheel, from its root
    source: Path
    sha256: str  # of the source, before any edit


@dataclass
class Graft:
    """The work in progress on one wheel."""

    staged: StagedWheel
    target: PlatformTarget | PlainLinuxTarget
    search: LibrarySearch
    provided: frozenset[str]
    required_nvidia: Mapping[
        str, str
    ]  # NVIDIA's libraries in packages that the wheel requires -> their folders
    installed_nvidia: Mapping[str, str]  # the same, of what torch requires that it is built against
    folder: Path  # where libraries that come along go
    files: dict[Path, ElfInfo]
    own: frozenset[str]  # names of the libraries the wheel had from the start
    replaced: dict[Path, dict[str, str]] = field(default_factory=dict)  # user -> needed name -> new name
    bundled: dict[Path, BundledLibrary] = field(default_factory=dict)  # by resolved source
    notes: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def path_in_wheel(self, path: Path) -> str:
        """Spell a path as it is in the wheel."""
        return path.relative_to(self.staged.root).as_posix()


def bundle_libraries(graft: Graft) -> None:
    """Bring along what the files need, then what those libraries need in turn, until nothing is missing.

    Raise VerifyError where a library is nowhere.
    """
    waiting = [(path, path) for path in graft.files]  # where the file lies now, and where it came from
    while waiting:
        path, origin = waiting.pop(0)
        for needed in _missing_libraries(graft, path):
            source = _find_library(graft, needed, path, origin)
            if source is not None:
                waiting.extend(_bundle_with_companions(graft, path, needed, source))
    _alias_nvrtc(graft)
    if graft.missing:
        raise VerifyError(
            "; ".join(graft.missing)
            + ": install what provides them, or write the folder that they lie in into "
            "what is linked with them (-- --set LDFLAGS=-Wl,-rpath,FOLDER)"
        )


def hashed_name(name: str, sha256: str) -> str:
    """Return the name under which a library comes along; no other library can have it."""
    stem, dot, version = name.partition(".so")
    return f"{stem}-{sha256[:8]}{dot}{version}"


def is_bundled(name: str) -> bool:
    """Tell by its name whether a library in a finished wheel was brought along."""
    return keeps_name(name) or _HASHED_NAME.search(name) is not None


def _missing_libraries(graft: Graft, path: Path) -> Iterator[str]:
    """Yield the needed names that neither the wheel, nor the packages under it, nor every system has."""
    for needed in graft.files[path].needed:
        name = Path(needed).name
        if INTERPRETER_LIBRARY.fullmatch(name):
            graft.notes.append(
                f"{graft.path_in_wheel(path)} needed {needed}: removed, the interpreter is already there"
            )
        elif _is_provided(graft, name):
            if needed != name:  # the linker wrote down a path of the build
                graft.replaced.setdefault(path, {})[needed] = name
        else:
            yield needed


def _is_provided(graft: Graft, name: str) -> bool:
    own = name in graft.own or name in graft.provided or graft.target.on_system(name)
    return own or any(nvidia_folder(found, name) for found in (graft.required_nvidia, graft.installed_nvidia))


def _find_library(graft: Graft, needed: str, path: Path, origin: Path) -> Path | None:
    facts = graft.files[path]
    source = graft.search.find(needed, origin, facts.rpath, facts.machine)
    if source is None:
        graft.missing.append(f"{needed}, which {graft.path_in_wheel(path)} needs, is nowhere")
    return source


def _bundle_with_companions(
    graft: Graft, user: Path, needed: str, source: Path
) -> Iterator[tuple[Path, Path]]:
    """Bring `source` along, and what it opens by name, and have `user` need it by its new name."""
    if source.resolve() not in graft.bundled:
        for library in (source, *libraries_opened_by(source)):
            name = Path(needed).name if library == source else library.name
            yield from _bundle_library(graft, name, library.resolve())
    graft.replaced.setdefault(user, {})[needed] = graft.bundled[source.resolve()].name


def _bundle_library(graft: Graft, called: str, real: Path) -> Iterator[tuple[Path, Path]]:
    """Copy a library into the wheel unless it is there."""
    if real in graft.bundled:
        return
    sha256 = hash_file(real)
    name = called if keeps_name(called) else hashed_name(called, sha256)
    copy = graft.folder / name
    facts = elf.read_elf(real)
    if facts is not None and not copy.exists():
        _copy_library(real, copy)
        graft.files[copy] = facts
        yield copy, real
    graft.bundled[real] = BundledLibrary(name, graft.path_in_wheel(copy), real, sha256)


def _alias_nvrtc(graft: Graft) -> None:
    """Copy libnvrtc under the name by which cuDNN 8 opens it: a wheel holds no links."""
    names = {one.name: one for one in graft.bundled.values()}
    versioned = next((one for name, one in names.items() if NVRTC.fullmatch(name)), None)
    if versioned is not None and CUDNN_8 in names:
        copy = graft.folder / NVRTC_FOR_CUDNN_8
        _copy_library(versioned.source, copy)
        graft.files[copy] = graft.files[graft.staged.root / versioned.path]
        graft.bundled[copy] = BundledLibrary(
            copy.name, graft.path_in_wheel(copy), versioned.source, versioned.sha256
        )


def _copy_library(source: Path, copy: Path) -> None:
    try:
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy)
        copy.chmod(0o755)
    except OSError as error:
        raise HostError(f"{copy}: cannot be written ({error.strerror}): free some space") from error
