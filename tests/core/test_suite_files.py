"""Wheels of the libraries that are made of their installed files, for images."""

from importlib.metadata import distribution
from pathlib import Path
from zipfile import ZipFile

from torchmill.core import suite_files


def test_a_library_makes_the_same_wheel_at_any_time(tmp_path: Path) -> None:
    suite_files._write_wheel(distribution("millguard"), tmp_path)
    (wheel,) = tmp_path.glob("millguard-*.whl")
    with ZipFile(wheel) as archive:
        members = archive.infolist()
    assert {member.date_time for member in members} == {(1980, 1, 1, 0, 0, 0)}
    assert "millguard/gate.c" in {member.filename for member in members}
    first = wheel.read_bytes()
    suite_files._write_wheel(distribution("millguard"), tmp_path)
    assert wheel.read_bytes() == first
