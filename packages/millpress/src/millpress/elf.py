"""Read ELF files and static libraries: needed libraries, symbols and versions, names and run paths.

Files are mapped into memory: only the pages that are read are loaded, and the symbol table of a large library
only where it is asked for. pyelftools takes 20 times as long for the symbols of libLLVM.
"""

import mmap
import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from itertools import takewhile
from pathlib import Path

from millpress.errors import InputError
from millpress.tables import read_table

ELF_MAGIC = b"\x7fELF"
EXECUTABLE, SHARED = 2, 3  # e_type
LOAD, DYNAMIC, INTERP, NOTE, PHDR, PROPERTY = 1, 2, 3, 4, 6, 0x6474E553  # p_type
SYMBOLS, HASH_SECTION, NOTE_SECTION, NOBITS, DYNSYM, GNU_HASH_SECTION = (
    2,
    5,
    7,
    8,
    11,
    0x6FFFFFF6,
)  # sh_type
NULL, NEEDED, HASH, STRTAB, SYMTAB, STRSZ, SONAME, RPATH, RUNPATH = (
    0,
    1,
    4,
    5,
    6,
    10,
    14,
    15,
    29,
)  # d_tag
RELA, RELASZ, RELR = 7, 8, 36
RELATIVE = {62: 8, 183: 1027}  # e_machine -> type of relocation
GNU_HASH, VERNEED = 0x6FFFFEF5, 0x6FFFFFFE
VERNEED_LAYOUT = "HHIII"  # format, count, file, first, next
VERNAUX_LAYOUT = "IHHII"  # hash, flags, index, name, next
WEAK = 2  # symbol binding
AR_MAGIC = b"!<arch>\n"
DAMAGED_OBJECT = "it has a damaged object ({}): fetch it again"  # of a static library
_AR_HEADER_BYTES, _AR_SIZE_FIELD, _AR_HEADER_END = 60, slice(48, 58), b"`\n"
ARCHES: dict[str, str] = read_table("machines.toml")  # arch of platform tags by e_machine


@dataclass(frozen=True, slots=True)
class ElfLayout:
    """The layouts of the structures of 32-bit or 64-bit files, as `struct` spells them."""

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
        """Return the offset of its end."""
        return self.offset + self.size


@dataclass(frozen=True, slots=True)
class Section:
    """A section header."""

    at: int  # offset of the header itself
    kind: int
    address: int
    offset: int
    size: int
    link: int
    name: int  # offset in the table of section names

    @property
    def end(self) -> int:
        """Return the offset of its end."""
        return self.offset + self.size


