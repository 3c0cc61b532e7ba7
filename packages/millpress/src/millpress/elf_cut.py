"""Cut ranges out of a shared library's file; everything else is loaded to its old address.

A caller has made the content of some sections smaller, so that their last bytes are unused. Whole
pages of unused bytes are cut out of the file, and the segment that loads them is split around each
cut. The table of segments, which then has more entries, grows at its place, so that strip still
works; if other content is in the way, it takes the room of the first unused pages. LIEF rebuilds
files in memory, which takes too much of it for libraries of gigabytes.

The file changes in two steps, so there are three kinds of offsets:

- *old* ones, in the original file;
- *moved* ones, after the caller has moved content together inside sections. The file still has its
  old size, and sections begin at their old offsets;
- *new* ones, after the ranges are cut out: what follows a cut has a smaller offset.
  `Cuts.new_offset` computes them from moved ones.
"""

import os
import struct
from bisect import bisect_right
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from millpress import elf
from millpress.elf import ByteRange, ElfImage, Segment
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


@dataclass(frozen=True, slots=True)
class Extent:
    """A range of bytes that is copied into the new file."""

    moved_offset: int
    old_offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Cuts:
    """The ranges that are cut out of a file; by default nothing. Offsets are moved ones."""

    ranges: tuple[ByteRange, ...] = ()  # sorted, and apart from each other
    table_offset: int = 0  # of the new table of segments; 0 if nothing is cut out

    def new_offset(self, moved_offset: int) -> int:
        """Return the new offset of the content at a moved offset.

        For an offset in a range that is cut out, that is where the range was.
        """
        count = bisect_right(self.ranges, moved_offset, key=lambda cut: cut.start)
        removed = sum(min(cut.end, moved_offset) - cut.start for cut in self.ranges[:count])
        return moved_offset - removed

    def remaining_parts(self, whole: ByteRange) -> list[ByteRange]:
        """Return the parts of a range that are not cut out."""
        parts = []
        start = whole.start
        for cut in self.ranges:
            if cut.overlaps(whole):
                if start < cut.start:
                    parts.append(ByteRange(start, cut.start))
                start = cut.end
        if start < whole.end:
            parts.append(ByteRange(start, whole.end))
        return parts


