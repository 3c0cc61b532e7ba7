"""Read ELF files: what they need, what they are called, where they look."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elftools.common.exceptions import ELFError
from elftools.elf.elffile import ELFFile

from torchwright.errors import BuildError

MAGIC = b"\x7fELF"


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
    with path.open("rb") as file:
        return file.read(4) == MAGIC


def read(path: Path) -> Elf | None:
    """Return the facts of a dynamically linked file, None for object files and static programs.

    Raise BuildError where the file is damaged.
    """
    try:
        with path.open("rb") as file:
            elf = ELFFile(file)
            if elf.header.e_type not in {"ET_DYN", "ET_EXEC"}:
                return None
            dynamic = next(elf.iter_segments("PT_DYNAMIC"), None)
            return None if dynamic is None else _facts(elf, dynamic)
    except (ELFError, ValueError) as error:
        raise BuildError(f"{path}: not a sound ELF file ({error}): build it again") from None


def dynamic_files(root: Path) -> dict[Path, Elf]:
    """Return the facts of every dynamically linked file below `root`, in order of path."""
    found = {path: read(path) for path in sorted(root.rglob("*")) if is_elf(path)}
    return {path: elf for path, elf in found.items() if elf is not None}


def exports(path: Path) -> frozenset[str]:
    """Return the names that the file defines for others to use."""
    return frozenset(name for name, defined in _symbols(path) if defined)


def imports(path: Path) -> frozenset[str]:
    """Return the names that the file expects others to define."""
    return frozenset(name for name, defined in _symbols(path) if not defined)


def _facts(elf: ELFFile, dynamic: Any) -> Elf:  # pyelftools names a tag's value after the tag, at run time
    needed, soname = [], None
    paths: dict[str, tuple[str, ...]] = {}
    for tag in dynamic.iter_tags():
        if tag.entry.d_tag == "DT_NEEDED":
            needed.append(tag.needed)
        elif tag.entry.d_tag == "DT_SONAME":
            soname = tag.soname
        elif tag.entry.d_tag == "DT_RPATH":
            paths["rpath"] = _entries(tag.rpath)
        elif tag.entry.d_tag == "DT_RUNPATH":
            paths["runpath"] = _entries(tag.runpath)
    # the loader ignores DT_RPATH where there is a DT_RUNPATH
    rpath = paths.get("runpath", paths.get("rpath", ()))
    return Elf(elf.header.e_machine, tuple(needed), soname, rpath, _versions(elf))


def _entries(path: str) -> tuple[str, ...]:
    return tuple(entry for entry in path.split(":") if entry)


def _versions(elf: ELFFile) -> dict[str, frozenset[str]]:
    section: Any = elf.get_section_by_name(".gnu.version_r")
    if section is None:
        return {}
    return {need.name: frozenset(each.name for each in each_of) for need, each_of in section.iter_versions()}


def _symbols(path: Path) -> Iterator[tuple[str, bool]]:
    """Yield the names in the dynamic symbol table that matter, and whether they are defined here."""
    with path.open("rb") as file:
        table: Any = ELFFile(file).get_section_by_name(".dynsym")
        for symbol in table.iter_symbols() if table is not None else ():
            defined = symbol["st_shndx"] != "SHN_UNDEF"
            if symbol.name and (defined or symbol["st_info"]["bind"] != "STB_WEAK"):
                yield symbol.name, defined
