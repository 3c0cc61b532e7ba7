"""Read ELF files: what they need, what they are called, where they look."""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from torchmill.core.errors import BuildError

ELF_MAGIC = b"\x7fELF"
EXECUTABLE, SHARED = 2, 3  # e_type
LOAD, DYNAMIC, INTERP, NOTE, PHDR, PROPERTY = 1, 2, 3, 4, 6, 0x6474E553  # p_type
HASH_SECTION, NOTE_SECTION, DYNSYM, GNU_HASH_SECTION = 5, 7, 11, 0x6FFFFFF6  # sh_type
NULL, NEEDED, HASH, STRTAB, SYMTAB, STRSZ, SONAME, RPATH, RUNPATH = 0, 1, 4, 5, 6, 10, 14, 15, 29  # d_tag
GNU_HASH, VERNEED, VERNEEDNUM = 0x6FFFFEF5, 0x6FFFFFFE, 0x6FFFFFFF
VERNEED_LAYOUT = (
    "HHIII"  # of versions: (format, count, file, first, next), then (hash, flags, index, name, next)
)
VERNAUX_LAYOUT = "IHHII"
WEAK = 2


@dataclass(frozen=True, slots=True)
class ElfLayout:
    """How the structures of one class of files are laid out."""

    header: str
    segment: str
    section: str
    dynamic: str
    symbol: str


ELF_LAYOUTS = {
    1: ElfLayout("HHIIIIIHHHHHH", "IIIIIIII", "IIIIIIIIII", "iI", "IIIBBH"),
    2: ElfLayout("HHIQQQIHHHHHH", "IIQQQQQQ", "IIQQQQIIQQ", "qQ", "IBBHQQ"),
}


@dataclass(frozen=True, slots=True)
class Segment:
    """A program header."""

    kind: int
    flags: int
    offset: int
    address: int
    size: int  # bytes in the file
    memory: int  # bytes in memory
    align: int

    @property
    def end(self) -> int:
        """Return where in the file it ends."""
        return self.offset + self.size


@dataclass(frozen=True, slots=True)
class Section:
    """A section header, and where in the file it stands itself."""

    at: int
    kind: int
    address: int
    offset: int
    size: int
    link: int
    name: int  # where in the table of names it begins

    @property
    def end(self) -> int:
        """Return where in the file it ends."""
        return self.offset + self.size


@dataclass(frozen=True, slots=True)
class VersionNeed:
    """The versions that are wanted of one library, and where in the file that stands."""

    at: int
    library: str
    versions: tuple[str, ...]


