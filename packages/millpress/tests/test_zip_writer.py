"""Writing zip archives: deflate in blocks, members, headers."""

from __future__ import annotations

import io
import random
import shutil
import subprocess
import time
import zipfile
import zlib
from pathlib import Path
from typing import BinaryIO, cast

import pytest
from millpress import zip_archive
from millpress.zip_archive import BLOCK_BYTES, MemberSource, ZipMember, ZipWriter, block_tasks


def blocks(codec: zip_archive.Codec, path: Path, size: int, offset: int = 0) -> list[bytes]:
    """Return the compressed blocks of a file, or of the part at `offset`."""
    source = MemberSource("x", path, size, 0o644, offset)
    return [compress() for compress in block_tasks(codec, source)]


CODECS = sorted(zip_archive.available_codecs())
WORDS = [b"at::", b"Tensor", b"const", b"&", b"self", b"\0\0\0\0", b"int64_t", b";\n"]


def text(size: int) -> bytes:
    """Return bytes that compress about as well as a library does."""
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
    path = tmp_path / "file"
    data = text(size)
    codec = zip_archive.available_codecs()[name]
    path.write_bytes(data)
    packed = blocks(codec, path, size)
    assert len(packed) == max(1, -(-size // BLOCK_BYTES))
    assert inflated(b"".join(packed)) == data
    assert inflated(codec.compress(data)) == data


@pytest.mark.parametrize("size", [0, 1, BLOCK_BYTES, 2 * BLOCK_BYTES + 12345])
def test_a_part_of_a_file_is_compressed_like_a_file(tmp_path: Path, size: int) -> None:
    whole = tmp_path / "whole"
    larger = tmp_path / "larger"
    before = b"before" * 10000
    whole.write_bytes(text(size))
    larger.write_bytes(before + text(size) + b"behind" * 10000)
    codec = zip_archive.best_codec()
    assert blocks(codec, whole, size) == blocks(codec, larger, size, offset=len(before))


def test_every_codec_computes_the_same_checksum() -> None:
    data = text(BLOCK_BYTES)
    expected = zlib.crc32(data)
    assert zip_archive.crc32(data) == expected
    for codec in zip_archive.available_codecs().values():
        assert codec.module.crc32(memoryview(data)[9:], zlib.crc32(data[:9])) == expected


@pytest.mark.parametrize("name", CODECS)
def test_a_block_refers_back_to_the_one_before(tmp_path: Path, name: str) -> None:
    path = tmp_path / "file"
    codec = zip_archive.available_codecs()[name]
    noise = random.Random(1).randbytes(30000)  # noqa: S311 - the same every time
    path.write_bytes(bytes(BLOCK_BYTES - len(noise)) + noise + noise)
    assert len(blocks(codec, path, BLOCK_BYTES + len(noise))[-1]) < 3000


@pytest.mark.parametrize("name", CODECS)
def test_incompressible_data_hardly_grows(name: str) -> None:
    noise = random.Random(2).randbytes(BLOCK_BYTES)  # noqa: S311 - the same every time
    packed = zip_archive.available_codecs()[name].compress(noise)
    assert inflated(packed) == noise
    assert len(packed) - len(noise) < len(noise) >> 6  # the growth that ZipWriter expects at most


def test_the_best_codec_is_the_first_and_has_a_name() -> None:
    codecs = zip_archive.available_codecs()
    assert zip_archive.best_codec() is next(iter(codecs.values()))
    assert str(codecs["zlib"]) == f"zlib-{zlib.ZLIB_RUNTIME_VERSION}-level-6"
    assert list(codecs)[-1] == "zlib"


def test_blocks_take_the_levels_in_turn(tmp_path: Path) -> None:
    mixed = zip_archive.Codec("zlib", "1", (9, 0, 0), zlib)
    path = tmp_path / "file"
    size = 5 * BLOCK_BYTES
    path.write_bytes(text(size))
    is_stored = [len(block) > BLOCK_BYTES for block in blocks(mixed, path, size)]
    assert is_stored == [False, True, True, False, True]  # level 0 stores
    assert len(mixed.compress(text(BLOCK_BYTES))) > BLOCK_BYTES, "small files have the last level"
    assert str(mixed) == "zlib-1-level-1x9-2x0"


MIB = 1 << 20
ZEROS = bytes(MIB)
HUGE = 4100  # MiB
STAMP = time.gmtime(1671062400)
needs_unzip = pytest.mark.skipif(shutil.which("unzip") is None, reason="needs unzip")


def member(name: str, data: bytes, method: int = zipfile.ZIP_STORED) -> ZipMember:
    return ZipMember(name, 0o644, len(data), zlib.crc32(data), method)


def unzip(*arguments: str | Path) -> None:
    subprocess.run(["unzip", *map(str, arguments)], check=True, capture_output=True)


class Holes(io.FileIO):
    """A file that leaves a hole on the disk for each write of ZEROS."""

    def write(self, data: object) -> int:
        if data is ZEROS:
            self.seek(len(ZEROS), io.SEEK_CUR)
            return len(ZEROS)
        return super().write(cast("bytes", data))


@pytest.fixture(scope="module")
def huge(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return an archive above 4 GiB that takes a few kilobytes of the disk."""
    path = tmp_path_factory.mktemp("huge") / "huge.zip"
    crc = 0
    for _ in range(HUGE):
        crc = zlib.crc32(ZEROS, crc)
    with Holes(path, "w") as sink:
        archive = ZipWriter(cast("BinaryIO", sink), STAMP)
        archive.add(member("first", b"1"), b"1")
        zeros = ZipMember("zeros", 0o644, HUGE * MIB, crc, zipfile.ZIP_STORED)
        archive.add_parts(zeros, (ZEROS for _ in range(HUGE)))
        archive.add(member("last", b"2"), b"2")
        archive.close()
    return path


def test_members_above_four_gib_and_those_behind_them_are_found(huge: Path) -> None:
    with zipfile.ZipFile(huge) as archive:
        assert [info.file_size for info in archive.infolist()] == [1, HUGE * MIB, 1]
        assert archive.getinfo("last").header_offset > HUGE * MIB
        assert archive.read("last") == b"2"
        with archive.open("zeros") as file:
            assert file.read(MIB) == ZEROS


@needs_unzip
def test_unzip_finds_the_members_behind_four_gib(huge: Path) -> None:
    unzip("-tq", huge, "first", "last")


@pytest.mark.parametrize(("size", "count"), [(100, 9), (1 << 32, 3), (1, 1)])
def test_zip64_is_read_wherever_it_begins(tmp_path: Path, size: int, count: int) -> None:
    path = tmp_path / "small.zip"
    texts = {f"folder/{number}": bytes([number]) * number * 20 for number in range(6)}
    with path.open("wb") as sink:
        archive = ZipWriter(sink, STAMP, size, count)
        for name, data in texts.items():
            archive.add_parts(member(name, data), [data[:7], data[7:]])
        archive.close()
    assert b"PK\6\6" in path.read_bytes()
    with zipfile.ZipFile(path) as read:
        assert read.testzip() is None
        assert {name: read.read(name) for name in read.namelist()} == texts
    if shutil.which("unzip"):
        unzip("-tq", path)


def test_a_zip64_field_that_is_cut_short_is_damage(tmp_path: Path) -> None:
    path = tmp_path / "small.zip"
    with path.open("wb") as sink:
        archive = ZipWriter(sink, STAMP, size_limit=100)
        archive.add_parts(member("a", bytes(200)), [bytes(200)])
        archive.close()
    data = bytearray(path.read_bytes())
    data[28:30] = (12).to_bytes(2, "little")  # the length of the field and of its head, once 20
    path.write_bytes(data)
    with zipfile.ZipFile(path) as read:
        info = read.getinfo("a")
    with path.open("rb") as source, pytest.raises(zipfile.BadZipFile, match="cut short"):
        zip_archive.data_offset(source, info)


def test_headers_equal_those_that_zipfile_writes(tmp_path: Path) -> None:
    written = tmp_path / "written.zip"
    reference = tmp_path / "reference.zip"
    texts = {"a.txt": b"a" * 1000, "ä.txt": b"", "bin/tool": b"#!/bin/sh\n"}
    with written.open("wb") as sink, zipfile.ZipFile(reference, "w") as other:
        archive = ZipWriter(sink, STAMP)
        for name, data in texts.items():
            archive.add(member(name, data), data)
            info = zipfile.ZipInfo(name, STAMP[:6])
            info.external_attr = 0o100644 << 16
            other.writestr(info, data)
        archive.close()
    assert written.read_bytes() == reference.read_bytes()
