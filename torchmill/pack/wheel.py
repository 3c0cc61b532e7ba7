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

from torchmill import digests
from torchmill.errors import BuildError, ConfigError, HostError
from torchmill.guard import limits
from torchmill.pack import deflate
from torchmill.pack.archive import Archive
from torchmill.pack.content import File
from torchmill.pack.deflate import Codec
from torchmill.pack.kept import Kept
from torchmill.pack.press import Press

EPOCH = 315532800  # 1980-01-01, before which the zip format knows no time
END = 4354819200  # 2108-01-01, from which on it knows none either
MOST_THREADS = 64  # each holds a block or two, and memory is to stay below 300 MB


@dataclass(frozen=True, slots=True)
class Packed:
    """A finished wheel."""

    path: Path
    sha256: str
    size: int  # bytes
    codec: str  # what its bytes depend on beside the files: "zlib-1.3.1-level-6"
    kept: int  # bytes of members that were copied, not compressed


def pack(
    tree: Path,
    destination: Path,
    *,
    rest: Sequence[File] = (),
    members: Path | None = None,
    threads: int | None = None,
    codec: Codec | None = None,
) -> Packed:
    """Write the files below `tree`, and the `rest`, as the wheel `destination`, with a RECORD of them.

    Compressed members are kept in the folder `members`, and copied from there. As many `threads` compress as
    may run, unless it is said. The wheel appears whole or not at all. Raise BuildError where the tree is no
    wheel's, HostError where the disk refuses it.
    """
    codec = codec or deflate.best()
    try:
        destination.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(prefix=f".{destination.name}.", dir=destination.parent)
        partial = Path(name)
        try:
            with os.fdopen(handle, "wb") as sink:
                copied = _write(
                    sink, tree, rest, codec=codec, kept=Kept(members, str(codec)), threads=_threads(threads)
                )
            partial.chmod(0o644)
            whole, size = digests.sha256(partial), partial.stat().st_size
            partial.replace(destination)
        finally:
            partial.unlink(missing_ok=True)
    except OSError as error:
        raise HostError(
            f"{destination}: cannot be written ({error.strerror or error}): "
            "free some space or choose another folder"
        ) from error
    return Packed(destination, whole, size, str(codec), copied)


def files(tree: Path, rest: Iterable[File] = ()) -> list[File]:
    """Return the files of the wheel except RECORD, sorted, those of .dist-info last.

    What lies in the tree takes the place of what the `rest` has of the same name. Raise BuildError for a tree
    without .dist-info, or with links, which wheels cannot hold.
    """
    found = {file.name: file for file in (*rest, *_files(str(tree), ""))}
    found.pop(f"{_dist_info(tree)}/RECORD", None)
    return sorted(found.values(), key=lambda file: (_of_metadata(file.name), file.name))


def file(name: str, path: Path, status: os.stat_result) -> File:
    """Return a file as an archive holds it: of its permissions, whether it is a program."""
    return File(name, path, status.st_size, 0o755 if status.st_mode & stat.S_IXUSR else 0o644)


def digest(sha256: bytes) -> str:
    """Spell a digest as RECORD does."""
    return "sha256=" + base64.urlsafe_b64encode(sha256).rstrip(b"=").decode("ascii")


def _of_metadata(name: str) -> bool:
    return name.partition("/")[0].endswith(".dist-info")


def _files(folder: str, inside: str) -> Iterator[File]:
    with os.scandir(folder) as entries:
        for entry in entries:
            name = f"{inside}{entry.name}"
            if entry.is_symlink():
                raise BuildError(
                    f"{entry.path}: is a link, which a wheel cannot hold: put a copy in its place"
                )
            if entry.is_dir():
                yield from _files(entry.path, f"{name}/")
            else:
                yield file(name, Path(entry.path), entry.stat())


def _dist_info(tree: Path) -> str:
    found = [path.name for path in tree.glob("*.dist-info")]
    if len(found) != 1:
        raise BuildError(f"{tree}: has {len(found)} .dist-info folders, not one: build the wheel again")
    return found[0]


def _write(
    sink: BinaryIO, tree: Path, rest: Sequence[File], *, codec: Codec, kept: Kept, threads: int
) -> int:
    """Write the archive and return how many bytes of it were copied."""
    table = io.StringIO(newline="")
    rows = csv.writer(table, lineterminator="\n")
    archive = Archive(sink, _stamp())
    members = files(tree, rest)
    record = f"{_dist_info(tree)}/RECORD"
    pool = ThreadPoolExecutor(threads)
    try:
        press = Press(pool, threads, codec, kept)
        for name, content in press.fill(archive, members):
            rows.writerow([name, digest(content.sha256), content.size])
        rows.writerow([record, "", ""])
        press.add(archive, record, table.getvalue().encode())
    finally:
        pool.shutdown(cancel_futures=True)
    archive.close()
    return press.copied


def _stamp() -> time.struct_time:
    """Return the time that every member carries, by default the earliest there is."""
    given = os.environ.get("SOURCE_DATE_EPOCH", str(EPOCH))
    if not given.isdecimal() or len(given) > len(str(END)) or int(given) >= END:
        raise ConfigError(
            f"SOURCE_DATE_EPOCH={given[:40]}: not a number of seconds that ends before 2108: "
            "unset it or correct it"
        )
    return time.gmtime(max(EPOCH, int(given)))


def _threads(asked: int | None) -> int:
    """Return how many threads compress: by default one on each processor that this process may use."""
    return min(asked or limits.cores().count, MOST_THREADS)
