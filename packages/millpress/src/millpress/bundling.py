"""Bundle the libraries that a wheel needs and that its platform tag does not promise.

A platform tag ("manylinux_2_28_x86_64") promises on which systems a wheel runs. auditwheel has a
policy for each tag: the libraries, and the versions of their symbols, that all these systems have.
Any other library that the wheel needs is copied into it under a name with its digest, so that it
does not meet another version of itself in a process: this is called bundling, and `Graft` is its
state. Libraries are found as the loader of this machine finds them (`LibrarySearch`).

Two things are particular to NVIDIA's libraries: they open others by name, and some come from
packages of PyPI that the wheel requires. Packages that depend on another one ("torchvision" on
"torch") find the libraries of this base package loaded, and bundle none of them.
"""

import re
import shutil
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from functools import cache
from pathlib import Path
from typing import NamedTuple

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

# torch, cuDNN and cuBLAS open these by name at run time: renamed, they would not be found.
_OPENED_BY_NAME = re.compile(r"lib(cudnn\w*|cublas(Lt)?|nvrtc(-builtins)?|nvJitLink)\.so(\.\d+)*")
# Which libraries a library opens at run time, without a header that says so.
NVRTC = re.compile(r"libnvrtc\.so\.\d+(\.\d+)*")
_OPENS_BY_NAME = (
    (re.compile(r"libcudnn\.so\.\d+"), "libcudnn_*.so.*"),
    (NVRTC, "libnvrtc-builtins.so.*"),
)
# cuDNN 8 opens libnvrtc without a version, a name that only the toolkit's development packages
# have: https://github.com/vladmandic/sdnext/issues/539
CUDNN_8 = "libcudnn.so.8"
NVRTC_FOR_CUDNN_8 = "libnvrtc.so"

_NVIDIA = read_table("nvidia.toml")
_NVIDIA_PACKAGE = re.compile(r"nvidia-(?P<name>[a-z-]+?)(?P<suffix>-cu\d+)?")
_HASHED_NAME = re.compile(r"-[0-9a-f]{8}\.so(\.\d+)*$")

LDCONFIG_LINE = re.compile(r"\s*(?P<name>\S+) \(.*\) => (?P<path>/.+)")
LDCONFIG_FOLDERS = "/sbin:/usr/sbin:/usr/bin"  # PATH of a plain user may lack the first two
STANDARD_FOLDERS = ("/usr/local/lib", "/lib64", "/usr/lib64", "/lib", "/usr/lib")
MULTIARCH_FOLDERS = ("usr/local/lib/*-linux-*", "usr/lib/*-linux-*", "lib/*-linux-*")  # below /

PLAIN_LINUX_PREFIX = "linux_"  # of tags that promise a machine and no C library
LIBC_TAG = re.compile(r"(?P<libc>manylinux|musllinux)_(?P<major>\d+)_(?P<minor>\d+)_(?P<arch>\w+)")
# The names from before PEP 600, and the glibc that each stands for.
_OLD_TAGS = {"manylinux1": "2_5", "manylinux2010": "2_12", "manylinux2014": "2_17"}
# Libraries of the GPU driver: they must be those of the machine that runs the wheel.
DRIVER_LIBRARY = re.compile(r"lib(cuda|nvcuvid|nvidia-[\w-]+)\.so(\.\d+)*")
# Part of the interpreter that imports the extension; a second copy would be a second interpreter.
INTERPRETER_LIBRARY = re.compile(r"libpython\d[\w.]*\.so[\d.]*")
# Libraries that no wheel brings along: the loader, and those of the driver.
LOCAL_LIBRARY = re.compile(
    rf"ld-linux[\w.-]*\.so\.\d+|ld64\.so\.\d|ld-musl-\w+\.so\.1|{DRIVER_LIBRARY.pattern}"
)


class CachedLibrary(NamedTuple):
    """A library in the cache of the loader, which ldconfig writes."""

    name: str  # by which other libraries need it: "libz.so.1"
    path: Path


