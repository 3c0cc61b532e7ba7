"""Read ELF files and static libraries: needed libraries, symbols and versions, names and run paths.

ELF is the format of libraries and programs on Linux. A file describes its content twice: the loader
maps its segments into memory, and linkers and debuggers read its sections. The dynamic section has
what the loader needs beside that: names of libraries, the run path, places of other tables.

Files are mapped into memory: only the pages that are read are loaded, and the symbol table of a
large library only if it is asked for. pyelftools takes 20 times as long for the symbols of libLLVM.

The formats: https://refspecs.linuxfoundation.org/elf/gabi4+/contents.html and, for symbol versions,
https://refspecs.linuxfoundation.org/LSB_5.0.0/LSB-Core-generic/LSB-Core-generic/symversion.html
"""

import mmap
import os
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

from millpress.errors import InputError
from millpress.tables import read_table

ELF_MAGIC = b"\x7fELF"
IDENTIFICATION_BYTES = 16  # e_ident, which begins with the magic number
CLASS_AT = 4  # offset of EI_CLASS: 32 or 64 bits
BYTE_ORDER_AT = 5  # offset of EI_DATA
LITTLE_ENDIAN = 1  # value of EI_DATA

# e_type: the kind of a file
EXECUTABLE = 2
SHARED = 3

# p_type: the kind of a segment
LOAD = 1
DYNAMIC = 2
INTERP = 3
NOTE = 4
PHDR = 6
PROPERTY = 0x6474E553  # PT_GNU_PROPERTY

FAR_INDEX = 0xFFFF  # SHN_XINDEX, for an index that does not fit: the first section has it
SECTION_SIZE_FIELD = 5  # of a section header, in both layouts

# sh_type: the kind of a section
NULL_SECTION = 0  # of the first entry of the table
SYMBOLS = 2
HASH_SECTION = 5
NOTE_SECTION = 7
NOBITS = 8
DYNSYM = 11
GNU_HASH_SECTION = 0x6FFFFFF6

# d_tag: the kind of an entry of the dynamic section
NULL = 0
NEEDED = 1
HASH = 4
STRTAB = 5
SYMTAB = 6
RELA = 7
RELASZ = 8
STRSZ = 10
SONAME = 14
RPATH = 15
RUNPATH = 29
RELR = 36
GNU_HASH = 0x6FFFFEF5
CONFIG = 0x6FFFFEFA
DEPAUDIT = 0x6FFFFEFB
AUDIT = 0x6FFFFEFC
VERDEF = 0x6FFFFFFC
VERNEED = 0x6FFFFFFE
AUXILIARY = 0x7FFFFFFD
FILTER = 0x7FFFFFFF
# Tags whose value is an index in the string table.
NAME_TAGS = {NEEDED, SONAME, RPATH, RUNPATH, CONFIG, DEPAUDIT, AUDIT, AUXILIARY, FILTER}

RELATIVE = {62: 8, 183: 1027}  # e_machine -> type of the relocation that adds the load address
RELA_LAYOUT = "QQQ"  # of a 64-bit file: address, type, value
RELA_VALUE_AT = 16  # offset of the value in such a relocation
VERNEED_LAYOUT = "HHIII"  # format, count of versions, library, first version, next entry
VERNAUX_LAYOUT = "IHHII"  # hash, flags, index, name, next version
# format, flags, index, count of names, hash, first name, next entry
VERDEF_LAYOUT = "HHHHIII"
VERDAUX_LAYOUT = "II"  # name, next name
SYMBOL_BYTES = 24  # of a 64-bit file
SYMBOL_VALUE_AT = 8  # offset in such a symbol
WEAK = 2  # binding of a symbol that may stay undefined when a program runs

# A static library is an ar archive: a header of text and the content, for each object file.
AR_MAGIC = b"!<arch>\n"
DAMAGED_OBJECT = "it has a damaged object ({}): fetch it again"  # for `refuse_damaged`
_AR_HEADER_BYTES = 60
_AR_SIZE_FIELD = slice(48, 58)  # decimal digits, then spaces
_AR_HEADER_END = b"`\n"

