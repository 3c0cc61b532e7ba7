"""Prove that a slim wheel, or library, has everything of its original but some code for GPUs.

This reads both files anew, and uses nothing of what was planned.
"""

import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain, pairwise, zip_longest
from pathlib import Path
from zipfile import ZipFile

from millpress import elf, record_file, wheel_file, zip_archive
from millpress.elf import ElfImage, Section

from torchmill.core.system_errors import report_unwritable
from torchmill.wheel import sbom
from torchmill.wheel.slim import SIZE_AT, fatbin_pointers
from torchmill.wheel.verify.device_code import Fatbin, device_sections, list_fatbins

CHUNK_BYTES = 1 << 20
WORD_BYTES = 8
PLACES_IN_HEADER = {4, 5, 9}  # where the tables of segments and sections are, and how many segments
OWN_HEADER = re.compile("Version|Tag|Root-Is-Purelib")
_SPELLING = re.compile(
    r"[ ()]|(?<=\w)\+[\w.]+"
)  # of a requirement, and the label that slimming gave it
Range = tuple[int, int]  # offsets


def wheel_differences(original: Path, slimmed: Path) -> Iterator[str]:
    """Yield a clause for each way in which a wheel differs from its original in more than left-out code.

    RECORD must be true in both. Raises BuildError where a library is damaged.
    """
    before, after = _recorded_files(original), _recorded_files(slimmed)
    if before.keys() != after.keys():
        yield "it has other files"
        return
    changed = [
        (before[plain][0], name)
        for plain, (name, digest) in after.items()
        if before[plain][1] != digest
    ]
    for pair in changed:
        with tempfile.TemporaryDirectory() as folder, report_unwritable(Path(folder)):
            files = [Path(folder, side) for side in ("old", "new")]
            for wheel, name, file in zip((original, slimmed), pair, files, strict=True):
                with ZipFile(wheel) as archive:
                    zip_archive.extract_members(wheel, [(archive.getinfo(name), str(file))], 1)
            described = pair[1].endswith((".dist-info/METADATA", ".dist-info/WHEEL"))
            clauses = _header_differences(*files) if described else library_differences(*files)
            yield from (f"{pair[1]}: {clause}" for clause in clauses)


def _recorded_files(wheel: Path) -> dict[str, tuple[str, list[str]]]:
    """Return name and hash in RECORD of each file of a wheel but the SBOM in it, by its name without the version."""
    record = (record_file.read_described(wheel, "RECORD") or b"").decode()
    return {
        re.sub(r"^[^/]+\.(dist-info|data)/", r"\1/", name): (name, row[1:2])
        for name, row in record_file.parse_record(record).items()
        if not name.endswith(f".dist-info/{sbom.INNER_PATH}")
    }


def _header_differences(original: Path, slimmed: Path) -> Iterator[str]:
    parsed = [
        wheel_file.parse_headers(file.read_text("utf-8").encode()) for file in (original, slimmed)
    ]
    one, other = (
        {
            (name, _SPELLING.sub("", text))
            for name, text in each.items()
            if not OWN_HEADER.fullmatch(name)
        }
        for each in parsed
    )
    if one != other or parsed[0].get_payload() != parsed[1].get_payload():
        yield "it changes more than the version, tag and label of what it requires"


def library_differences(original: Path, slimmed: Path) -> Iterator[str]:
    """Yield a clause for each way in which a library differs from its original in more than left-out code.

    What is loaded must be loaded to its old address. Raises BuildError where either is damaged.
    """
    if elf.is_elf(original) and elf.is_elf(slimmed):
        with elf.open_elf(original) as old, elf.open_elf(slimmed) as new:
            yield from _image_differences(old, new)
        return
    if not (elf.has_magic(original, elf.AR_MAGIC) and elf.has_magic(slimmed, elf.AR_MAGIC)):
        yield "it is another file"
        return
    with elf.refuse_damaged(slimmed, elf.DAMAGED_OBJECT):
        for one, other in zip_longest(elf.static_members(original), elf.static_members(slimmed)):
            if one is None or other is None or one[0] != other[0]:
                yield "it has other members"
                return
            if one[1][:4] == other[1][:4] == elf.ELF_MAGIC:
                yield from _image_differences(
                    *(ElfImage(content, start) for start, content in (one, other))
                )
            elif one != other:
                yield f"its member at {one[0]:#x} differs"


