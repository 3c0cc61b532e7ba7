"""Prove that a slim wheel, or library, has everything of its original except some code for GPUs.

Both files are read anew, and compared without the plan by which the slim file was written: so a
mistake in the plan is found, too.
"""

import re
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, pairwise, zip_longest
from pathlib import Path
from typing import NamedTuple
from zipfile import ZipFile

from millpress import elf, record_file, wheel_file, zip_archive
from millpress.elf import ByteRange, ElfImage, Section
from millpress.file_names import VARIANT_FILE

from torchmill.core.system_errors import report_unwritable
from torchmill.wheel import sbom
from torchmill.wheel.slim import SIZE_AT, fatbin_pointers
from torchmill.wheel.verify.device_code import Fatbin, device_sections, list_fatbins

CHUNK_BYTES = 1 << 20
WORD_BYTES = 8
IDENTITY_BYTES = 16  # of e_ident, with which an ELF file begins
# Positions in `ElfImage.header` of the numbers that may differ: the offsets of the tables of
# segments and of sections (e_phoff, e_shoff), and the count of segments (e_phnum).
CHANGED_HEADER_FIELDS = {4, 5, 9}
# Files in .dist-info that each wheel has for itself.
_OWN_FILES = (f".dist-info/{sbom.INNER_PATH}", f".dist-info/{VARIANT_FILE}")
CHANGED_HEADERS = re.compile("Version|Tag|Root-Is-Purelib")  # of METADATA and WHEEL
# The parts of a requirement that may differ: its spelling, and the label that slimming gave it.
_CHANGED_SPELLING = re.compile(r"[ ()]|(?<=\w)\+[\w.]+")
Fatbins = Mapping[Section, Sequence[Fatbin]]  # by the section that they are in


class WordPlace(NamedTuple):
    """The place of a word, which does not depend on where its section is in the file."""

    section_number: int
    offset: int  # in the section


class RecordedFile(NamedTuple):
    """A file of a wheel, as RECORD has it."""

    name: str
    digest: list[str]  # one, or none in a row without digest (RECORD's own)


def wheel_differences(original: Path, slimmed: Path) -> Iterator[str]:
    """Yield a clause for each difference of a slim wheel from its original, except removed code.

    Files with the same digest in both RECORDs are not read: the caller has compared the files with
    RECORD. Raises InputError if a library is damaged.
    """
    old_files = _recorded_files(original)
    new_files = _recorded_files(slimmed)
    if old_files.keys() != new_files.keys():
        yield "it has other files"
        return
    for plain_name, new in new_files.items():
        old = old_files[plain_name]
        if new.digest == old.digest:
            continue
        with tempfile.TemporaryDirectory() as folder, report_unwritable(Path(folder)):
            old_file = Path(folder, "old")
            new_file = Path(folder, "new")
            _extract_member(original, old.name, old_file)
            _extract_member(slimmed, new.name, new_file)
            if new.name.endswith((".dist-info/METADATA", ".dist-info/WHEEL")):
                clauses = _header_differences(old_file, new_file)
            else:
                clauses = library_differences(old_file, new_file)
            for clause in clauses:
                yield f"{new.name}: {clause}"


def _extract_member(wheel: Path, name: str, file: Path) -> None:
    with ZipFile(wheel) as archive:
        zip_archive.extract_members(wheel, [(archive.getinfo(name), str(file))], 1)


def _recorded_files(wheel: Path) -> dict[str, RecordedFile]:
    """Return the files in a wheel's RECORD, by their names without the version.

    "dist-info/WHEEL" is the key of "torch-2.6.0.dist-info/WHEEL". The SBOM in the wheel is left
    out: it names the version, and the digests of changed libraries. So is the metadata of a
    variant, which the original has not.
    """
    record = (record_file.read_dist_info_file(wheel, "RECORD") or b"").decode()
    files = {}
    for name, row in record_file.parse_record(record).items():
        if not name.endswith(_OWN_FILES):
            plain_name = re.sub(r"^[^/]+\.(dist-info|data)/", r"\1/", name)
            files[plain_name] = RecordedFile(name, row[1:2])
    return files


