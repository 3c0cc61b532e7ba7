"""Separate the debug information of libraries, so that they are as if linked without any.

A library that was compiled with -g holds two things: what is loaded, which is the same as without
-g, and sections for debuggers (.debug_info, .debug_line, …). `objcopy --strip-debug` removes these
sections. What remains has the bytes that GNU ld writes without -g, but for one field, the build ID:
a digest by which debuggers find the debug file of a library. The linker computed it of a file with
debug sections.

So each library gets the build ID that GNU ld computes of its content, in two steps: `strip_files`
removes what is for debuggers, then a caller may edit run paths and names, and `settle_build_ids`
writes the build IDs at the end. The edits come first because a linker writes folders of the build
into run paths, and two builds of one wheel may be in two folders. A library that nobody edited, and
that was linked without -g, keeps its build ID: it is the same digest. Libraries of other linkers
(gold, lld, mold) stay as they are: the bytes that objcopy leaves of them were not compared.

A link from library to debug file by name (.gnu_debuglink) would change the library; the build ID
needs none: https://sourceware.org/gdb/current/onlinedocs/gdb.html/Separate-Debug-Files.html
"""

import contextlib
import hashlib
import platform
import shutil
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from millpress import elf
from millpress.atomic_files import name_file
from millpress.elf import ByteRange, ElfImage, open_elf
from millpress.errors import ToolError
from millpress.programs import run_program

DEBUG_SECTIONS = (".debug_info", ".zdebug_info")  # each library with debug information has one
BUILD_ID_SECTION = ".note.gnu.build-id"
# Of the note's content: the lengths of name and digest, the type, and the name, "GNU".
NOTE_HEADER_BYTES = 16
SHA1_BYTES = 20
HEADER_BYTES = 64  # of a 64-bit file
SEGMENT_BYTES = 56  # of an entry in the table of segments
TABLES = slice(32, 48)  # in the header: the offsets of the tables of segments and sections
OFFSET_IN_SECTION_HEADER = slice(24, 32)
# GNU ld computes the digest before it writes these.
UNHASHED_SECTIONS = {".symtab", ".strtab", ".shstrtab", ".symtab_shndx"}
# What other linkers leave in a file: a section, or a text in the section for comments.
GOLD_SECTION = ".note.gnu.gold-version"
COMMENTS_SECTION = ".comment"
OTHER_LINKERS = (b"Linker: LLD", b"mold ")


@dataclass(frozen=True, slots=True)
class SeparatedLibrary:
    """A library, or a program, whose debug information is in a file of its own."""

    path: Path
    debug_file: Path
    size: int  # bytes of the library before it was stripped
    build_id: str = ""  # hexadecimal, of the library and its debug file; "" until it is settled


@dataclass(frozen=True, slots=True)
class StrippedFiles:
    """The outcome for all libraries and programs of a folder."""

    files: tuple[Path, ...] = ()  # those that get the build ID of their content
    separated: tuple[SeparatedLibrary, ...] = ()  # () if no debug information was kept
    problems: tuple[str, ...] = ()  # a clause for each file that had to keep debug information
    reduced: bool = False  # dwz removed what the debug files said twice


def has_debug_info(image: ElfImage) -> bool:
    """Tell whether a file has debug information."""
    return any(list(image.sections_named(name)) for name in DEBUG_SECTIONS)


def read_build_id(path: Path) -> str:
    """Return the build ID of a library in hexadecimal; "" if it has none.

    Raises InputError if the file is damaged.
    """
    with open_elf(path) as image:
        place = _build_id_place(image)
        return bytes(image.data[place.start : place.end]).hex() if place else ""


def content_build_id(image: ElfImage) -> bytes:
    """Return the build ID that GNU ld computes of a 64-bit file with this content.

    It is a SHA-1 of the headers, with offsets in the file as zeros, and of the sections, without
    the tables of symbols and with zeros as the note that will have the digest. That was found by
    trying: of libraries that GNU ld 2.40 wrote, this is the build ID.
    """
    digest = hashlib.sha1(usedforsecurity=False)
    data = image.data
    header = bytearray(data[:HEADER_BYTES])
    header[TABLES] = bytes(16)
    digest.update(header)
    start = image.header.segments_offset
    digest.update(data[start : start + SEGMENT_BYTES * image.header.segment_count])
    with memoryview(data) as view:
        for section, name in zip(image.sections, image.section_names(), strict=True):
            end = section.header_offset + image.header.section_bytes
            section_header = bytearray(view[section.header_offset : end])
            section_header[OFFSET_IN_SECTION_HEADER] = bytes(8)
            digest.update(section_header)
            if section.kind in {elf.NULL_SECTION, elf.NOBITS} or name in UNHASHED_SECTIONS:
                continue
            if name == BUILD_ID_SECTION:
                digest.update(bytes(section.size))
            else:
                with view[section.offset : section.end] as content:
                    digest.update(content)
    return digest.digest()


def _build_id_place(image: ElfImage) -> ByteRange | None:
    """Return the place of the build ID in a file; None if the file has none."""
    for section in image.sections_named(BUILD_ID_SECTION):
        if section.kind == elf.NOTE_SECTION and section.size > NOTE_HEADER_BYTES:
            return ByteRange(section.offset + NOTE_HEADER_BYTES, section.end)
    return None


