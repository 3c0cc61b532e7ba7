"""Compress in blocks of a fixed size, each by itself, so that any number of threads gives the same bytes.

A block begins with the window that its predecessor leaves behind and ends on a byte: one after the other they
are a single deflate stream. The best codec that is installed is taken; which one, the wheel's manifest says.
"""

from __future__ import annotations

import importlib
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from itertools import groupby
from pathlib import Path
from types import MappingProxyType, ModuleType

BLOCK = 1 << 20  # bytes; a wheel's bytes depend on it
WINDOW = 1 << 15  # how far back deflate refers
RAW = -15  # window bits, without zlib's header and checksum
MEMORY = 8  # of nine levels; the default of all codecs


@dataclass(frozen=True, slots=True)
class Codec:
    """One way to deflate."""

    name: str  # "zlib-ng"
    version: str  # of the library that compresses
    levels: tuple[int, ...]  # the blocks of a file take them in turn
    module: ModuleType  # zlib, or one that can be called like it

    def __str__(self) -> str:
        """Spell what a wheel's bytes depend on: "zlib-1.3.1-level-6"."""
        counted = (f"{len(list(same))}x{level}" for level, same in groupby(self.levels))
        shown = str(self.levels[0]) if len(self.levels) == 1 else "-".join(counted)
        return f"{self.name}-{self.version}-level-{shown}"

    def whole(self, data: bytes) -> bytes:
        """Compress everything at once."""
        return self.block(data, b"", number=-1, last=True)

    def block(self, data: bytes, before: bytes, *, number: int, last: bool) -> bytes:
        """Compress one block; `before` is the window that the block before it leaves."""
        settings = (
            self.levels[number % len(self.levels)],
            zlib.DEFLATED,
            RAW,
            MEMORY,
            zlib.Z_DEFAULT_STRATEGY,
        )
        stream = self.module.compressobj(*settings, *([before] if before else []))
        packed: bytes = stream.compress(data) + stream.flush(zlib.Z_FINISH if last else zlib.Z_SYNC_FLUSH)
        return packed


@dataclass(frozen=True, slots=True)
class Block:
    """A part of what is compressed, which lies in a file."""

    path: Path
    at: int  # where in the file
    number: int
    size: int  # bytes
    last: bool

    def deflated(self, codec: Codec) -> bytes:
        """Read the part and compress it."""
        window = WINDOW if self.number else 0
        with self.path.open("rb", buffering=0) as file:
            file.seek(self.at - window)
            data = file.read(window + self.size)
        return codec.block(data[window:], data[:window], number=self.number, last=self.last)


def blocks(path: Path, size: int, start: int = 0) -> Iterator[Block]:
    """Yield the blocks, at least one, of the `size` bytes that begin in a file at `start`."""
    count = max(1, -(-size // BLOCK))
    for number in range(count):
        done = number * BLOCK
        yield Block(path, start + done, number, min(BLOCK, size - done), last=number == count - 1)


@cache
def codecs() -> Mapping[str, Codec]:
    """Return the codecs of this interpreter by name, the one to take first.

    isal is by far the fastest, but its wheels are a tenth larger: it counts only where zlib-ng is missing.
    zlib-ng's level 6 makes a wheel of torch 2 % larger than zlib's does; with a block in eight at 9 it is
    less, and that is still faster than 7 for all (docs/packing.md).
    """
    found = {
        "zlib-ng": _installed(
            "zlib-ng", "zlib_ng.zlib_ng", "zlib_ng.zlib_ng:ZLIBNG_RUNTIME_VERSION", (9, *[6] * 7)
        ),
        "isal": _installed("isal", "isal.isal_zlib", "isal:ISAL_VERSION", (3,)),
        "zlib": Codec("zlib", zlib.ZLIB_RUNTIME_VERSION, (6,), zlib),
    }
    return MappingProxyType({name: codec for name, codec in found.items() if codec is not None})


def best() -> Codec:
    """Return the codec to take."""
    return next(iter(codecs().values()))


def crc32(data: bytes | memoryview, before: int = 0) -> int:
    """Return the checksum of zip archives; zlib-ng and isal count it four times as fast as zlib."""
    checksum: int = best().module.crc32(data, before)
    return checksum


def _installed(name: str, module: str, version: str, levels: tuple[int, ...]) -> Codec | None:
    """Return the codec in `module`, whose `version` is "module:attribute"; None where it cannot be loaded."""
    holder, _, attribute = version.partition(":")
    try:
        return Codec(
            name,
            str(getattr(importlib.import_module(holder), attribute)),
            levels,
            importlib.import_module(module),
        )
    except (ImportError, AttributeError):  # missing, or older than what is relied on here
        return None
