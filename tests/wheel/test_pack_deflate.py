from __future__ import annotations

import random
import zlib
from pathlib import Path

import pytest

from torchmill.wheel.pack import zip_writer
from torchmill.wheel.pack.zip_writer import BLOCK_BYTES, split_blocks

CODECS = sorted(zip_writer.available_codecs())
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
@pytest.mark.parametrize(
    "size", [0, 1, BLOCK_BYTES - 1, BLOCK_BYTES, BLOCK_BYTES + 1, 3 * BLOCK_BYTES + 12345]
)
def test_blocks_are_one_stream(tmp_path: Path, name: str, size: int) -> None:
    path, data, codec = tmp_path / "file", text(size), zip_writer.available_codecs()[name]
    path.write_bytes(data)
    packed = [block.compress(codec) for block in split_blocks(path, size)]
    assert len(packed) == max(1, -(-size // BLOCK_BYTES))
    assert inflated(b"".join(packed)) == data
    assert inflated(codec.compress(data)) == data


@pytest.mark.parametrize("size", [0, 1, BLOCK_BYTES, 2 * BLOCK_BYTES + 12345])
def test_where_the_bytes_lie_makes_no_difference(tmp_path: Path, size: int) -> None:
    alone, among = tmp_path / "alone", tmp_path / "among"
    alone.write_bytes(text(size))
    among.write_bytes(b"before" * 10000 + text(size) + b"behind" * 10000)
    packed = [block.compress(zip_writer.best_codec()) for block in split_blocks(alone, size)]
    assert [block.compress(zip_writer.best_codec()) for block in split_blocks(among, size, 60000)] == packed


def test_every_codec_counts_the_same_checksum() -> None:
    data = text(BLOCK_BYTES)
    counted = {
        codec.module.crc32(memoryview(data)[9:], zlib.crc32(data[:9]))
        for codec in zip_writer.available_codecs().values()
    }
    assert counted == {zlib.crc32(data)} == {zip_writer.crc32(data)}


@pytest.mark.parametrize("name", CODECS)
def test_a_block_refers_back_to_the_one_before(tmp_path: Path, name: str) -> None:
    path, codec = tmp_path / "file", zip_writer.available_codecs()[name]
    noise = random.Random(1).randbytes(30000)  # noqa: S311 - the same every time
    path.write_bytes(bytes(BLOCK_BYTES - len(noise)) + noise + noise)
    last = list(split_blocks(path, BLOCK_BYTES + len(noise)))[-1]
    assert len(last.compress(codec)) < 3000


@pytest.mark.parametrize("name", CODECS)
def test_what_cannot_be_compressed_hardly_grows(name: str) -> None:
    noise = random.Random(2).randbytes(BLOCK_BYTES)  # noqa: S311 - the same every time
    packed = zip_writer.available_codecs()[name].compress(noise)
    assert inflated(packed) == noise
    assert len(packed) - len(noise) < len(noise) >> 6  # what the archive reckons with


def test_the_best_codec_is_the_first_and_says_what_it_is() -> None:
    assert zip_writer.best_codec() is next(iter(zip_writer.available_codecs().values()))
    assert str(zip_writer.available_codecs()["zlib"]) == f"zlib-{zlib.ZLIB_RUNTIME_VERSION}-level-6"
    assert list(zip_writer.available_codecs())[-1] == "zlib"


def test_blocks_take_the_levels_in_turn(tmp_path: Path) -> None:
    mixed = zip_writer.Codec("zlib", "1", (9, 0, 0), zlib)
    path, size = tmp_path / "file", 5 * BLOCK_BYTES
    path.write_bytes(text(size))
    packed = [len(block.compress(mixed)) > BLOCK_BYTES for block in split_blocks(path, size)]
    assert packed == [False, True, True, False, True]
    assert len(mixed.compress(text(BLOCK_BYTES))) > BLOCK_BYTES, "small files take the last"
    assert str(mixed) == "zlib-1-level-1x9-2x0"