def strip_files(root: Path, debug_folder: Path | None = None) -> StrippedFiles:
    """Remove the debug information of all libraries and programs below `root`.

    With `debug_folder`, an existing folder, it is kept there, in a file for each library: reduced by
    dwz if that is installed, and compressed. A file that has debug information and cannot be
    stripped, because it has no build ID, is of another linker than GNU ld, or objcopy is missing or
    fails, stays as it is, and is a problem. Raises InputError if a file is damaged, OSError if the
    disk is full.
    """
    files = []
    separated: list[SeparatedLibrary | None] = []
    problems = []
    reductions = []
    for path in elf.dynamic_files(root):
        with open_elf(path) as image:
            has_debug = has_debug_info(image)
            hindrance = _hindrance(image)
            machine = elf.ARCHES.get(str(image.header.machine), "this machine")
        if hindrance:
            if has_debug:
                problems.append(f"{path.relative_to(root)}: {hindrance}")
            continue
        if has_debug:
            kept_file = debug_folder / f"{len(separated)}.debug" if debug_folder else None
            try:
                objcopy = find_objcopy(machine)
                separated.append(_strip_file(path, objcopy, kept_file))
            except ToolError as error:
                problems.append(f"{path.relative_to(root)}: {error}")
                continue
            if kept_file is not None:
                reductions.append(_reduce(kept_file, objcopy))
        files.append(path)
    return StrippedFiles(
        tuple(files),
        tuple(library for library in separated if library is not None),
        tuple(problems),
        reduced=bool(reductions) and all(reductions),
    )


def settle_build_ids(stripped: StrippedFiles) -> StrippedFiles:
    """Give each file the build ID of its content, and debug files that of their library.

    Nothing may edit the files after this. Raises InputError if a file is damaged, ToolError if a
    debug file has lost its build ID, OSError.
    """
    build_ids = {}
    for path in stripped.files:
        with open_elf(path) as image:
            build_id = content_build_id(image)
        _write_build_id(path, build_id)
        build_ids[path] = build_id
    separated = []
    for library in stripped.separated:
        build_id = build_ids[library.path]
        _write_build_id(library.debug_file, build_id)
        separated.append(replace(library, build_id=build_id.hex()))
    return replace(stripped, separated=tuple(separated))


def _hindrance(image: ElfImage) -> str:
    """Return why a file keeps its debug information and its build ID; "" if it does not."""
    place = _build_id_place(image)
    if place is None or place.end - place.start != SHA1_BYTES or not image.is_64:
        return "it has no build ID of 20 bytes: link with `-Wl,--build-id=sha1`"
    comments = b""
    for section in image.sections_named(COMMENTS_SECTION):
        comments += image.data[section.offset : section.end]
    is_of_gold = bool(list(image.sections_named(GOLD_SECTION)))
    if is_of_gold or any(linker in comments for linker in OTHER_LINKERS):
        return "another linker than GNU ld wrote it: link with `-fuse-ld=bfd`"
    return ""


def _strip_file(path: Path, objcopy: str, kept_file: Path | None) -> SeparatedLibrary | None:
    """Strip one file, and write its debug information to `kept_file`; None without such a path.

    Raises ToolError, with the file unchanged, if objcopy fails.
    """
    stripped_file = path.with_name(f".{path.name}.stripped")
    size = path.stat().st_size
    try:
        if kept_file is not None:
            run_program([objcopy, "--only-keep-debug", str(path), str(kept_file)])
        # The names of source files stay among the symbols: the linker writes them without -g, too.
        keep_names = ("--strip-debug", "--keep-file-symbols")
        run_program([objcopy, *keep_names, str(path), str(stripped_file)])
        stripped_file.chmod(path.stat().st_mode)
        stripped_file.replace(path)
    finally:
        stripped_file.unlink(missing_ok=True)
    return None if kept_file is None else SeparatedLibrary(path, kept_file, size)


def _write_build_id(path: Path, build_id: bytes) -> None:
    """Write a build ID into a file that has one of the same length; the mode stays."""
    with open_elf(path) as image:
        place = _build_id_place(image)
        if place is None:
            raise ToolError("objcopy removed its build ID", code="build-id-missing")
        if image.data[place.start : place.end] == build_id:
            return
    mode = path.stat().st_mode
    path.chmod(mode | 0o200)  # builds install some libraries read-only
    with name_file(path), path.open("r+b") as file:
        file.seek(place.start)
        file.write(build_id)
    path.chmod(mode)


def _reduce(debug_file: Path, objcopy: str) -> bool:
    """Compress a debug file, after dwz has removed what it says twice; tell whether dwz did.

    Neither is needed, and dwz refuses files with more entries than it can hold in memory: if one of
    the programs fails, the file is only larger.
    """
    is_reduced = False
    dwz = shutil.which("dwz")
    if dwz is not None:
        with contextlib.suppress(ToolError):
            run_program([dwz, str(debug_file)])
            is_reduced = True
    with contextlib.suppress(ToolError):
        # zlib, because gdb reads zstd only if it was built with it, and that of Debian 12 was not.
        run_program([objcopy, "--compress-debug-sections=zlib", str(debug_file)])
    return is_reduced


@cache
def find_objcopy(machine: str) -> str:
    """Return the objcopy for files of a machine, such as "aarch64". Raises ToolError if missing.

    The objcopy of most distributions knows the files of its own machine alone; that of another
    machine has a name with the machine in front: "aarch64-linux-gnu-objcopy".
    """
    names = [f"{machine}-linux-gnu-objcopy", f"{machine}-conda-linux-gnu-objcopy"]
    if machine == platform.machine():
        names.append("objcopy")
    for name in names:
        program = shutil.which(name)
        if program is not None:
            return program
    raise ToolError(
        f"needs objcopy for {machine}: install binutils ({names[0]})", code="objcopy-missing"
    )
