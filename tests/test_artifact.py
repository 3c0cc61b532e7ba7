"""A wheel in dist/ and its manifest: whole, or not there."""

import hashlib
import json
from pathlib import Path

from torchwright.artifact import find, manifest_of, publish


def made(folder: Path, text: str = "wheel") -> tuple[Path, Path, dict[str, object]]:
    packed = folder / "tree" / "a.whl"
    packed.parent.mkdir(exist_ok=True)
    packed.write_text(text)
    record: dict[str, object] = {"key": "k", "sha256": hashlib.sha256(text.encode()).hexdigest()}
    return packed, folder / "dist" / "a.whl", record


def test_a_published_wheel_is_found_by_its_key(tmp_path: Path) -> None:
    packed, wheel, record = made(tmp_path)
    artifact = publish(packed, wheel, record)
    assert sorted(path.name for path in wheel.parent.iterdir()) == ["a.whl", "a.whl.json"]
    assert json.loads(artifact.manifest.read_text())["key"] == "k"
    assert find(wheel, "k") == artifact
    assert find(wheel, "other") is None


def test_an_edited_wheel_is_not_believed(tmp_path: Path) -> None:
    packed, wheel, record = made(tmp_path)
    publish(packed, wheel, record)
    wheel.write_text("edited")
    assert find(wheel, "k") is None


def test_half_of_it_is_nothing(tmp_path: Path) -> None:
    packed, wheel, record = made(tmp_path)
    publish(packed, wheel, record)
    for spoiled in ("", "[]", "{"):
        manifest_of(wheel).write_text(spoiled)
        assert find(wheel, "k") is None
    manifest_of(wheel).unlink()
    assert find(wheel, "k") is None
    wheel.unlink()
    assert find(wheel, "k") is None


def test_a_newer_wheel_takes_the_place_of_an_older_one(tmp_path: Path) -> None:
    publish(*made(tmp_path, "old"))
    packed, wheel, record = made(tmp_path, "new")
    publish(packed, wheel, record)
    assert wheel.read_text() == "new"
    assert find(wheel, "k") is not None
