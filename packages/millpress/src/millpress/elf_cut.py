"""Cut ranges out of a shared library's file; everything else is loaded to its old address.

Whole pages are cut out of the file: the segment is split around them. The table of segments grows
at its place, so that strip still works, or else takes the room of the first pages. LIEF rebuilds
files in memory, which takes too much of it for libraries of gigabytes.
"""

import os
import struct
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from millpress import elf
from millpress.elf import ElfImage, Segment
from millpress.elf_edit import (
    LARGEST_PAGE_BYTES,
    PAGE_BYTES,
    SEGMENT_COUNT_AT,
    FileWrite,
    pack_segments,
)

CHUNK_BYTES = 1 << 20
TABLES_AT = (
    32  # offset in the header of a 64-bit file: where the tables of segments and sections are
)
OFFSET_AT = 24  # offset in a section's header; the section's size follows
SEGMENT_BYTES = 56
Range = tuple[int, int]  # offsets of its start and its end


@dataclass(frozen=True, slots=True)
class Extent:
    """Bytes that stay."""

    at: int  # their new place, before anything is cut out
    source: int
    size: int


@dataclass(frozen=True, slots=True)
class Cuts:
    """The ranges that are cut out of a file."""

    ranges: tuple[Range, ...] = ()  # sorted
    table: int = 0  # offset of the table of segments, before anything is cut out

    def new_offset(self, offset: int) -> int:
        """Return where in the new file the content at an offset is."""
        count = bisect_right(self.ranges, offset, key=lambda cut: cut[0])
        removed = sum(min(end, offset) - start for start, end in self.ranges[:count])
        return offset - removed

    def rest(self, start: int, end: int) -> list[Range]:
        """Return the parts of a range that are not cut out."""
        parts = []
        at = start
        for cut_start, cut_end in self.ranges:
            if start < cut_end and cut_start < end:
                if at < cut_start:
                    parts.append((at, cut_start))
                at = cut_end
        if at < end:
            parts.append((at, end))
        return parts


def choose_cuts(image: ElfImage, free: Sequence[Range], shrunk: Collection[int]) -> Cuts:
    """Return the whole pages in `free` ranges, to be cut out of the file.

    Each free range is the end of a section, whose header is at an offset in `shrunk`. Nothing is
    cut out of programs and 32-bit files, or if segments overlap, or if a segment describes the
    table of segments.
    """
    loads = [segment for segment in image.segments if segment.kind == elf.LOAD]
    is_special = any(image.first_segment(kind) is not None for kind in (elf.INTERP, elf.PHDR))
    if image.header[0] != elf.SHARED or is_special or not image.is_64 or not loads:
        return Cuts()
    largest_align = max(segment.align for segment in loads)
    kernel_page = PAGE_BYTES.get(image.header[1], LARGEST_PAGE_BYTES)
    page = min(kernel_page, *(segment.align for segment in loads))
    fixed = _fixed_ranges(image, shrunk)

    def is_free(start: int, end: int) -> bool:
        holders = [segment for segment in loads if segment.offset < end and start < segment.end]
        if len(holders) != 1 or not holders[0].offset < start or not end < holders[0].end:
            return False
        return not any(fixed_start < end and start < fixed_end for fixed_start, fixed_end in fixed)

    # each cut makes two segments of one, so the table needs room for as many more headers
    table_end = image.header[4] + len(image.segments) * SEGMENT_BYTES
    grown_end = table_end + len(free) * SEGMENT_BYTES
    if is_free(table_end, grown_end):  # patchelf leaves room there
        table = image.header[4]
        table_room = 0
    else:
        table = 0
        table_room = _round_up(grown_end, page)
    cuts: list[Range] = []
    for free_start, free_end in free:
        start = _round_up(free_start, page)
        end = free_end // page * page
        first = start
        if not cuts:
            first += table_room
        last = end - (end - first) % largest_align  # addresses and offsets stay congruent
        if first < last and is_free(start, end):
            if not table:
                table = start
            cuts.append((first, last))
    return Cuts(tuple(cuts), table)


def _fixed_ranges(image: ElfImage, shrunk: Collection[int]) -> list[Range]:
    """Return the ranges of a file that nothing may be cut out of."""
    ranges = [
        (segment.offset, segment.end) for segment in image.segments if segment.kind != elf.LOAD
    ]
    ranges += [
        (section.offset, section.end)
        for section in image.sections
        if section.kind != elf.NOBITS and section.at not in shrunk
    ]
    headers_start = image.header[5]
    headers_bytes = image.header[10] * image.header[11]
    ranges.append((headers_start, headers_start + headers_bytes))
    return ranges


def _round_up(offset: int, page: int) -> int:
    return -(-offset // page) * page


def write_extents(source: Path, destination: Path, extents: Sequence[Extent], cuts: Cuts) -> None:
    """Write the extents of a file without what is cut out; the gaps between them are holes."""
    with source.open("rb") as old, destination.open("wb") as new:
        for extent in extents:
            start = extent.source
            place = cuts.new_offset(extent.at)
            remaining = extent.size
            while remaining:
                data = os.pread(old.fileno(), min(remaining, CHUNK_BYTES), start)
                if not data:
                    break
                os.pwrite(new.fileno(), data, place)
                start += len(data)
                place += len(data)
                remaining -= len(data)
        new.truncate(max(cuts.new_offset(extent.at) + extent.size for extent in extents))


def plan_headers(image: ElfImage, cuts: Cuts, shrunk: Mapping[int, int]) -> Iterator[FileWrite]:
    """Yield the writes of the headers of a file without what is cut out.

    `shrunk` maps the offset of a section's header to the section's new end.
    """
    order = image.byte_order
    table = cuts.new_offset(cuts.table)
    segments: list[Segment] = []
    for segment in image.segments:
        segments += _segment_parts(segment, cuts)
    yield table, pack_segments(image, segments)
    for section in image.sections:
        end = shrunk.get(section.at, section.end)
        numbers = struct.pack(order + "QQ", cuts.new_offset(section.offset), end - section.offset)
        yield cuts.new_offset(section.at) + OFFSET_AT, numbers
    yield TABLES_AT, struct.pack(order + "QQ", table, cuts.new_offset(image.header[5]))
    count = len(image.segments) + len(cuts.ranges)
    yield SEGMENT_COUNT_AT, struct.pack(order + "H", count)


def _segment_parts(segment: Segment, cuts: Cuts) -> Iterator[Segment]:
    """Yield a segment, or its parts around the cuts."""
    parts = []
    if segment.kind == elf.LOAD:
        parts = cuts.rest(segment.offset, segment.end)
    if not parts:  # not loaded, or empty in the file
        parts = [(segment.offset, segment.end)]
    for start, end in parts:
        step = start - segment.offset
        memory = end - start
        if end == segment.end:  # the last part also has the memory that is not in the file
            memory = segment.memory - step
        yield replace(
            segment,
            offset=cuts.new_offset(start),
            address=segment.address + step,
            size=end - start,
            memory=memory,
        )
