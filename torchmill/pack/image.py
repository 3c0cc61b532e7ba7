"""The parts of an ELF file, found by its headers and read where they lie.

Only the pages that are looked at come into memory, and of the hundred thousand symbols of a large library
none unless they are asked for.
"""

from __future__ import annotations

import mmap
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from torchmill.errors import BuildError

MAGIC = b"\x7fELF"
EXECUTABLE, SHARED = 2, 3  # e_type
LOAD, DYNAMIC, INTERP, NOTE, TABLE, PROPERTY = 1, 2, 3, 4, 6, 0x6474E553  # p_type
HASH_SECTION, NOTE_SECTION, DYNSYM, GNU_HASH_SECTION = 5, 7, 11, 0x6FFFFFF6  # sh_type
NULL, NEEDED, HASH, STRTAB, SYMTAB, STRSZ, SONAME, RPATH, RUNPATH = 0, 1, 4, 5, 6, 10, 14, 15, 29  # d_tag
GNU_HASH, VERNEED, VERNEEDNUM = 0x6FFFFEF5, 0x6FFFFFFE, 0x6FFFFFFF
NEED = "HHIII"  # of versions: (format, count, file, first, next), then (hash, flags, index, name, next)
VERSION = "IHHII"
WEAK = 2


@dataclass(frozen=True, slots=True)
class Class:
    """How the structures of one class of files are laid out."""

    header: str
    segment: str
    section: str
    dynamic: str
    symbol: str


CLASSES = {
    1: Class("HHIIIIIHHHHHH", "IIIIIIII", "IIIIIIIIII", "iI", "IIIBBH"),
    2: Class("HHIQQQIHHHHHH", "IIQQQQQQ", "IIQQQQIIQQ", "qQ", "IBBHQQ"),
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
class Need:
    """The versions that are wanted of one library, and where in the file that stands."""

    at: int
    library: str
    versions: tuple[str, ...]


@dataclass
class Image:
    """An ELF file as bytes."""

    data: mmap.mmap | bytes

    @cached_property
    def layout(self) -> Class:
        """Return how the structures are laid out."""
        if self.data[:4] != MAGIC or self.data[4] not in CLASSES:
            raise ValueError("it does not begin as ELF files do")
        return CLASSES[self.data[4]]

    @property
    def is_64(self) -> bool:
        """Tell whether addresses have 64 bits."""
        return self.layout is CLASSES[2]

    @cached_property
    def order(self) -> str:
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
        size, start = struct.calcsize(self.order + self.layout.section), self.header[5]
        rows = self._table(self.layout.section, start, self.header[11])
        return tuple(self._section(start + number * size, row) for number, row in enumerate(rows))

    @cached_property
    def dynamic(self) -> tuple[tuple[int, int], ...]:
        """Return the entries of the dynamic section up to its end, tag and value."""
        segment = self.segment(DYNAMIC)
        size = struct.calcsize(self.order + self.layout.dynamic)
        rows = self._table(self.layout.dynamic, segment.offset, segment.size // size) if segment else []
        found = []
        for tag, value in rows:
            if tag == NULL:
                break
            found.append((tag, value))
        return tuple(found)

    @cached_property
    def strings(self) -> int:
        """Return where in the file the names begin that the dynamic section refers to."""
        return self.offset(dict(self.dynamic)[STRTAB])

    def segment(self, kind: int) -> Segment | None:
        """Return the first segment of a kind."""
        return next((segment for segment in self.segments if segment.kind == kind), None)

    def named(self, name: str) -> Iterator[Section]:
        """Yield the sections of a name."""
        if self.sections:
            names = self.sections[self.header[12]].offset
            yield from (one for one in self.sections if self._text(names + one.name) == name)

    def offset(self, address: int) -> int:
        """Return where in the file lies what is loaded to an address."""
        for segment in self.segments:
            if segment.kind == LOAD and segment.address <= address < segment.address + segment.size:
                return address - segment.address + segment.offset
        raise ValueError(f"nothing is loaded to {address:#x}")

    def name(self, index: int) -> str:
        """Return a name of the dynamic section."""
        return self._text(self.strings + index)

    def needs(self) -> Iterator[Need]:
        """Yield what versions are wanted of which library."""
        tags = dict(self.dynamic)
        at = self.offset(tags[VERNEED]) if VERNEED in tags else 0
        for _ in range(tags.get(VERNEEDNUM, 0)):
            _, count, library, first, following = self.unpack(NEED, at)
            versions, each = [], at + first
            for _ in range(count):
                _, _, _, name, step = self.unpack(VERSION, each)
                versions.append(self.name(name))
                each += step
            yield Need(at, self.name(library), tuple(versions))
            at += following

    def symbols(self) -> Iterator[tuple[str, bool]]:
        """Yield the names in the dynamic symbol table that matter, and whether they are defined here."""
        table = next((section for section in self.sections if section.kind == DYNSYM), None)
        if table is None:
            return
        names = self.sections[table.link].offset
        for row in struct.iter_unpack(
            self.order + self.layout.symbol, self.data[table.offset : table.offset + table.size]
        ):
            name, info, section = (row[0], row[1], row[3]) if self.is_64 else (row[0], row[3], row[5])
            if name and (section or info >> 4 != WEAK):
                yield self._text(names + name), bool(section)

    def unpack(self, layout: str, at: int) -> tuple[int, ...]:
        """Return the numbers that stand at a place in the file."""
        return struct.unpack_from(self.order + layout, self.data, at)

    def _table(self, layout: str, start: int, count: int) -> list[tuple[int, ...]]:
        size = struct.calcsize(self.order + layout)
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
def opened(path: Path) -> Iterator[Image]:
    """Give access to an ELF file; raise BuildError where what is looked at is damaged."""
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            yield Image(data)
    except (struct.error, ValueError, IndexError, KeyError) as error:
        raise BuildError(f"{path}: not a sound ELF file ({error}): build it again") from None
