"""Check the libraries of a wheel against its platform tags, or in an environment that it is installed in."""

import errno
import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZipFile

from millpress import bundling, elf, zip_archive
from millpress.atomic_files import DISK_FULL, name_file
from millpress.bundling import DRIVER_LIBRARY, INTERPRETER_LIBRARY, PlatformTarget, expand_origin
from millpress.elf import ElfInfo
from millpress.errors import InputError, OptionError
from millpress.module_checks import ENTRY_PREFIXES

# What the system refuses for reasons of the machine; anything else is about the names of the members.
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
_GLIBC = re.compile(r"libc\.so\.6|ld-linux[\w.-]*\.so\.\d+|ld64\.so\.\d")
_MUSL = re.compile(r"(libc\.|ld-)musl-\w+\.so\.1")
_OTHER_LIBC = {"manylinux": ("musl", _MUSL), "musllinux": ("glibc", _GLIBC)}


def platform_tags(name: str) -> tuple[str, ...]:
    """Return the platform tags in the name of a wheel: "manylinux_2_17_x86_64", "manylinux2014_x86_64"."""
    return tuple(name.removesuffix(".whl").rpartition("-")[2].split("."))


@dataclass(frozen=True, slots=True)
class TagJudgement:
    """How the files of a wheel contradict its platform tags, as clauses."""

    contradictions: tuple[str, ...] = ()  # another machine or C library: nobody can use the wheel
    broken_promises: tuple[
        str, ...
    ] = ()  # a newer C library than the name says: old systems cannot use it


def judge_tags(wheel: Path) -> TagJudgement:
    """Return what the wheel's name promises and its files contradict, without installing it.

    Tags of Linux wheels promise a machine, and manylinux and musllinux tags a C library and its symbols.
    Other tags are not judged.
    """
    promises = [
        tag
        for tag in platform_tags(wheel.name)
        if tag.startswith((*_OTHER_LIBC, bundling.PLAIN_LINUX_PREFIX))
    ]
    if not promises:
        return TagJudgement()
    with tempfile.TemporaryDirectory() as folder:
        try:
            root = Path(folder)
            with name_file(root), ZipFile(wheel) as archive:
                libraries = {path: elf.read_elf(path) for path in extract_libraries(archive, root)}
            files = {path: info for path, info in libraries.items() if info is not None}
            return TagJudgement(
                tuple(
                    clause for tag in promises for clause in _foreign_platforms(root, files, tag)
                ),
                tuple(clause for tag in promises for clause in _broken_promises(root, files, tag)),
            )
        except zip_archive.ARCHIVE_ERRORS as error:
            return TagJudgement((f"the file is not a sound zip archive ({error})",))
        except OSError as error:
            if error.errno in MACHINE_ERRORS:  # says nothing of the wheel
                raise
            why = f"its libraries cannot be extracted ({error.strerror or str(error)}): see the names of its members"
            return TagJudgement((why,))
        except InputError as error:
            return TagJudgement((str(error).replace(f"{folder}/", ""),))
        except OptionError as error:  # a machine of which no policy is known
            return TagJudgement(broken_promises=(str(error).replace(f"{folder}/", ""),))


def linking_problems(
    site: Path, names: Iterable[str], platform_tag: str, lender: Path | None = None
) -> list[str]:
    """Return a clause for each problem of the libraries among the files `names` that a wheel installed.

    `site` is the site-packages of an environment that also holds what the wheel requires, or `lender` does. Platforms
    other than manylinux and musllinux are not judged.
    """
    if not bundling.match_libc_tag(platform_tag):
        return []
    own = [site / name for name in names if elf.is_elf(site / name)]
    files = {path: info for path in own if (info := elf.read_elf(path)) is not None}
    # what can be loaded with the wheel: its own libraries, and those of other packages
    sites = [site] if lender is None else [lender, site]
    found = ((path.relative_to(one).parts[0], path) for one in sites for path in one.rglob("*.so*"))
    others = (path for top, path in found if top != NVIDIA_FOLDER and path.is_file())
    loadable = {path.name: path for path in (*others, *own)}
    target = bundling.platform_target(platform_tag)
    return [
        *(
            clause
            for path in files
            for clause in _unresolved(site, path, files[path], loadable, target)
        ),
        *_driver_imports(site, files, loadable),
        *_foreign_platforms(site, files, platform_tag),
        *_broken_promises(site, files, platform_tag),
    ]


