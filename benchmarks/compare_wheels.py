"""Compare two wheels file by file: which files only one of them has, which differ, and how.

python benchmarks/compare_wheels.py FIRST.whl SECOND.whl    # exit code 1 if they differ
"""

import argparse
import difflib
import hashlib
import io
import re
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from elftools.elf.elffile import ELFFile

LIBRARY = re.compile(r"\.(so(\.\d+)*|dylib|dll)$")
_PYTHON_TAG = re.compile(r"\.(cpython-|cp)\d+")  # in the names of extension modules
MOST_LINES = 12  # of changed lines shown for one file


def digests(wheel: Path) -> Mapping[str, str]:
    """Return the sha256 of each file in a wheel."""
    with zipfile.ZipFile(wheel) as archive:
        files = [name for name in archive.namelist() if not name.endswith("/")]
        return {name: _digest(archive, name) for name in files}


def different_libraries(first: Path, second: Path) -> list[str]:
    """Return the libraries that both wheels have with different bytes, without those named after a Python."""
    before, after = digests(first), digests(second)
    names = []
    for name in sorted(before.keys() & after.keys()):
        is_common_library = LIBRARY.search(name) and not _PYTHON_TAG.search(name)
        if is_common_library and before[name] != after[name]:
            names.append(name)
    return names


def differences(first: Path, second: Path) -> Iterator[str]:
    """Yield a line for each file that only one wheel has or that differs, then those on the archives."""
    before, after = digests(first), digests(second)
    with zipfile.ZipFile(first) as first_archive, zipfile.ZipFile(second) as second_archive:
        for name in sorted(before.keys() | after.keys()):
            if name not in after:
                yield f"{name}: only in {first.name}"
            elif name not in before:
                yield f"{name}: only in {second.name}"
            elif before[name] != after[name]:
                contents = (first_archive.read(name), second_archive.read(name))
                yield f"{name}: {describe_difference(*contents)}"
        yield from _archive_differences(first_archive, second_archive)


def describe_difference(before: bytes, after: bytes) -> str:
    """Say how two contents of a file differ: by ELF sections, by lines of text, or by their first byte."""
    if before.startswith(b"\x7fELF") and after.startswith(b"\x7fELF"):
        sections = ", ".join(_different_sections(before, after))
        return f"sections {sections or 'are the same, headers are not'}"
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
    diff = difflib.unified_diff(before, after, lineterm="", n=0)
    changed = [line for line in diff if line[0] in "+-" and line[:3] not in {"---", "+++"}]
    text = " | ".join(changed[:MOST_LINES])
    if len(changed) > MOST_LINES:
        text += f" and {len(changed) - MOST_LINES} lines more"
    return text


def _different_sections(before: bytes, after: bytes) -> Iterator[str]:
    """Yield the names of ELF sections that differ, with their sizes if these differ."""
    first_sections, second_sections = _sections(before), _sections(after)
    for name in sorted(first_sections.keys() | second_sections.keys()):
        first, second = first_sections.get(name), second_sections.get(name)
        if first == second:
            continue
        first_size = None if first is None else len(first)
        second_size = None if second is None else len(second)
        if first_size == second_size:
            yield name
        else:
            yield f"{name} ({first_size} and {second_size} bytes)"


def _sections(content: bytes) -> Mapping[str, bytes]:
    elf = ELFFile(io.BytesIO(content))
    return {section.name: section.data() for section in elf.iter_sections()}


def _archive_differences(first: zipfile.ZipFile, second: zipfile.ZipFile) -> Iterator[str]:
    """Yield how two archives differ apart from the contents of their files."""
    first_names, second_names = first.namelist(), second.namelist()
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


def _digest(archive: zipfile.ZipFile, name: str) -> str:
    with archive.open(name) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


def main() -> None:
    """Print the differences."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("first", type=Path, metavar="FIRST.whl")
    parser.add_argument("second", type=Path, metavar="SECOND.whl")
    options = parser.parse_args()
    for line in differences(options.first, options.second):
        print(line)
    same = options.first.read_bytes() == options.second.read_bytes()
    print(f"the same, byte for byte: {same}")
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()