@dataclass(frozen=True, slots=True)
class LibrarySearch:
    """Where libraries are searched for if a file's own run path does not lead to them."""

    folders: tuple[Path, ...]  # of the caller, searched first
    cached: tuple[CachedLibrary, ...]  # the loader's cache, in its order
    standard: tuple[Path, ...]  # the system's folders, searched last

    def find(self, needed: str, file: Path, rpath: Iterable[str], machine: str) -> Path | None:
        """Return the library for `machine` that a file needs; None if there is none.

        `needed` is what the dynamic section of the file says: usually a name, sometimes a path. Its
        run path `rpath` goes first, then `folders`, then what the loader searches by default.
        Raises InputError if a damaged library is found there.
        """
        name = Path(needed).name
        candidates = []
        if needed.startswith("/"):  # a relative path depends on the working directory
            candidates.append(Path(needed))
        for entry in rpath:
            folder = expand_origin(entry, file)
            if folder.is_absolute():
                candidates.append(folder / name)
        candidates += [folder / name for folder in self.folders]
        library = _first_library(candidates, machine)
        if library is None:
            library = self.find_by_default(name, machine)
        return library

    def find_by_default(self, name: str, machine: str) -> Path | None:
        """Return the library that the loader finds by itself, without run paths and `folders`."""
        candidates = [library.path for library in self.cached if library.name == name]
        candidates += [folder / name for folder in self.standard]
        return _first_library(candidates, machine)


def _first_library(candidates: Iterable[Path], machine: str) -> Path | None:
    """Return the first path that is a library for `machine`; None if none is."""
    for path in candidates:
        info = read_elf(path)
        if info is not None and info.runs_on(machine):
            return path
    return None


def system_search(folders: Iterable[Path] = ()) -> LibrarySearch:
    """Return where the loader of this machine searches for libraries, with `folders` first.

    ldconfig is asked, if there is one. Raises ToolError if it fails.
    """
    standard = [Path(folder) for folder in STANDARD_FOLDERS]
    for pattern in MULTIARCH_FOLDERS:
        standard += sorted(Path("/").glob(pattern))
    listing = ""
    program = shutil.which("ldconfig", path=LDCONFIG_FOLDERS)
    if program is not None:  # musl has no such cache
        listing = run_program([program, "-p"])
    return LibrarySearch(tuple(folders), tuple(parse_ldconfig(listing)), tuple(standard))


def expand_origin(entry: str, file: Path) -> Path:
    """Return the folder that an entry in the run path of a file leads to.

    $ORIGIN in an entry stands for the folder of the file.
    """
    origin = str(file.parent)
    return Path(entry.replace("${ORIGIN}", origin).replace("$ORIGIN", origin))


def parse_ldconfig(listing: str) -> Iterator[CachedLibrary]:
    """Yield the libraries that `ldconfig -p` lists."""
    for line in listing.splitlines():
        match = LDCONFIG_LINE.fullmatch(line)
        if match is not None:
            yield CachedLibrary(match["name"], Path(match["path"]))


def is_interpreter_library(needed: str) -> bool:
    """Tell whether a needed library is libpython, which the running interpreter provides."""
    return INTERPRETER_LIBRARY.fullmatch(Path(needed).name) is not None


@dataclass(frozen=True, slots=True)
class PlatformTarget:
    """A manylinux or musllinux tag and its policy."""

    tag: str
    arch: str
    version: tuple[int, int]  # of the C library
    policy: Policy
    covered: bool  # False: the tag is newer than every policy, and `policy` is only the newest one

    def provides(self, library: str) -> bool:
        """Tell whether every system of the tag has `library`, or must have it if it needs it.

        The latter are the loader and the libraries of the GPU driver.
        """
        return library in self.policy.whitelist or LOCAL_LIBRARY.fullmatch(library) is not None


@dataclass(frozen=True, slots=True)
class PlainLinuxTarget:
    """The plain linux tag ("linux_x86_64"), for systems like this one."""

    arch: str
    search: LibrarySearch

    def provides(self, library: str) -> bool:
        """Tell whether systems like this one have `library`, or must have it if they need it."""
        if LOCAL_LIBRARY.fullmatch(library) is not None:
            return True
        return self.search.find_by_default(library, self.arch) is not None


