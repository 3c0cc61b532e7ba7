"""Cut ranges out of a shared library's file; everything else is loaded to its old address.

Whole pages are cut out of the file: the segment is split around them. The table of segments grows
at its place, so that strip still works, or else takes the room of the first pages. LIEF rebuilds
files in memory, which takes too much of it for libraries of gigabytes.

An *offset* counts bytes from the start of the file; all numbers here are offsets or sizes, but for
`Segment.address`, where the loader puts a segment in memory. There are three kinds of offsets,
since the file changes in two steps:

1. A *source offset* is one in the file as it was built (`Extent.source`).
2. The caller moves content together inside sections, so that free ranges arise at their ends. The
   file keeps its size. Offsets after this step are called just *offsets* (`Extent.at`,
   `Cuts.ranges`, and all in the headers, since no section or segment begins elsewhere).
3. The pages in the free ranges are cut out, and what follows them moves towards the start.
   `Cuts.new_offset` leads from an offset to the *new offset* after this step.
"""

import os
import struct
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from millpress import elf
from millpress.elf import ElfImage, Segment
from millpress.elf_edit import (
    LARGEST_PAGE_BYTES,
    PAGE_BYTES,
    SEGMENT_COUNT_AT,
    FileWrite,
    is_plain_library,
    pack_segments,
    round_up,
)
from millpress.errors import InputError

CHUNK_BYTES = 1 << 20
# Offset in the header of a 64-bit file: the offsets of the tables of segments and sections.
TABLES_AT = 32
OFFSET_AT = 24  # offset in a section's header; the section's size follows
SEGMENT_BYTES = 56  # of an entry in the table of segments
Range = tuple[int, int]  # offset of its first byte, and offset behind its last byte


@dataclass(frozen=True, slots=True)
class Extent:
    """A range of bytes that is copied into the new file."""

    at: int  # offset of its first byte
    source: int  # source offset of its first byte
    size: int  # bytes


@dataclass(frozen=True, slots=True)
class Cuts:
    """The ranges that are cut out of a file; by default none."""

    ranges: tuple[Range, ...] = ()  # sorted, none overlaps another
    table: int = 0  # offset of the room for the new table of segments; of no use without ranges

    def new_offset(self, offset: int) -> int:
        """Return the new offset of the content at an offset.

        For an offset in a range that is cut out, that is where the range was.
        """
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

    Each free range is the end of a section, whose header is at an offset in `shrunk`; the ranges
    are sorted. Nothing is cut out of programs and 32-bit files, or if segments overlap, or if a
    segment describes the table of segments.
    """
    loads = [segment for segment in image.segments if segment.kind == elf.LOAD]
    if not is_plain_library(image) or not loads:
        return Cuts()
    alignments = [segment.align for segment in loads]
    kernel_page = PAGE_BYTES.get(image.header.machine, LARGEST_PAGE_BYTES)
    page = min(kernel_page, *alignments)
    fixed_ranges = _fixed_ranges(image, shrunk)
    # each cut makes two segments of one, so the table needs room for as many more entries
    old_table = image.header.segments_offset
    table_end = old_table + len(image.segments) * SEGMENT_BYTES
    new_table_end = table_end + len(free) * SEGMENT_BYTES
    if _is_free(table_end, new_table_end, loads, fixed_ranges):  # patchelf leaves room there
        table = old_table
        table_room = 0
    else:
        table = 0  # until the first cut gives it a place
        # more than the table takes, but never too little: `new_table_end` counts from offset 0
        table_room = round_up(new_table_end, page)
    cuts: list[Range] = []
    for free_start, free_end in free:
        start = round_up(free_start, page)
        end = free_end // page * page
        cut_start = start
        if not cuts:
            cut_start += table_room
        # The loader maps a page of the file to a page of memory: a segment's offset and address
        # must leave the same remainder, so only multiples of the largest alignment are cut out.
        cut_end = end - (end - cut_start) % max(alignments)
        if cut_start < cut_end and _is_free(start, end, loads, fixed_ranges):
            if not table:
                table = start
            cuts.append((cut_start, cut_end))
    return Cuts(tuple(cuts), table)


def _is_free(start: int, end: int, loads: Iterable[Segment], fixed_ranges: Iterable[Range]) -> bool:
    """Tell whether a range lies inside one loaded segment, and overlaps no fixed range."""
    holders = [segment for segment in loads if segment.offset < end and start < segment.end]
    if len(holders) != 1 or not holders[0].offset < start or not end < holders[0].end:
        return False
    return not any(
        fixed_start < end and start < fixed_end for fixed_start, fixed_end in fixed_ranges
    )


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
    headers_start = image.header.sections_offset
    headers_bytes = image.header.section_bytes * image.header.section_count
    ranges.append((headers_start, headers_start + headers_bytes))
    return ranges


def write_extents(source: Path, destination: Path, extents: Sequence[Extent], cuts: Cuts) -> None:
    """Write the extents of the file `source` to `destination`, without what is cut out.

    The gaps between extents become holes, which read as zeros. Raises InputError if `source` ends
    inside an extent, OSError if the disk is full.
    """
    with source.open("rb") as old, destination.open("wb") as new:
        for extent in extents:
            source_offset = extent.source
            new_offset = cuts.new_offset(extent.at)
            remaining = extent.size
            while remaining:
                data = os.pread(old.fileno(), min(remaining, CHUNK_BYTES), source_offset)
                if not data:  # the file is cut off, or another program has written it since
                    raise InputError(
                        f"{source}: it ends at {source_offset}, and its headers name content up to "
                        f"{source_offset + remaining}: build it again",
                        code="damaged-library",
                    )
                # fewer than all bytes if the disk fills up; the next write raises the error
                written = os.pwrite(new.fileno(), data, new_offset)
                source_offset += written
                new_offset += written
                remaining -= written
        new.truncate(max(cuts.new_offset(extent.at) + extent.size for extent in extents))


def plan_headers(image: ElfImage, cuts: Cuts, shrunk: Mapping[int, int]) -> Iterator[FileWrite]:
    """Yield the writes that make the headers of the new file: both tables, and the file's header.

    The writes are at new offsets. `shrunk` maps the offset of a section's header to the offset at
    which the section ends after its content was moved together. If nothing is cut out, there are no
    writes: the old headers describe the file still, and sections end with zeros.
    """
    if not cuts.ranges:
        return
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
    sections_table = cuts.new_offset(image.header.sections_offset)
    yield TABLES_AT, struct.pack(order + "QQ", table, sections_table)
    count = len(image.segments) + len(cuts.ranges)
    yield SEGMENT_COUNT_AT, struct.pack(order + "H", count)


def _segment_parts(segment: Segment, cuts: Cuts) -> Iterator[Segment]:
    """Yield a segment with new offsets, or its parts around the cuts; addresses stay."""
    parts = []
    if segment.kind == elf.LOAD:
        parts = cuts.rest(segment.offset, segment.end)
    if not parts:  # not loaded, or empty in the file
        parts = [(segment.offset, segment.end)]
    for start, end in parts:
        distance = start - segment.offset  # from the segment's begin, in the file and in memory
        memory = end - start
        if end == segment.end:  # the last part also has the memory that is not in the file
            memory = segment.memory - distance
        yield replace(
            segment,
            offset=cuts.new_offset(start),
            address=segment.address + distance,
            size=end - start,
            memory=memory,
        )
