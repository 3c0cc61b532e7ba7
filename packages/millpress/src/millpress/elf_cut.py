"""Leave ranges of a shared library out of its file, with everything else loaded to the address that it had.

Whole pages are cut out of the file: the segment is split around them. The table of segments grows where it is, so
that strip still works, or else takes the room of the first pages. LIEF was looked at: it rebuilds files in memory.
"""

import os
import struct
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path

from millpress import elf
from millpress.elf import ElfImage, Segment
from millpress.elf_edit import LARGEST_PAGE_BYTES, PAGE_BYTES, SEGMENT_COUNT_AT, FileWrite

CHUNK_BYTES = 1 << 20
TABLES_AT = 32  # offset in the header of a 64-bit file
OFFSET_AT = 24  # offset in a section's header; the section's size follows
SEGMENT_BYTES = 56
Range = tuple[int, int]  # offsets


@dataclass(frozen=True, slots=True)
class Extent:
    """Bytes that stay."""

    at: int  # their new place, before anything is cut out
    source: int
    size: int


@dataclass(frozen=True, slots=True)
class Cuts:
    """What is cut out of a file."""

    ranges: tuple[Range, ...] = ()
    table: int = 0  # where the table of segments goes, before anything is cut out

    def new_offset(self, offset: int) -> int:
        """Return where in the new file the content at an offset is."""
        number = bisect_right(self.ranges, offset, key=lambda cut: cut[0])
        return offset - sum(min(end, offset) - start for start, end in self.ranges[:number])

    def rest(self, start: int, end: int) -> list[Range]:
        """Return what is left of a range."""
        inside = [mark for cut in self.ranges if start < cut[1] and cut[0] < end for mark in cut]
        marks = [start, *inside, end]
        return [
            (one, other) for one, other in zip(marks[::2], marks[1::2], strict=True) if one < other
        ]


def choose_cuts(image: ElfImage, free: Sequence[Range], shrunk: Collection[int]) -> Cuts:
    """Return the pages to cut out of `free` ranges, which sections with headers at `shrunk` end with.

    None are for programs, 32-bit files, where segments overlap, and where the table of segments is one itself.
    """
    loads = [each for each in image.segments if each.kind == elf.LOAD]
    special = any(image.first_segment(kind) is not None for kind in (elf.INTERP, elf.PHDR))
    if image.header[0] != elf.SHARED or special or not image.is_64 or not loads:
        return Cuts()
    largest = max(each.align for each in loads)
    page = min(PAGE_BYTES.get(image.header[1], LARGEST_PAGE_BYTES), *(each.align for each in loads))
    fixed = [(each.offset, each.end) for each in image.segments if each.kind != elf.LOAD]
    fixed += [
        (each.offset, each.end)
        for each in image.sections
        if each.kind != elf.NOBITS and each.at not in shrunk
    ]
    fixed.append((image.header[5], image.header[5] + image.header[10] * image.header[11]))

    def is_free(start: int, end: int) -> bool:
        around = [each for each in loads if each.offset < end and start < each.end]
        inside = len(around) == 1 and around[0].offset < start and end < around[0].end
        return inside and not any(one < end and start < other for one, other in fixed)

    end = image.header[4] + len(image.segments) * SEGMENT_BYTES
    stays = is_free(end, end + len(free) * SEGMENT_BYTES)  # patchelf leaves room there
    table, room = (
        (image.header[4], 0) if stays else (0, -(-(end + len(free) * SEGMENT_BYTES) // page) * page)
    )
    cuts: list[Range] = []
    for start, end in ((-(-start // page) * page, end // page * page) for start, end in free):
        first = start if cuts else start + room
        last = end - (end - first) % largest  # addresses and offsets stay congruent
        if first < last and is_free(start, end):
            table = table or start
            cuts.append((first, last))
    return Cuts(tuple(cuts), table)


def write_extents(source: Path, destination: Path, extents: Sequence[Extent], cuts: Cuts) -> None:
    """Write the extents of a file without what is cut out; holes are where there is nothing."""
    with source.open("rb") as old, destination.open("wb") as new:
        for extent in extents:
            start, place, left = extent.source, cuts.new_offset(extent.at), extent.size
            while left and (data := os.pread(old.fileno(), min(left, CHUNK_BYTES), start)):
                os.pwrite(new.fileno(), data, place)
                start, place, left = start + len(data), place + len(data), left - len(data)
        new.truncate(max(cuts.new_offset(each.at) + each.size for each in extents))


def plan_headers(image: ElfImage, cuts: Cuts, shrunk: Mapping[int, int]) -> Iterator[FileWrite]:
    """Yield the headers of a file without what is cut out; `shrunk` are sections' new ends, by their headers."""
    order, count = image.byte_order, len(image.segments) + len(cuts.ranges)
    layout, table = struct.Struct(order + image.layout.segment), cuts.new_offset(cuts.table)
    rows = (astuple(part) for each in image.segments for part in _segment_parts(each, cuts))
    yield table, b"".join(layout.pack(*row[:4], row[3], *row[4:]) for row in rows)
    for section in image.sections:
        place, end = cuts.new_offset(section.offset), shrunk.get(section.at, section.end)
        yield (
            cuts.new_offset(section.at) + OFFSET_AT,
            struct.pack(order + "QQ", place, end - section.offset),
        )
    yield TABLES_AT, struct.pack(order + "QQ", table, cuts.new_offset(image.header[5]))
    yield SEGMENT_COUNT_AT, struct.pack(order + "H", count)


def _segment_parts(segment: Segment, cuts: Cuts) -> Iterator[Segment]:
    """Yield a segment, or what is left of it around the cuts."""
    start, whole = segment.offset, [(segment.offset, segment.end)]
    for one, other in (cuts.rest(*whole[0]) if segment.kind == elf.LOAD else []) or whole:
        memory = segment.memory - (one - start) if other == segment.end else other - one
        offset, address = cuts.new_offset(one), segment.address + one - start
        yield replace(segment, offset=offset, address=address, size=other - one, memory=memory)
