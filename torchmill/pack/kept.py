"""Compressed members, kept by what they hold, so that the next wheel with the same library copies its bytes.

A kept member is a file named by codec and content. What is missing, cut short, changed or cannot be read or
written is compressed again: the store makes packing faster, and nothing depends on it.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

MAGIC = b"twkept1\n"
DIGEST = hashlib.sha256().digest_size
CHUNK = 1 << 20


class SpoiledError(Exception):
    """A kept member that is no longer what was kept; it has been removed."""


@dataclass(frozen=True, slots=True)
class Kept:
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
        return self._parts(path, file, content)

    def read(self, content: bytes) -> bytes | None:
        """Return the compressed bytes, None where there are none that are sound."""
        parts = self.find(content)
        try:
            return None if parts is None else b"".join(parts)
        except SpoiledError:
            return None

    def keep(self, content: bytes, parts: Iterable[bytes]) -> Iterator[bytes]:
        """Hand `parts` on, and keep them once the last has passed, if the disk takes them."""
        path = self.path(content)
        if path is None:
            yield from parts
            return
        fresh, digest = _Fresh(path), self._digest(content)
        try:
            fresh.write(MAGIC)
            for part in parts:
                digest.update(part)
                fresh.write(part)
                yield part
            fresh.write(digest.digest())
            fresh.finish()
        finally:
            fresh.drop()

    def _parts(self, path: Path, file: IO[bytes], content: bytes) -> Iterator[bytes]:
        digest = self._digest(content)
        try:
            with file:
                left = os.fstat(file.fileno()).st_size - len(MAGIC) - DIGEST
                sound = file.read(len(MAGIC)) == MAGIC
                while sound and left > 0 and (part := file.read(min(CHUNK, left))):
                    digest.update(part)
                    left -= len(part)
                    yield part
                sound = sound and left == 0 and file.read() == digest.digest()
        except OSError:
            sound = False
        if not sound:
            with contextlib.suppress(OSError):
                path.unlink()
            raise SpoiledError(str(path))

    def _digest(self, content: bytes) -> hashlib._Hash:
        """Return a digest that also tells a member under the name of another."""
        return hashlib.sha256(self.codec.encode() + content)


class _Fresh:
    """A member that is being kept; where the disk refuses it, nothing is left of it and nobody is told."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        with self._given_up():
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = tempfile.NamedTemporaryFile(prefix=".", dir=path.parent, delete=False)  # noqa: SIM115

    def write(self, part: bytes) -> None:
        with self._given_up():
            if self._file is not None:
                self._file.write(part)

    def finish(self) -> None:
        with self._given_up():
            if self._file is not None:
                self._file.close()
                Path(self._file.name).replace(self._path)
                self._file = None

    def drop(self) -> None:
        if self._file is not None:
            file, self._file = self._file, None
            with contextlib.suppress(OSError):  # closing writes what is left
                file.close()
            with contextlib.suppress(OSError):
                Path(file.name).unlink()

    @contextlib.contextmanager
    def _given_up(self) -> Iterator[None]:
        try:
            yield
        except OSError:
            self.drop()
