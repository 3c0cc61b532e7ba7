"""Damaged archives: one flipped bit, or an end that is missing, in each kind of archive that is unpacked."""

from __future__ import annotations

import io
import random
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import cast

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
_FILES, _FILE_BYTES = 12, 3000  # what cannot be compressed shows a changed bit as a changed file


def make_archive(kind: str, seed: int) -> bytes:
    """Return an archive of some small files of random bytes, as the tools of its kind write it."""
    noise = random.Random(seed)  # noqa: S311 - no secret
    files = {f"t/part{number}": noise.randbytes(_FILE_BYTES) for number in range(_FILES)}
    made = io.BytesIO()
    if kind == "zip":
        with zipfile.ZipFile(made, "w", zipfile.ZIP_DEFLATED) as packed:
            for name, content in files.items():
                packed.writestr(name, content)
        return made.getvalue()
    with tarfile.open(fileobj=made, mode="w") as tar:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return _compress(kind, made.getvalue())


def _compress(kind: str, tar: bytes) -> bytes:
    import bz2
    import gzip
    import lzma

    if kind == "tar.zst":  # as the program zstd does it, which adds a check
        return zstd.compress(tar, options={zstd.CompressionParameter.checksum_flag: 1})
    ways = {"tar.gz": gzip.compress, "tar.xz": lzma.compress, "tar.bz2": bz2.compress, "tar": bytes}
    return cast("bytes", ways[kind](tar))  # type: ignore[operator]


def flip_bits(whole: bytes, count: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """Yield `count` copies with one bit changed."""
    places = random.Random(seed)  # noqa: S311
    for _ in range(count):
        place, bit = places.randrange(len(whole)), places.randrange(8)
        changed = bytearray(whole)
        changed[place] ^= 1 << bit
        yield f"bit {bit} of byte {place}", bytes(changed)


def cut_off(whole: bytes, count: int, seed: int) -> Iterator[tuple[str, bytes]]:
    """Yield `count` copies that end early: at blocks of a tar archive, and anywhere."""
    places = random.Random(seed)  # noqa: S311
    for number in range(count):
        end = places.randrange(1, len(whole))
        end = end // 512 * 512 if number % 2 else end
        yield f"cut at {end}", whole[:end]


def attack_archives(count: int, seed: int) -> Iterator[Tally]:
    """Flip `count` bits in each kind of archive, one at a time, and cut it a third as often."""
    for kind in KINDS:
        whole = make_archive(kind, seed)
        tally = Tally(f"damaged {kind}")
        with tempfile.TemporaryDirectory() as folder:
            expected = None if kind == "tar" else _unpack(Path(folder, "whole"), kind, whole)
            cases = (*flip_bits(whole, count, seed), *cut_off(whole, count // 3, seed))
            for number, (case, content) in enumerate(cases):
                tally.add(case, _outcome(Path(folder, str(number)), kind, content, expected))
        yield tally


def _outcome(place: Path, kind: str, content: bytes, expected: str | None) -> str:
    try:
        found = _unpack(place, kind, content)
    except SourceError:
        return REFUSED
    except Exception as error:  # noqa: BLE001 - which is what is looked for
        return f"{type(error).__name__}: {error}"
    return RIGHT if found == expected else "other content was taken"


def _unpack(place: Path, kind: str, content: bytes) -> str:
    """Unpack an archive and return the digest of names, modes and contents."""
    place.mkdir()
    archive = place / f"t.{kind}"
    archive.write_bytes(content)
    bar = ProgressDisplay(io.StringIO()).task("unpacking")
    unpack_archive(archive, place / "tree", bar)
    return digest_contents(place / "tree")