def choose_cuts(image: ElfImage, content_ends: Mapping[int, int]) -> Cuts:
    """Return the whole pages behind the content of some sections, to be cut out of the file.

    `content_ends` has the moved offset at which the content of such a section ends, by the
    `header_offset` of the section. Nothing is cut out of programs and 32-bit files, or if segments
    overlap, or if a segment describes the table of segments.
    """
    loads = [segment for segment in image.segments if segment.kind == elf.LOAD]
    if not is_plain_library(image) or not loads:
        return Cuts()
    unused_ranges = []
    for section in image.sections:
        if section.header_offset in content_ends:
            unused_ranges.append(ByteRange(content_ends[section.header_offset], section.end))
    largest_alignment = max(segment.align for segment in loads)
    kernel_page = PAGE_BYTES.get(image.header.machine, LARGEST_PAGE_BYTES)
    page = min(kernel_page, *(segment.align for segment in loads))
    fixed_ranges = _fixed_ranges(image, content_ends)
    # each cut makes two segments of one, so the table needs room for as many more entries
    growth_start = image.header.segments_offset + len(image.segments) * SEGMENT_BYTES
    growth = ByteRange(growth_start, growth_start + len(unused_ranges) * SEGMENT_BYTES)
    if _is_free(growth, loads, fixed_ranges):  # patchelf leaves room there
        table_offset = image.header.segments_offset
        table_room = 0
    else:
        table_offset = 0  # until the first cut gives it a place
        # more than the table takes, but never too little: `growth.end` counts from offset 0
        table_room = round_up(growth.end, page)
    cuts: list[ByteRange] = []
    for unused in sorted(unused_ranges):
        pages = ByteRange(round_up(unused.start, page), unused.end // page * page)
        cut_start = pages.start
        if not cuts:
            cut_start += table_room
        # The loader maps a page of the file to a page of memory: a segment's offset and address
        # must leave the same remainder, so only multiples of the largest alignment are cut out.
        cut_end = pages.end - (pages.end - cut_start) % largest_alignment
        if cut_start < cut_end and _is_free(pages, loads, fixed_ranges):
            if not table_offset:
                table_offset = pages.start
            cuts.append(ByteRange(cut_start, cut_end))
    return Cuts(tuple(cuts), table_offset)


def _is_free(
    candidate: ByteRange, loads: Iterable[Segment], fixed_ranges: Iterable[ByteRange]
) -> bool:
    """Tell whether a range lies inside one loaded segment, and overlaps no fixed range."""
    holders = [segment for segment in loads if segment.range.overlaps(candidate)]
    if len(holders) != 1:
        return False
    is_inside = holders[0].offset < candidate.start and candidate.end < holders[0].end
    return is_inside and not any(fixed.overlaps(candidate) for fixed in fixed_ranges)


def _fixed_ranges(image: ElfImage, shrunk_sections: Collection[int]) -> list[ByteRange]:
    """Return the ranges of a file that nothing may be cut out of.

    These are all segments that are not loaded, the headers of sections, and all sections but those
    whose `header_offset` is in `shrunk_sections`.
    """
    ranges = [segment.range for segment in image.segments if segment.kind != elf.LOAD]
    for section in image.sections:
        if section.kind != elf.NOBITS and section.header_offset not in shrunk_sections:
            ranges.append(section.range)
    headers_start = image.header.sections_offset
    headers_bytes = image.header.section_bytes * len(image.sections)
    ranges.append(ByteRange(headers_start, headers_start + headers_bytes))
    return ranges


def write_extents(source: Path, destination: Path, extents: Sequence[Extent], cuts: Cuts) -> None:
    """Write the extents of the file `source` to `destination`, without what is cut out.

    The gaps between extents become holes, which read as zeros. Raises InputError if `source` ends
    inside an extent, OSError if the disk is full.
    """
    with source.open("rb") as old, destination.open("wb") as new:
        for extent in extents:
            old_offset = extent.old_offset
            new_offset = cuts.new_offset(extent.moved_offset)
            remaining = extent.size
            while remaining:
                data = os.pread(old.fileno(), min(remaining, CHUNK_BYTES), old_offset)
                if not data:  # the file is cut off, or another program has written it since
                    raise InputError(
                        f"{source}: it ends at {old_offset}, and its headers name content up to "
                        f"{old_offset + remaining}: build it again",
                        code="damaged-library",
                    )
                # fewer than all bytes if the disk fills up; the next write raises the error
                written = os.pwrite(new.fileno(), data, new_offset)
                old_offset += written
                new_offset += written
                remaining -= written
        ends = [cuts.new_offset(extent.moved_offset) + extent.size for extent in extents]
        new.truncate(max(ends))


def plan_headers(
    image: ElfImage, cuts: Cuts, content_ends: Mapping[int, int]
) -> Iterator[FileWrite]:
    """Yield the writes that make the headers of the new file: both tables, and the file's header.

    The offsets of the writes are new ones. `content_ends` is that of `choose_cuts`: the sections in
    it get smaller. If nothing is cut out, there are no writes: the old headers describe the file
    still, and the sections end with zeros.
    """
    if not cuts.ranges:
        return
    order = image.byte_order
    segments_table = cuts.new_offset(cuts.table_offset)
    segments: list[Segment] = []
    for segment in image.segments:
        segments += _segment_parts(segment, cuts)
    yield segments_table, pack_segments(image, segments)
    for section in image.sections:
        size = content_ends.get(section.header_offset, section.end) - section.offset
        numbers = struct.pack(order + "QQ", cuts.new_offset(section.offset), size)
        yield cuts.new_offset(section.header_offset) + OFFSET_AT, numbers
    sections_table = cuts.new_offset(image.header.sections_offset)
    yield TABLES_AT, struct.pack(order + "QQ", segments_table, sections_table)
    count = len(image.segments) + len(cuts.ranges)
    yield SEGMENT_COUNT_AT, struct.pack(order + "H", count)


def _segment_parts(segment: Segment, cuts: Cuts) -> Iterator[Segment]:
    """Yield a segment with new offsets, or its parts around the cuts; addresses stay."""
    parts = []
    if segment.kind == elf.LOAD:
        parts = cuts.remaining_parts(segment.range)
    if not parts:  # not loaded, or empty in the file
        parts = [segment.range]
    for part in parts:
        # from the beginning of the segment, in the file and in memory
        distance = part.start - segment.offset
        size = part.end - part.start
        memory_size = size
        if part.end == segment.end:  # the last part also has the memory that is not in the file
            memory_size = segment.memory_size - distance
        yield replace(
            segment,
            offset=cuts.new_offset(part.start),
            address=segment.address + distance,
            size=size,
            memory_size=memory_size,
        )
