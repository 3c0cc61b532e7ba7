"""Edit a shared library where it lies, by writing nothing but what changes.

patchelf holds a file twice in memory and writes it anew: of a libtorch that is gigabytes. Here the names that
the dynamic section refers to are copied behind the end of the file, the new ones after them, into a segment
of their own. The table of segments grows by one and stays where it is, for there are programs (strip is one)
that count on that: what stands behind it, notes and a hash table, gives way, into the new segment too.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from pathlib import Path

from torchmill.errors import HostError
from torchmill.pack.edit import Edit
from torchmill.pack.image import (
    DYNAMIC,
    DYNSYM,
    GNU_HASH,
    GNU_HASH_SECTION,
    HASH,
    HASH_SECTION,
    INTERP,
    LOAD,
    NEEDED,
    NOTE,
    NOTE_SECTION,
    PROPERTY,
    RPATH,
    RUNPATH,
    SHARED,
    SONAME,
    STRSZ,
    STRTAB,
    SYMTAB,
    TABLE,
    Image,
    Segment,
    opened,
)

READABLE = 4
PAGES = {62: 0x1000}  # bytes, by machine: the largest that a kernel for it has
LARGEST_PAGE = 0x10000
ALIGNED = 64  # bytes: more than anything needs that gives way
MOVABLE = {NOTE_SECTION, HASH_SECTION, GNU_HASH_SECTION, DYNSYM}
SEGMENT_COUNT_AT = 56  # in the header of a 64-bit file
ADDRESS_AT = 16  # in a section's header, with offset and size after it
LIBRARY_AT = 4  # in what says which versions are wanted of a library
Write = tuple[int, bytes]  # where, what


@dataclass
class _Names:
    """The names that the dynamic section refers to, and new ones after them."""

    table: bytearray
    added: dict[str, int] = field(default_factory=dict)

    def add(self, name: str) -> int:
        """Return what the dynamic section calls the name."""
        if name not in self.added:
            self.added[name] = len(self.table)
            self.table += os.fsencode(name) + b"\0"
        return self.added[name]


@dataclass(frozen=True, slots=True)
class _Moved:
    """A part of the file that goes somewhere else."""

    start: int  # where it was in the file; in a library's first segment, the address is the same
    end: int
    offset: int  # where it goes
    address: int

    def has(self, offset: int) -> bool:
        """Tell whether what stands there goes along."""
        return self.start <= offset < self.end


def apply(edit: Edit, path: Path) -> bool:
    """Edit `path` and return True; return False, with nothing changed, where this is no way for that file.

    Programs are such, and 32-bit files, and those where something stands in the way that cannot be moved.
    Raise BuildError where the file is damaged, HostError where the disk refuses what is new.
    """
    with opened(path) as image:
        writes = changes(image, edit)
    if writes is None:
        return False
    try:
        with path.open("r+b") as file:
            for at, data in writes:
                file.seek(at)
                file.write(data)
    except OSError as error:
        raise HostError(f"{path}: cannot be written ({error.strerror}): free some space") from error
    return True


def changes(image: Image, edit: Edit) -> Sequence[Write] | None:
    """Return what must be written, in this order; None where the file needs another treatment."""
    table = image.segment(DYNAMIC)
    special = any(image.segment(kind) is not None for kind in (INTERP, TABLE))
    if not image.is_64 or image.header[0] != SHARED or table is None or special:
        return None
    way = _in_the_way(image)
    names = _names(image)
    entries = list(_entries(image, edit, names))
    libraries = dict(_libraries(image, dict(edit.replaced), names))
    if way is None or (len(entries) + 1) * 16 > table.size:
        return None
    left = _left(image, way)
    if image.segment(LOAD) not in left:
        return None
    added = _added(image, -(-len(names.table) // ALIGNED) * ALIGNED, way)
    behind = added.size - (way[1] - way[0])
    moved = _Moved(*way, added.offset + behind, added.address + behind)
    old = image.strings, dict(image.dynamic)[STRSZ]
    places = {STRTAB: added.address, STRSZ: len(names.table)}
    pairs = [number for tag, value in entries for number in (tag, _value(tag, value, places, moved))]
    packed = struct.pack(image.order + "qQ" * len(entries), *pairs)
    return [
        (added.offset, bytes(names.table).ljust(behind, b"\0") + image.data[moved.start : moved.end]),
        (old[0], bytes(old[1])),  # nothing refers to them any more, and zeros compress well
        (moved.start, bytes(moved.end - moved.start)),
        (image.header[4], _table(image, left, added, moved)),
        (SEGMENT_COUNT_AT, struct.pack(image.order + "H", len(left) + 1)),
        (table.offset, packed.ljust(max(len(image.dynamic), len(entries)) * 16 + 16, b"\0")),
        *((place, struct.pack(image.order + "I", name)) for place, name in libraries.items()),
        *_headers(image, added, moved, len(names.table)),
    ]


def _names(image: Image) -> _Names:
    start, size = image.strings, dict(image.dynamic)[STRSZ]
    return _Names(bytearray(image.data[start : start + size]))


def _entries(image: Image, edit: Edit, names: _Names) -> Iterator[tuple[int, int]]:
    """Yield the dynamic section as it is to be, but for what is elsewhere afterwards."""
    replaced = dict(edit.replaced)
    for tag, value in image.dynamic:
        if tag == NEEDED:
            name = image.name(value)
            if name not in edit.dropped:
                yield tag, names.add(replaced[name]) if name in replaced else value
        elif not (tag == SONAME and edit.soname is not None) and not (
            tag in {RPATH, RUNPATH} and edit.rpath is not None
        ):
            yield tag, value
    if edit.soname is not None:
        yield SONAME, names.add(edit.soname)
    if edit.rpath:
        yield RUNPATH, names.add(":".join(edit.rpath))


def _libraries(image: Image, replaced: Mapping[str, str], names: _Names) -> Iterator[tuple[int, int]]:
    """Yield where the library is named that versions are wanted of, and its new name."""
    for need in image.needs():
        if need.library in replaced:
            yield need.at + LIBRARY_AT, names.add(replaced[need.library])


def _in_the_way(image: Image) -> tuple[int, int] | None:
    """Return the part of the file that gives way to one more segment; None where something cannot."""
    size = struct.calcsize(image.order + image.layout.segment)
    start = image.header[4] + size * len(image.segments)
    first = next((segment for segment in image.segments if segment.kind == LOAD), None)
    if first is None or first.offset or first.address or not image.sections:
        return None
    headers = image.sections[0].at  # their table
    behind = image.sections[-1].at + struct.calcsize(image.order + image.layout.section)
    end, grown = start, start + size
    while grown > end:
        end = grown
        sections = [each for each in image.sections if each.offset < end and start < each.end]
        notes = [each for each in image.segments if each.offset < end and start < each.end and each.offset]
        if not all(each.address and each.kind in MOVABLE for each in sections):
            return None
        if headers < end and start < behind:
            return None
        if not all(each.kind in {NOTE, PROPERTY} for each in notes):
            return None
        grown = max([end, *(each.end for each in sections), *(each.end for each in notes)])
    return start, end


def _left(image: Image, way: tuple[int, int]) -> list[Segment]:
    """Return the segments but for those that lose their last section: strip would spoil them."""
    found = []
    for segment in image.segments:
        places = (each.offset for each in image.sections if each.address)
        inside = [at for at in places if segment.offset <= at < segment.end]
        going = [at for at in inside if at == image.strings or way[0] <= at < way[1]]
        if segment.kind != LOAD or not inside or len(going) < len(inside):
            found.append(segment)
    return found


def _added(image: Image, names: int, way: tuple[int, int]) -> Segment:
    """Return the new segment, behind everything in the file and in memory."""
    top = max(segment.address + segment.memory for segment in image.segments if segment.kind == LOAD)
    page = PAGES.get(image.header[1], LARGEST_PAGE)
    offset, address = (-(-end // page) * page for end in (len(image.data), top))
    size = names + way[1] - way[0]
    return Segment(LOAD, READABLE, offset, address, size, size, page)


def _table(image: Image, left: Sequence[Segment], added: Segment, moved: _Moved) -> bytes:
    """Return the table of segments with the new one, in order of addresses as the loader wants it."""
    last = max(number for number, segment in enumerate(left) if segment.kind == LOAD)
    everything = [_segment(segment, moved) for segment in left]
    everything.insert(last + 1, added)
    layout = struct.Struct(image.order + image.layout.segment)
    rows = (astuple(segment) for segment in everything)
    return b"".join(layout.pack(*row[:4], row[3], *row[4:]) for row in rows)


def _segment(segment: Segment, moved: _Moved) -> Segment:
    if segment.kind == LOAD or not moved.has(segment.offset):
        return segment
    step = segment.offset - moved.start
    return replace(segment, offset=moved.offset + step, address=moved.address + step)


def _value(tag: int, value: int, places: Mapping[int, int], moved: _Moved) -> int:
    if tag in {HASH, GNU_HASH, SYMTAB} and moved.has(value):
        return moved.address + value - moved.start
    return places.get(tag, value)


def _headers(image: Image, added: Segment, moved: _Moved, names: int) -> Iterator[Write]:
    """Yield the headers of the sections that are elsewhere now."""
    for section in image.sections:
        where = section.at + ADDRESS_AT
        if section.address and moved.has(section.offset):
            step = section.offset - moved.start
            numbers = (moved.address + step, moved.offset + step, section.size)
            yield where, struct.pack(image.order + "QQQ", *numbers)
        elif section.address and section.offset == image.strings:
            yield where, struct.pack(image.order + "QQQ", added.address, added.offset, names)