ARCHES: dict[str, str] = read_table("machines.toml")  # arch of platform tags by e_machine


@dataclass(frozen=True, slots=True)
class ElfLayout:
    """The layouts of the structures of 32-bit or 64-bit files, as `struct` spells them."""

    header: str
    segment: str
    section: str
    dynamic: str
    symbol: str


ELF_LAYOUTS = {  # by EI_CLASS
    1: ElfLayout("HHIIIIIHHHHHH", "IIIIIIII", "IIIIIIIIII", "iI", "IIIBBH"),
    2: ElfLayout("HHIQQQIHHHHHH", "IIQQQQQQ", "IIQQQQIIQQ", "qQ", "IBBHQQ"),
}


class ByteRange(NamedTuple):
    """A range of bytes, by the offsets of its first byte and of the byte behind its last one."""

    start: int
    end: int

    def overlaps(self, other: "ByteRange") -> bool:
        """Tell whether the two ranges have a byte in common.

        An empty range counts as overlapping a range that it lies inside of.
        """
        return self.start < other.end and other.start < self.end


class DynamicEntry(NamedTuple):
    """An entry of the dynamic section."""

    tag: int  # NEEDED, SONAME, …
    value: int  # a number, an address, or an index in the string table


class Pointer(NamedTuple):
    """An address in the data of a library, which the loader writes when it has loaded the library.

    The linker does not know the address to which a library will be loaded, and writes a relative
    relocation for each pointer: the loader adds the load address to `target` and writes the sum to
    `place`. Both are addresses as if the library was loaded to 0.
    """

    place: int
    target: int
    target_offset: int  # in the file, of the number `target` in the relocation


class NeededNames(NamedTuple):
    """The names of a library and of its needed versions, as indices in the string table."""

    offset: int  # of the entry in the file
    library: int
    versions: tuple[int, ...]


class VersionNeed(NamedTuple):
    """The versions of a library's symbols that a file needs."""

    offset: int  # of the entry, in the file
    library: str
    versions: frozenset[str]  # "GLIBC_2.34": they say how new the library must be at least


class Symbol(NamedTuple):
    """A symbol of the dynamic table."""

    name: str
    is_defined: bool  # by the file itself; False: another file must define it


class SymbolValue(NamedTuple):
    """The value of a symbol: usually an address."""

    offset: int  # of the value, in the file
    value: int


class StaticMember(NamedTuple):
    """A member of a static library."""

    start: int  # offset of the content, in the library
    content: bytes


class ElfHeader(NamedTuple):
    """The header of a file, without the 16 bytes that identify the format; field by field."""

    kind: int  # EXECUTABLE, SHARED
    machine: int  # a key of machines.toml
    version: int
    entry: int
    segments_offset: int  # of the table of segments
    sections_offset: int  # of the table of sections
    flags: int
    header_bytes: int
    segment_bytes: int  # of one entry of the table
    segment_count: int
    section_bytes: int  # of one entry of the table
    section_count: int  # 0 if it does not fit here: see `ElfImage.sections`
    names_index: int  # of the section that holds the names of sections, or FAR_INDEX


@dataclass(frozen=True, slots=True)
class Segment:
    """A program header: a range of the file that the loader uses. Sizes are in bytes."""

    kind: int
    flags: int
    offset: int
    address: int
    size: int  # in the file
    memory_size: int  # more than `size` if the rest is to be zeros
    align: int

    @property
    def end(self) -> int:
        """Return the offset of its end in the file."""
        return self.offset + self.size

    @property
    def range(self) -> ByteRange:
        """Return its range in the file."""
        return ByteRange(self.offset, self.end)


@dataclass(frozen=True, slots=True)
class Section:
    """A section header: a range of the file with content of one kind. Sizes are in bytes.

    A section of kind NOBITS (".bss") has no content in the file: its `size` is that in memory, and
    `end` and `range` have no meaning for it.
    """

    header_offset: int  # of the header itself, in the file; it tells sections apart
    kind: int
    address: int  # in memory; 0 if the section is not loaded
    offset: int
    size: int
    link: int  # index of a related section: for a table of symbols, of their names
    name: int  # offset in the table of section names

    @property
    def end(self) -> int:
        """Return the offset of its end in the file."""
        return self.offset + self.size

    @property
    def range(self) -> ByteRange:
        """Return its range in the file."""
        return ByteRange(self.offset, self.end)


