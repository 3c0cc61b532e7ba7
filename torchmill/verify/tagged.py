"""Judge the platform tags in a wheel's name by what its files need, without installing it."""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from zipfile import BadZipFile, ZipFile

from torchmill.errors import BuildError, ConfigError
from torchmill.pack import elf, image, judging, members, policy
from torchmill.pack.elf import Elf

_GLIBC = re.compile(r"libc\.so\.6|ld-linux[\w.-]*\.so\.\d+|ld64\.so\.\d")
_MUSL = re.compile(r"(libc\.|ld-)musl-\w+\.so\.1")
_OTHERS = {"manylinux": ("musl", _MUSL), "musllinux": ("glibc", _GLIBC)}  # than the C library of a tag
_PLAIN = "linux_"  # how tags begin that promise a machine, and no C library


def platforms(name: str) -> tuple[str, ...]:
    """Return the platform tags in the name of a wheel: "manylinux_2_17_x86_64", "manylinux2014_x86_64"."""
    return tuple(name.removesuffix(".whl").rpartition("-")[2].split("."))


def problems(wheel: Path) -> list[str]:
    """Return a clause for each promise of the wheel's name that its files contradict.

    Tags of Linux wheels promise a machine, and those with a known C library what that has: of others nothing
    is said.
    """
    promises = [tag for tag in platforms(wheel.name) if tag.startswith((*_OTHERS, _PLAIN))]
    if not promises:
        return []
    with tempfile.TemporaryDirectory() as folder:
        try:
            with ZipFile(wheel) as archive:
                root = Path(folder)
                files = {path: facts for path in _libraries(archive, root) if (facts := elf.read(path))}
            return [clause for tag in promises for clause in _contradictions(root, files, tag)]
        except BadZipFile as error:
            return [f"the file is no sound zip archive ({error})"]
        except OSError as error:
            why = error.strerror or str(error)
            return [f"its libraries cannot be laid out to be read ({why}): see the names of its members"]
        except (BuildError, ConfigError) as error:
            return [str(error).replace(f"{folder}/", "")]


def _contradictions(root: Path, files: Mapping[Path, Elf], tag: str) -> Iterator[str]:
    if tag.startswith(_PLAIN):
        yield from _of_another_machine(root, files, tag.removeprefix(_PLAIN))
    else:
        yield from contradictions(root, files, policy.target(tag))


def contradictions(root: Path, files: Mapping[Path, Elf], target: policy.Target) -> Iterator[str]:
    """Yield a clause for each file below `root` that needs more than the tag promises, or another machine."""
    yield from _of_another_machine(root, files, target.arch)
    own = {path.name for path in files}
    name, foreign = _OTHERS[target.tag.partition("linux")[0] + "linux"]
    for path, facts in files.items():
        for needed in facts.needed:
            if foreign.fullmatch(needed) and needed not in own:
                file = path.relative_to(root).as_posix()
                yield f"{file} needs {needed} of {name}, which systems of {target.tag} do not have"
    yield from policy.problems(target, judging.needs(root, files, target, own))


def _of_another_machine(root: Path, files: Mapping[Path, Elf], arch: str) -> Iterator[str]:
    """Yield a clause for each file that is made for another machine than a tag says."""
    machine = policy.MACHINES.get(arch)
    for path, facts in files.items():
        if machine not in {None, facts.machine}:
            yield f"{path.relative_to(root).as_posix()} is made for {facts.machine}, not for {arch}"


def _libraries(archive: ZipFile, root: Path) -> Iterator[Path]:
    """Yield the ELF files of a wheel, written below `root`."""
    for info in archive.infolist():
        if info.is_dir() or members.trick(info):
            continue
        with archive.open(info) as member:
            start = member.read(len(image.MAGIC))
            if start == image.MAGIC:
                path = root / info.filename
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("wb") as copy:
                    copy.write(start)
                    shutil.copyfileobj(member, copy)
                yield path
