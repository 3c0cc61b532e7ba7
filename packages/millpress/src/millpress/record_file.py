"""Read and write RECORD, the list of a wheel's files with their digests and sizes.

The format: https://packaging.python.org/en/latest/specifications/recording-installed-packages/
"""

import base64
import contextlib
import csv
import hashlib
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

# Of the files beside RECORD that sign it. It cannot list them, because they are made from it.
SIGNATURE_SUFFIXES = (".jws", ".p7s")


def hash_file(file: Path | str) -> str:
    """Return the sha256 of a file, hexadecimal. Raises OSError if it cannot be read."""
    with open(file, "rb") as content:  # noqa: PTH123 - called for thousands of files
        return hashlib.file_digest(content, "sha256").hexdigest()


def record_digest(sha256: bytes) -> str:
    """Return a digest as RECORD spells it: "sha256=", then Base64 for URLs without padding."""
    return "sha256=" + base64.urlsafe_b64encode(sha256).rstrip(b"=").decode("ascii")


def format_record(rows: Iterable[Sequence[object]]) -> str:
    """Return the text of RECORD with these rows: path, digest, size in bytes."""
    table = io.StringIO(newline="")  # the same ends of lines on all systems
    csv.writer(table, lineterminator="\n").writerows(rows)
    return table.getvalue()


def parse_record(text: str) -> dict[str, list[str]]:
    """Return the rows of RECORD (path, digest, size) by path.

    Raises csv.Error if the text is not CSV, or has two different rows for one path.
    """
    rows: dict[str, list[str]] = {}
    for row in csv.reader(io.StringIO(text)):
        if not row:
            continue
        # it cannot be known which of two rows is right
        if rows.setdefault(row[0], row) != row:
            raise csv.Error(f"RECORD has two different rows for {row[0]!r}")
    return rows


def recorded_digests(wheel: Path) -> dict[str, str]:
    """Return the sha256, hexadecimal, of each file that the RECORD of a wheel names.

    Nothing is verified. A wheel without RECORD gives an empty table, and a row without a valid
    sha256 is left out: both are problems that `millpress.verify_wheel` reports. Raises BadZipFile
    if the file is not a zip archive, csv.Error if RECORD cannot be parsed.
    """
    digests = {}
    record = (read_dist_info_file(wheel, "RECORD") or b"").decode("utf-8", "replace")
    for path, row in parse_record(record).items():
        if len(row) > 1 and row[1].startswith("sha256="):
            encoded = row[1].removeprefix("sha256=")
            padding = "=" * (-len(encoded) % 4)
            with contextlib.suppress(ValueError):
                digests[path] = base64.urlsafe_b64decode(encoded + padding).hex()
    return digests


def read_dist_info_file(wheel: Path, name: str) -> bytes | None:
    """Return the content of a file in a wheel's .dist-info, such as "METADATA"; None without it.

    Raises BadZipFile if the file is not a zip archive.
    """
    from zipfile import ZipFile  # slow to load, and callers that only format rows do not need it

    with ZipFile(wheel) as archive:
        for member in archive.namelist():
            folder, _, rest = member.partition("/")
            if rest == name and folder.endswith(".dist-info"):
                return archive.read(member)
    return None