def _header_differences(original: Path, slimmed: Path) -> Iterator[str]:
    """Yield a clause if METADATA or WHEEL differ in more than slimming changes."""
    # read_text turns CR LF into LF: the slim wheel's metadata has LF only
    old = wheel_file.parse_headers(original.read_text("utf-8").encode())
    new = wheel_file.parse_headers(slimmed.read_text("utf-8").encode())
    old_headers = _comparable_headers(old.items())
    new_headers = _comparable_headers(new.items())
    if old_headers != new_headers or old.get_payload() != new.get_payload():
        yield "it changes more than the version, tag and label of what it requires"


def _comparable_headers(headers: Iterable[tuple[str, str]]) -> set[tuple[str, str]]:
    """Return the headers that slimming keeps, without the labels that it gives to requirements."""
    return {
        (name, _CHANGED_SPELLING.sub("", text))
        for name, text in headers
        if not CHANGED_HEADERS.fullmatch(name)
    }


def library_differences(original: Path, slimmed: Path) -> Iterator[str]:
    """Yield a clause for each difference of a slim library that is not removed code for GPUs.

    Everything must be loaded to the same address as in the original. Raises InputError if either
    file is damaged.
    """
    if elf.is_elf(original) and elf.is_elf(slimmed):
        with elf.open_elf(original) as old, elf.open_elf(slimmed) as new:
            yield from _image_differences(old, new)
        return
    if not (elf.has_magic(original, elf.AR_MAGIC) and elf.has_magic(slimmed, elf.AR_MAGIC)):
        yield "it is another file"
        return
    with elf.refuse_damaged(slimmed, elf.DAMAGED_OBJECT):
        old_members = elf.static_members(original)
        new_members = elf.static_members(slimmed)
        for old_member, new_member in zip_longest(old_members, new_members):
            if old_member is None or new_member is None or old_member.start != new_member.start:
                yield "it has other members"
                return
            contents = (old_member.content, new_member.content)
            if all(content.startswith(elf.ELF_MAGIC) for content in contents):
                old_image = ElfImage(old_member.content, old_member.start)
                new_image = ElfImage(new_member.content, new_member.start)
                yield from _image_differences(old_image, new_image)
            elif old_member.content != new_member.content:
                yield f"its member at {old_member.start:#x} differs"


def _image_differences(old: ElfImage, new: ElfImage) -> Iterator[str]:
    """Yield a clause for each difference of an ELF file that is not removed code for GPUs.

    Compared are, in this order: the headers, the fatbins, the pointers to fatbins, and the contents
    of all other sections around these pointers.
    """
    if _overlaps_in_memory(new) or _kept_headers(old) != _kept_headers(new):
        yield "its headers say something else"
        return
    old_fatbins = _list_all_fatbins(old)
    new_fatbins = _list_all_fatbins(new)
    old_counts = [len(fatbins) for fatbins in old_fatbins.values()]
    new_counts = [len(fatbins) for fatbins in new_fatbins.values()]
    if old_counts != new_counts:
        yield "it has a different number of fatbins"
        return
    pairs = zip(chain(*old_fatbins.values()), chain(*new_fatbins.values()), strict=True)
    for old_fatbin, new_fatbin in pairs:
        problem = _fatbin_difference(old, old_fatbin, new, new_fatbin)
        if problem is not None:
            yield f"the fatbin at {old_fatbin.start:#x} {problem}"
    # The n-th list is of the n-th fatbin in both files, so equal lists mean equal pointers.
    words_of_fatbins = _pointer_words(old, old_fatbins)
    if words_of_fatbins != _pointer_words(new, new_fatbins):
        yield "a pointer leads to another fatbin"
        return
    changed_words = sorted(chain(*words_of_fatbins))
    for number, (section, new_section) in enumerate(zip(old.sections, new.sections, strict=True)):
        if section.kind == elf.NOBITS or section in old_fatbins:
            continue
        lost_address = _is_loaded(old, section) and not _is_loaded(new, new_section)
        offsets = [word.offset for word in changed_words if word.section_number == number]
        parts = _unchanged_parts(section, offsets)
        is_same = all(_has_same_part(old, section, new, new_section, part) for part in parts)
        if lost_address or not is_same:
            yield f"section {number} differs, which holds no code for GPUs"


