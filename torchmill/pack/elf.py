"""Read ELF files: what they need, what they are called, where they look."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torchmill.pack.image import (
    DYNAMIC,
    EXECUTABLE,
    MAGIC,
    NEEDED,
    RPATH,
    RUNPATH,
    SHARED,
    SONAME,
    Image,
    opened,
)

MACHINES = {
    3: "EM_386",
    21: "EM_PPC64",
    22: "EM_S390",
    40: "EM_ARM",
    62: "EM_X86_64",
    183: "EM_AARCH64",
    243: "EM_RISCV",
    258: "EM_LOONGARCH",
}


@dataclass(frozen=True, slots=True)
class Elf:
    """What the dynamic section of one file says."""

    machine: str  # "EM_X86_64"
    needed: tuple[str, ...] = ()
    soname: str | None = None
    rpath: tuple[str, ...] = ()  # DT_RUNPATH, or DT_RPATH where there is none
    versions: Mapping[str, frozenset[str]] = field(default_factory=dict)  # library -> "GLIBC_2.34", …


def is_elf(path: Path) -> bool:
    """Say whether `path` is a regular file that starts as ELF files do."""
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb", buffering=0) as file:
        return file.read(len(MAGIC)) == MAGIC


def read(path: Path) -> Elf | None:
    """Return the facts of a dynamically linked file, None for object files and static programs.

    Raise BuildError where the file is damaged.
    """
    with opened(path) as image:
        kind, machine = image.header[:2]
        if kind not in {SHARED, EXECUTABLE} or image.segment(DYNAMIC) is None:
            return None
        return _facts(image, MACHINES.get(machine, f"EM_{machine}"))


def dynamic_files(root: Path) -> dict[Path, Elf]:
    """Return the facts of every dynamically linked file below `root`, in order of path."""
    paths = (Path(folder, name) for folder, _, names in os.walk(root) for name in names)
    found = {path: read(path) for path in sorted(filter(is_elf, paths))}
    return {path: elf for path, elf in found.items() if elf is not None}


def exports(path: Path) -> frozenset[str]:
    """Return the names that the file defines for others to use."""
    with opened(path) as image:
        return frozenset(name for name, defined in image.symbols() if defined)


def imports(path: Path) -> frozenset[str]:
    """Return the names that the file expects others to define."""
    with opened(path) as image:
        return frozenset(name for name, defined in image.symbols() if not defined)


def _facts(image: Image, machine: str) -> Elf:
    named: dict[int, list[str]] = {NEEDED: [], SONAME: [], RPATH: [], RUNPATH: []}
    for tag, value in image.dynamic:
        if tag in named:
            named[tag].append(image.name(value))
    # the loader ignores DT_RPATH where there is a DT_RUNPATH
    path = (*named[RUNPATH], *named[RPATH], "")[0]
    rpath = tuple(entry for entry in path.split(":") if entry)
    versions = {need.library: frozenset(need.versions) for need in image.needs()}
    return Elf(machine, tuple(named[NEEDED]), next(iter(named[SONAME]), None), rpath, versions)
