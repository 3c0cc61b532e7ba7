"""Write a wheel: RECORD and the zip archive, with the same bytes for any number of threads."""

from __future__ import annotations

import base64
import csv
import io
import os
import stat
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from torchmill.core.errors import BuildError, ConfigError
from torchmill.core.files import fresh_path, hash_file, report_unwritable
from torchmill.wheel.pack import staging
from torchmill.wheel.pack.compressor import Compressor, open_compressor
from torchmill.wheel.pack.zip_archive import Codec, MemberSource, ZipWriter

EPOCH_SECONDS = 315532800  # 1980-01-01, the first date of the zip format
END_SECONDS = 4354819200  # 2108-01-01, the first date beyond it


@dataclass(frozen=True, slots=True)
class PackedWheel:
    """A finished wheel."""

    path: Path
    sha256: str
    size: int  # bytes
    codec: str  # on which its bytes depend: "zlib-1.3.1-level-6"
    copied_bytes: int  # of members copied from the cache


def pack_wheel(
    tree: Path,
    destination: Path,
    *,
    unstaged: Sequence[MemberSource] = (),
    cache_folder: Path | None = None,
    threads: int | None = None,
    codec: Codec | None = None,
) -> PackedWheel:
    """Write the files below `tree` and the `unstaged` ones as the wheel `destination`, with a RECORD of them.

    Compressed members are kept in `cache_folder` and copied from there. By default as many `threads`
    compress as this process may use processors. The wheel appears whole or not at all. Raises BuildError
    where the tree is not a wheel's, HostError where the disk is full.
    """
    with report_unwritable(destination), fresh_path(destination) as partial:
        with partial.open("wb") as sink, open_compressor(cache_folder, codec, threads) as compressor:
            _write_archive(sink, compressor, tree, unstaged)
        partial.chmod(0o644)
        whole, size = hash_file(partial), partial.stat().st_size
        partial.replace(destination)
    return PackedWheel(destination, whole, size, str(compressor.codec), compressor.copied_bytes)


def _list_members(tree: Path, unstaged: Iterable[MemberSource], dist_info: str) -> list[MemberSource]:
    """Return the files of the wheel except RECORD, sorted, those of .dist-info last.

    Files in the tree replace `unstaged` ones of the same name.
    """
    files = {file.name: file for file in (*unstaged, *_scan_files(tree))}
    files.pop(f"{dist_info}/RECORD", None)
    return sorted(files.values(), key=lambda file: (file.name.startswith(f"{dist_info}/"), file.name))


def member_source(name: str, path: Path, status: os.stat_result) -> MemberSource:
    """Return a file as a member: of its permissions, only whether it is a program."""
    return MemberSource(name, path, status.st_size, 0o755 if status.st_mode & stat.S_IXUSR else 0o644)


def record_digest(sha256: bytes) -> str:
    """Return a digest as RECORD spells it."""
    return "sha256=" + base64.urlsafe_b64encode(sha256).rstrip(b"=").decode("ascii")


def _scan_files(tree: Path) -> Iterator[MemberSource]:
    for path in tree.rglob("*"):
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode):
            raise BuildError(
                f"{path}: is a link, which a wheel cannot hold: replace it by a copy", code="link-in-wheel"
            )
        if not stat.S_ISDIR(status.st_mode):
            yield member_source(path.relative_to(tree).as_posix(), path, status)


def _write_archive(sink: BinaryIO, compressor: Compressor, tree: Path, unstaged: Sequence[MemberSource]) -> None:
    table = io.StringIO(newline="")
    rows = csv.writer(table, lineterminator="\n")
    archive = ZipWriter(sink, _timestamp())
    dist_info = staging.find_dist_info(tree, str(tree)).name
    for name, content in compressor.add_files(archive, _list_members(tree, unstaged, dist_info)):
        rows.writerow([name, record_digest(content.sha256), content.size])
    rows.writerow([f"{dist_info}/RECORD", "", ""])
    compressor.add_bytes(archive, f"{dist_info}/RECORD", table.getvalue().encode())
    archive.close()


def _timestamp() -> time.struct_time:
    """Return the time of every member: SOURCE_DATE_EPOCH, by default the earliest possible."""
    epoch = os.environ.get("SOURCE_DATE_EPOCH", str(EPOCH_SECONDS))
    if not epoch.isdecimal() or len(epoch) > len(str(END_SECONDS)) or int(epoch) >= END_SECONDS:
        raise ConfigError(
            f"SOURCE_DATE_EPOCH={epoch[:40]}: not a number of seconds before the year 2108: unset it or correct it",
            code="invalid-source-date-epoch",
        )
    return time.gmtime(max(EPOCH_SECONDS, int(epoch)))
