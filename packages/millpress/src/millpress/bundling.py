"""Bundle the libraries that a wheel needs and that its platform tag does not promise.

Libraries are found as the loader of this machine finds them (`LibrarySearch`). Those of NVIDIA open others by
name, and some come from packages of PyPI that the wheel requires, instead of being bundled.
"""

import re
import shutil
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path

from auditwheel.architecture import Architecture
from auditwheel.libc import Libc
from auditwheel.policy import Policy, WheelPolicies
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from millpress.atomic_files import name_file
from millpress.elf import ElfInfo, read_elf, undefined_symbols
from millpress.errors import OptionError, RepairError
from millpress.programs import run_program
from millpress.record_file import hash_file
from millpress.staging import StagedWheel
from millpress.tables import read_table

# torch, cuDNN and each other open these by name: renamed, they would not be found.
_OPENED_BY_NAME = re.compile(r"lib(cudnn\w*|cublas(Lt)?|nvrtc(-builtins)?|nvJitLink)\.so(\.\d+)*")
# What a library opens at run time, which its headers do not name.
NVRTC = re.compile(r"libnvrtc\.so\.\d+(\.\d+)*")
_OPENS_BY_NAME = (
    (re.compile(r"libcudnn\.so\.\d+"), "libcudnn_*.so.*"),
    (NVRTC, "libnvrtc-builtins.so.*"),
)
CUDNN_8, NVRTC_FOR_CUDNN_8 = "libcudnn.so.8", "libnvrtc.so"  # sdnext#539, facefusion-docker#9
_NVIDIA = read_table("nvidia.toml")
_NVIDIA_PACKAGE = re.compile(r"nvidia-([a-z-]+)-cu\d+")
_HASHED_NAME = re.compile(r"-[0-9a-f]{8}\.so(\.\d+)*$")
LDCONFIG_LINE = re.compile(r"\s*(?P<name>\S+) \(.*\) => (?P<path>/.+)")
LDCONFIG_FOLDERS = "/sbin:/usr/sbin:/usr/bin"
STANDARD_FOLDERS = ("/usr/local/lib", "/lib64", "/usr/lib64", "/lib", "/usr/lib")
MULTIARCH_FOLDERS = ("usr/local/lib/*-linux-*", "usr/lib/*-linux-*", "lib/*-linux-*")  # below /
PLAIN_LINUX_PREFIX = "linux_"  # of tags that promise a machine and no C library
LIBC_TAG = re.compile(r"(?P<libc>manylinux|musllinux)_(?P<major>\d+)_(?P<minor>\d+)_(?P<arch>\w+)")
# Libraries of the GPU driver: they must be those of the machine that runs the wheel.
DRIVER_LIBRARY = re.compile(r"lib(cuda|nvcuvid|nvidia-[\w-]+)\.so(\.\d+)*")
# Part of the interpreter that imports the extension; a second copy would be a second interpreter.
INTERPRETER_LIBRARY = re.compile(r"libpython\d[\w.]*\.so[\d.]*")
# Libraries that no wheel brings along: the loader, and those of the driver.
LOCAL_LIBRARY = re.compile(
    rf"ld-linux[\w.-]*\.so\.\d+|ld64\.so\.\d|ld-musl-\w+\.so\.1|{DRIVER_LIBRARY.pattern}"
)
_OLD_TAGS = {
    "manylinux1": "2_5",
    "manylinux2010": "2_12",
    "manylinux2014": "2_17",
}  # PEP 600 has no others


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
        named = (
            [Path(needed)] if needed.startswith("/") else []
        )  # others depend on the working directory
        first = _first_library([*named, *(folder / name for folder in folders)], machine)
        return first or self.find_by_default(name, machine)

    def find_by_default(self, name: str, machine: str) -> Path | None:
        """Return the library that the loader finds without run path and caller's folders, or None."""
        cached = [path for library, path in self.cached if library == name]
        return _first_library([*cached, *(folder / name for folder in self.standard)], machine)


def _first_library(candidates: Iterable[Path], machine: str) -> Path | None:
    found = ((path, read_elf(path)) for path in candidates)
    return next((path for path, info in found if info is not None and info.runs_on(machine)), None)


