"""Extracting members, and members that must not be extracted."""

from __future__ import annotations

import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Callable
from pathlib import Path
from zipfile import ZipInfo

import pytest
from millpress import zip_archive
from millpress.staging import stage_wheel
from press_support.expected_errors import refused


@pytest.mark.parametrize(
    "name", ["../x", "a/../x", "a/..", "/x", "", "c:/x", "a\\..\\x", "a/x\0.so"]
)
def test_names_that_lead_out_of_the_folder_are_found(name: str) -> None:
    assert zip_archive.leaves_folder(name)


@pytest.mark.parametrize("name", ["x", "a/x..y", "a/..x", ".x", "a/b:c", "a/"])
def test_names_that_stay_in_the_folder_are_accepted(name: str) -> None:
    assert not zip_archive.leaves_folder(name)


def test_the_name_in_the_archive_decides_whether_a_member_is_safe() -> None:
    assert zip_archive.unsafe_member(ZipInfo("a/x")) == ""
    problem = zip_archive.unsafe_member(ZipInfo("a/x\0/../y"))
    assert problem == "the member 'a/x\\x00/../y' leaves the wheel"
    link = ZipInfo("a/x")
    link.external_attr = (stat.S_IFLNK | 0o777) << 16
    assert zip_archive.unsafe_member(link) == "the member 'a/x' is a link"
    renamed = ZipInfo("a/x")
    renamed.extra = struct.pack("<2sHBL", b"up", 5 + len("../x"), 1, zlib.crc32(b"a/x")) + b"../x"
    assert "has another name where it is extracted" in zip_archive.unsafe_member(renamed)
    dated = ZipInfo("a/x")
    dated.extra = struct.pack("<2sHB4s", b"UT", 5, 1, b"Aupj")  # a time whose bytes read "up"
    assert zip_archive.unsafe_member(dated) == ""


INFO = "tiny-1.0.dist-info"
TEXTS = {
    f"{INFO}/METADATA": b"Name: tiny\nVersion: 1.0\n",
    "tiny/__init__.py": b"",
    "tiny/large.bin": bytes(range(256)) * 20000,  # in several parts
    **{f"tiny/include/{number}.h": b"#define A %d\n" % number for number in range(300)},
}


@pytest.fixture(params=[zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def raw(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    path = tmp_path / "tiny.whl"
    with zipfile.ZipFile(path, "w", request.param) as archive:
        archive.mkdir("tiny/empty")
        for name, data in TEXTS.items():
            archive.writestr(name, data)
    return path


def test_every_member_becomes_a_file(raw: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    stage_wheel(raw, out)
    contents = {}
    for path in out.rglob("*"):
        if path.is_file():
            contents[path.relative_to(out).as_posix()] = path.read_bytes()
    assert contents == TEXTS
    assert (out / "tiny" / "empty").is_dir()


def entry(data: bytes, name: str) -> int:
    """Return the offset of a member's header in the archive's directory."""
    return data.rindex(b"PK\1\2", 0, data.rindex(name.encode()))


def flip(data: bytes) -> bytes:
    """Change a byte in the content of the large member."""
    at = data.index(b"tiny/large.bin") + 200
    return data[:at] + bytes([data[at] ^ 0xFF]) + data[at + 1 :]


def without_header(data: bytes) -> bytes:
    at = data.rindex(b"PK\3\4", 0, data.index(b"tiny/large.bin"))
    return data[:at] + b"none" + data[at + 4 :]


def unknown_method(data: bytes) -> bytes:
    at = entry(data, "tiny/__init__.py") + 10
    return data[:at] + struct.pack("<H", zipfile.ZIP_LZMA) + data[at + 2 :]


def longer_than_the_file(data: bytes) -> bytes:
    at = entry(data, "tiny/include/299.h") + 20
    return data[:at] + struct.pack("<L", 1 << 30) + data[at + 4 :]


def without_its_beginning(data: bytes) -> bytes:
    return data[100:]


def no_directory(data: bytes) -> bytes:
    return data[:-100]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (flip, r"tiny/large\.bin (is|does not)"),
        (without_header, "has no header"),
        (unknown_method, "compressed in a way not used for wheels"),
        (longer_than_the_file, r"299\.h has another name, size or checksum"),
        (without_its_beginning, "begins before the file"),
        (no_directory, "zip"),
    ],
)
def test_a_damaged_archive_is_refused(
    raw: Path, tmp_path: Path, change: Callable[[bytes], bytes], message: str
) -> None:
    raw.write_bytes(change(raw.read_bytes()))
    with refused("damaged-raw-wheel") as caught:
        stage_wheel(raw, tmp_path / "out")
    assert re.search(message, str(caught.value))


def test_a_folder_in_the_way_is_named(raw: Path, tmp_path: Path) -> None:
    (tmp_path / "out").write_text("a file")
    with pytest.raises(NotADirectoryError, match="out"):
        stage_wheel(raw, tmp_path / "out")


def test_a_member_that_inflates_to_more_than_it_declares_is_not_written(tmp_path: Path) -> None:
    path = tmp_path / "a.zip"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("large", bytes(5_000_000))
    declared, small = struct.pack("<L", 5_000_000), struct.pack("<L", 10)
    path.write_bytes(path.read_bytes().replace(declared, small))  # in both headers
    with zipfile.ZipFile(path) as archive:
        (info,) = archive.infolist()
    with pytest.raises(zipfile.BadZipFile, match="does not have the checksum and size"):
        zip_archive.extract_members(path, [(info, str(tmp_path / "large"))], 1)
    assert (tmp_path / "large").stat().st_size == 0


def test_a_full_disk_is_not_reported_as_a_damaged_file(tmp_path: Path) -> None:
    """The system writes the beginning of the data, and refuses only the rest."""
    resource = pytest.importorskip("resource")
    archive = tmp_path / "a.zip"
    with zipfile.ZipFile(archive, "w") as writer:
        writer.writestr("large", bytes(300_000))
    with zipfile.ZipFile(archive) as writer:
        (info,) = writer.infolist()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, before[1]))
    try:
        with pytest.raises(OSError, match="File too large"):
            zip_archive.extract_members(archive, [(info, str(tmp_path / "large"))], 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