def _overlaps_in_memory(image: ElfImage) -> bool:
    """Tell whether two segments are loaded to the same address, or are not in order."""
    loads = [segment for segment in image.segments if segment.kind == elf.LOAD]
    return any(
        segment.address + segment.memory_size > following.address
        for segment, following in pairwise(loads)
    )


def _list_all_fatbins(image: ElfImage) -> Fatbins:
    return {section: list(list_fatbins(image, section)) for section in device_sections(image)}


def _kept_headers(image: ElfImage) -> list[object]:
    """Return everything in the headers that slimming must not change.

    It may change the offsets of tables and contents in the file, and the sizes of the sections of
    fatbins.
    """
    fatbin_sections = device_sections(image)
    header = [
        value for number, value in enumerate(image.header) if number not in CHANGED_HEADER_FIELDS
    ]
    segments = [
        replace(segment, offset=0) for segment in image.segments if segment.kind != elf.LOAD
    ]
    sections = []
    for section in image.sections:
        size = None if section in fatbin_sections else section.size
        sections.append((section.kind, section.address, section.link, section.name, size))
    return [bytes(image.data[:IDENTITY_BYTES]), header, segments, sections]


def _is_loaded(image: ElfImage, section: Section) -> bool:
    """Tell whether a segment loads a section to the address in the section's header."""
    for segment in image.segments:
        holds_section = segment.offset <= section.offset < segment.end
        is_congruent = section.address - segment.address == section.offset - segment.offset
        if segment.kind == elf.LOAD and holds_section and is_congruent:
            return True
    return False


def _fatbin_difference(
    old: ElfImage, old_fatbin: Fatbin, new: ElfImage, new_fatbin: Fatbin
) -> str | None:
    """Return how a fatbin differs from the original in more than removed pieces, or None."""
    old_pieces = iter(old_fatbin.pieces)
    for piece in new_fatbin.pieces:
        content = new.data[piece.start : piece.end]
        # This goes on behind the last piece that was found, so the order must be the same.
        is_in_old = any(
            old.data[old_piece.start : old_piece.end] == content for old_piece in old_pieces
        )
        if not is_in_old:
            return f"has code for {piece.capability} that the original has not"
    old.release()
    new.release()
    old_header = old.data[old_fatbin.start : old_fatbin.start + SIZE_AT]
    new_header = new.data[new_fatbin.start : new_fatbin.start + SIZE_AT]
    return None if old_header == new_header else "has another header"


def _pointer_words(image: ElfImage, fatbins: Fatbins) -> list[list[WordPlace]]:
    """Return for each fatbin, in order, the places of the words that hold its address.

    The list is empty if the fatbins may not move.
    """
    pointers = fatbin_pointers(image, fatbins) or {}
    words = []
    for _address, file_offsets in sorted(pointers.items()):
        places = []
        for file_offset in file_offsets:
            for number, section in enumerate(image.sections):
                if section.kind != elf.NOBITS and section.offset <= file_offset < section.end:
                    places.append(WordPlace(number, file_offset - section.offset))
        words.append(sorted(places))
    return words


def _unchanged_parts(section: Section, offsets: Iterable[int]) -> list[ByteRange]:
    """Return the ranges of a section between the words at these offsets, which are sorted.

    All offsets are relative to the section.
    """
    parts = []
    start = 0
    for offset in offsets:
        parts.append(ByteRange(start, offset))
        start = offset + WORD_BYTES
    parts.append(ByteRange(start, section.size))
    return parts


def _has_same_part(
    old: ElfImage, old_section: Section, new: ElfImage, new_section: Section, part: ByteRange
) -> bool:
    """Tell whether a part of a section has the same bytes in both files.

    The offsets in `part` are relative to the section.
    """
    for start in range(part.start, part.end, CHUNK_BYTES):
        end = min(start + CHUNK_BYTES, part.end)
        old_content = old.data[old_section.offset + start : old_section.offset + end]
        if old_content != new.data[new_section.offset + start : new_section.offset + end]:
            return False
        old.release()
        new.release()
    return True
