"""Damaged archives: one flipped bit, or a missing end, in each kind of archive that torchmill unpacks.

Each must be refused, or unpack to the same files. A plain tar has no checksum of its files, so a changed bit would pass
unnoticed: it has no expected result, and must always be refused.
"""

from __future__ import annotations

import io
import random
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

from tests.faults.tally import REFUSED, RIGHT, Tally
from torchmill.core.console import ProgressDisplay
from torchmill.core.errors import SourceError
from torchmill.fetch.source.archive import unpack_archive
from torchmill.fetch.source.tree import digest_contents

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

KINDS = ("tar.gz", "tar.xz", "tar.bz2", "tar.zst", "tar", "zip")
_FILES, _FILE_BYTES = 12, 3000  # of random bytes: in compressible ones a changed bit may do nothing


def make_archive(kind: str, seed: int) -> bytes:
    """Return an archive of some small files of random bytes, as the tools of its kind write it."""
    noise = random.Random(seed)  # noqa: S311 - no secret
    files = {f"t/part{number}": noise.randbytes(_FILE_BYTES) for number in range(_FILES)}
    archive = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as zip_file:
            for name, content in files.items():
                zip_file.writestr(name, content)
        return archive.getvalue()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return _compress(kind, archive.getvalue())


def _compress(kind: str, tar: bytes) -> bytes:
    import bz2
    import gzip
    import lzma

    if kind == "tar.gz":
        return gzip.compress(tar)
    if kind == "tar.xz":
        return lzma.compress(tar)
    if kind == "tar.bz2":
        return bz2.compress(tar)
    if kind == "tar.zst":  # with a checksum, as the program zstd writes it
        return zstd.compress(tar, options={zstd.CompressionParameter.checksum_flag: 1})
    return tar


def flip_bits(archive: bytes, count: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """Yield `count` cases with one bit changed, each as a description and the damaged archive."""
    chance = random.Random(seed)  # noqa: S311
    for _ in range(count):
        position, bit = chance.randrange(len(archive)), chance.randrange(8)
        damaged = bytearray(archive)
        damaged[position] ^= 1 << bit
        yield f"bit {bit} of byte {position}", bytes(damaged)


def cut_off(archive: bytes, count: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """Yield `count` cases that end early, every second one at a block of a tar archive."""
    chance = random.Random(seed)  # noqa: S311
    for number in range(count):
        end = chance.randrange(1, len(archive))
        if number % 2:
            end = end // tarfile.BLOCKSIZE * tarfile.BLOCKSIZE
        yield f"cut at {end}", archive[:end]


def attack_archives(count: int, seed: int) -> Iterator[Tally]:
    """Flip `count` bits in each kind of archive, one at a time, and cut it a third as often."""
    for kind in KINDS:
        archive = make_archive(kind, seed)
        tally = Tally(f"damaged {kind}")
        with tempfile.TemporaryDirectory() as folder:
            expected = None if kind == "tar" else _unpack(Path(folder, "whole"), kind, archive)
            cases = (*flip_bits(archive, count, seed), *cut_off(archive, count // 3, seed))
            for number, (case, damaged) in enumerate(cases):
                tally.add(case, _outcome(Path(folder, str(number)), kind, damaged, expected))
        yield tally


def _outcome(place: Path, kind: str, content: bytes, expected: str | None) -> str:
    """Return what became of an archive that should be refused, or have the expected digest."""
    try:
        digest = _unpack(place, kind, content)
    except SourceError:
        return REFUSED
    except Exception as error:  # noqa: BLE001 - any other exception is a failure of torchmill
        return f"{type(error).__name__}: {error}"
    return RIGHT if digest == expected else "other content was taken"


def _unpack(place: Path, kind: str, content: bytes) -> str:
    """Unpack an archive; return a digest of the names, modes and contents of its files."""
    place.mkdir()
    archive = place / f"t.{kind}"
    archive.write_bytes(content)
    bar = ProgressDisplay(io.StringIO()).start_bar("unpacking")
    unpack_archive(archive, place / "tree", bar)
    return digest_contents(place / "tree")
