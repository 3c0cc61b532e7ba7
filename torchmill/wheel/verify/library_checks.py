"""Check a wheel's libraries: against its platform tags, and against what an environment has installed.

Installed libraries must find everything they need, and nothing that an import loads may need the driver: a
machine without a GPU has no libcuda. A library that needs it may be in a wheel, if no import loads it.
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

ENTRY_PREFIX = "PyInit_"  # of the function that the interpreter calls when it imports an extension module
NVIDIA_FOLDER = "nvidia"  # the folder of site-packages that all packages of NVIDIA share
_GLIBC = re.compile(r"libc\.so\.6|ld-linux[\w.-]*\.so\.\d+|ld64\.so\.\d")
_MUSL = re.compile(r"(libc\.|ld-)musl-\w+\.so\.1")
_OTHER_LIBC = {"manylinux": ("musl", _MUSL), "musllinux": ("glibc", _GLIBC)}


def platform_tags(name: str) -> tuple[str, ...]:
    """Return the platform tags in the name of a wheel: "manylinux_2_17_x86_64", "manylinux2014_x86_64"."""
    return tuple(name.removesuffix(".whl").rpartition("-")[2].split("."))


def tag_problems(wheel: Path) -> list[str]:
    """Return a clause for each promise of the wheel's name that its files contradict, without installing it.

    Tags of Linux wheels promise a machine, and manylinux and musllinux tags a C library and its symbols.
    Other tags are not judged.
    """
    promises = [
        tag for tag in platform_tags(wheel.name) if tag.startswith((*_OTHER_LIBC, policy.PLAIN_LINUX_PREFIX))
    ]
    if not promises:
        return []
    with tempfile.TemporaryDirectory() as folder:
        try:
            root = Path(folder)
            with ZipFile(wheel) as archive:
                libraries = {path: elf.read_elf(path) for path in _extract_libraries(archive, root)}
            files = {path: info for path, info in libraries.items() if info is not None}
            return [clause for tag in promises for clause in _tag_contradictions(root, files, tag)]
        except BadZipFile as error:
            return [f"the file is not a sound zip archive ({error})"]
        except OSError as error:
            reason = error.strerror or str(error)
            return [f"its libraries cannot be extracted ({reason}): see the names of its members"]
        except (BuildError, ConfigError) as error:
            return [str(error).replace(f"{folder}/", "")]


def linking_problems(site: Path, names: Iterable[str], platform_tag: str) -> list[str]:
    """Return a clause for each problem of the libraries among the files `names` that a wheel installed.

    `site` is the site-packages of an environment that also holds what the wheel requires. Platforms other
    than manylinux and musllinux are not judged.
    """
    if not policy.LIBC_TAG.fullmatch(platform_tag):
        return []
    own = [site / name for name in names if elf.is_elf(site / name)]
    files = {path: info for path in own if (info := elf.read_elf(path)) is not None}
    loadable = _loadable_libraries(site, own)
    target = policy.platform_target(platform_tag)
    return [
        *(clause for path in files for clause in _unresolved(site, path, files[path], loadable, target)),
        *_driver_imports(site, files, loadable),
        *_tag_contradictions(site, files, platform_tag),
    ]


def _tag_contradictions(root: Path, files: Mapping[Path, ElfInfo], tag: str) -> Iterator[str]:
    """Yield a clause for each file below `root` that needs more than the tag promises, or another machine."""
    plain = tag.startswith(policy.PLAIN_LINUX_PREFIX)
    arch = tag.removeprefix(policy.PLAIN_LINUX_PREFIX) if plain else policy.platform_target(tag).arch
    for path, info in files.items():
        if not info.runs_on(arch):
            yield f"{path.relative_to(root).as_posix()} is built for {info.machine}, not for {arch}"
    if not plain:
        yield from _policy_contradictions(root, files, policy.platform_target(tag))


def _policy_contradictions(
    root: Path, files: Mapping[Path, ElfInfo], target: PlatformTarget
) -> Iterator[str]:
    own = {path.name for path in files}
    libc, pattern = _OTHER_LIBC[target.tag.partition("linux")[0] + "linux"]
    for path, info in files.items():
        for needed in info.needed:
            if pattern.fullmatch(needed) and needed not in own:
                file = path.relative_to(root).as_posix()
                yield f"{file} needs {needed} of {libc}, which systems of {target.tag} do not have"
    yield from policy.policy_problems(target, policy.system_needs(root, files, target, own))


def _extract_libraries(archive: ZipFile, root: Path) -> Iterator[Path]:
    """Extract the ELF files of a wheel below `root` and yield their paths."""
    for info in archive.infolist():
        if info.is_dir() or zip_reader.unsafe_member(info):
            continue
        with archive.open(info) as member:
            magic = member.read(len(elf.ELF_MAGIC))
            if magic == elf.ELF_MAGIC:
                path = root / info.filename
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("wb") as copy:
                    copy.write(magic)
                    shutil.copyfileobj(member, copy)
                yield path


def _loadable_libraries(site: Path, own: Iterable[Path]) -> dict[str, Path]:
    """Return the libraries that can be loaded with the wheel: its own, and those of other packages."""
    nvidia = site / NVIDIA_FOLDER
    others = (path for path in site.rglob("*.so*") if nvidia not in path.parents and path.is_file())
    return {path.name: path for path in (*others, *own)}


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
        if not resolved and not target.on_system(needed) and not INTERPRETER_LIBRARY.fullmatch(needed):
            yield f"{name} needs {needed}, which is neither in the wheel nor in what it requires"


def _driver_imports(site: Path, files: Iterable[Path], loadable: Mapping[str, Path]) -> Iterator[str]:
    """Yield a clause for each library of the driver that an import of the wheel loads."""
    for path in files:
        if any(name.startswith(ENTRY_PREFIX) for name in elf.defined_symbols(path)):
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
