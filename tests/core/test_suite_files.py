"""Wheels of the libraries that are made of their installed files, for images."""

from importlib.metadata import distribution
from pathlib import Path
from zipfile import ZipFile

import pytest

from tests.support.refusals import refused
from torchmill.core import suite_files


def test_a_part_that_is_missing_is_named(tmp_path: Path) -> None:
    with refused("incomplete-suite"):
        suite_files.copy_part("noxfiel.py", tmp_path / "noxfiel.py")
    assert list(tmp_path.iterdir()) == []


def test_an_installed_suite_has_no_files_of_a_checkout_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(suite_files, "IS_INSTALLED", True)
    monkeypatch.setattr(suite_files, "CHECKOUT", tmp_path)
    suite_files.copy_part("pyproject.toml", tmp_path / "copy")
    with refused("incomplete-suite"):
        suite_files.copy_part("tasks.py", tmp_path / "copy")
    assert list(tmp_path.iterdir()) == []


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
