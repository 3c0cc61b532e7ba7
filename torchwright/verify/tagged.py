"""Judge the platform tags in a wheel's name by what its files need, without installing it."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from zipfile import BadZipFile, ZipFile

from torchwright.errors import BuildError, ConfigError
from torchwright.pack import elf, image, judging, policy
from torchwright.pack.elf import Elf


def platforms(name: str) -> tuple[str, ...]:
    """Return the platform tags in the name of a wheel: "manylinux_2_17_x86_64", "manylinux2014_x86_64"."""
    return tuple(name.removesuffix(".whl").rpartition("-")[2].split("."))


def problems(wheel: Path) -> list[str]:
    """Return a clause for each promise of the wheel's name that its files contradict.

    Only tags of Linux wheels with a known C library promise something: of others nothing is said.
    """
    promises = [tag for tag in platforms(wheel.name) if tag.startswith(("manylinux", "musllinux"))]
    if not promises:
        return []
    try:
        targets = [policy.target(tag) for tag in promises]
        with tempfile.TemporaryDirectory() as folder, ZipFile(wheel) as archive:
            root = Path(folder)
            files = {path: facts for path in _libraries(archive, root) if (facts := elf.read(path))}
            return [clause for target in targets for clause in contradictions(root, files, target)]
    except BadZipFile as error:
        return [f"the file is no sound zip archive ({error})"]
    except (BuildError, ConfigError) as error:
        return [str(error)]


def contradictions(root: Path, files: Mapping[Path, Elf], target: policy.Target) -> Iterator[str]:
    """Yield a clause for each file below `root` that needs more than the tag promises, or another machine."""
    for path, facts in files.items():
        if target.machine not in {None, facts.machine}:
            yield f"{path.relative_to(root).as_posix()} is made for {facts.machine}, not for {target.arch}"
    own = {path.name for path in files}
    yield from policy.problems(target, judging.needs(root, files, target, own))


def _libraries(archive: ZipFile, root: Path) -> Iterator[Path]:
    """Yield the ELF files of a wheel, written below `root`."""
    for info in archive.infolist():
        name = PurePosixPath(info.filename)
        if info.is_dir() or name.is_absolute() or ".." in name.parts:
            continue
        with archive.open(info) as member:
            start = member.read(len(image.MAGIC))
            if start == image.MAGIC:
                path = root / name
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("wb") as copy:
                    copy.write(start)
                    shutil.copyfileobj(member, copy)
                yield path