def _tag_target(tag: str) -> PlatformTarget | None:
    return None if tag.startswith(bundling.PLAIN_LINUX_PREFIX) else bundling.platform_target(tag)


def _broken_promises(root: Path, files: Mapping[Path, ElfInfo], tag: str) -> Iterator[str]:
    """Yield a clause for each file below `root` that needs more of the C library than the tag promises."""
    if target := _tag_target(tag):
        own = {path.name for path in files}
        yield from bundling.policy_problems(target, bundling.system_needs(root, files, target, own))


def _foreign_platforms(root: Path, files: Mapping[Path, ElfInfo], tag: str) -> Iterator[str]:
    """Yield a clause for each file below `root` that is for another machine or C library than the tag."""
    target = _tag_target(tag)
    arch = target.arch if target else tag.removeprefix(bundling.PLAIN_LINUX_PREFIX)
    for path, info in files.items():
        if not info.runs_on(arch):
            yield f"{path.relative_to(root).as_posix()} is built for {info.machine}, not for {arch}"
    if target is None:
        return
    own = {path.name for path in files}
    libc, pattern = _OTHER_LIBC[target.tag.partition("linux")[0] + "linux"]
    for path, info in files.items():
        for needed in info.needed:
            if pattern.fullmatch(needed) and needed not in own:
                file = path.relative_to(root).as_posix()
                yield f"{file} needs {needed} of {libc}, which systems of {target.tag} do not have"


def extract_libraries(archive: ZipFile, root: Path) -> Iterator[Path]:
    """Extract the ELF files of a wheel into the folder `root`, and yield their paths."""
    for info in archive.infolist():
        if info.is_dir() or zip_archive.unsafe_member(info):
            continue
        with archive.open(info) as member:
            is_library = member.read(len(elf.ELF_MAGIC)) == elf.ELF_MAGIC
        if is_library:
            yield Path(archive.extract(info, root))


def _unresolved(
    site: Path, path: Path, info: ElfInfo, loadable: Mapping[str, Path], target: PlatformTarget
) -> Iterator[str]:
    """Yield a clause for each missing folder of a run path, and for each library that is nowhere."""
    name = path.relative_to(site).as_posix()
    folders = [expand_origin(entry, path) for entry in info.rpath]
    for entry, folder in zip(info.rpath, folders, strict=True):
        if f"/{NVIDIA_FOLDER}/" in entry and not folder.is_dir():
            yield f"{name} looks in {entry}, which nothing that the wheel requires installs"
    for needed in info.needed:
        resolved = needed in loadable or any((folder / needed).is_file() for folder in folders)
        if (
            not resolved
            and not target.on_system(needed)
            and not INTERPRETER_LIBRARY.fullmatch(needed)
        ):
            yield f"{name} needs {needed}, which is neither in the wheel nor in what it requires"


def _driver_imports(
    site: Path, files: Iterable[Path], loadable: Mapping[str, Path]
) -> Iterator[str]:
    """Yield a clause for each library of the driver that an import of the wheel loads."""
    for path in files:
        if any(name.startswith(ENTRY_PREFIXES) for name in elf.defined_symbols(path)):
            for chain in _driver_chains(path, loadable):
                yield (
                    f"importing {path.relative_to(site).as_posix()} loads {chain[-1]} of the driver, "
                    f"through {' and '.join(chain[:-1]) or 'itself'}: it fails where there is no GPU"
                )


def _driver_chains(start: Path, loadable: Mapping[str, Path]) -> Iterator[tuple[str, ...]]:
    """Yield the names that lead from a library to each library of the driver."""
    waiting: list[tuple[Path, tuple[str, ...]]] = [(start, ())]
    seen = {start.name}
    while waiting:
        path, chain = waiting.pop()
        info = elf.read_elf(path)
        for needed in info.needed if info else ():
            if needed in seen:
                continue
            seen.add(needed)
            if DRIVER_LIBRARY.fullmatch(needed):
                yield (*chain, needed)
            elif needed in loadable:
                waiting.append((loadable[needed], (*chain, needed)))