@dataclass(frozen=True, slots=True)
class BundledLibrary:
    """A bundled library."""

    name: str  # in the wheel: "libfoo-0a1b2c3d.so.1"
    path: str  # in the wheel, from its root
    source: Path
    sha256: str  # of the source, before any edit


class WaitingFile(NamedTuple):
    """A file in the wheel whose needed libraries are still to be provided."""

    path: Path  # in the wheel
    # That it was copied from, or `path` itself for a file of the raw wheel. $ORIGIN in its run path
    # stands for the folder of the original.
    original: Path


@dataclass
class Graft:
    """The state of bundling libraries into one wheel.

    The fields without a default are the inputs; `bundle_libraries` adds to `files` and fills the
    others. No file is edited here: `replaced` says which names have to be edited in which files.
    The needed libpython is not in it: whoever edits a file drops that (`is_interpreter_library`).
    """

    staged: StagedWheel
    target: PlatformTarget | PlainLinuxTarget
    search: LibrarySearch
    provided: frozenset[str]  # names of the libraries that the base package has loaded
    # Pattern of a library's name -> folder in site-packages, for the packages of NVIDIA that the
    # wheel requires (`required_nvidia_folders`).
    required_nvidia: Mapping[str, str]
    # Name of a library -> its folder in site-packages, for the packages of NVIDIA that the base
    # package requires (`installed_nvidia_folders`).
    installed_nvidia: Mapping[str, str]
    folder: Path  # for bundled libraries
    files: dict[Path, ElfInfo]  # the wheel's libraries and programs, bundled ones included
    raw_libraries: frozenset[str]  # names of the libraries that the raw wheel has
    # File -> name of a library that it needs -> new name of that library.
    replaced: dict[Path, dict[str, str]] = field(default_factory=dict)
    # By the path that a library was copied from, with links resolved; see also `_alias_nvrtc`.
    bundled: dict[Path, BundledLibrary] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)  # for the user
    missing: list[str] = field(default_factory=list)  # a clause for each library not found

    def path_in_wheel(self, path: Path) -> str:
        """Return a path as the wheel spells it."""
        return path.relative_to(self.staged.root).as_posix()


def bundle_libraries(graft: Graft) -> None:
    """Bundle the libraries that the files need, then those that the bundled libraries need.

    Raises RepairError, which names every missing library, and InputError for a damaged one.
    """
    waiting = [WaitingFile(path, original=path) for path in graft.files]
    while waiting:
        file = waiting.pop(0)
        for needed in graft.files[file.path].needed:
            waiting += _provide_library(graft, file, needed)
    _alias_nvrtc(graft)
    if graft.missing:
        raise RepairError(
            f"{'; '.join(graft.missing)}: install what provides them, or link with the folder that "
            "they are in (LDFLAGS=-Wl,-rpath,FOLDER)",
            code="library-not-found",
        )


def hashed_name(name: str, sha256: str) -> str:
    """Return the unique name of a bundled library: "libz-0a1b2c3d.so.1"."""
    stem, dot, version = name.partition(".so")
    return f"{stem}-{sha256[:8]}{dot}{version}"


def is_bundled(name: str) -> bool:
    """Tell by its name whether a library in a finished wheel was bundled.

    Its name has a digest, or is one of NVIDIA's libraries that keep theirs (`keeps_name`).
    """
    return keeps_name(name) or _HASHED_NAME.search(name) is not None


def _provide_library(graft: Graft, file: WaitingFile, needed: str) -> list[WaitingFile]:
    """Bundle the library `needed` that a file needs, unless it is available without that.

    A library that is missing is added to `graft.missing`. Returns the new copies, which may need
    libraries themselves: that of the library, and those of the libraries that it opens by name.
    """
    shown_path = graft.path_in_wheel(file.path)
    name = Path(needed).name
    if is_interpreter_library(name):
        graft.notes.append(f"{shown_path} needed {needed}: removed, the interpreter provides it")
        return []
    if _is_available(graft, name):
        if needed != name:  # the linker wrote a path of the build
            graft.replaced.setdefault(file.path, {})[needed] = name
        return []
    info = graft.files[file.path]
    source = graft.search.find(needed, file.original, info.rpath, info.machine)
    if source is None:
        graft.missing.append(f"{needed}, which {shown_path} needs, was not found")
        return []
    if source in graft.files:  # a run path led to a copy in the wheel, which keeps its name
        return []
    copies: list[WaitingFile] = []
    real = source.resolve()
    if real not in graft.bundled:
        copies += _bundle_library(graft, name, real)
        for library in libraries_opened_by(source):
            copies += _bundle_library(graft, library.name, library.resolve())
    graft.replaced.setdefault(file.path, {})[needed] = graft.bundled[real].name
    return copies


