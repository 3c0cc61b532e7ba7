"""Check the libraries of a wheel: against its platform tags, or in an environment that has it.

A wheel contradicts a tag if its files are for another machine or C library: then nobody can use it.
It breaks a promise of the tag if its files need a newer C library than the tag says: then it works
on some of the systems of the tag only.
"""

import errno
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from zipfile import ZipFile

from millpress import bundling, elf, file_names, zip_archive
from millpress.atomic_files import DISK_FULL, name_file
from millpress.bundling import DRIVER_LIBRARY, PlatformTarget, expand_origin
from millpress.elf import ElfInfo
from millpress.errors import InputError, OptionError
from millpress.module_checks import ENTRY_PREFIXES
from millpress.processors import usable_processors

# Errors of the machine that checks a wheel. Any other error of the system is about the names of the
# wheel's members, which are too long, or not allowed in this file system.
MACHINE_ERRORS = DISK_FULL | {
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.ENOENT,
    errno.EIO,
    errno.ESTALE,
    errno.EMFILE,
    errno.ENFILE,
    errno.ENOMEM,
}
NVIDIA_FOLDER = "nvidia"  # the folder of site-packages that all packages of NVIDIA share
# The libraries of each C library, by the names with which other libraries need them.
_GLIBC = re.compile(r"libc\.so\.6|ld-linux[\w.-]*\.so\.\d+|ld64\.so\.\d")
_MUSL = re.compile(r"(libc\.|ld-)musl-\w+\.so\.1")
_JUDGED_TAGS = ("manylinux", "musllinux", bundling.PLAIN_LINUX_PREFIX)  # what they begin with


def platform_tags(name: str) -> tuple[str, ...]:
    """Return the platform tags in the name of a wheel: "manylinux_2_17_x86_64"."""
    return tuple(file_names.platform_part(name).split("."))


@dataclass(frozen=True, slots=True)
class TagJudgement:
    """How the files of a wheel contradict its platform tags, as clauses."""

    contradictions: tuple[str, ...] = ()  # another machine or C library
    broken_promises: tuple[str, ...] = ()  # a newer C library


def judge_tags(wheel: Path) -> TagJudgement:
    """Return how the files of a wheel contradict the promises of its name, without installing it.

    Tags of Linux wheels promise a machine, and manylinux and musllinux tags a C library and its
    symbols. Other tags are not judged. A file that is no wheel, or has a damaged library, contradicts
    its name. Raises OSError if the disk is full.
    """
    tags = [tag for tag in platform_tags(wheel.name) if tag.startswith(_JUDGED_TAGS)]
    if not tags:
        return TagJudgement()
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        try:
            with name_file(root), ZipFile(wheel) as archive:
                files = _dynamic_sections(extract_libraries(archive, root))
            return _judge_files(root, files, tags)
        except zip_archive.ARCHIVE_ERRORS as error:
            return TagJudgement((f"the file is not a sound zip archive ({error})",))
        except OSError as error:
            if error.errno in MACHINE_ERRORS:  # says nothing of the wheel
                raise
            reason = error.strerror or str(error)
            clause = f"its libraries cannot be extracted ({reason}): see the names of its members"
            return TagJudgement((clause,))
        except InputError as error:  # a damaged library
            return TagJudgement((str(error).replace(f"{folder}/", ""),))
        except OptionError as error:  # no policy is known for the machine of the tag
            return TagJudgement(broken_promises=(str(error),))


def _dynamic_sections(paths: Iterable[Path]) -> dict[Path, ElfInfo]:
    """Return the dynamic sections of those files that have one."""
    files = {}
    for path in paths:
        info = elf.read_elf(path)
        if info is not None:
            files[path] = info
    return files


def _judge_files(root: Path, files: Mapping[Path, ElfInfo], tags: Iterable[str]) -> TagJudgement:
    """Return how files below `root` contradict tags."""
    contradictions: list[str] = []
    broken_promises: list[str] = []
    for tag in tags:
        contradictions += _foreign_platforms(root, files, tag)
        broken_promises += _broken_promises(root, files, tag)
    return TagJudgement(tuple(contradictions), tuple(broken_promises))


def linking_problems(
    site: Path, names: Iterable[str], platform_tag: str, base_site: Path | None = None
) -> list[str]:
    """Return a clause for each problem of the libraries of a wheel that is installed.

    `site` is the site-packages of the environment in which the wheel and the packages that it
    requires are installed. `base_site` is the site-packages of a second environment, whose packages
    can be imported in the first one, too. `names` are the wheel's files, by their paths below
    `site`. Platforms other than manylinux and musllinux are not judged. Raises InputError if a
    library is damaged.
    """
    if not bundling.match_libc_tag(platform_tag):
        return []
    libraries = [site / name for name in names if elf.is_elf(site / name)]
    files = _dynamic_sections(libraries)
    sites = [site]
    if base_site is not None:
        sites = [base_site, site]
    loadable = _loadable_libraries(sites)
    loadable |= {path.name: path for path in libraries}
    target = bundling.platform_target(platform_tag)
    problems: list[str] = []
    for path, info in files.items():
        problems += _unresolved(site, path, info, loadable, target)
    problems += _driver_imports(site, files, loadable)
    problems += _foreign_platforms(site, files, platform_tag)
    problems += _broken_promises(site, files, platform_tag)
    return problems


def _loadable_libraries(sites: Iterable[Path]) -> dict[str, Path]:
    """Return the libraries that the packages in `sites` may load, by file name.

    A package that is imported first loads its libraries, and then others find them by name without
    any run path. NVIDIA's packages have nothing to import: run paths must lead to their libraries.
    """
    libraries = {}
    for site in sites:
        for path in site.rglob("*.so*"):
            package = path.relative_to(site).parts[0]
            if package != NVIDIA_FOLDER and path.is_file():
                libraries[path.name] = path
    return libraries


