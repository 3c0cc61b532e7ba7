from __future__ import annotations

import random
import zlib
from pathlib import Path

import pytest

from torchmill.pack import deflate
from torchmill.pack.deflate import BLOCK, blocks

CODECS = sorted(deflate.codecs())
WORDS = [b"at::", b"Tensor", b"const", b"&", b"self", b"\0\0\0\0", b"int64_t", b";\n"]


def text(size: int) -> bytes:
    """Return something that compresses about as a library does."""
    dice = random.Random(size)  # noqa: S311 - the same every time
    words = b" ".join(dice.choices(WORDS, k=4000)) + dice.randbytes(4000)
    return (words * (size // len(words) + 1))[:size]


def inflated(data: bytes) -> bytes:
    stream = zlib.decompressobj(-15)
    whole = stream.decompress(data)
    assert stream.eof
    assert stream.unused_data == b""
    return whole


@pytest.mark.parametrize("name", CODECS)
@pytest.mark.parametrize("size", [0, 1, BLOCK - 1, BLOCK, BLOCK + 1, 3 * BLOCK + 12345])
def test_blocks_are_one_stream(tmp_path: Path, name: str, size: int) -> None:
    path, data, codec = tmp_path / "file", text(size), deflate.codecs()[name]
    path.write_bytes(data)
    packed = [block.deflated(codec) for block in blocks(path, size)]
    assert len(packed) == max(1, -(-size // BLOCK))
    assert inflated(b"".join(packed)) == data
    assert inflated(codec.whole(data)) == data


@pytest.mark.parametrize("size", [0, 1, BLOCK, 2 * BLOCK + 12345])
def test_where_the_bytes_lie_makes_no_difference(tmp_path: Path, size: int) -> None:
    alone, among = tmp_path / "alone", tmp_path / "among"
    alone.write_bytes(text(size))
    among.write_bytes(b"before" * 10000 + text(size) + b"behind" * 10000)
    packed = [block.deflated(deflate.best()) for block in blocks(alone, size)]
    assert [block.deflated(deflate.best()) for block in blocks(among, size, 60000)] == packed


def test_every_codec_counts_the_same_checksum() -> None:
    data = text(BLOCK)
    counted = {
        codec.module.crc32(memoryview(data)[9:], zlib.crc32(data[:9])) for codec in deflate.codecs().values()
    }
    assert counted == {zlib.crc32(data)} == {deflate.crc32(data)}


@pytest.mark.parametrize("name", CODECS)
def test_a_block_refers_back_to_the_one_before(tmp_path: Path, name: str) -> None:
    path, codec = tmp_path / "file", deflate.codecs()[name]
    noise = random.Random(1).randbytes(30000)  # noqa: S311 - the same every time
    path.write_bytes(bytes(BLOCK - len(noise)) + noise + noise)
    last = list(blocks(path, BLOCK + len(noise)))[-1]
    assert len(last.deflated(codec)) < 3000


@pytest.mark.parametrize("name", CODECS)
def test_what_cannot_be_compressed_hardly_grows(name: str) -> None:
    noise = random.Random(2).randbytes(BLOCK)  # noqa: S311 - the same every time
    packed = deflate.codecs()[name].whole(noise)
    assert inflated(packed) == noise
    assert len(packed) - len(noise) < len(noise) >> 6  # what the archive reckons with


def test_the_best_codec_is_the_first_and_says_what_it_is() -> None:
    assert deflate.best() is next(iter(deflate.codecs().values()))
    assert str(deflate.codecs()["zlib"]) == f"zlib-{zlib.ZLIB_RUNTIME_VERSION}-level-6"
    assert list(deflate.codecs())[-1] == "zlib"


def test_blocks_take_the_levels_in_turn(tmp_path: Path) -> None:
    mixed = deflate.Codec("zlib", "1", (9, 0, 0), zlib)
    path, size = tmp_path / "file", 5 * BLOCK
    path.write_bytes(text(size))
    packed = [len(block.deflated(mixed)) > BLOCK for block in blocks(path, size)]
    assert packed == [False, True, True, False, True]
    assert len(mixed.whole(text(BLOCK))) > BLOCK, "small files take the last"
    assert str(mixed) == "zlib-1-level-1x9-2x0"