@dataclass
class ElfImage:
    """An ELF file as bytes."""

    data: mmap.mmap | bytes

    @cached_property
    def layout(self) -> ElfLayout:
        """Return how the structures are laid out."""
        if self.data[:4] != ELF_MAGIC or self.data[4] not in ELF_LAYOUTS:
            raise ValueError("it does not begin as ELF files do")
        return ELF_LAYOUTS[self.data[4]]

    @property
    def is_64(self) -> bool:
        """Tell whether addresses have 64 bits."""
        return self.layout is ELF_LAYOUTS[2]

    @cached_property
    def byte_order(self) -> str:
        """Return how numbers are stored, as `struct` spells it."""
        return "<" if self.data[5] == 1 else ">"

    @cached_property
    def header(self) -> tuple[int, ...]:
        """Return e_type, e_machine, and what follows them."""
        return self.unpack(self.layout.header, 16)

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """Return the program headers."""
        return tuple(map(self._segment, self._table(self.layout.segment, self.header[4], self.header[9])))

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        """Return the section headers."""
        size, start = struct.calcsize(self.byte_order + self.layout.section), self.header[5]
        rows = self._table(self.layout.section, start, self.header[11])
        return tuple(self._section(start + number * size, row) for number, row in enumerate(rows))

    @cached_property
    def dynamic(self) -> tuple[tuple[int, int], ...]:
        """Return the entries of the dynamic section up to its end, tag and value."""
        segment = self.first_segment(DYNAMIC)
        size = struct.calcsize(self.byte_order + self.layout.dynamic)
        rows = self._table(self.layout.dynamic, segment.offset, segment.size // size) if segment else []
        found = []
        for tag, value in rows:
            if tag == NULL:
                break
            found.append((tag, value))
        return tuple(found)

    @cached_property
    def strings_offset(self) -> int:
        """Return where in the file the names begin that the dynamic section refers to."""
        return self.file_offset(dict(self.dynamic)[STRTAB])

    def first_segment(self, kind: int) -> Segment | None:
        """Return the first segment of a kind."""
        return next((segment for segment in self.segments if segment.kind == kind), None)

    def sections_named(self, name: str) -> Iterator[Section]:
        """Yield the sections of a name."""
        if self.sections:
            names = self.sections[self.header[12]].offset
            yield from (one for one in self.sections if self._text(names + one.name) == name)

    def file_offset(self, address: int) -> int:
        """Return where in the file lies what is loaded to an address."""
        for segment in self.segments:
            if segment.kind == LOAD and segment.address <= address < segment.address + segment.size:
                return address - segment.address + segment.offset
        raise ValueError(f"nothing is loaded to {address:#x}")

    def dynamic_string(self, index: int) -> str:
        """Return a name of the dynamic section."""
        return self._text(self.strings_offset + index)

    def version_needs(self) -> Iterator[VersionNeed]:
        """Yield what versions are wanted of which library."""
        tags = dict(self.dynamic)
        at = self.file_offset(tags[VERNEED]) if VERNEED in tags else 0
        for _ in range(tags.get(VERNEEDNUM, 0)):
            _, count, library, first, following = self.unpack(VERNEED_LAYOUT, at)
            versions, each = [], at + first
            for _ in range(count):
                _, _, _, name, step = self.unpack(VERNAUX_LAYOUT, each)
                versions.append(self.dynamic_string(name))
                each += step
            yield VersionNeed(at, self.dynamic_string(library), tuple(versions))
            at += following

    def symbols(self) -> Iterator[tuple[str, bool]]:
        """Yield the names in the dynamic symbol table that matter, and whether they are defined here."""
        table = next((section for section in self.sections if section.kind == DYNSYM), None)
        if table is None:
            return
        names = self.sections[table.link].offset
        for row in struct.iter_unpack(
            self.byte_order + self.layout.symbol, self.data[table.offset : table.offset + table.size]
        ):
            name, info, section = (row[0], row[1], row[3]) if self.is_64 else (row[0], row[3], row[5])
            if name and (section or info >> 4 != WEAK):
                yield self._text(names + name), bool(section)

    def unpack(self, layout: str, at: int) -> tuple[int, ...]:
        """Return the numbers that stand at a place in the file."""
        return struct.unpack_from(self.byte_order + layout, self.data, at)

    def _table(self, layout: str, start: int, count: int) -> list[tuple[int, ...]]:
        size = struct.calcsize(self.byte_order + layout)
        return [self.unpack(layout, start + number * size) for number in range(count)]

    def _segment(self, row: tuple[int, ...]) -> Segment:
        if self.is_64:
            kind, flags, offset, address, _, size, memory, align = row
        else:
            kind, offset, address, _, size, memory, flags, align = row
        return Segment(kind, flags, offset, address, size, memory, align)

    @staticmethod
    def _section(at: int, row: tuple[int, ...]) -> Section:
        name, kind, _, address, offset, size, link = row[:7]
        return Section(at, kind, address, offset, size, link, name)

    def _text(self, start: int) -> str:
        end = self.data.find(b"\0", start)
        if end < 0:
            raise ValueError("a name has no end")
        return os.fsdecode(self.data[start:end])


@contextmanager
def open_elf(path: Path) -> Iterator[ElfImage]:
    """Give access to an ELF file; raise BuildError where what is looked at is damaged."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield ElfImage(data)
    except (struct.error, ValueError, IndexError, KeyError) as error:
        raise BuildError(f"{path}: not a sound ELF file ({error}): build it again") from None


MACHINE_NAMES = {
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
class ElfInfo:
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
        return file.read(len(ELF_MAGIC)) == ELF_MAGIC


def read_elf(path: Path) -> ElfInfo | None:
    """Return the facts of a dynamically linked file, None for object files and static programs.

    Raise BuildError where the file is damaged.
    """
    with open_elf(path) as image:
        kind, machine = image.header[:2]
        if kind not in {SHARED, EXECUTABLE} or image.first_segment(DYNAMIC) is None:
            return None
        return _elf_info(image, MACHINE_NAMES.get(machine, f"EM_{machine}"))


def dynamic_files(root: Path) -> dict[Path, ElfInfo]:
    """Return the facts of every dynamically linked file below `root`, in order of path."""
    paths = (Path(folder, name) for folder, _, names in os.walk(root) for name in names)
    found = {path: read_elf(path) for path in sorted(filter(is_elf, paths))}
    return {path: elf for path, elf in found.items() if elf is not None}


def defined_symbols(path: Path) -> frozenset[str]:
    """Return the names that the file defines for others to use."""
    with open_elf(path) as image:
        return frozenset(name for name, defined in image.symbols() if defined)


def undefined_symbols(path: Path) -> frozenset[str]:
    """Return the names that the file expects others to define."""
    with open_elf(path) as image:
        return frozenset(name for name, defined in image.symbols() if not defined)


def _elf_info(image: ElfImage, machine: str) -> ElfInfo:
    named: dict[int, list[str]] = {NEEDED: [], SONAME: [], RPATH: [], RUNPATH: []}
    for tag, value in image.dynamic:
        if tag in named:
            named[tag].append(image.dynamic_string(value))
    # the loader ignores DT_RPATH where there is a DT_RUNPATH
    path = (*named[RUNPATH], *named[RPATH], "")[0]
    rpath = tuple(entry for entry in path.split(":") if entry)
    versions = {need.library: frozenset(need.versions) for need in image.version_needs()}
    return ElfInfo(machine, tuple(named[NEEDED]), next(iter(named[SONAME]), None), rpath, versions)


AR_MAGIC = b"!<arch>\n"
_AR_HEADER_BYTES, _AR_SIZE_FIELD, _AR_HEADER_END = 60, slice(48, 58), b"`\n"


def is_static_library(path: Path) -> bool:
    """Tell whether a file is a static library."""
    with path.open("rb") as file:
        return file.read(len(AR_MAGIC)) == AR_MAGIC


def static_objects(path: Path) -> Iterator[ElfImage]:
    """Yield the objects of a static library; raise BuildError where it is damaged."""
    with open_elf(path) as whole:
        at = len(AR_MAGIC)
        while at < len(whole.data):
            header = whole.data[at : at + _AR_HEADER_BYTES]
            if len(header) < _AR_HEADER_BYTES or header[-2:] != _AR_HEADER_END:
                raise BuildError(
                    f"{path}: not a sound static library ({at:#x} begins no member): get it again"
                )
            at, size = at + _AR_HEADER_BYTES, int(header[_AR_SIZE_FIELD])
            content = whole.data[at : at + size]
            if len(content) < size:
                raise BuildError(f"{path}: not a sound static library (it ends too soon): get it again")
            if content.startswith(ELF_MAGIC):  # else it is a table of symbols or of names
                yield ElfImage(content)
            at += size + size % 2
