"""Follow what the libraries of an installed wheel need: all of it must be found, and none be of the driver.

Nor may it be newer than the platform tag says.

A machine without a GPU has no libcuda. What needs it may be in a wheel, but must not be loaded by an import.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from torchmill.core.errors import BuildError, ConfigError
from torchmill.wheel.pack import elf, policy, zip_reader
from torchmill.wheel.pack.bundling import expand_origin
from torchmill.wheel.pack.elf import ElfInfo
from torchmill.wheel.pack.policy import DRIVER_LIBRARY, INTERPRETER_LIBRARY, PlatformTarget

_GLIBC = re.compile(r"libc\.so\.6|ld-linux[\w.-]*\.so\.\d+|ld64\.so\.\d")
_MUSL = re.compile(r"(libc\.|ld-)musl-\w+\.so\.1")
_OTHER_LIBC = {"manylinux": ("musl", _MUSL), "musllinux": ("glibc", _GLIBC)}  # than the C library of a tag
_PLAIN_PREFIX = "linux_"  # how tags begin that promise a machine, and no C library


def platform_tags(name: str) -> tuple[str, ...]:
    """Return the platform tags in the name of a wheel: "manylinux_2_17_x86_64", "manylinux2014_x86_64"."""
    return tuple(name.removesuffix(".whl").rpartition("-")[2].split("."))


def tag_problems(wheel: Path) -> list[str]:
    """Return a clause for each promise of the wheel's name that its files contradict.

    Tags of Linux wheels promise a machine, and those with a known C library what that has: of others nothing
    is said.
    """
    promises = [tag for tag in platform_tags(wheel.name) if tag.startswith((*_OTHER_LIBC, _PLAIN_PREFIX))]
    if not promises:
        return []
    with tempfile.TemporaryDirectory() as folder:
        try:
            with ZipFile(wheel) as archive:
                root = Path(folder)
                files = {
                    path: facts for path in _extract_libraries(archive, root) if (facts := elf.read_elf(path))
                }
            return [clause for tag in promises for clause in _tag_contradictions(root, files, tag)]
        except BadZipFile as error:
            return [f"the file is no sound zip archive ({error})"]
        except OSError as error:
            why = error.strerror or str(error)
            return [f"its libraries cannot be laid out to be read ({why}): see the names of its members"]
        except (BuildError, ConfigError) as error:
            return [str(error).replace(f"{folder}/", "")]


def _tag_contradictions(root: Path, files: Mapping[Path, ElfInfo], tag: str) -> Iterator[str]:
    if tag.startswith(_PLAIN_PREFIX):
        yield from _machine_contradictions(root, files, tag.removeprefix(_PLAIN_PREFIX))
    else:
        yield from target_contradictions(root, files, policy.platform_target(tag))


def target_contradictions(
    root: Path, files: Mapping[Path, ElfInfo], target: policy.PlatformTarget
) -> Iterator[str]:
    """Yield a clause for each file below `root` that needs more than the tag promises, or another machine."""
    yield from _machine_contradictions(root, files, target.arch)
    own = {path.name for path in files}
    name, foreign = _OTHER_LIBC[target.tag.partition("linux")[0] + "linux"]
    for path, facts in files.items():
        for needed in facts.needed:
            if foreign.fullmatch(needed) and needed not in own:
                file = path.relative_to(root).as_posix()
                yield f"{file} needs {needed} of {name}, which systems of {target.tag} do not have"
    yield from policy.policy_problems(target, policy.system_needs(root, files, target, own))


def _machine_contradictions(root: Path, files: Mapping[Path, ElfInfo], arch: str) -> Iterator[str]:
    """Yield a clause for each file that is made for another machine than a tag says."""
    machine = policy.ELF_MACHINES.get(arch)
    for path, facts in files.items():
        if machine not in {None, facts.machine}:
            yield f"{path.relative_to(root).as_posix()} is made for {facts.machine}, not for {arch}"


def _extract_libraries(archive: ZipFile, root: Path) -> Iterator[Path]:
    """Yield the ELF files of a wheel, written below `root`."""
    for info in archive.infolist():
        if info.is_dir() or zip_reader.unsafe_member(info):
            continue
        with archive.open(info) as member:
            start = member.read(len(elf.ELF_MAGIC))
            if start == elf.ELF_MAGIC:
                path = root / info.filename
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("wb") as copy:
                    copy.write(start)
                    shutil.copyfileobj(member, copy)
                yield path


ENTRY_PREFIX = "PyInit_"  # by which the interpreter enters an extension module
NVIDIA_FOLDER = "nvidia"  # the folder of site-packages that all packages of NVIDIA's share


def linking_problems(site: Path, names: Iterable[str], platform_tag: str) -> list[str]:
    """Return what is wrong with the libraries of one wheel, `names` in the folder `site`.

    `site` is the site-packages of an environment that holds what the wheel requires, too. Of platforms
    other than Linux with a known C library nothing is said.
    """
    if not policy.LIBC_TAG.fullmatch(platform_tag):
        return []
    own = [site / name for name in names if elf.is_elf(site / name)]
    read = {path: facts for path in own if (facts := elf.read_elf(path)) is not None}
    known = _loadable_libraries(site, own)
    target = policy.platform_target(platform_tag)
    return [
        *(clause for path, facts in read.items() for clause in _unresolved(site, path, facts, known, target)),
        *_driver_imports(site, read, known),
        *target_contradictions(site, read, target),
    ]


def _loadable_libraries(site: Path, own: Iterable[Path]) -> dict[str, Path]:
    """Return the libraries that are loaded, or can be, when the wheel is: its own, and other packages'."""
    others = (
        path
        for path in site.rglob("*.so*")
        if path.relative_to(site).parts[0] != NVIDIA_FOLDER and path.is_file()
    )
    return {path.name: path for path in (*others, *own)}


