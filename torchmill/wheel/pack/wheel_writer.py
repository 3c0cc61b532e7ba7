"""Write a wheel: RECORD and the zip, the same bytes for the same files, whatever the number of threads."""

from __future__ import annotations

import base64
import csv
import io
import os
import stat
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from torchmill.core import files
from torchmill.core.errors import BuildError, ConfigError, HostError
from torchmill.host import limits
from torchmill.wheel.pack import zip_writer
from torchmill.wheel.pack.compressor import Compressor, MemberCache
from torchmill.wheel.pack.zip_writer import Codec, MemberSource, ZipWriter

EPOCH_SECONDS = 315532800  # 1980-01-01, before which the zip format knows no time
END_SECONDS = 4354819200  # 2108-01-01, from which on it knows none either
MAX_THREADS = 64  # each holds a block or two, and memory is to stay below 300 MB


@dataclass(frozen=True, slots=True)
class PackedWheel:
    """A finished wheel."""

    path: Path
    sha256: str
    size: int  # bytes
    codec: str  # what its bytes depend on beside the files: "zlib-1.3.1-level-6"
    copied_bytes: int  # bytes of members that were copied, not compressed


def pack_wheel(
    tree: Path,
    destination: Path,
    *,
    unstaged: Sequence[MemberSource] = (),
    cache_folder: Path | None = None,
    threads: int | None = None,
    codec: Codec | None = None,
) -> PackedWheel:
    """Write the files below `tree`, and the `rest`, as the wheel `destination`, with a RECORD of them.

    Compressed members are kept in the folder `members`, and copied from there. As many `threads` compress as
    may run, unless it is said. The wheel appears whole or not at all. Raise BuildError where the tree is no
    wheel's, HostError where the disk refuses it.
    """
    codec = codec or zip_writer.best_codec()
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{destination.name}.", dir=destination.parent)
        partial = Path(name)
        try:
            with os.fdopen(handle, "wb") as sink:
                copied = _write_archive(
                    sink,
                    tree,
                    unstaged,
                    codec=codec,
                    cache=MemberCache(cache_folder, str(codec)),
                    threads=_thread_count(threads),
                )
            partial.chmod(0o644)
            whole, size = files.hash_file(partial), partial.stat().st_size
            partial.replace(destination)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise HostError(
            f"{destination}: cannot be written ({error.strerror or error}): "
            "free some space or choose another folder"
        ) from error
    return PackedWheel(destination, whole, size, str(codec), copied)


def list_members(tree: Path, unstaged: Iterable[MemberSource] = ()) -> list[MemberSource]:
    """Return the files of the wheel except RECORD, sorted, those of .dist-info last.

    What lies in the tree takes the place of what the `rest` has of the same name. Raise BuildError for a tree
    without .dist-info, or with links, which wheels cannot hold.
    """
    found = {file.name: file for file in (*unstaged, *_scan_files(str(tree), ""))}
    found.pop(f"{_dist_info_name(tree)}/RECORD", None)
    return sorted(found.values(), key=lambda file: (_is_metadata(file.name), file.name))


def member_source(name: str, path: Path, status: os.stat_result) -> MemberSource:
    """Return a file as an archive holds it: of its permissions, whether it is a program."""
    return MemberSource(name, path, status.st_size, 0o755 if status.st_mode & stat.S_IXUSR else 0o644)


def record_digest(sha256: bytes) -> str:
    """Spell a digest as RECORD does."""
    return "sha256=" + base64.urlsafe_b64encode(sha256).rstrip(b"=").decode("ascii")


def _is_metadata(name: str) -> bool:
    return name.partition("/")[0].endswith(".dist-info")


def _scan_files(folder: str, inside: str) -> Iterator[MemberSource]:
    with os.scandir(folder) as entries:
        for entry in entries:
            name = f"{inside}{entry.name}"
            if entry.is_symlink():
                raise BuildError(
                    f"{entry.path}: is a link, which a wheel cannot hold: put a copy in its place"
                )
            if entry.is_dir():
                yield from _scan_files(entry.path, f"{name}/")
            else:
                yield member_source(name, Path(entry.path), entry.stat())


def _dist_info_name(tree: Path) -> str:
    found = [path.name for path in tree.glob("*.dist-info")]
    if len(found) != 1:
        raise BuildError(f"{tree}: has {len(found)} .dist-info folders, not one: build the wheel again")
    return found[0]


def _write_archive(
    sink: BinaryIO,
    tree: Path,
    unstaged: Sequence[MemberSource],
    *,
    codec: Codec,
    cache: MemberCache,
    threads: int,
) -> int:
    """Write the archive and return how many bytes of it were copied."""
    table = io.StringIO(newline="")
    rows = csv.writer(table, lineterminator="\n")
    archive = ZipWriter(sink, _timestamp())
    members = list_members(tree, unstaged)
    record = f"{_dist_info_name(tree)}/RECORD"
    pool = ThreadPoolExecutor(threads)
    try:
        press = Compressor(pool, threads, codec, cache)
        for name, content in press.add_files(archive, members):
            rows.writerow([name, record_digest(content.sha256), content.size])
        rows.writerow([record, "", ""])
        press.add_bytes(archive, record, table.getvalue().encode())
    finally:
        pool.shutdown(cancel_futures=True)
    archive.close()
    return press.copied_bytes


def _timestamp() -> time.struct_time:
    """Return the time that every member carries, by default the earliest there is."""
    given = os.environ.get("SOURCE_DATE_EPOCH", str(EPOCH_SECONDS))
    if not given.isdecimal() or len(given) > len(str(END_SECONDS)) or int(given) >= END_SECONDS:
        raise ConfigError(
            f"SOURCE_DATE_EPOCH={given[:40]}: not a number of seconds that ends before 2108: "
            "unset it or correct it"
        )
    return time.gmtime(max(EPOCH_SECONDS, int(given)))


def _thread_count(asked: int | None) -> int:
    """Return how many threads compress: by default one on each processor that this process may use."""
    return min(asked or limits.measure_cores().count, MAX_THREADS)
