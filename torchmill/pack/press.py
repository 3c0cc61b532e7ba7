"""Make a wheel's members of files: each read, hashed and compressed by several threads, handed on in order.

Memory does not depend on the files: small ones pass in batches, large ones in blocks, and few at once.
"""

from __future__ import annotations

import hashlib
import struct
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from typing import TypeVar

from torchmill.pack import content
from torchmill.pack.archive import Archive, Member, Method
from torchmill.pack.content import Content, File
from torchmill.pack.deflate import BLOCK, Codec, blocks, crc32
from torchmill.pack.kept import Kept, SpoiledError

Result = TypeVar("Result")

KEPT_FROM = 1 << 16  # bytes: to compress less again costs no more than to look it up
BATCH_FILES = 64  # on an average
BATCH_BYTES = BLOCK


@dataclass(frozen=True, slots=True)
class _Ready:
    """A small member, ready to be written."""

    member: Member
    content: Content
    data: bytes
    copied: bool


@dataclass(slots=True)
class Press:
    """The threads that compress, and what they compress with."""

    pool: ThreadPoolExecutor
    threads: int
    codec: Codec
    kept: Kept
    copied: int = 0  # bytes of members that were kept before
    _hashed: dict[str, Future[Content]] = field(default_factory=dict)

    def fill(self, archive: Archive, files: Sequence[File]) -> Iterator[tuple[str, Content]]:
        """Add the files to the archive in their order, and yield what each holds."""
        large = sorted((file for file in files if file.size > BLOCK), key=lambda file: -file.size)
        self._hashed = {file.name: self.pool.submit(content.scanned, file) for file in large}
        units = list(_units(files))
        batches = (partial(self._batch, unit) for unit in units if isinstance(unit, list))
        ready = self._ordered(batches)
        for unit in units:
            if isinstance(unit, File):
                yield unit.name, self._stream(archive, unit)
            else:
                for each in next(ready):
                    archive.add(each.member, each.data)
                    self.copied += len(each.data) if each.copied else 0
                    yield each.member.name, each.content

    def add(self, archive: Archive, name: str, data: bytes) -> None:
        """Add a member that is no file."""
        archive.add(Member(name, 0o644, len(data), crc32(data)), self.codec.whole(data))

    def _stream(self, archive: Archive, file: File) -> Content:
        """Add a large file, from what is kept or block by block."""
        found = self._hashed.pop(file.name).result()
        member = Member(file.name, file.mode, found.size, found.crc)
        known = self.kept.find(found.sha256)
        if known is not None:
            try:
                self.copied += archive.stream(member, known)
            except SpoiledError:  # and out of the archive again
                pass
            else:
                return found
        parts = self._ordered(
            partial(block.deflated, self.codec) for block in blocks(file.path, file.size, file.start)
        )
        archive.stream(member, self.kept.keep(found.sha256, parts))
        return found

    def _batch(self, files: Sequence[File]) -> list[_Ready]:
        """Read small files and compress each, unless the batch is kept."""
        held = list(content.whole(files))
        key = hashlib.sha256(b"".join(found.sha256 for _, found in held)).digest()
        worth = sum(len(data) for data, _ in held) >= KEPT_FROM
        known = _parted(self.kept.read(key), len(held)) if worth else None
        packed = known or [self.codec.whole(data) for data, _ in held]
        if worth and known is None:
            deque(self.kept.keep(key, [_joined(packed)]), 0)
        return [
            _ready(file, *each, deflated, known is not None)
            for file, each, deflated in zip(files, held, packed, strict=True)
        ]

    def _ordered(self, tasks: Iterable[Callable[[], Result]]) -> Iterator[Result]:
        """Yield the results of the tasks in order, few of them ahead of what is taken."""
        waiting: deque[Future[Result]] = deque()
        for task in tasks:
            waiting.append(self.pool.submit(task))
            if len(waiting) > self.threads + 4:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _ready(file: File, data: bytes, found: Content, deflated: bytes, copied: bool) -> _Ready:
    """Return the member, deflated where that makes it smaller."""
    method = Method.DEFLATED if len(deflated) < len(data) else Method.STORED
    member = Member(file.name, file.mode, found.size, found.crc, method)
    return _Ready(member, found, deflated if method else data, copied)


def _joined(parts: Sequence[bytes]) -> bytes:
    """Return the parts as one, their lengths before them."""
    return struct.pack(f"<{len(parts)}L", *map(len, parts)) + b"".join(parts)


def _parted(joined: bytes | None, count: int) -> list[bytes] | None:
    """Return the parts again; None where these are not so many."""
    start = 4 * count
    if joined is None or len(joined) < start:
        return None
    lengths = struct.unpack_from(f"<{count}L", joined)
    ends = [start, *(start := start + length for length in lengths)]
    return [joined[one:other] for one, other in pairwise(ends)] if ends[-1] == len(joined) else None


def _units(files: Iterable[File]) -> Iterator[File | list[File]]:
    """Yield large files by themselves and small ones in batches, in order.

    Where a batch ends depends on the name of the next file, so that another wheel, with a file more, has the
    same batches but one.
    """
    batch: list[File] = []
    size = 0
    for file in files:
        large = file.size > BLOCK
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