def _image_differences(old: ElfImage, new: ElfImage) -> Iterator[str]:
    loads = [each for each in new.segments if each.kind == elf.LOAD]
    apart = all(one.address + one.memory <= other.address for one, other in pairwise(loads))
    if not apart or _description(old) != _description(new):
        yield "its headers say something else"
        return
    before, after = (
        {each: list(list_fatbins(image, each)) for each in device_sections(image)}
        for image in (old, new)
    )
    if [len(each) for each in before.values()] != [len(each) for each in after.values()]:
        yield "it has a different number of fatbins"
        return
    for one, other in zip(chain(*before.values()), chain(*after.values()), strict=True):
        if (problem := _fatbin_difference(old, one, new, other)) is not None:
            yield f"the fatbin at {one.start:#x} {problem}"
    words = _words(old, before)
    if words != _words(new, after):
        yield "a pointer leads to another fatbin"
        return
    exempt = sorted(chain(*words))
    for number, (section, same) in enumerate(zip(old.sections, new.sections, strict=True)):
        if section.kind != elf.NOBITS and section not in before:
            marks = [
                0,
                *(at + step for each, at in exempt if each == number for step in (0, WORD_BYTES)),
                section.size,
            ]
            parts = zip(marks[::2], marks[1::2], strict=True)
            moved = _is_loaded(old, section) and not _is_loaded(new, same)
            if moved or not all(
                _is_same(old, new, section.offset, same.offset, part) for part in parts
            ):
                yield f"section {number} differs, which holds no code for GPUs"


def _description(image: ElfImage) -> list[object]:
    """Return what headers say, but where in the file tables and contents are, and how large fatbins are."""
    fatbins = device_sections(image)
    return [
        bytes(image.data[:16]),
        [value for number, value in enumerate(image.header) if number not in PLACES_IN_HEADER],
        [replace(each, offset=0) for each in image.segments if each.kind != elf.LOAD],
        [
            (each.kind, each.address, each.link, each.name, each not in fatbins and each.size)
            for each in image.sections
        ],
    ]


def _is_loaded(image: ElfImage, section: Section) -> bool:
    """Tell whether a section is loaded to the address in its header."""
    loads = (
        each
        for each in image.segments
        if each.kind == elf.LOAD and each.offset <= section.offset < each.end
    )
    return any(section.address - each.address == section.offset - each.offset for each in loads)


def _fatbin_difference(old: ElfImage, one: Fatbin, new: ElfImage, other: Fatbin) -> str | None:
    """Return how a fatbin, the `other`, differs from the original, `one`, in more than pieces that it lacks."""
    left = iter(one.pieces)
    for piece in other.pieces:  # in the same order
        content = new.data[piece.start : piece.end]
        if not any(old.data[each.start : each.end] == content for each in left):
            return f"has code for {piece.capability} that the original has not"
    old.release()
    new.release()
    same = (
        old.data[one.start : one.start + SIZE_AT] == new.data[other.start : other.start + SIZE_AT]
    )
    return None if same else "has another header"


def _words(
    image: ElfImage, fatbins: Mapping[Section, Sequence[Fatbin]]
) -> list[list[tuple[int, int]]]:
    """Return the words that hold the address of each fatbin, in their order: section and offset in it."""
    pointers = fatbin_pointers(image, fatbins) or {}
    places = [
        (number, each) for number, each in enumerate(image.sections) if each.kind != elf.NOBITS
    ]
    return [
        sorted(
            (number, at - each.offset)
            for at in words
            for number, each in places
            if each.offset <= at < each.end
        )
        for _, words in sorted(pointers.items())
    ]


def _is_same(old: ElfImage, new: ElfImage, start: int, there: int, part: Range) -> bool:
    """Tell whether a part of a section, which begins at `start` and `there`, is the same in both."""
    for at in range(*part, CHUNK_BYTES):
        end = min(at + CHUNK_BYTES, part[1])
        if old.data[start + at : start + end] != new.data[there + at : there + end]:
            return False
        old.release()
        new.release()
    return True
