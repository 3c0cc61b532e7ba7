"""Write a wheel: RECORD and the zip archive, with the same bytes for any number of threads.

Memory does not depend on the files: small ones are compressed in batches, large ones in blocks, and few at a
time. A cached member is a file named by codec and content, from which the next wheel with the same library
copies. One that is missing, truncated, changed or unreadable is compressed again: only time depends on it.
"""

import contextlib
import hashlib
import os
import stat
import struct
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import IO, BinaryIO, TypeVar
from zipfile import ZIP_DEFLATED, ZIP_STORED

from millpress import record_file, staging, zip_archive
from millpress.atomic_files import fresh_path, name_file
from millpress.errors import InputError, OptionError
from millpress.processors import usable_processors
from millpress.record_file import hash_file
from millpress.zip_archive import (
    BLOCK_BYTES,
    Codec,
    ContentDigest,
    MemberSource,
    ZipMember,
    ZipWriter,
)

EPOCH = "SOURCE_DATE_EPOCH"
EPOCH_SECONDS = 315532800  # 1980-01-01, the first date of the zip format
END_SECONDS = 4354819200  # 2108-01-01, the first date beyond it
CACHE_MAGIC = b"twkept1\n"
DIGEST_BYTES = hashlib.sha256().digest_size
CACHED_FROM_BYTES = 1 << 16  # compressing less takes no longer than reading the cache
BATCH_FILES = 64  # on average
MAX_THREADS = 64  # each holds a block or two, and memory shall stay below 300 MB
Result = TypeVar("Result")


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
    compress as this process may use processors. The wheel appears whole or not at all. Raises InputError
    where the tree is not a wheel's, ToolError where the disk is full.
    """
    with name_file(destination), fresh_path(destination) as fresh:
        with fresh.open("wb") as sink, open_compressor(cache_folder, codec, threads) as compressor:
            _write_archive(sink, compressor, tree, unstaged)
        sha256, size = hash_file(fresh), fresh.stat().st_size
        fresh.replace(destination)
    return PackedWheel(destination, sha256, size, str(compressor.codec), compressor.copied_bytes)


def member_source(name: str, path: Path, status: os.stat_result) -> MemberSource:
    """Return a file as a member."""
    return MemberSource(name, path, status.st_size, zip_archive.member_mode(status.st_mode))


def _scan_files(tree: Path) -> Iterator[MemberSource]:
    for one in tree.rglob("*"):
        status = one.lstat()
        if stat.S_ISLNK(status.st_mode):
            raise InputError(
                f"{one} is a link, which wheels cannot hold: replace it with a copy",
                code="link-in-wheel",
            )
        if not stat.S_ISDIR(status.st_mode):
            yield member_source(one.relative_to(tree).as_posix(), one, status)


def _write_archive(
    sink: BinaryIO, compressor: "Compressor", tree: Path, unstaged: Sequence[MemberSource]
) -> None:
    archive = ZipWriter(sink, time.gmtime(source_date_epoch(os.environ)))
    dist_info = staging.find_dist_info(tree, str(tree)).name
    # files in the tree replace `unstaged` ones of the same name; those of .dist-info come last
    files = {
        file.name: file
        for file in (*unstaged, *_scan_files(tree))
        if file.name != f"{dist_info}/RECORD"
    }
    members = sorted(
        files.values(), key=lambda file: (file.name.startswith(f"{dist_info}/"), file.name)
    )
    compressor.add_recorded(archive, members, f"{dist_info}/RECORD")
    archive.close()


def source_date_epoch(environ: Mapping[str, str]) -> int:
    """Return the seconds of SOURCE_DATE_EPOCH, by default the first that zip archives have. Raises OptionError."""
    epoch = environ.get(EPOCH, str(EPOCH_SECONDS))
    if not epoch.isdecimal() or len(epoch) > len(str(END_SECONDS)) or int(epoch) >= END_SECONDS:
        raise OptionError(
            f"{EPOCH}={epoch[:40]}: not a number of seconds before the year 2108: unset it or correct it",
            code="invalid-source-date-epoch",
        )
    return max(EPOCH_SECONDS, int(epoch))


@dataclass(frozen=True, slots=True)
class MemberCache:
    """The cached members of one codec; members are named by the SHA-256 of their uncompressed bytes."""

    folder: Path | None  # None: nothing is cached
    codec: str

    def path(self, content: bytes) -> Path | None:
        """Return the path of a member, by its SHA-256."""
        name = content.hex()
        return None if self.folder is None else self.folder / self.codec / name[:2] / name

    def find(self, content: bytes) -> Iterator[bytes] | None:
        """Return the compressed bytes in parts; None where the member is not cached, or was changed.

        The file is read twice, so that nothing of a changed one gets into an archive; it is removed.
        """
        path, digest = self.path(content), self._digest(content)
        if path is None:
            return None
        try:
            file = path.open("rb")
        except OSError:  # not cached, or removed meanwhile
            return None
        with contextlib.suppress(OSError):  # another user's, or removed just now
            os.utime(path)  # the least recently used are removed first
        with contextlib.suppress(OSError):
            for part in _read_parts(file):
                digest.update(part)
            if file.read() == digest.digest():
                return _read_parts(file, close=True)
        with contextlib.suppress(OSError):
            file.close()
            path.unlink()
        return None

    def store(self, content: bytes, parts: Iterable[bytes]) -> Iterator[bytes]:
        """Yield `parts`, and cache them after the last one, if the disk has room."""
        path, digest, file = self.path(content), self._digest(content), None
        with contextlib.suppress(OSError):
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                file = tempfile.NamedTemporaryFile(prefix=".", dir=path.parent, delete=False)  # noqa: SIM115
        if path is None or file is None:
            yield from parts
            return
        try:
            whole = _try_write(file, CACHE_MAGIC)
            for part in parts:
                digest.update(part)
                whole = whole and _try_write(file, part)
                yield part
            with contextlib.suppress(OSError):
                if whole and _try_write(file, digest.digest()):
                    file.close()
                    Path(file.name).replace(path)
        finally:
            with contextlib.suppress(OSError):  # closing flushes
                file.close()
            with contextlib.suppress(OSError):
                Path(file.name).unlink()

    def _digest(self, content: bytes) -> "hashlib._Hash":
        """Return a digest that also detects a member under the name of another."""
        return hashlib.sha256(self.codec.encode() + content)


def _read_parts(file: IO[bytes], *, close: bool = False) -> Iterator[bytes]:
    """Yield what is between the mark and the digest of a cached member."""
    left = file.seek(0, os.SEEK_END) - len(CACHE_MAGIC) - DIGEST_BYTES
    file.seek(0)
    if file.read(len(CACHE_MAGIC)) == CACHE_MAGIC:
        while left > 0 and (part := file.read(min(zip_archive.CHUNK_BYTES, left))):
            left -= len(part)
            yield part
    if close:
        file.close()


def _try_write(file: IO[bytes], part: bytes) -> bool:
    """Write a part and return True; where the disk refuses it, give back the room of the file, and return False."""
    try:
        file.write(part)
    except OSError:
        with contextlib.suppress(OSError):
            os.truncate(file.fileno(), 0)
        return False
    return True


@dataclass(slots=True)
class Compressor:
    """Compresses files with a pool of threads."""

    pool: ThreadPoolExecutor
    threads: int
    codec: Codec
    cache: MemberCache
    copied_bytes: int = 0  # of members from the cache

    def add_files(
        self, archive: ZipWriter, files: Sequence[MemberSource]
    ) -> Iterator[tuple[str, ContentDigest]]:
        """Add the files to the archive in their order, and yield the name and digest of each."""
        large = sorted(
            (file for file in files if file.size > BLOCK_BYTES), key=lambda file: -file.size
        )
        digests = {file.name: self.pool.submit(zip_archive.digest_source, file) for file in large}
        units = list(_group_files(files))
        ready = self._in_order(
            partial(self._compress, unit) for unit in units if isinstance(unit, list)
        )
        for unit in units:
            if isinstance(unit, MemberSource):
                content = digests.pop(unit.name).result()
                large_member = ZipMember(unit.name, unit.mode, content.size, content.crc)
                if (kept := self.cache.find(content.sha256)) is not None:
                    self.copied_bytes += archive.add_parts(large_member, kept)
                else:
                    blocks = self._in_order(zip_archive.block_tasks(self.codec, unit))
                    archive.add_parts(large_member, self.cache.store(content.sha256, blocks))
                yield unit.name, content
            else:
                cached, members = next(ready)
                for member, content, data in members:
                    archive.add(member, data)
                    self.copied_bytes += len(data) if cached else 0
                    yield member.name, content

    def add_recorded(
        self,
        archive: ZipWriter,
        files: Sequence[MemberSource],
        record: str,
        rows: Iterable[Sequence[object]] = (),
    ) -> None:
        """Add the files, then RECORD under the name `record`: `rows` of what is there already, and theirs."""
        added = [
            (name, record_file.record_digest(each.sha256), each.size)
            for name, each in self.add_files(archive, files)
        ]
        self.add_bytes(
            archive, record, record_file.format_record([*rows, *added, (record, "", "")]).encode()
        )

    def add_bytes(self, archive: ZipWriter, name: str, data: bytes) -> None:
        """Add a member that is not a file."""
        archive.add(
            ZipMember(name, 0o644, len(data), zip_archive.crc32(data)), self.codec.compress(data)
        )

    def _compress(
        self, files: Sequence[MemberSource]
    ) -> tuple[bool, list[tuple[ZipMember, ContentDigest, bytes]]]:
        """Read small files and compress each. Return whether the batch was cached, and the members."""
        contents = list(zip_archive.read_sources(files))
        key = hashlib.sha256(b"".join(content.sha256 for _, content in contents)).digest()
        worthwhile = sum(len(data) for data, _ in contents) >= CACHED_FROM_BYTES
        joined = b"".join(self.cache.find(key) or ()) if worthwhile else b""
        cached = _split_parts(joined, len(contents))
        packed = cached or [self.codec.compress(data) for data, _ in contents]
        if worthwhile and cached is None:
            deque(self.cache.store(key, [_join_parts(packed)]), 0)
        members = []
        for file, (data, content), deflated in zip(files, contents, packed, strict=True):
            method = ZIP_DEFLATED if len(deflated) < len(data) else ZIP_STORED
            member = ZipMember(file.name, file.mode, content.size, content.crc, method)
            members.append((member, content, deflated if method == ZIP_DEFLATED else data))
        return cached is not None, members

    def _in_order(self, tasks: Iterable[Callable[[], Result]]) -> Iterator[Result]:
        """Yield the results of the tasks in order, with only a few computed ahead."""
        waiting: deque[Future[Result]] = deque()
        for task in tasks:
            waiting.append(self.pool.submit(task))
            if len(waiting) > self.threads + 4:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


@contextmanager
def open_compressor(
    cache: Path | None, codec: Codec | None = None, threads: int | None = None
) -> Iterator[Compressor]:
    """Start the threads of a compressor: by default as many as this process may use processors."""
    codec = codec or zip_archive.best_codec()
    threads = min(threads or usable_processors(), MAX_THREADS)
    pool = ThreadPoolExecutor(threads)
    try:
        yield Compressor(pool, threads, codec, MemberCache(cache, str(codec)))
    finally:
        pool.shutdown(cancel_futures=True)


def _join_parts(parts: Sequence[bytes]) -> bytes:
    """Return the parts in one, after their lengths."""
    return struct.pack(f"<{len(parts)}L", *map(len, parts)) + b"".join(parts)


def _split_parts(joined: bytes, count: int) -> list[bytes] | None:
    """Return the parts of `_join_parts`; None where their number or size is wrong."""
    start = 4 * count
    if len(joined) < start:
        return None
    lengths = struct.unpack_from(f"<{count}L", joined)
    ends = [start, *(start := start + length for length in lengths)]
    return [joined[one:other] for one, other in pairwise(ends)] if ends[-1] == len(joined) else None


def _group_files(files: Iterable[MemberSource]) -> Iterator[MemberSource | list[MemberSource]]:
    """Yield large files alone and small ones in batches, in order.

    The name of the next file decides where a batch ends, so one additional file changes one batch only.
    """
    batch: list[MemberSource] = []
    size = 0
    for file in files:
        large = file.size > BLOCK_BYTES
        first = zip_archive.crc32(file.name.encode()) % BATCH_FILES == 0
        if batch and (large or first or size + file.size > BLOCK_BYTES):
            yield batch
            batch, size = [], 0
        if large:
            yield file
        else:
            batch.append(file)
            size += file.size
    if batch:
        yield batch
