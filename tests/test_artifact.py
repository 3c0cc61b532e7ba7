"""A wheel in dist/ and its manifest: whole, or not there."""

import json
import tempfile
from pathlib import Path

import pytest

from torchwright.artifact import manifest_of, publish, record, withdraw


def packed(folder: Path, text: str) -> Path:
    file = folder / "tree" / "a.whl"
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    return file


def test_a_wheel_appears_with_its_manifest(tmp_path: Path) -> None:
    wheel = tmp_path / "dist" / "a.whl"
    made = publish(packed(tmp_path, "wheel"), wheel, {"key": "k"})
    assert sorted(path.name for path in wheel.parent.iterdir()) == ["a.whl", "a.whl.json"]
    assert json.loads(made.manifest.read_text()) == record(wheel) == {"key": "k"}


def test_a_newer_wheel_takes_the_place_of_an_older_one(tmp_path: Path) -> None:
    wheel = tmp_path / "dist" / "a.whl"
    for text in ("old", "new"):
        publish(packed(tmp_path, text), wheel, {"key": text})
    assert wheel.read_text() == "new"
    assert record(wheel) == {"key": "new"}


def test_a_wheel_that_is_there_gets_another_manifest(tmp_path: Path) -> None:
    wheel = tmp_path / "dist" / "a.whl"
    publish(packed(tmp_path, "wheel"), wheel, {"key": "old"})
    publish(wheel, wheel, {"key": "new"})
    assert (wheel.read_text(), record(wheel)) == ("wheel", {"key": "new"})


def test_what_must_be_verified_again_is_not_delivered_meanwhile(tmp_path: Path) -> None:
    wheel, aside = tmp_path / "dist" / "a.whl", tmp_path / "packed" / "a.whl"
    publish(packed(tmp_path, "wheel"), wheel, {"key": "k"})
    withdraw(wheel, aside)
    assert list(wheel.parent.iterdir()) == []
    assert aside.read_text() == "wheel"


def test_dist_may_lie_on_another_disk(tmp_path: Path) -> None:
    memory = Path("/dev/shm")  # noqa: S108 (the other disk)
    if not memory.is_dir() or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("this machine has one disk")
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        (tmp_path / "dist").symlink_to(folder)
        wheel = tmp_path / "dist" / "a.whl"
        source = packed(tmp_path, "wheel")
        publish(source, wheel, {"key": "k"})
        assert sorted(path.name for path in wheel.parent.iterdir()) == ["a.whl", "a.whl.json"]
        assert (wheel.read_text(), source.exists()) == ("wheel", False)
        withdraw(wheel, source)
        assert (source.read_text(), list(wheel.parent.iterdir())) == ("wheel", [])


def test_half_of_a_manifest_is_none(tmp_path: Path) -> None:
    wheel = tmp_path / "a.whl"
    assert record(wheel) == {}
    for spoiled in ("", "[]", "{", "\0"):
        manifest_of(wheel).write_text(spoiled)
        assert record(wheel) == {}
