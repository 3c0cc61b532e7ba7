"""Where the libraries of a package look for others: in their own folders, then in the environment's lib/.

A wheel's run paths are DT_RUNPATH, a conda package's are DT_RPATH (patchelf's --force-rpath): conda-build,
rattler-build and the packages of the channel `pytorch` all have it so (conda-build#345, pytorch/builder#295).
LD_LIBRARY_PATH comes before DT_RUNPATH and after DT_RPATH: with the former, a module that a cluster's user
has loaded would take the place of the environment's libraries.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path

from torchmill.pack import elf, inplace, patchelf, runpath
from torchmill.pack.edit import Edit
from torchmill.pack.elf import Elf
from torchmill.pack.image import DYNAMIC, RPATH, RUNPATH, opened
from torchmill.pack.stage import StagedWheel

ENTRY = "qQ"  # of the dynamic section of 64-bit files: tag and value


def wanted(path: Path, facts: Elf, staged: StagedWheel, lib: Path) -> tuple[str, ...]:
    """Return the run path of a file in site-packages: its own, and last the environment's `lib`."""
    libraries = [each for each in (staged.libraries, staged.root / f"{staged.package}.libs") if each.is_dir()]
    own = runpath.wanted(path, facts.rpath, True, staged.root, libraries)
    return (*own, runpath.relative(path, lib))


def apply(staged: StagedWheel, lib: Path) -> tuple[str, ...]:
    """Give every library and program of an unpacked wheel its run path; return which, from site-packages.

    Raises BuildError for a damaged file, HostError where the disk refuses what is new.
    """
    return tuple(_applied(staged, lib))


def _applied(staged: StagedWheel, lib: Path) -> Iterator[str]:
    for path, facts in elf.dynamic_files(staged.root).items():
        if not facts.needed:
            continue
        mode = path.stat().st_mode
        path.chmod(mode | 0o200)
        edit = Edit(rpath=wanted(path, facts, staged, lib))
        if not inplace.apply(edit, path):
            patchelf.apply(edit, path)
        force(path)
        path.chmod(mode)
        yield path.relative_to(staged.root).as_posix()


def force(path: Path) -> None:
    """Change the tag of a 64-bit file's run path, to one that LD_LIBRARY_PATH does not come before."""
    with opened(path) as image:
        table, order = image.segment(DYNAMIC), image.order
        tags = [tag for tag, _ in image.dynamic]
    if table is None or RUNPATH not in tags:
        return
    with path.open("r+b") as file:
        file.seek(table.offset + tags.index(RUNPATH) * struct.calcsize(order + ENTRY))
        file.write(struct.pack(f"{order}q", RPATH))
