"""Make a wheel's members of files: each read, hashed and compressed by several threads, handed on in order.

Memory does not depend on the files: small ones pass in batches, large ones in blocks, and few at once.
"""

from __future__ import annotations

import hashlib
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TypeVar

from torchwright.pack.archive import Archive, Member, Method
from torchwright.pack.deflate import BLOCK, Codec, blocks
from torchwright.pack.kept import Kept, SpoiledError

Result = TypeVar("Result")

KEPT_FROM = 1 << 16  # bytes: to compress less again costs no more than to look it up
BATCH_FILES = 64
BATCH_BYTES = BLOCK


@dataclass(frozen=True, slots=True)
class File:
    """A file that becomes a member."""

    name: str  # in the wheel
    path: Path
    size: int  # bytes
    mode: int  # 0o644


@dataclass(frozen=True, slots=True)
class Content:
    """What a file holds, found in one reading."""

    sha256: bytes
    crc: int
    size: int


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
        self._hashed = {file.name: self.pool.submit(read, file.path) for file in large}
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
        content = _content(data)
        archive.add(Member(name, 0o644, content.size, content.crc), self.codec.whole(data))

    def _stream(self, archive: Archive, file: File) -> Content:
        """Add a large file, from what is kept or block by block."""
        content = self._hashed.pop(file.name).result()
        member = Member(file.name, file.mode, content.size, content.crc)
        known = self.kept.find(content.sha256)
        if known is not None:
            try:
                self.copied += archive.stream(member, known)
            except SpoiledError:  # and out of the archive again
                pass
            else:
                return content
        parts = self._ordered(
            partial(block.deflated, self.codec) for block in blocks(file.path, content.size)
        )
        archive.stream(member, self.kept.keep(content.sha256, parts))
        return content

    def _batch(self, files: Sequence[File]) -> list[_Ready]:
        return [self._whole(file) for file in files]

    def _whole(self, file: File) -> _Ready:
        """Read a small file at once and compress it, unless it is kept."""
        data = file.path.read_bytes()
        content = _content(data)
        known = self.kept.read(content.sha256) if content.size >= KEPT_FROM else None
        packed = known if known is not None else self.codec.whole(data)
        if known is None and content.size >= KEPT_FROM:
            deque(self.kept.keep(content.sha256, [packed]), 0)
        method = Method.DEFLATED if len(packed) < len(data) else Method.STORED
        member = Member(file.name, file.mode, content.size, content.crc, method)
        return _Ready(member, content, packed if method else data, known is not None)

    def _ordered(self, tasks: Iterable[Callable[[], Result]]) -> Iterator[Result]:
        """Yield the results of the tasks in order, few of them ahead of what is taken."""
        waiting: deque[Future[Result]] = deque()
        for task in tasks:
            waiting.append(self.pool.submit(task))
            if len(waiting) > self.threads + 4:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def read(path: Path) -> Content:
    """Read a file once for everything that a wheel says of it."""
    sha256, crc, size = hashlib.sha256(), 0, 0
    buffer = memoryview(bytearray(BLOCK))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(buffer):
            sha256.update(buffer[:count])
            crc = zlib.crc32(buffer[:count], crc)
            size += count
    return Content(sha256.digest(), crc, size)


def _content(data: bytes) -> Content:
    return Content(hashlib.sha256(data).digest(), zlib.crc32(data), len(data))


def _units(files: Iterable[File]) -> Iterator[File | list[File]]:
    """Yield large files by themselves and small ones in batches, in order."""
    batch: list[File] = []
    for file in files:
        large = file.size > BLOCK
        full = len(batch) == BATCH_FILES or sum(each.size for each in batch) + file.size > BATCH_BYTES
        if batch and (large or full):
            yield batch
            batch = []
        if large:
            yield file
        else:
            batch.append(file)
    if batch:
        yield batch
