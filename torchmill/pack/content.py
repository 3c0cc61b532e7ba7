"""What becomes a member of a wheel: a file, or a part of the raw wheel, and what is said of its bytes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from io import FileIO
from itertools import groupby
from pathlib import Path

from torchmill.errors import BuildError
from torchmill.pack.deflate import crc32

CHUNK = 1 << 20


@dataclass(frozen=True, slots=True)
class File:
    """Where the bytes of a member lie."""

    name: str  # in the wheel
    path: Path
    size: int  # bytes
    mode: int  # 0o644
    start: int = 0  # where in `path` they begin
    crc: int | None = None  # that they must have; None: whatever they are is right


@dataclass(frozen=True, slots=True)
class Content:
    """What the bytes are, found in one reading."""

    sha256: bytes
    crc: int
    size: int


def of(data: bytes) -> Content:
    """Describe bytes that are at hand."""
    return Content(hashlib.sha256(data).digest(), crc32(data), len(data))


def whole(files: Iterable[File]) -> Iterator[tuple[bytes, Content]]:
    """Yield what small files hold; parts of one file are read in one opening.

    Raise BuildError where a part is not what it must be.
    """
    for path, parts in groupby(files, key=lambda file: file.path):
        with _opened(path) as source:
            for part in parts:
                source.seek(part.start)
                data = source.read(part.size)
                content = of(data)
                _judge(part, content)
                yield data, content


def read(path: Path) -> Content:
    """Read a whole file once for everything that a wheel says of it; raise BuildError where it cannot be."""
    return scanned(File(path.name, path, path.stat().st_size, 0))


def scanned(file: File) -> Content:
    """Do the same for what becomes a member; raise BuildError also where it is not what it must be."""
    sha256, crc, left = hashlib.sha256(), 0, file.size
    buffer = memoryview(bytearray(CHUNK))
    with _opened(file.path) as source:
        source.seek(file.start)
        while count := source.readinto(buffer[:left]):
            sha256.update(buffer[:count])
            crc = crc32(buffer[:count], crc)
            left -= count
    content = Content(sha256.digest(), crc, file.size - left)
    _judge(file, content)
    return content


def _opened(path: Path) -> FileIO:
    try:
        return path.open("rb", buffering=0)
    except OSError as error:
        raise BuildError(f"{path}: cannot be read ({error.strerror}): build it again") from None


def _judge(file: File, content: Content) -> None:
    if content.size != file.size or file.crc not in {None, content.crc}:
        raise BuildError(f"{file.path}: {file.name} is damaged, or changed meanwhile: build it again")