def _is_available(graft: Graft, name: str) -> bool:
    """Tell whether a library need not be bundled: it is in the wheel, or will be where it runs."""
    return (
        name in graft.raw_libraries
        or name in graft.provided
        or graft.target.provides(name)
        or nvidia_folder(graft.required_nvidia, name) is not None
        or nvidia_folder(graft.installed_nvidia, name) is not None
    )


def _bundle_library(graft: Graft, needed: str, real: Path) -> list[WaitingFile]:
    """Copy the library `real`, which is needed by the name `needed`, into the wheel.

    `real` is a path without links. Returns the copy; an empty list if the wheel has it already.
    """
    if real in graft.bundled:
        return []
    sha256 = hash_file(real)
    name = needed if keeps_name(needed) else hashed_name(needed, sha256)
    copy = graft.folder / name
    copies = []
    info = read_elf(real)
    # two paths may lead to equal libraries, which then have one copy
    if info is not None and not copy.exists():
        _copy_library(real, copy)
        graft.files[copy] = info
        copies.append(WaitingFile(copy, original=real))
    graft.bundled[real] = BundledLibrary(name, graft.path_in_wheel(copy), real, sha256)
    return copies


def _alias_nvrtc(graft: Graft) -> None:
    """Make a second copy of libnvrtc under the name by which cuDNN 8 opens it.

    A wheel cannot hold a link. In `graft.bundled` the second copy has its own path as the key,
    because the first has the path that both were copied from.
    """
    libraries = {library.name: library for library in graft.bundled.values()}
    if CUDNN_8 not in libraries:
        return
    for name, library in libraries.items():
        if NVRTC.fullmatch(name):
            copy = graft.folder / NVRTC_FOR_CUDNN_8
            _copy_library(library.source, copy)
            graft.files[copy] = graft.files[graft.staged.root / library.path]
            path = graft.path_in_wheel(copy)
            graft.bundled[copy] = replace(library, name=copy.name, path=path)
            return


def _copy_library(source: Path, copy: Path) -> None:
    """Copy a library into the wheel, with the mode 0o755. An OSError names the copy."""
    with name_file(copy):
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(source, copy)
        copy.chmod(0o755)


def keeps_name(library: str) -> bool:
    """Tell whether a library must not be renamed, because other libraries open it by its name."""
    return _OPENED_BY_NAME.fullmatch(library) is not None


def libraries_opened_by(library: Path) -> Iterator[Path]:
    """Yield the libraries that a library opens by name, as far as its folder has them."""
    for pattern, companions in _OPENS_BY_NAME:
        if not pattern.fullmatch(library.name):
            continue
        for path in sorted(library.parent.glob(companions)):
            info = read_elf(path)
            # the folder also has links for linkers, under other names
            if info is not None and info.soname == path.name:
                yield path


def required_nvidia_folders(requirements: Iterable[str]) -> dict[str, str]:
    """Return the folders of NVIDIA's libraries in the packages that a wheel requires.

    The keys are patterns of the libraries' names, and the folders are in site-packages:
    "nvidia-cudnn-cu12" gives {"libcudnn*.so*": "nvidia/cudnn/lib"}. Requirements for other systems
    than this one, and those of extras, are ignored. Raises InvalidRequirement of `packaging` for a
    line that it cannot parse.
    """
    folders = {}
    for line in requirements:
        requirement = Requirement(line)
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        for package, folder in _nvidia_packages(requirement):
            for library in _NVIDIA["libraries"].get(package, [package]):
                folders[f"lib{library}.so*"] = f"nvidia/{folder}/lib"
    return folders


