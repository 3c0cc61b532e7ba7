"""Write a wheel: RECORD and the zip, the same bytes for the same files."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import os
import stat
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from zipfile import ZIP_DEFLATED, ZipFile, ZipInfo

from torchwright.errors import BuildError, ConfigError, HostError

CHUNK = 1 << 20
EPOCH = 315532800  # 1980-01-01, before which the zip format knows no time


@dataclass(frozen=True, slots=True)
class Packed:
    """A finished wheel."""

    path: Path
    sha256: str
    size: int  # bytes


def pack(tree: Path, destination: Path) -> Packed:
    """Write the files below `tree` as the wheel `destination`, with a RECORD of them.

    The wheel appears whole or not at all. Raise BuildError where the tree is no wheel's, HostError
    where the disk refuses it.
    """
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{destination.name}.", dir=destination.parent)
        partial = Path(name)
        try:
            with os.fdopen(handle, "wb") as sink:
                _write(tree, sink)
            partial.chmod(0o644)
            packed = _measure(partial, destination)
            partial.replace(destination)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise HostError(
            f"{destination}: cannot be written ({error.strerror or error}): "
            "free some space or choose another folder"
        ) from error
    return packed


def members(tree: Path) -> list[str]:
    """Return the files of the wheel except RECORD, sorted, those of .dist-info last.

    Raise BuildError for a tree without .dist-info, or with links, which wheels cannot hold.
    """
    paths = [path for path in tree.rglob("*") if path.is_symlink() or not path.is_dir()]
    for path in paths:
        if path.is_symlink():
            raise BuildError(f"{path}: is a link, which a wheel cannot hold: put a copy in its place")
    names = [path.relative_to(tree).as_posix() for path in paths]
    record = f"{_dist_info(tree)}/RECORD"
    return sorted((name for name in names if name != record), key=_last_dist_info)


def digest(sha256: bytes) -> str:
    """Spell a digest as RECORD does."""
    return "sha256=" + base64.urlsafe_b64encode(sha256).rstrip(b"=").decode("ascii")


def _last_dist_info(name: str) -> tuple[bool, str]:
    return (name.partition("/")[0].endswith(".dist-info"), name)


def _dist_info(tree: Path) -> str:
    found = [path.name for path in tree.glob("*.dist-info")]
    if len(found) != 1:
        raise BuildError(f"{tree}: has {len(found)} .dist-info folders, not one: build the wheel again")
    return found[0]


def _write(tree: Path, sink: io.BufferedWriter) -> None:
    record = f"{_dist_info(tree)}/RECORD"
    table = io.StringIO(newline="")
    rows = csv.writer(table, lineterminator="\n")
    stamp = _stamp()
    with ZipFile(sink, "w", compression=ZIP_DEFLATED, allowZip64=True) as archive:
        for name in members(tree):
            rows.writerow([name, *_add(archive, tree / name, name, stamp)])
        rows.writerow([record, "", ""])
        archive.writestr(_info(record, 0o644, stamp), table.getvalue().encode())


def _add(archive: ZipFile, path: Path, name: str, stamp: time.struct_time) -> tuple[str, int]:
    """Copy one file into the archive and return its digest and size for RECORD."""
    status = path.stat()
    mode = 0o755 if status.st_mode & stat.S_IXUSR else 0o644
    sha256, size = hashlib.sha256(), 0
    info = _info(name, mode, stamp)
    info.file_size = status.st_size  # by which zipfile decides on 64-bit headers
    with path.open("rb") as source, archive.open(info, "w") as sink:
        while chunk := source.read(CHUNK):
            sha256.update(chunk)
            size += sink.write(chunk)
    return digest(sha256.digest()), size


def _info(name: str, mode: int, stamp: time.struct_time) -> ZipInfo:
    info = ZipInfo(name, date_time=stamp[:6])
    info.create_system = 3  # Unix, wherever this runs: the modes below are its
    info.compress_type = ZIP_DEFLATED
    info.external_attr = (stat.S_IFREG | mode) << 16
    return info


def _stamp() -> time.struct_time:
    """Return the time that every member carries, by default the earliest there is."""
    given = os.environ.get("SOURCE_DATE_EPOCH", str(EPOCH))
    if not given.isdecimal():
        raise ConfigError(f"SOURCE_DATE_EPOCH={given}: not a number of seconds: unset it or correct it")
    return time.gmtime(max(EPOCH, int(given)))


def _measure(partial: Path, destination: Path) -> Packed:
    with partial.open("rb") as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    return Packed(destination, sha256, partial.stat().st_size)