def system_search(folders: Iterable[Path] = ()) -> LibrarySearch:
    """Return the search order of this machine's loader, with `folders` first."""
    multiarch = [path for pattern in MULTIARCH_FOLDERS for path in sorted(Path("/").glob(pattern))]
    program = shutil.which("ldconfig", path=LDCONFIG_FOLDERS)
    listing = run_program([program, "-p"]) if program else ""  # musl has no such cache
    return LibrarySearch(
        tuple(folders), tuple(parse_ldconfig(listing)), (*map(Path, STANDARD_FOLDERS), *multiarch)
    )


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
class PlatformTarget:
    """A manylinux or musllinux tag and its policy."""

    tag: str
    arch: str
    version: tuple[int, int]  # of the C library
    policy: Policy
    covered: bool  # the policy is at least as new as the tag

    def on_system(self, library: str) -> bool:
        """Tell whether every system of the tag has `library`."""
        return library in self.policy.whitelist or LOCAL_LIBRARY.fullmatch(library) is not None


@dataclass(frozen=True, slots=True)
class PlainLinuxTarget:
    """The plain linux tag, for systems like this one: what this loader finds by default is not bundled."""

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
    installed_nvidia: Mapping[
        str, str
    ]  # library -> folder, of packages that the torch under it requires
    folder: Path  # for bundled libraries
    files: dict[Path, ElfInfo]
    own: frozenset[str]  # names of the libraries that the raw wheel has
    replaced: dict[Path, dict[str, str]] = field(
        default_factory=dict
    )  # user -> needed name -> new name
    bundled: dict[Path, BundledLibrary] = field(default_factory=dict)  # by resolved source
    notes: list[str] = field(default_factory=list)
    missing: list[str] = field(default_factory=list)

    def path_in_wheel(self, path: Path) -> str:
        """Return a path as the wheel spells it."""
        return path.relative_to(self.staged.root).as_posix()


