"""What a whole build made, file by file, to hold the next one against it, on whatever machine.

python benchmarks/recorded_build.py --wheel W.whl --source TREE --build BUILD > FILES.csv
python benchmarks/recorded_build.py --wheel W.whl --source TREE --build BUILD --against FILES.csv

TREE is the fetched source: what is there too is left out. BUILD is CMake's folder, whose objects show which
file it is where a library is another one. The headers, thousands of them, are one line.
Ends with 1 where anything differs.
"""

import argparse
import base64
import csv
import hashlib
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

HEADERS = "torch/include"
Told = Mapping[str, tuple[str, str]]  # a file -> its digest as RECORD writes it, and its bytes


def digest(text: bytes) -> str:
    """Return a sha256 as RECORD writes it."""
    return base64.urlsafe_b64encode(hashlib.sha256(text).digest()).decode().rstrip("=")


def files(wheel: Path, source: Path) -> Iterator[tuple[str, str, str]]:
    """Yield name, digest and bytes of what a wheel holds and the source does not."""
    known = {digest(path.read_bytes()) for path in source.rglob("*") if path.is_file()}
    headers = []
    with zipfile.ZipFile(wheel) as opened:
        for name in sorted(opened.namelist()):
            text = b"" if name.endswith(("/", "/RECORD")) else opened.read(name)
            if not text or digest(text) in known:
                continue
            if name.startswith(f"{HEADERS}/"):
                headers.append((f"{name},sha256={digest(text)},{len(text)}", len(text)))
            else:
                yield name, digest(text), str(len(text))
    lines = "\n".join(sorted(line for line, _ in headers)).encode()
    yield HEADERS, digest(lines), str(sum(size for _, size in headers))


def objects(build: Path) -> Iterator[tuple[str, str, str]]:
    """Yield the same of the objects that the compilers made; CMake's trials aside."""
    for path in sorted(build.rglob("*.o")):
        name = path.relative_to(build).as_posix()
        if not name.startswith("CMakeFiles/") and "CompilerId" not in name:
            text = path.read_bytes()
            yield name, digest(text), str(len(text))


def read(table: Path) -> Told:
    """Return what was recorded."""
    with table.open(encoding="utf-8", newline="") as lines:
        rows = csv.reader(line for line in lines if not line.startswith("#"))
        return {name: (sha256, size) for name, sha256, size in rows if name != "file"}


def differences(before: Told, after: Told) -> Iterator[str]:
    """Yield a line for each file that is not in both, or not the same."""
    for name in sorted({*before, *after}):
        one, other = before.get(name), after.get(name)
        if one is None or other is None:
            yield f"{name}: only {'now' if one is None else 'then'}"
        elif one != other:
            sizes = f"{one[1]} and {other[1]} bytes" if one[1] != other[1] else "of the same size"
            yield f"{name}: another one, {sizes}"


def main() -> int:
    """Print what was made, or in what it differs; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--wheel", type=Path, required=True)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--build", type=Path, required=True)
    parser.add_argument("--against", type=Path)
    given = parser.parse_args()
    rows = [*files(given.wheel, given.source), *objects(given.build)]
    if given.against is None:
        csv.writer(sys.stdout, lineterminator="\n").writerows([("file", "sha256", "bytes"), *rows])
        return 0
    found = list(differences(read(given.against), {name: (sha, size) for name, sha, size in rows}))
    print("\n".join(found) or "the same")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