def installed_nvidia_folders(site: Path) -> dict[str, str]:
    """Return the folders of NVIDIA's libraries in the site-packages `site`.

    The keys are the libraries' names: {"libcublas.so.11": "nvidia/cublas/lib"}. The CUDA runtime is
    left out: a package built with another toolkit than its base package needs its own, and two
    runtimes do not interfere. Two copies of another library would interfere: a handle that the base
    package passes on belongs to one of them.
    """
    folders = {}
    for path in site.glob("nvidia/*/lib/*.so*"):
        if not path.name.startswith("libcudart."):
            folders[path.name] = path.parent.relative_to(site).as_posix()
    return folders


def nvidia_folder(folders: Mapping[str, str], library: str) -> str | None:
    """Return the folder that has a library; None if no key matches its name.

    `folders` are those of `required_nvidia_folders` or `installed_nvidia_folders`.
    """
    for pattern, folder in folders.items():
        if fnmatchcase(library, pattern):
            return folder
    return None


def _nvidia_packages(requirement: Requirement) -> Iterator[tuple[str, str]]:
    """Yield the short name and the folder of each package of NVIDIA that a requirement installs.

    The folder is below nvidia/ in site-packages: "nvidia-cudnn-cu12" gives ("cudnn", "cudnn"), and
    "cuda-toolkit[cublas]==13.0" gives ("cublas", "cu13"), as does "nvidia-cublas".
    """
    name = canonicalize_name(requirement.name)
    match = _NVIDIA_PACKAGE.fullmatch(name)
    if match is not None:
        package = match["name"].replace("-", "_")
        yield package, package if match["suffix"] else _NVIDIA["unsuffixed"]["folder"]
    if name == "cuda-toolkit":  # from CUDA 13 on, all packages of a toolkit share one folder
        majors = set()
        for bound in requirement.specifier:
            if bound.operator in {"==", "===", "~=", ">="}:
                majors.add(bound.version.partition(".")[0])
        folder = f"cu{min(majors, default='')}"
        for extra in sorted(requirement.extras):
            yield _NVIDIA["extras"].get(extra, extra), folder


@dataclass(frozen=True, slots=True)
class SystemNeeds:
    """What one file of a wheel needs from the system."""

    file: str  # path in the wheel
    libraries: frozenset[str]  # names
    versions: Mapping[str, frozenset[str]]  # library -> symbol versions
    # Undefined ones; empty unless the policy forbids some symbols of these libraries.
    symbols: frozenset[str] = frozenset()


def match_libc_tag(tag: str) -> re.Match[str] | None:
    """Return libc, major, minor and arch of a manylinux or musllinux tag; None for others."""
    old_name, _, arch = tag.partition("_")
    if old_name in _OLD_TAGS:
        tag = f"manylinux_{_OLD_TAGS[old_name]}_{arch}"
    return LIBC_TAG.fullmatch(tag)


def platform_target(tag: str) -> PlatformTarget:
    """Return the target of a manylinux or musllinux tag.

    Raises OptionError for any other tag, and for an arch of which auditwheel has no policy.
    """
    match = match_libc_tag(tag)
    if match is None:
        raise OptionError(
            f"{tag}: not a platform tag of Linux wheels: use one like manylinux_2_28_x86_64",
            code="invalid-platform-tag",
        )
    version = (int(match["major"]), int(match["minor"]))
    policies = _policies(match["libc"], match["arch"], tag)
    # A version between two policies is judged by the newer one and, for the C library itself, by
    # number.
    newer = [versioned.policy for versioned in policies if versioned.version >= version]
    policy = newer[0] if newer else policies[-1].policy
    return PlatformTarget(tag, match["arch"], version, policy, covered=bool(newer))


