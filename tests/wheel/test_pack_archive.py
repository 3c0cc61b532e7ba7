from __future__ import annotations

import io
import shutil
import subprocess
import time
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

import pytest

from torchmill.wheel.pack.zip_writer import CompressionMethod, Zip64Limits, ZipMember, ZipWriter

MIB = 1 << 20
ZEROS = bytes(MIB)
HUGE = 4100  # MiB
STAMP = time.gmtime(1671062400)
needs_unzip = pytest.mark.skipif(shutil.which("unzip") is None, reason="needs unzip")


def member(name: str, data: bytes, method: CompressionMethod = CompressionMethod.STORED) -> ZipMember:
    return ZipMember(name, 0o644, len(data), zlib.crc32(data), method)


def unzip(*arguments: str | Path) -> None:
    subprocess.run(["unzip", *map(str, arguments)], check=True, capture_output=True)


class Holes(io.FileIO):
    """A file that does not write the zeros it is given."""

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
        archive.add_parts(
            ZipMember("zeros", 0o644, HUGE * MIB, crc, CompressionMethod.STORED), (ZEROS for _ in range(HUGE))
        )
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
def test_unzip_finds_them_too(huge: Path) -> None:
    unzip("-tq", huge, "first", "last")


@pytest.mark.parametrize(
    "limits", [Zip64Limits(size=100), Zip64Limits(count=3), Zip64Limits(size=1, count=1)]
)
def test_zip64_is_read_wherever_it_begins(tmp_path: Path, limits: Zip64Limits) -> None:
    path = tmp_path / "small.zip"
    texts = {f"folder/{number}": bytes([number]) * number * 20 for number in range(6)}
    with path.open("wb") as sink:
        archive = ZipWriter(sink, STAMP, limits)
        for name, data in texts.items():
            archive.add_parts(member(name, data), [data[:7], data[7:]])
        archive.close()
    assert b"PK\6\6" in path.read_bytes()
    with zipfile.ZipFile(path) as read:
        assert read.testzip() is None
        assert {name: read.read(name) for name in read.namelist()} == texts
    if shutil.which("unzip"):
        unzip("-tq", path)


def test_headers_say_what_zipfile_would(tmp_path: Path) -> None:
    ours, theirs = tmp_path / "ours.zip", tmp_path / "theirs.zip"
    texts = {"a.txt": b"a" * 1000, "ä.txt": b"", "bin/tool": b"#!/bin/sh\n"}
    with ours.open("wb") as sink, zipfile.ZipFile(theirs, "w") as other:
        archive = ZipWriter(sink, STAMP)
        for name, data in texts.items():
            archive.add(member(name, data), data)
            info = zipfile.ZipInfo(name, STAMP[:6])
            info.external_attr = 0o100644 << 16
            other.writestr(info, data)
        archive.close()
    assert ours.read_bytes() == theirs.read_bytes()


def test_a_member_that_fails_on_its_way_leaves_nothing(tmp_path: Path) -> None:
    def parts() -> Iterator[bytes]:
        yield b"half of"
        raise ValueError

    path = tmp_path / "some.zip"
    with path.open("wb") as sink:
        archive = ZipWriter(sink, STAMP)
        archive.add(member("first", b"1"), b"1")
        before = sink.tell()
        with pytest.raises(ValueError):  # noqa: PT011 - the one above
            archive.add_parts(member("half", b"half of it"), parts())
        assert sink.tell() == before
        archive.add(member("last", b"2"), b"2")
        archive.close()
    with zipfile.ZipFile(path) as read:
        assert read.namelist() == ["first", "last"]
        assert read.testzip() is None
