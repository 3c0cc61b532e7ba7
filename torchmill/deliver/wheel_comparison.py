"""Compare two wheels file by file: which files only one of them has, which differ, and how."""

import difflib
import hashlib
import re
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from zipfile import ZipFile

from millpress.elf import ELF_MAGIC, NOBITS, ElfImage

_MOST_LINES = 12  # of changed lines shown for one file
_LIBRARY = re.compile(r"\.(so(\.\d+)*|dylib|dll)$")
_PYTHON_TAG = re.compile(r"\.(cpython-|cp)\d+")  # in the names of extension modules
_DAMAGED = (ValueError, IndexError, KeyError, ArithmeticError)


def file_digests(wheel: Path) -> Mapping[str, str]:
    """Return the sha256 of each file in a wheel. Raises BadZipFile if it is no archive, OSError."""
    digests = {}
    with ZipFile(wheel) as archive:
        for name in archive.namelist():
            if not name.endswith("/"):
                with archive.open(name) as file:
                    digests[name] = hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]
    return digests


def different_libraries(first: Path, second: Path) -> list[str]:
    """Return the libraries that both wheels have with other bytes, without those for one Python."""
    before = file_digests(first)
    after = file_digests(second)
    names = []
    for name in sorted(before.keys() & after.keys()):
        is_common_library = _LIBRARY.search(name) and not _PYTHON_TAG.search(name)
        if is_common_library and before[name] != after[name]:
            names.append(name)
    return names


def wheel_differences(
    first: Path, second: Path, titles: tuple[str, str] | None = None
) -> Iterator[str]:
    """Yield a line for each file that only one wheel has or that differs, then those on the archives.

    `titles` are how the lines call the wheels, by default their file names. Raises BadZipFile if one
    of them is no archive, OSError.
    """
    titles = titles or (first.name, second.name)
    before = file_digests(first)
    after = file_digests(second)
    with ZipFile(first) as first_archive, ZipFile(second) as second_archive:
        for name in sorted(before.keys() | after.keys()):
            if name not in after:
                yield f"{name}: only in {titles[0]}"
            elif name not in before:
                yield f"{name}: only in {titles[1]}"
            elif before[name] != after[name]:
                contents = (first_archive.read(name), second_archive.read(name))
                yield f"{name}: {describe_difference(*contents)}"
        yield from _archive_differences(first_archive, second_archive)


def describe_difference(before: bytes, after: bytes) -> str:
    """Return how two different contents of a file differ: by ELF sections, lines, or first byte."""
    if before.startswith(ELF_MAGIC) and after.startswith(ELF_MAGIC):
        try:
            sections = ", ".join(_different_sections(before, after))
        except _DAMAGED:
            return f"{len(before)} and {len(after)} bytes, of a damaged library"
        return f"sections {sections or 'are the same, other bytes are not'}"
    try:
        return _changed_lines(before.decode().splitlines(), after.decode().splitlines())
    except UnicodeDecodeError:
        position = min(len(before), len(after))
        for index in range(position):
            if before[index] != after[index]:
                position = index
                break
        return f"{len(before)} and {len(after)} bytes, from byte {position}"


def _changed_lines(before: list[str], after: list[str]) -> str:
    """Return the first changed lines of a text, each after its sign, and how many more there are."""
    if before == after:
        return "the same lines, with other line ends"
    diff = difflib.unified_diff(before, after, lineterm="", n=0)
    # Its first two lines are a head. Others that begin with a sign are changed ones.
    changed = [line for line in islice(diff, 2, None) if line[0] in "+-"]
    text = " | ".join(changed[:_MOST_LINES])
    if len(changed) > _MOST_LINES:
        text += f" and {len(changed) - _MOST_LINES} lines more"
    return text


def _different_sections(before: bytes, after: bytes) -> Iterator[str]:
    """Yield the names of ELF sections that differ, with their sizes if these differ."""
    first_sections = _sections(before)
    second_sections = _sections(after)
    for name in sorted(first_sections.keys() | second_sections.keys()):
        first = first_sections.get(name)
        second = second_sections.get(name)
        if first == second:
            continue
        first_size = None if first is None else len(first)
        second_size = None if second is None else len(second)
        if first_size == second_size:
            yield name
        else:
            yield f"{name} ({first_size} and {second_size} bytes)"


def _sections(content: bytes) -> Mapping[str, bytes]:
    """Return the content of each section of an ELF file, by name."""
    image = ElfImage(content)
    contents = {}
    for section, name in zip(image.sections, image.section_names(), strict=True):
        contents[name] = b""
        if section.kind != NOBITS:
            contents[name] = content[section.offset : section.end]
    return contents


def _archive_differences(first: ZipFile, second: ZipFile) -> Iterator[str]:
    """Yield how two archives differ apart from the contents of their files."""
    first_names = first.namelist()
    second_names = second.namelist()
    if first_names != second_names and sorted(first_names) == sorted(second_names):
        yield "the files stand in another order"
    second_infos = {info.filename: info for info in second.infolist()}
    common = [info for info in first.infolist() if info.filename in second_infos]
    for field in ("date_time", "external_attr", "compress_type", "create_version", "extra"):
        names = []
        for info in common:
            if getattr(info, field) != getattr(second_infos[info.filename], field):
                names.append(info.filename)
        if names:
            yield f"{field} differs for {len(names)} files, such as {names[0]}"