def system_needs(
    root: Path,
    files: Mapping[Path, ElfInfo],
    target: PlatformTarget,
    wheel_libraries: Container[str],
) -> Iterator[SystemNeeds]:
    """Yield what each of the `files` below `root` needs of the libraries that the target provides.

    Left out are `wheel_libraries`, the names of the wheel's own libraries, and the libraries of the
    GPU driver, for which no policy has rules.
    """
    for path, info in files.items():
        libraries = set()
        for name in info.needed:
            is_driver = DRIVER_LIBRARY.fullmatch(name) is not None
            if target.provides(name) and name not in wheel_libraries and not is_driver:
                libraries.add(name)
        symbols = frozenset[str]()
        if not libraries.isdisjoint(target.policy.blacklist):
            symbols = undefined_symbols(path)
        versions = {name: info.versions[name] for name in libraries if name in info.versions}
        file = path.relative_to(root).as_posix()
        yield SystemNeeds(file, frozenset(libraries), versions, symbols)


def policy_problems(target: PlatformTarget, needs: Iterable[SystemNeeds]) -> list[str]:
    """Return a clause for each need that the target's tag does not allow.

    That is a symbol version that is too new, or a symbol that the policy forbids.
    """
    problems = []
    # The whitelist of a policy has the libraries of the tag's systems. The blacklist has symbols of
    # them that must not be used, by library.
    for need in needs:
        for library in sorted(target.policy.whitelist & set(need.versions)):
            problems += [
                f"{need.file} needs {version} of {library}, which is newer than {target.tag}"
                for version in sorted(need.versions[library])
                if _is_too_new(target, version)
            ]
        for library in sorted(need.libraries & set(target.policy.blacklist)):
            forbidden = need.symbols & target.policy.blacklist[library]
            problems += [
                f"{need.file} uses {symbol} of {library}, which {target.tag} does not allow"
                for symbol in sorted(forbidden)
            ]
    return problems


def oldest_target(target: PlatformTarget, needs: Sequence[SystemNeeds]) -> PlatformTarget | None:
    """Return the oldest target with the same C library that meets these needs; None without one.

    It is newer than `target` if that does not meet them.
    """
    libc = "musllinux" if target.tag.startswith("musllinux") else "manylinux"
    libraries = set[str]().union(*(need.libraries for need in needs))
    for versioned in _policies(libc, target.arch, target.tag):
        candidate = PlatformTarget(
            tag=versioned.policy.name,
            arch=target.arch,
            version=versioned.version,
            policy=versioned.policy,
            covered=True,
        )
        has_libraries = all(candidate.provides(library) for library in libraries)
        if has_libraries and not policy_problems(candidate, needs):
            return candidate
    return None


def _is_too_new(target: PlatformTarget, version: str) -> bool:
    """Tell whether a symbol version ("GLIBC_2.34") is beyond what the target promises."""
    family, _, number = version.partition("_")
    if family == "GLIBC" and number[:1].isdigit():  # not GLIBC_PRIVATE
        parts = tuple(int(part) for part in number.split("."))
        return parts > target.version
    promised = target.policy.symbol_versions.get(family)
    # of a tag newer than every policy, only the C library's number can be judged
    return target.covered and promised is not None and number not in promised


class _VersionedPolicy(NamedTuple):
    """A policy of auditwheel, and the version of the C library that it is for."""

    version: tuple[int, int]  # (2, 28) of "manylinux_2_28"
    policy: Policy


@cache
def _policies(libc: str, arch: str, tag: str) -> tuple[_VersionedPolicy, ...]:
    """Return every policy for a C library and an arch, the one for the oldest version first.

    Raises OptionError, which names the `tag`, if auditwheel knows no such arch.
    """
    if arch not in {architecture.value for architecture in Architecture}:
        raise OptionError(
            f"{tag}: no policy for the arch {arch!r}: choose another tag", code="unknown-tag-arch"
        )
    if libc == "musllinux":
        policies = WheelPolicies(
            libc=Libc.MUSL, arch=Architecture(arch), musl_policy="musllinux_1_2"
        )
    else:
        policies = WheelPolicies(libc=Libc.GLIBC, arch=Architecture(arch))
    versioned = []
    for policy in policies:
        match = LIBC_TAG.fullmatch(policy.name)
        if match is not None:  # the plain linux policy has no version
            version = (int(match["major"]), int(match["minor"]))
            versioned.append(_VersionedPolicy(version, policy))
    return tuple(sorted(versioned, key=lambda policy: policy.version))
