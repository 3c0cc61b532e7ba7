"""Digests of every file that a whole build made, to compare a later build with, perhaps on another machine.

python benchmarks/recorded_build.py --wheel W.whl --source TREE --build BUILD > FILES.csv
python benchmarks/recorded_build.py --wheel W.whl --source TREE --build BUILD --against FILES.csv

TREE is the fetched source: files that a wheel copies from it are left out. BUILD is CMake's folder: if a library
differs, its objects show which source file is responsible. The thousands of headers are recorded as one entry.
Exit code 1 if anything differs.
"""

import argparse
import base64
import csv
import hashlib
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

HEADERS = "torch/include"


class FileRecord(NamedTuple):
    """One line of a table of files."""

    name: str
    sha256: str  # as a wheel's RECORD writes it
    size: str  # in bytes


FileTable = Mapping[str, FileRecord]  # by name


def digest(content: bytes) -> str:
    """Return the sha256 of a content as a wheel's RECORD writes it."""
    sha256 = base64.urlsafe_b64encode(hashlib.sha256(content).digest())
    return sha256.decode().rstrip("=")


def wheel_files(wheel: Path, source: Path) -> Iterator[FileRecord]:
    """Yield the files of a wheel that are not copied from the source; the headers come last, as one."""
    source_digests = {digest(path.read_bytes()) for path in source.rglob("*") if path.is_file()}
    header_lines = []
    header_bytes = 0
    with zipfile.ZipFile(wheel) as archive:
        for name in sorted(archive.namelist()):
            if name.endswith(("/", "/RECORD")):
                continue
            content = archive.read(name)
            sha256, size = digest(content), len(content)
            if not content or sha256 in source_digests:
                continue
            if name.startswith(f"{HEADERS}/"):
                header_lines.append(f"{name},sha256={sha256},{size}")
                header_bytes += size
            else:
                yield FileRecord(name, sha256, str(size))
    headers = "\n".join(sorted(header_lines)).encode()
    yield FileRecord(HEADERS, digest(headers), str(header_bytes))


def build_objects(build: Path) -> Iterator[FileRecord]:
    """Yield the objects of a build, without those of CMake's own trial compiles."""
    for path in sorted(build.rglob("*.o")):
        name = path.relative_to(build).as_posix()
        if not name.startswith("CMakeFiles/") and "CompilerId" not in name:
            content = path.read_bytes()
            yield FileRecord(name, digest(content), str(len(content)))


def read_table(file: Path) -> FileTable:
    """Return a recorded table; lines that start with "#" are remarks."""
    with file.open(encoding="utf-8", newline="") as lines:
        rows = csv.reader(line for line in lines if not line.startswith("#"))
        records = [FileRecord(*row) for row in rows]
    return {record.name: record for record in records if record.name != "file"}


def differences(before: FileTable, after: FileTable) -> Iterator[str]:
    """Yield a line for each file that only one table has, or that differs."""
    for name in sorted({*before, *after}):
        if name not in before:
            yield f"{name}: only now"
        elif name not in after:
            yield f"{name}: only then"
        elif before[name] != after[name]:
            old_size, new_size = before[name].size, after[name].size
            if old_size == new_size:
                size_text = "of the same size"
            else:
                size_text = f"{old_size} and {new_size} bytes"
            yield f"{name}: another one, {size_text}"


def main() -> int:
    """Print the table of a build, or its differences from a recorded one; return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument("--source", type=Path, required=True, metavar="TREE")
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--against", type=Path, metavar="FILES.csv")
    options = parser.parse_args()
    records = [*wheel_files(options.wheel, options.source), *build_objects(options.build)]
    if options.against is None:
        table = csv.writer(sys.stdout, lineterminator="\n")
        table.writerow(("file", "sha256", "bytes"))
        table.writerows(records)
        return 0
    recorded = read_table(options.against)
    lines = list(differences(recorded, {record.name: record for record in records}))
    print("\n".join(lines) or "the same")
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
