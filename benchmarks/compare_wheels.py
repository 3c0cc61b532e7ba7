"""Compare two wheels file by file: which are in one alone, which differ, and in what.

python benchmarks/compare_wheels.py FIRST.whl SECOND.whl    # ends with 1 where they differ
"""

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
_ABI = re.compile(r"\.(cpython-|cp)\d+")  # such a file is another one for each Python
SHOWN = 12  # of what differs in one file


def digests(wheel: Path) -> Mapping[str, str]:
    """Return the sha256 of each file in a wheel."""
    with zipfile.ZipFile(wheel) as opened:
        return {name: _digest(opened, name) for name in opened.namelist() if not name.endswith("/")}


def libraries(first: Path, second: Path) -> list[str]:
    """Return the libraries in both wheels that are not the same bytes; those named for a Python aside."""
    before, after = digests(first), digests(second)
    return sorted(
        name
        for name in before.keys() & after.keys()
        if LIBRARY.search(name) and not _ABI.search(name) and before[name] != after[name]
    )


def differences(first: Path, second: Path) -> Iterator[str]:
    """Yield a line for each file that is not in both wheels, or not the same in both."""
    before, after = digests(first), digests(second)
    with zipfile.ZipFile(first) as one, zipfile.ZipFile(second) as other:
        for name in sorted(before.keys() | after.keys()):
            if name not in after:
                yield f"{name}: only in {first.name}"
            elif name not in before:
                yield f"{name}: only in {second.name}"
            elif before[name] != after[name]:
                yield f"{name}: {what(one.read(name), other.read(name))}"
        yield from _wrapping(one, other)


def what(before: bytes, after: bytes) -> str:
    """Say in what two contents of one file differ: sections of ELF, lines of text, or bytes."""
    if before.startswith(b"\x7fELF") and after.startswith(b"\x7fELF"):
        return f"sections {', '.join(_sections(before, after)) or 'are the same, headers are not'}"
    try:
        return _lines(before.decode().splitlines(), after.decode().splitlines())
    except UnicodeDecodeError:
        pairs = enumerate(zip(before, after, strict=False))
        at = next((at for at, (one, other) in pairs if one != other), min(len(before), len(after)))
        return f"{len(before)} and {len(after)} bytes, from byte {at}"


def _lines(before: list[str], after: list[str]) -> str:
    compared = difflib.unified_diff(before, after, lineterm="", n=0)
    changed = [line for line in compared if line[0] in "+-" and line[:3] not in {"---", "+++"}]
    more = f" and {len(changed) - SHOWN} lines more" if len(changed) > SHOWN else ""
    return " | ".join(changed[:SHOWN]) + more


def _sections(before: bytes, after: bytes) -> Iterator[str]:
    """Yield the sections that differ, with their sizes where those do."""
    contents = [
        {section.name: section.data() for section in ELFFile(io.BytesIO(text)).iter_sections()}
        for text in (before, after)
    ]
    for name in sorted(contents[0].keys() | contents[1].keys()):
        found = [one.get(name) for one in contents]
        if found[0] != found[1]:
            sizes = [None if one is None else len(one) for one in found]
            yield name if sizes[0] == sizes[1] else f"{name} ({sizes[0]} and {sizes[1]} bytes)"


def _wrapping(one: zipfile.ZipFile, other: zipfile.ZipFile) -> Iterator[str]:
    """Yield in what the archives differ beside the contents of their files."""
    listed = [opened.infolist() for opened in (one, other)]
    orders = [[info.filename for info in infos] for infos in listed]
    if orders[0] != orders[1] and sorted(orders[0]) == sorted(orders[1]):
        yield "the files stand in another order"
    theirs = {info.filename: info for info in listed[1]}
    for field in ("date_time", "external_attr", "compress_type", "create_version", "extra"):
        found = [
            info.filename
            for info in listed[0]
            if info.filename in theirs
            and getattr(info, field) != getattr(theirs[info.filename], field)
        ]
        if found:
            yield f"{field} differs for {len(found)} files, such as {found[0]}"


def _digest(opened: zipfile.ZipFile, name: str) -> str:
    with opened.open(name) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()  # type: ignore[arg-type]


def main() -> None:
    """Print what differs."""
    if len(sys.argv) != 3:  # noqa: PLR2004
        sys.exit("usage: python benchmarks/compare_wheels.py FIRST.whl SECOND.whl")
    first, second = map(Path, sys.argv[1:])
    found = list(differences(first, second))
    for line in found:
        print(line)
    same = first.read_bytes() == second.read_bytes()
    print(f"the same, byte for byte: {same}")
    sys.exit(0 if same else 1)


if __name__ == "__main__":
    main()