def _tag_target(tag: str) -> PlatformTarget | None:
    """Return the target of a tag; None for the plain linux tag, which promises no C library."""
    if tag.startswith(bundling.PLAIN_LINUX_PREFIX):
        return None
    return bundling.platform_target(tag)


def _broken_promises(root: Path, files: Mapping[Path, ElfInfo], tag: str) -> list[str]:
    """Return a clause for each file that needs more of the C library than the tag promises."""
    target = _tag_target(tag)
    if target is None:
        return []
    wheel_libraries = {path.name for path in files}
    needs = bundling.system_needs(root, files, target, wheel_libraries)
    return bundling.policy_problems(target, needs)


def _foreign_platforms(root: Path, files: Mapping[Path, ElfInfo], tag: str) -> Iterator[str]:
    """Yield a clause for each file that is for another machine or C library than the tag.

    The plain linux tag promises a machine only.
    """
    target = _tag_target(tag)
    if target is None:
        arch = tag.removeprefix(bundling.PLAIN_LINUX_PREFIX)
    else:
        arch = target.arch
    for path, info in files.items():
        if not info.runs_on(arch):
            yield f"{path.relative_to(root).as_posix()} is built for {info.machine}, not for {arch}"
    if target is not None:
        yield from _foreign_c_libraries(root, files, target)


def _foreign_c_libraries(
    root: Path, files: Mapping[Path, ElfInfo], target: PlatformTarget
) -> Iterator[str]:
    """Yield a clause for each file that needs the C library that the target does not have."""
    if target.tag.startswith("manylinux"):
        foreign_libc = "musl"
        foreign_library = _MUSL
    else:
        foreign_libc = "glibc"
        foreign_library = _GLIBC
    wheel_libraries = {path.name for path in files}
    for path, info in files.items():
        for needed in info.needed:
            # a wheel may bring along the other C library
            if foreign_library.fullmatch(needed) and needed not in wheel_libraries:
                file = path.relative_to(root).as_posix()
                yield (
                    f"{file} needs {needed} of {foreign_libc}, "
                    f"which systems of {target.tag} do not have"
                )


def extract_libraries(archive: ZipFile, root: Path) -> Iterator[Path]:
    """Extract the ELF files of a wheel into the folder `root`, and yield their paths.

    Members that must not be extracted (`zip_archive.unsafe_member`) are left out. Two threads
    extract them, because inflating is most of the work.
    """
    libraries = []
    for info in archive.infolist():
        if info.is_dir() or zip_archive.unsafe_member(info):
            continue
        # most members of a large wheel are headers and modules, which need no place on the disk
        with archive.open(info) as member:
            is_library = member.read(len(elf.ELF_MAGIC)) == elf.ELF_MAGIC
        if is_library:
            libraries.append(info)
            # here, because two threads of zipfile may make the same folder
            Path(root, info.filename).parent.mkdir(parents=True, exist_ok=True)
    with ThreadPoolExecutor(min(usable_processors(), zip_archive.READING_THREADS)) as pool:
        for path in pool.map(partial(archive.extract, path=root), libraries):
            yield Path(path)


def _unresolved(
    site: Path, path: Path, info: ElfInfo, loadable: Mapping[str, Path], target: PlatformTarget
) -> Iterator[str]:
    """Yield a clause for each library that a file needs and that is nowhere.

    Also yield one for each folder of NVIDIA's packages in the file's run path that is missing:
    libraries in it would be opened by name, and no header says so.
    """
    name = path.relative_to(site).as_posix()
    folders = []
    for entry in info.rpath:
        folder = expand_origin(entry, path)
        folders.append(folder)
        if f"/{NVIDIA_FOLDER}/" in entry and not folder.is_dir():
            yield f"{name} looks in {entry}, which nothing that the wheel requires installs"
    for needed in info.needed:
        is_installed = needed in loadable or any((folder / needed).is_file() for folder in folders)
        is_on_system = target.provides(needed) or bundling.is_interpreter_library(needed)
        if not is_installed and not is_on_system:
            yield f"{name} needs {needed}, which is neither in the wheel nor in what it requires"


def _driver_imports(
    site: Path, files: Iterable[Path], loadable: Mapping[str, Path]
) -> Iterator[str]:
    """Yield a clause for each library of the GPU driver that an import of the wheel loads."""
    for path in files:
        symbols = elf.defined_symbols(path)
        if not any(symbol.startswith(ENTRY_PREFIXES) for symbol in symbols):
            continue  # not an extension module: nothing imports it
        for chain in _driver_chains(path, loadable):
            links = chain[:-1]
            driver = chain[-1]
            yield (
                f"importing {path.relative_to(site).as_posix()} loads {driver} of the driver, "
                f"through {' and '.join(links) or 'itself'}: it fails where there is no GPU"
            )


def _driver_chains(start: Path, loadable: Mapping[str, Path]) -> Iterator[tuple[str, ...]]:
    """Yield a chain of names for each library of the driver that `start` loads.

    Each library in a chain needs the next one; the last is the driver's.
    """
    # each library with the chain that leads to it
    waiting: list[tuple[Path, tuple[str, ...]]] = [(start, ())]
    seen = {start.name}
    while waiting:
        path, chain = waiting.pop()
        info = elf.read_elf(path)
        if info is None:
            continue
        for needed in info.needed:
            if needed in seen:
                continue
            seen.add(needed)
            if DRIVER_LIBRARY.fullmatch(needed):
                yield (*chain, needed)
            elif needed in loadable:
                waiting.append((loadable[needed], (*chain, needed)))