def _unresolved(
    site: Path, path: Path, facts: ElfInfo, loadable: Mapping[str, Path], target: PlatformTarget
) -> Iterator[str]:
    """Yield a clause for each folder that is not there, and for each library that is nowhere."""
    name = path.relative_to(site).as_posix()
    folders = [expand_origin(entry, path) for entry in facts.rpath]
    for entry, folder in zip(facts.rpath, folders, strict=True):
        if f"/{NVIDIA_FOLDER}/" in entry and not folder.is_dir():
            yield f"{name} looks in {entry}, which nothing that the wheel requires brings"
    for needed in facts.needed:
        there = needed in loadable or any((folder / needed).is_file() for folder in folders)
        if not there and not target.on_system(needed) and not INTERPRETER_LIBRARY.fullmatch(needed):
            yield f"{name} needs {needed}, which is neither in the wheel nor in what it requires"


def _driver_imports(site: Path, read: Mapping[Path, ElfInfo], loadable: Mapping[str, Path]) -> Iterator[str]:
    """Yield a clause for each library of the driver's that an import of the wheel loads."""
    for path in read:
        if any(name.startswith(ENTRY_PREFIX) for name in elf.defined_symbols(path)):
            for way in _dependency_chains(path, loadable):
                yield (
                    f"importing {path.relative_to(site).as_posix()} loads {way[-1]} of the driver, "
                    f"by way of {' and '.join(way[:-1]) or 'itself'}: it fails where there is no GPU"
                )


def _dependency_chains(start: Path, loadable: Mapping[str, Path]) -> Iterator[tuple[str, ...]]:
    """Yield the names that lead from a library to each of the driver's."""
    waiting: list[tuple[Path, tuple[str, ...]]] = [(start, ())]
    seen = {start.name}
    while waiting:
        path, way = waiting.pop()
        facts = elf.read_elf(path) if elf.is_elf(path.resolve()) else None
        for needed in facts.needed if facts else ():
            if needed in seen:
                continue
            seen.add(needed)
            if DRIVER_LIBRARY.fullmatch(needed):
                yield (*way, needed)
            elif needed in loadable:
                waiting.append((loadable[needed], (*way, needed)))
