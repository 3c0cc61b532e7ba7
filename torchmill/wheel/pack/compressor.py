"""Compressed members, kept by what they hold, so that the next wheel with the same library copies its bytes.

A kept member is a file named by codec and content. What is missing, cut short, changed or cannot be read or
written is compressed again: the store makes packing faster, and nothing depends on it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import struct
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import IO, TypeVar

from torchmill.wheel.pack import zip_writer
from torchmill.wheel.pack.zip_writer import (
    BLOCK_BYTES,
    Codec,
    CompressionMethod,
    ContentDigest,
    MemberSource,
    ZipMember,
    ZipWriter,
    crc32,
    split_blocks,
)

CACHE_MAGIC = b"twkept1\n"
DIGEST_BYTES = hashlib.sha256().digest_size
CHUNK_BYTES = 1 << 20


class SpoiledMemberError(Exception):
    """A kept member that is no longer what was kept; it has been removed."""


@dataclass(frozen=True, slots=True)
class MemberCache:
    """The members that one codec compressed."""

    folder: Path | None  # None: nothing is kept
    codec: str

    def path(self, content: bytes) -> Path | None:
        """Return where the member lies whose uncompressed bytes have this sha256."""
        name = content.hex()
        return None if self.folder is None else self.folder / self.codec / name[:2] / name

    def find(self, content: bytes) -> Iterator[bytes] | None:
        """Return the compressed bytes in parts, None where there are none.

        The iterator raises SpoiledError, at the latest after the last part, where they are not those kept.
        """
        path = self.path(content)
        if path is None:
            return None
        try:
            file = path.open("rb")
        except OSError:  # never kept, or taken away meanwhile
            return None
        with contextlib.suppress(OSError):  # somebody else's, or taken away just now
            os.utime(path)  # the least recently used go first when room is made
        return self._read_parts(path, file, content)

    def read(self, content: bytes) -> bytes | None:
        """Return the compressed bytes, None where there are none that are sound."""
        parts = self.find(content)
        try:
            return None if parts is None else b"".join(parts)
        except SpoiledMemberError:
            return None

    def store(self, content: bytes, parts: Iterable[bytes]) -> Iterator[bytes]:
        """Hand `parts` on, and keep them once the last has passed, if the disk takes them."""
        path = self.path(content)
        if path is None:
            yield from parts
            return
        fresh, digest = _CacheWriter(path), self._digest(content)
        try:
            fresh.write(CACHE_MAGIC)
            for part in parts:
                digest.update(part)
                fresh.write(part)
                yield part
            fresh.write(digest.digest())
            fresh.finish()
        finally:
            fresh.discard()

    def _read_parts(self, path: Path, file: IO[bytes], content: bytes) -> Iterator[bytes]:
        digest = self._digest(content)
        try:
            with file:
                left = os.fstat(file.fileno()).st_size - len(CACHE_MAGIC) - DIGEST_BYTES
                sound = file.read(len(CACHE_MAGIC)) == CACHE_MAGIC
                while sound and left > 0 and (part := file.read(min(CHUNK_BYTES, left))):
                    digest.update(part)
                    left -= len(part)
                    yield part
                sound = sound and left == 0 and file.read() == digest.digest()
        except OSError:
            sound = False
        if not sound:
            with contextlib.suppress(OSError):
                path.unlink()
            raise SpoiledMemberError(str(path))

    def _digest(self, content: bytes) -> hashlib._Hash:
        """Return a digest that also tells a member under the name of another."""
        return hashlib.sha256(self.codec.encode() + content)


class _CacheWriter:
    """A member that is being kept; where the disk refuses it, nothing is left of it and nobody is told."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        with self._discarded_on_error():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = tempfile.NamedTemporaryFile(prefix=".", dir=path.parent, delete=False)  # noqa: SIM115

    def write(self, part: bytes) -> None:
        with self._discarded_on_error():
            if self._file is not None:
                self._file.write(part)

    def finish(self) -> None:
        with self._discarded_on_error():
            if self._file is not None:
                self._file.close()
                Path(self._file.name).replace(self._path)
                self._file = None

    def discard(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            with contextlib.suppress(OSError):  # closing writes what is left
                file.close()
            with contextlib.suppress(OSError):
                Path(file.name).unlink()

    @contextlib.contextmanager
    def _discarded_on_error(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            self.discard()


Result = TypeVar("Result")

CACHED_FROM_BYTES = 1 << 16  # bytes: to compress less again costs no more than to look it up
BATCH_FILES = 64  # on an average
BATCH_BYTES = BLOCK_BYTES


@dataclass(frozen=True, slots=True)
class _PreparedMember:
    """A small member, ready to be written."""

    member: ZipMember
    content: ContentDigest
    data: bytes
    copied: bool


@dataclass(slots=True)
class Compressor:
    """The threads that compress, and what they compress with."""

    pool: ThreadPoolExecutor
    threads: int
    codec: Codec
    cache: MemberCache
    copied_bytes: int = 0  # bytes of members that were kept before
    _digests: dict[str, Future[ContentDigest]] = field(default_factory=dict)

    def add_files(
        self, archive: ZipWriter, files: Sequence[MemberSource]
    ) -> Iterator[tuple[str, ContentDigest]]:
        """Add the files to the archive in their order, and yield what each holds."""
        large = sorted((file for file in files if file.size > BLOCK_BYTES), key=lambda file: -file.size)
        self._digests = {file.name: self.pool.submit(zip_writer.digest_source, file) for file in large}
        units = list(_group_files(files))
        batches = (partial(self._compress_batch, unit) for unit in units if isinstance(unit, list))
        ready = self._in_order(batches)
        for unit in units:
            if isinstance(unit, MemberSource):
                yield unit.name, self._add_large_file(archive, unit)
            else:
                for each in next(ready):
                    archive.add(each.member, each.data)
                    self.copied_bytes += len(each.data) if each.copied else 0
                    yield each.member.name, each.content

    def add_bytes(self, archive: ZipWriter, name: str, data: bytes) -> None:
        """Add a member that is no file."""
        archive.add(ZipMember(name, 0o644, len(data), crc32(data)), self.codec.compress(data))

    def _add_large_file(self, archive: ZipWriter, file: MemberSource) -> ContentDigest:
        """Add a large file, from what is kept or block by block."""
        found = self._digests.pop(file.name).result()
        member = ZipMember(file.name, file.mode, found.size, found.crc)
        known = self.cache.find(found.sha256)
        if known is not None:
            try:
                self.copied_bytes += archive.add_parts(member, known)
            except SpoiledMemberError:  # and out of the archive again
                pass
            else:
                return found
        parts = self._in_order(
            partial(block.compress, self.codec) for block in split_blocks(file.path, file.size, file.offset)
        )
        archive.add_parts(member, self.cache.store(found.sha256, parts))
        return found

    def _compress_batch(self, files: Sequence[MemberSource]) -> list[_PreparedMember]:
        """Read small files and compress each, unless the batch is kept."""
        held = list(zip_writer.read_sources(files))
        key = hashlib.sha256(b"".join(found.sha256 for _, found in held)).digest()
        worth = sum(len(data) for data, _ in held) >= CACHED_FROM_BYTES
        known = _split_parts(self.cache.read(key), len(held)) if worth else None
        packed = known or [self.codec.compress(data) for data, _ in held]
        if worth and known is None:
            deque(self.cache.store(key, [_join_parts(packed)]), 0)
        return [
            _prepare_member(file, *each, deflated, known is not None)
            for file, each, deflated in zip(files, held, packed, strict=True)
        ]

    def _in_order(self, tasks: Iterable[Callable[[], Result]]) -> Iterator[Result]:
        """Yield the results of the tasks in order, few of them ahead of what is taken."""
        waiting: deque[Future[Result]] = deque()
        for task in tasks:
            waiting.append(self.pool.submit(task))
            if len(waiting) > self.threads + 4:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _prepare_member(
    file: MemberSource, data: bytes, found: ContentDigest, deflated: bytes, copied: bool
) -> _PreparedMember:
    """Return the member, deflated where that makes it smaller."""
    method = CompressionMethod.DEFLATED if len(deflated) < len(data) else CompressionMethod.STORED
    member = ZipMember(file.name, file.mode, found.size, found.crc, method)
    return _PreparedMember(member, found, deflated if method else data, copied)


def _join_parts(parts: Sequence[bytes]) -> bytes:
    """Return the parts as one, their lengths before them."""
    return struct.pack(f"<{len(parts)}L", *map(len, parts)) + b"".join(parts)


def _split_parts(joined: bytes | None, count: int) -> list[bytes] | None:
    """Return the parts again; None where these are not so many."""
    start = 4 * count
    if joined is None or len(joined) < start:
        return None
    lengths = struct.unpack_from(f"<{count}L", joined)
    ends = [start, *(start := start + length for length in lengths)]
    return [joined[one:other] for one, other in pairwise(ends)] if ends[-1] == len(joined) else None


def _group_files(files: Iterable[MemberSource]) -> Iterator[MemberSource | list[MemberSource]]:
    """Yield large files by themselves and small ones in batches, in order.

    Where a batch ends depends on the name of the next file, so that another wheel, with a file more, has the
    same batches but one.
    """
    batch: list[MemberSource] = []
    size = 0
    for file in files:
        large = file.size > BLOCK_BYTES
        first = crc32(file.name.encode()) % BATCH_FILES == 0
        if batch and (large or first or size + file.size > BATCH_BYTES):
            yield batch
            batch, size = [], 0
        if large:
            yield file
        else:
            batch.append(file)
            size += file.size
    if batch:
        yield batch
