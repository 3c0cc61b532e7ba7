"""Compare a wheel's RECORD with what the wheel holds."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
from collections import Counter
from collections.abc import Iterator
from zipfile import BadZipFile, ZipFile

CHUNK = 1 << 20
UNHASHED = ("", ".jws", ".p7s")  # RECORD itself and its signatures


def problems(archive: ZipFile, record: str) -> Iterator[str]:
    """Yield a clause for each file that RECORD (the member's name) has wrong, lacks, or makes up."""
    names = [info.filename for info in archive.infolist() if not info.is_dir()]
    if record not in names:
        yield f"{record} is missing"
        return
    rows = {row[0]: row for row in csv.reader(io.StringIO(archive.read(record).decode("utf-8"))) if row}
    for name, count in Counter(names).items():
        if count > 1:
            yield f"{name} is in the archive {count} times"
    exempt = {record + suffix for suffix in UNHASHED}
    for name in sorted(set(names) - exempt):
        if name not in rows:
            yield f"{name} has no entry in RECORD"
        elif (wrong := _wrong(archive, name, rows[name])) is not None:
            yield wrong
    for name in sorted(set(rows) - set(names)):
        yield f"RECORD lists {name if name.isprintable() else repr(name)}, which the wheel does not hold"


def _wrong(archive: ZipFile, name: str, row: list[str]) -> str | None:
    """Return what is wrong with the file, None for nothing."""
    algorithm, _, wanted = (
        row[1].partition("=") if len(row) == len(("path", "hash", "size")) else ("", "", "")
    )
    if algorithm not in hashlib.algorithms_guaranteed or algorithm in {"md5", "sha1"}:
        return f"{name} has no sound hash in RECORD"
    digest, size = hashlib.new(algorithm), 0
    try:
        with archive.open(name) as file:
            while chunk := file.read(CHUNK):
                digest.update(chunk)
                size += len(chunk)
    except BadZipFile as error:
        return f"{name} is damaged ({error})"
    found = base64.urlsafe_b64encode(digest.digest()).rstrip(b"=").decode("ascii")
    if found != wanted or str(size) != row[2]:
        return f"{name} is not what RECORD says of it"
    return None