def bundle_libraries(graft: Graft) -> None:
    """Bundle what the files need, then what those libraries need in turn, until nothing is missing.

    Raises RepairError where a library is nowhere.
    """
    waiting = [(path, path) for path in graft.files]  # the file in the wheel, and the original
    while waiting:
        path, origin = waiting.pop(0)
        info = graft.files[path]
        for needed in _missing_libraries(graft, path):
            source = graft.search.find(needed, origin, info.rpath, info.machine)
            if source is None:
                graft.missing.append(
                    f"{needed}, which {graft.path_in_wheel(path)} needs, was not found"
                )
            else:
                waiting.extend(_bundle_with_companions(graft, path, needed, source))
    _alias_nvrtc(graft)
    if graft.missing:
        raise RepairError(
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
    if source in graft.files:  # a copy in the wheel, which keeps its name: a run path led there
        return
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
    info = read_elf(real)
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
    with name_file(copy):
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
        info = read_elf(path)
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
                libraries = _NVIDIA["libraries"].get(package, [package])
                folders |= {f"lib{library}.so*": f"nvidia/{folder}/lib" for library in libraries}
    return folders


def installed_nvidia_folders(site: Path) -> dict[str, str]:
    """Return the libraries of NVIDIA in site-packages: "libcublas.so.11" -> folder there.

    The CUDA runtime is left out: a package built with another toolkit than torch needs its own, and two runtimes do not
    interfere. Two copies of another library would: handles that torch passes on belong to one of them.
    """
    files = (
        path for path in site.glob("nvidia/*/lib/*.so*") if not path.name.startswith("libcudart.")
    )
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
            yield _NVIDIA["extras"].get(extra, extra), f"cu{major[0] if major else ''}"


@dataclass(frozen=True, slots=True)
class SystemNeeds:
    """What one file of a wheel needs from the system."""

    file: str
    libraries: frozenset[str]
    versions: Mapping[str, frozenset[str]]  # library -> symbol versions
    symbols: frozenset[str] = frozenset()  # undefined ones, read only where the policy forbids some


def match_libc_tag(tag: str) -> re.Match[str] | None:
    """Return the libc, major, minor and arch of a manylinux or musllinux tag; None for any other tag."""
    old, _, arch = tag.partition("_")
    return LIBC_TAG.fullmatch(f"manylinux_{_OLD_TAGS[old]}_{arch}" if old in _OLD_TAGS else tag)


def platform_target(tag: str) -> PlatformTarget:
    """Return the target of a manylinux or musllinux tag. Raises OptionError for any other tag."""
    match = match_libc_tag(tag)
    if match is None:
        raise OptionError(
            f"{tag}: not a platform tag of Linux wheels: use one like manylinux_2_28_x86_64",
            code="invalid-platform-tag",
        )
    version = (int(match["major"]), int(match["minor"]))
    policies = _policies(match["libc"], match["arch"], tag)
    # a version between two policies is judged by the newer one and, for the C library itself, by number
    newer = [policy for policy_version, policy in policies if policy_version >= version]
    policy = newer[0] if newer else policies[-1][1]
    return PlatformTarget(tag, match["arch"], version, policy, bool(newer))


def system_needs(
    root: Path, files: Mapping[Path, ElfInfo], target: PlatformTarget, own: Container[str]
) -> Iterator[SystemNeeds]:
    """Yield what each file below `root` needs of the libraries that systems of the target have.

    `own` are the names of the wheel's own libraries.
    """
    for path, info in files.items():
        libraries = frozenset(
            name
            for name in info.needed
            if target.on_system(name) and name not in own and not DRIVER_LIBRARY.fullmatch(name)
        )
        symbols = (
            undefined_symbols(path) if libraries & set(target.policy.blacklist) else frozenset()
        )
        versions = {name: info.versions[name] for name in libraries & set(info.versions)}
        yield SystemNeeds(path.relative_to(root).as_posix(), libraries, versions, symbols)


def policy_problems(target: PlatformTarget, needs: Iterable[SystemNeeds]) -> list[str]:
    """Return a clause for each need that the target's tag does not promise."""
    found = []
    for each in needs:
        for library in sorted(target.policy.whitelist & set(each.versions)):
            too_new = (
                version
                for version in sorted(each.versions[library])
                if _is_too_new(target, version)
            )
            found += [
                f"{each.file} needs {one} of {library}, which is newer than {target.tag}"
                for one in too_new
            ]
        for library in sorted(each.libraries & set(target.policy.blacklist)):
            used = sorted(each.symbols & target.policy.blacklist[library])
            found += [
                f"{each.file} uses {one} of {library}, which {target.tag} does not allow"
                for one in used
            ]
    return found


def oldest_target(target: PlatformTarget, needs: Sequence[SystemNeeds]) -> PlatformTarget | None:
    """Return the oldest target with this C library that meets these needs; None where none does."""
    libc = "musllinux" if target.tag.startswith("musllinux") else "manylinux"
    for version, policy in _policies(libc, target.arch, target.tag):
        candidate = PlatformTarget(policy.name, target.arch, version, policy, covered=True)
        libraries = {library for each in needs for library in each.libraries}
        if all(map(candidate.on_system, libraries)) and not policy_problems(candidate, needs):
            return candidate
    return None


def _is_too_new(target: PlatformTarget, version: str) -> bool:
    """Tell whether a symbol version ("GLIBC_2.34") is beyond what the target promises."""
    family, _, number = version.partition("_")
    if family == "GLIBC" and number[:1].isdigit():
        return tuple(map(int, number.split("."))) > target.version
    promised = target.policy.symbol_versions.get(family)
    # of a tag newer than every policy, only the C library's number can be judged
    return target.covered and promised is not None and number not in promised


@cache
def _policies(libc: str, arch: str, tag: str) -> tuple[tuple[tuple[int, int], Policy], ...]:
    """Return every policy for `arch` with its version of the C library, oldest first."""
    if arch not in {each.value for each in Architecture}:
        raise OptionError(
            f"{tag}: no policy for the arch {arch!r}: choose another tag", code="unknown-tag-arch"
        )
    if libc == "musllinux":
        policies = WheelPolicies(
            libc=Libc.MUSL, arch=Architecture(arch), musl_policy="musllinux_1_2"
        )
    else:
        policies = WheelPolicies(libc=Libc.GLIBC, arch=Architecture(arch))
    matches = [(LIBC_TAG.fullmatch(policy.name), policy) for policy in policies]
    dated = [
        ((int(match["major"]), int(match["minor"])), policy) for match, policy in matches if match
    ]
    return tuple(sorted(dated, key=lambda each: each[0]))