@dataclass
class ElfImage:
    """The structures of an ELF file in memory, read when they are asked for.

    All offsets are relative to `data`. All of it may raise ValueError, IndexError, KeyError or
    struct.error if the file is damaged, or no ELF file: inside `open_elf` or `refuse_damaged`, these
    become InputError.
    """

    data: mmap.mmap | bytes
    start: int = 0  # offset of `data` in its file: not 0 for an object in a static library

    @cached_property
    def layout(self) -> ElfLayout:
        """Return the layouts of the structures."""
        if self.data[: len(ELF_MAGIC)] != ELF_MAGIC or self.data[CLASS_AT] not in ELF_LAYOUTS:
            raise ValueError("no ELF header")
        return ELF_LAYOUTS[self.data[CLASS_AT]]

    @property
    def is_64(self) -> bool:
        """Tell whether addresses have 64 bits."""
        return self.layout is ELF_LAYOUTS[2]

    @cached_property
    def byte_order(self) -> str:
        """Return the byte order, as `struct` spells it."""
        return "<" if self.data[BYTE_ORDER_AT] == LITTLE_ENDIAN else ">"

    @cached_property
    def header(self) -> ElfHeader:
        """Return the header of the file."""
        return ElfHeader(*self.unpack(self.layout.header, IDENTIFICATION_BYTES))

    @cached_property
    def segments(self) -> tuple[Segment, ...]:
        """Return the program headers."""
        segments = []
        start = self.header.segments_offset
        for row in self._table(self.layout.segment, start, self.header.segment_count):
            if self.is_64:
                kind, flags, offset, address, _physical, size, memory_size, align = row
            else:  # 32-bit files have the flags in another place
                kind, offset, address, _physical, size, memory_size, flags, align = row
            segments.append(Segment(kind, flags, offset, address, size, memory_size, align))
        return tuple(segments)

    @cached_property
    def sections(self) -> tuple[Section, ...]:
        """Return the section headers.

        An object with more than 65,279 of them, as compilers make with a section for each function,
        has their count in the first one, as its size.
        """
        entry_bytes = struct.calcsize(self.byte_order + self.layout.section)
        start = self.header.sections_offset
        count = self.header.section_count
        if start and not count:
            count = self.unpack(self.layout.section, start)[SECTION_SIZE_FIELD]
        header_offset = start
        sections = []
        for row in self._table(self.layout.section, start, count):
            name, kind, _flags, address, offset, size, link, *_ = row
            sections.append(Section(header_offset, kind, address, offset, size, link, name))
            header_offset += entry_bytes
        return tuple(sections)

    @cached_property
    def dynamic(self) -> tuple[DynamicEntry, ...]:
        """Return the entries of the dynamic section, up to DT_NULL."""
        segment = self.first_segment(DYNAMIC)
        if segment is None:
            return ()
        entry_bytes = struct.calcsize(self.byte_order + self.layout.dynamic)
        entries = []
        rows = self._table(self.layout.dynamic, segment.offset, segment.size // entry_bytes)
        for tag, value in rows:
            if tag == NULL:
                break
            entries.append(DynamicEntry(tag, value))
        return tuple(entries)

    @cached_property
    def strings_offset(self) -> int:
        """Return the offset of the string table of the dynamic section."""
        return self.file_offset(dict(self.dynamic)[STRTAB])

    def first_segment(self, kind: int) -> Segment | None:
        """Return the first segment of a kind, or None."""
        for segment in self.segments:
            if segment.kind == kind:
                return segment
        return None

    def sections_named(self, name: str) -> Iterator[Section]:
        """Yield the sections that have a name, such as ".nv_fatbin"; there may be several."""
        for section, section_name in zip(self.sections, self.section_names(), strict=True):
            if section_name == name:
                yield section

    def section_names(self) -> list[str]:
        """Return the name of each section, in the order of `sections`."""
        if not self.sections:
            return []
        index = self.header.names_index
        if index == FAR_INDEX:
            index = self.sections[0].link
        names = self.sections[index].offset
        return [self._text(names + section.name) for section in self.sections]

    def file_offset(self, address: int) -> int:
        """Return the offset in the file of the content that is loaded to an address."""
        for segment in self.segments:
            if segment.kind == LOAD and segment.address <= address < segment.address + segment.size:
                return address - segment.address + segment.offset
        raise ValueError(f"nothing is loaded to {address:#x}")

    def pointers(self) -> Iterator[Pointer]:
        """Yield the pointers that the loader writes, of a 64-bit file for a machine in RELATIVE.

        Only those with a relative relocation in DT_RELA are read.
        """
        tags = dict(self.dynamic)
        if RELA not in tags:
            return
        relative = RELATIVE[self.header.machine]
        start = self.file_offset(tags[RELA])
        end = start + tags.get(RELASZ, 0)
        for at in range(start, end, struct.calcsize(RELA_LAYOUT)):
            place, kind, target = self.unpack(RELA_LAYOUT, at)
            if kind == relative:
                yield Pointer(place, target, at + RELA_VALUE_AT)

    def dynamic_string(self, index: int) -> str:
        """Return the string at an index of the dynamic section's string table."""
        return self._text(self.strings_offset + index)

    def version_needs(self) -> Iterator[VersionNeed]:
        """Yield the needed versions of symbols, by library.

        A library may come several times, as patchelf may leave it: its versions are those of all.
        """
        for names in self._needed_names():
            versions = frozenset(self.dynamic_string(index) for index in names.versions)
            yield VersionNeed(names.offset, self.dynamic_string(names.library), versions)

    def _needed_names(self) -> Iterator[NeededNames]:
        """Yield the names in each entry of the table of needed versions of symbols."""
        tags = dict(self.dynamic)
        if VERNEED not in tags:
            return
        at = self.file_offset(tags[VERNEED])
        while True:
            _, count, library, first_version, next_entry = self.unpack(VERNEED_LAYOUT, at)
            versions = []
            version_at = at + first_version
            for _ in range(count):
                _, _, _, name, next_version = self.unpack(VERNAUX_LAYOUT, version_at)
                versions.append(name)
                version_at += next_version
            yield NeededNames(at, library, tuple(versions))
            # 0 ends the list for the loader, too, whatever number DT_VERNEEDNUM has
            if next_entry == 0:
                return
            at += next_entry

    def version_name_indices(self) -> Iterator[int]:
        """Yield the indices in the string table of all names of needed and defined versions."""
        for names in self._needed_names():
            yield names.library
            yield from names.versions
        tags = dict(self.dynamic)
        at = self.file_offset(tags[VERDEF]) if VERDEF in tags else None
        while at is not None:
            _, _, _, count, _, first_name, next_entry = self.unpack(VERDEF_LAYOUT, at)
            name_at = at + first_name
            for _ in range(count):
                name, next_name = self.unpack(VERDAUX_LAYOUT, name_at)
                yield name
                name_at += next_name
            at = at + next_entry if next_entry else None

    def symbol_values(self, kind: int) -> Iterator[SymbolValue]:
        """Yield the values of the symbols in the tables of one kind, DYNSYM or SYMBOLS.

        Only for 64-bit files.
        """
        for table in self.sections:
            if table.kind != kind:
                continue
            at = table.offset + SYMBOL_VALUE_AT
            for _name, _info, _other, _section, value, _size in self._symbol_rows(table):
                yield SymbolValue(at, value)
                at += SYMBOL_BYTES

    def symbol_name_indices(self) -> Iterator[int]:
        """Yield the indices in the string table of the names of all dynamic symbols."""
        for table in self.sections:
            if table.kind == DYNSYM:
                for row in self._symbol_rows(table):
                    yield row[0]

    def symbols(self) -> Iterator[Symbol]:
        """Yield the dynamic symbols, by the section headers; none if the file has no such headers.

        Weak undefined symbols are left out: a program runs without them.
        """
        tables = [section for section in self.sections if section.kind == DYNSYM]
        if not tables:
            return
        names = self.sections[tables[0].link].offset
        for row in self._symbol_rows(tables[0]):
            if self.is_64:
                name, info, _other, section, _value, _size = row
            else:
                name, _value, _size, info, _other, section = row
            is_defined = section != 0  # SHN_UNDEF
            binding = info >> 4
            if name and (is_defined or binding != WEAK):
                yield Symbol(self._text(names + name), is_defined)

    def release(self) -> None:
        """Give back the memory of the pages that were read.

        They count as the process's memory, and a library may have gigabytes. They can be read
        again.
        """
        if isinstance(self.data, mmap.mmap):
            self.data.madvise(mmap.MADV_DONTNEED)

    def unpack(self, layout: str, at: int) -> tuple[int, ...]:
        """Return the numbers of a layout at an offset."""
        return struct.unpack_from(self.byte_order + layout, self.data, at)

    def _table(self, layout: str, start: int, count: int) -> Iterator[tuple[int, ...]]:
        """Yield the numbers of each entry of a table with `count` entries of one layout."""
        entry_bytes = struct.calcsize(self.byte_order + layout)
        for number in range(count):
            yield self.unpack(layout, start + number * entry_bytes)

    def _symbol_rows(self, table: Section) -> Iterator[tuple[int, ...]]:
        """Yield the numbers of each symbol in a table of symbols."""
        content = self.data[table.offset : table.end]
        return struct.iter_unpack(self.byte_order + self.layout.symbol, content)

    def _text(self, start: int) -> str:
        """Return the string at an offset, which ends with a NUL."""
        end = self.data.find(b"\0", start)
        if end < 0:
            raise ValueError("an unterminated string")
        return os.fsdecode(self.data[start:end])


@contextmanager
def refuse_damaged(
    path: Path, message: str = "not a sound ELF file ({}): build it again"
) -> Iterator[None]:
    """Raise InputError if the block reads damaged structures.

    Any ValueError, IndexError, KeyError, OverflowError or struct.error of the block counts as that.
    The error's text is `message` with the reason in place of its braces, after the path.
    """
    try:
        yield
    except (struct.error, ValueError, IndexError, KeyError, OverflowError) as error:
        raise InputError(f"{path}: {message.format(error)}", code="damaged-library") from None


@contextmanager
def open_elf(path: Path) -> Iterator[ElfImage]:
    """Map an ELF file into memory.

    Nothing is read yet. Raises InputError if the block reads structures that are damaged
    (`refuse_damaged`), as of a file that is no ELF file, and at once if the file is empty.
    """
    with (
        refuse_damaged(path),  # also for an empty file, which cannot be mapped (ValueError)
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data,
    ):
        yield ElfImage(data)


@dataclass(frozen=True, slots=True)
class ElfInfo:
    """What the dynamic section of one file says, and the machine that the file is for."""

    machine: str  # "x86_64", as in platform tags; "machine 8" for a machine that no tag names
    needed: tuple[str, ...]
    soname: str | None
    rpath: tuple[str, ...]  # DT_RUNPATH, or DT_RPATH if there is none
    versions: Mapping[str, frozenset[str]]  # library -> needed versions: "GLIBC_2.34", …

    def runs_on(self, arch: str) -> bool:
        """Tell whether the file is for the arch of a platform tag ("x86_64").

        True also for an arch that machines.toml does not have: then it cannot be judged.
        """
        return self.machine == arch or arch not in ARCHES.values()


def has_magic(path: Path, *magic: bytes) -> bool:
    """Tell whether `path` is a regular file that begins with one of these magic numbers.

    False for a link, wherever it leads, and if there is no such file.
    """
    # os.path.isfile first: unlike pathlib, it does not raise for a folder that is closed to us
    # a link to a library is not edited or judged: its target is, if the wheel has it
    if not os.path.isfile(path) or path.is_symlink():  # noqa: PTH113
        return False
    with path.open("rb", buffering=0) as file:
        return file.read(max(map(len, magic))).startswith(magic)


def is_elf(path: Path) -> bool:
    """Tell whether `path` is a regular file, and no link, with the magic number of ELF."""
    return has_magic(path, ELF_MAGIC)


def read_elf(path: Path) -> ElfInfo | None:
    """Return the dynamic section of a library or program; None without one.

    It is None, too, for any other file, a program without libraries (linked statically), an object
    file, and if there is no such file. Links are followed. Raises InputError if the file is damaged.
    """
    # not Path.resolve(), which raises RuntimeError for links that lead in a circle
    if not is_elf(Path(os.path.realpath(path))):
        return None
    with open_elf(path) as image:
        machine = image.header.machine
        is_loadable = image.header.kind in {SHARED, EXECUTABLE}
        if not is_loadable or image.first_segment(DYNAMIC) is None:
            return None
        strings: dict[int, list[str]] = {NEEDED: [], SONAME: [], RPATH: [], RUNPATH: []}
        for tag, value in image.dynamic:
            if tag in strings:
                strings[tag].append(image.dynamic_string(value))
        # the loader ignores DT_RPATH if there is a DT_RUNPATH
        run_paths = strings[RUNPATH] or strings[RPATH] or [""]
        versions: dict[str, frozenset[str]] = {}
        for need in image.version_needs():
            # patchelf can leave several entries for one library
            versions[need.library] = versions.get(need.library, frozenset()) | need.versions
        return ElfInfo(
            machine=ARCHES.get(str(machine), f"machine {machine}"),
            needed=tuple(strings[NEEDED]),
            soname=strings[SONAME][0] if strings[SONAME] else None,
            rpath=tuple(entry for entry in run_paths[0].split(":") if entry),
            versions=versions,
        )


def dynamic_files(root: Path) -> dict[Path, ElfInfo]:
    """Return the dynamic section of every file below `root` that has one, by path, sorted.

    Links are left out. Raises InputError if a file is damaged.
    """
    paths = []
    for folder, _, names in os.walk(root):
        paths += [Path(folder, name) for name in names]
    files = {}
    for path in sorted(paths):
        if is_elf(path):
            info = read_elf(path)
            if info is not None:
                files[path] = info
    return files


def defined_symbols(path: Path) -> frozenset[str]:
    """Return the symbols that the file defines for others to use.

    Raises InputError if it is damaged, or no ELF file.
    """
    with open_elf(path) as image:
        return frozenset(symbol.name for symbol in image.symbols() if symbol.is_defined)


def undefined_symbols(path: Path) -> frozenset[str]:
    """Return the symbols that the file expects others to define, without the weak ones.

    Raises InputError if it is damaged, or no ELF file.
    """
    with open_elf(path) as image:
        return frozenset(symbol.name for symbol in image.symbols() if not symbol.is_defined)


def static_objects(path: Path) -> Iterator[ElfImage]:
    """Yield the object files in a static library. Raises InputError if the library is damaged.

    A damaged object shows when it is read, in the caller's code: `refuse_damaged` is for that.
    """
    for member in static_members(path):
        if member.content.startswith(ELF_MAGIC):  # other members are tables of symbols or names
            yield ElfImage(member.content, member.start)


def static_members(path: Path) -> Iterator[StaticMember]:
    """Yield the members of a static library. Raises InputError if the library is damaged."""
    with open_elf(path) as library:
        at = len(AR_MAGIC)
        while at < len(library.data):
            header = library.data[at : at + _AR_HEADER_BYTES]
            size_digits = header[_AR_SIZE_FIELD].strip()
            # isdigit: int() would also take "-60", which leads back to the same header for ever
            is_whole = header.endswith(_AR_HEADER_END) and size_digits.isdigit()
            size = int(size_digits) if is_whole else 0
            start = at + _AR_HEADER_BYTES
            content = library.data[start : start + size]
            if not is_whole or len(content) < size:
                raise InputError(
                    f"{path}: not a sound static library (no whole member at {at:#x}): "
                    "fetch it again",
                    code="damaged-library",
                )
            yield StaticMember(start, content)
            at = start + size + size % 2  # members begin at even offsets