@dataclass
class ElfImage:
    """The structures of an ELF file in memory."""

    data: mmap.mmap | bytes
    start: int = 0  # where the data begins in its file

    @cached_property
    def layout(self) -> ElfLayout:
        """Return the layouts of the structures."""
        if self.data[:4] != ELF_MAGIC or self.data[4] not in ELF_LAYOUTS:
            raise ValueError("no ELF header")
        return ELF_LAYOUTS[self.data[4]]

    @property
    def is_64(self) -> bool:
        """Tell whether addresses have 64 bits."""
        return self.layout is ELF_LAYOUTS[2]

    @cached_property
    def byte_order(self) -> str:
        """Return the byte order, as `struct` spells it."""
        return "<" if self.data[5] == 1 else ">"

    @cached_property
    def header(self) -> tuple[int, ...]:
        """Return e_type, e_machine, and what follows them."""
        return self.unpack(self.layout.header, 16)

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """Return the program headers."""
        rows = self._table(self.layout.segment, self.header[4], self.header[9])
        if not self.is_64:  # the flags come late
            rows = [(*row[:1], row[6], *row[1:6], *row[7:]) for row in rows]
        return tuple(Segment(*row[:4], *row[5:]) for row in rows)  # without the physical address

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        """Return the section headers."""
        step, start = struct.calcsize(self.byte_order + self.layout.section), self.header[5]
        rows = enumerate(self._table(self.layout.section, start, self.header[11]))
        return tuple(
            Section(start + number * step, kind, address, offset, size, link, name)
            for number, (name, kind, _, address, offset, size, link, *_) in rows
        )

    @cached_property
    def dynamic(self) -> tuple[tuple[int, int], ...]:
        """Return the entries of the dynamic section, tag and value, up to DT_NULL."""
        segment = self.first_segment(DYNAMIC)
        size = struct.calcsize(self.byte_order + self.layout.dynamic)
        rows = (
            self._table(self.layout.dynamic, segment.offset, segment.size // size)
            if segment
            else []
        )
        return tuple((row[0], row[1]) for row in takewhile(lambda row: row[0] != NULL, rows))

    @cached_property
    def strings_offset(self) -> int:
        """Return the offset of the string table of the dynamic section."""
        return self.file_offset(dict(self.dynamic)[STRTAB])

    def first_segment(self, kind: int) -> Segment | None:
        """Return the first segment of a kind."""
        return next((segment for segment in self.segments if segment.kind == kind), None)

    def sections_named(self, name: str) -> Iterator[Section]:
        """Yield the sections of a name."""
        if self.sections:
            names = self.sections[self.header[12]].offset
            yield from (each for each in self.sections if self._text(names + each.name) == name)

    def file_offset(self, address: int) -> int:
        """Return the offset in the file of what is loaded to an address."""
        for segment in self.segments:
            if segment.kind == LOAD and segment.address <= address < segment.address + segment.size:
                return address - segment.address + segment.offset
        raise ValueError(f"nothing is loaded to {address:#x}")

    def pointers(self) -> Iterator[tuple[int, int, int]]:
        """Yield address, value and value's offset of each pointer in DT_RELA that the load address is added to."""
        tags, relative = dict(self.dynamic), RELATIVE[self.header[1]]
        at = self.file_offset(tags[RELA]) if RELA in tags else 0
        for each in range(at, at + tags.get(RELASZ, 0), struct.calcsize("QQQ")):
            place, kind, value = self.unpack("QQQ", each)
            if kind == relative:
                yield place, value, each + 16

    def dynamic_string(self, index: int) -> str:
        """Return the string at an index of the dynamic section's string table."""
        return self._text(self.strings_offset + index)

    def version_needs(self) -> Iterator[tuple[int, str, frozenset[str]]]:
        """Yield the offset of each entry, the library that it names, and the symbol versions needed of it."""
        tags = dict(self.dynamic)
        at = self.file_offset(tags[VERNEED]) if VERNEED in tags else 0
        while at:
            _, count, library, first, following = self.unpack(VERNEED_LAYOUT, at)
            versions, each = [], at + first
            for _ in range(count):
                _, _, _, name, step = self.unpack(VERNAUX_LAYOUT, each)
                versions.append(self.dynamic_string(name))
                each += step
            yield at, self.dynamic_string(library), frozenset(versions)
            at = (
                following and at + following
            )  # as the loader reads them: 0 ends the list, whatever DT_VERNEEDNUM says

    def symbol_values(self, kind: int) -> Iterator[tuple[int, int]]:
        """Yield the offset and the value of each symbol's value in a 64-bit file's tables of a kind."""
        for table in (section for section in self.sections if section.kind == kind):
            rows = struct.iter_unpack(
                self.byte_order + self.layout.symbol, self.data[table.offset : table.end]
            )
            yield from ((table.offset + number * 24 + 8, row[4]) for number, row in enumerate(rows))

    def symbols(self) -> Iterator[tuple[str, bool]]:
        """Yield dynamic symbols and whether they are defined; weak undefined ones are left out."""
        table = next((section for section in self.sections if section.kind == DYNSYM), None)
        if table is None:
            return
        names = self.sections[table.link].offset
        for row in struct.iter_unpack(
            self.byte_order + self.layout.symbol, self.data[table.offset : table.end]
        ):
            name, info, section = (
                (row[0], row[1], row[3]) if self.is_64 else (row[0], row[3], row[5])
            )
            if name and (section or info >> 4 != WEAK):
                yield self._text(names + name), bool(section)

    def release(self) -> None:
        """Give back the memory of what was read: it counts as the process's own."""
        if isinstance(self.data, mmap.mmap):
            self.data.madvise(mmap.MADV_DONTNEED)

    def unpack(self, layout: str, at: int) -> tuple[int, ...]:
        """Return the numbers of a layout at an offset."""
        return struct.unpack_from(self.byte_order + layout, self.data, at)

    def _table(self, layout: str, start: int, count: int) -> list[tuple[int, ...]]:
        size = struct.calcsize(self.byte_order + layout)
        return [self.unpack(layout, start + number * size) for number in range(count)]

    def _text(self, start: int) -> str:
        end = self.data.find(b"\0", start)
        if end < 0:
            raise ValueError("an unterminated string")
        return os.fsdecode(self.data[start:end])


@contextmanager
def refuse_damaged(
    path: Path, told: str = "not a sound ELF file ({}): build it again"
) -> Iterator[None]:
    """Raise InputError, which says it so, where the structures of a file that are read are damaged."""
    try:
        yield
    except (struct.error, ValueError, IndexError, KeyError, OverflowError) as error:
        raise InputError(f"{path}: {told.format(error)}", code="damaged-library") from None


@contextmanager
def open_elf(path: Path) -> Iterator[ElfImage]:
    """Map an ELF file into memory. Raises InputError where the structures that are read are damaged."""
    with (
        refuse_damaged(path),
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        yield ElfImage(data)


@dataclass(frozen=True, slots=True)
class ElfInfo:
    """The dynamic section of one file."""

    machine: str  # "x86_64", as in platform tags; "machine 8" of one without tags
    needed: tuple[str, ...]
    soname: str | None
    rpath: tuple[str, ...]  # DT_RUNPATH, or DT_RPATH where there is none
    versions: Mapping[str, frozenset[str]]  # library -> "GLIBC_2.34", …

    def runs_on(self, arch: str) -> bool:
        """Tell whether the file is for the arch of a platform tag; any is for one that is not known."""
        return self.machine == arch or arch not in ARCHES.values()


def has_magic(path: Path, *magic: bytes) -> bool:
    """Tell whether `path` is a regular file that begins with one of these magic numbers."""
    if (
        not os.path.isfile(path) or path.is_symlink()  # noqa: PTH113
    ):  # in this order: a folder of a run path may be closed to us
        return False
    with path.open("rb", buffering=0) as file:
        return file.read(max(map(len, magic))).startswith(magic)


def is_elf(path: Path) -> bool:
    """Tell whether `path` is a regular file with the magic number of ELF."""
    return has_magic(path, ELF_MAGIC)


def read_elf(path: Path) -> ElfInfo | None:
    """Return the dynamic section of a library or program; None for any other file.

    Raises InputError where the file is damaged.
    """
    if not is_elf(Path(os.path.realpath(path))):
        return None
    with open_elf(path) as image:
        kind, machine = image.header[:2]
        if kind not in {SHARED, EXECUTABLE} or image.first_segment(DYNAMIC) is None:
            return None
        strings: dict[int, list[str]] = {NEEDED: [], SONAME: [], RPATH: [], RUNPATH: []}
        for tag, value in image.dynamic:
            if tag in strings:
                strings[tag].append(image.dynamic_string(value))
        # the loader ignores DT_RPATH where there is a DT_RUNPATH
        rpath = (*strings[RUNPATH], *strings[RPATH], "")[0]
        versions: dict[str, frozenset[str]] = {}
        for (
            _,
            library,
            names,
        ) in image.version_needs():  # patchelf can leave several entries for one library
            versions[library] = versions.get(library, frozenset()) | names
        return ElfInfo(
            machine=ARCHES.get(str(machine), f"machine {machine}"),
            needed=tuple(strings[NEEDED]),
            soname=next(iter(strings[SONAME]), None),
            rpath=tuple(entry for entry in rpath.split(":") if entry),
            versions=versions,
        )


def dynamic_files(root: Path) -> dict[Path, ElfInfo]:
    """Return the dynamic section of every library and program below `root`, by path, sorted."""
    paths = (Path(folder, name) for folder, _, names in os.walk(root) for name in names)
    return {
        path: info for path in sorted(filter(is_elf, paths)) if (info := read_elf(path)) is not None
    }


def defined_symbols(path: Path) -> frozenset[str]:
    """Return the symbols that the file defines for others to use."""
    with open_elf(path) as image:
        return frozenset(name for name, defined in image.symbols() if defined)


def undefined_symbols(path: Path) -> frozenset[str]:
    """Return the symbols that the file expects others to define."""
    with open_elf(path) as image:
        return frozenset(name for name, defined in image.symbols() if not defined)


def static_objects(path: Path) -> Iterator[ElfImage]:
    """Yield the object files in a static library. Raises InputError where it is damaged."""
    for start, content in static_members(path):
        if content[: len(ELF_MAGIC)] == ELF_MAGIC:  # else it is a table of symbols or names
            yield ElfImage(content, start)


def static_members(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield where each member of a static library begins, and what it holds. Raises InputError as `static_objects`."""
    with open_elf(path) as whole:
        at = len(AR_MAGIC)
        while at < len(whole.data):
            header = whole.data[at : at + _AR_HEADER_BYTES]
            sound = len(header) == _AR_HEADER_BYTES and header.endswith(_AR_HEADER_END)
            start, size = at + _AR_HEADER_BYTES, int(header[_AR_SIZE_FIELD]) if sound else 0
            content = whole.data[start : start + size]
            if not sound or len(content) < size:
                raise InputError(
                    f"{path}: not a sound static library (no whole member at {at:#x}): fetch it again",
                    code="damaged-library",
                )
            yield start, content
            at = start + size + size % 2
