"""A wheel in dist/ and the files beside it: complete, or absent."""

from __future__ import annotations

import errno
import json
import shutil
import tempfile
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support import tiny_plans
from torchmill.core import formats
from torchmill.wheel.dist_files import (
    find_wheel,
    manifest_path,
    publish_wheel,
    read_manifest,
    withdraw_wheel,
)
from torchmill.wheel.planned_wheel import PlannedWheel


def packed(folder: Path, text: str) -> Path:
    file = folder / "tree" / "a.whl"
    file.parent.mkdir(exist_ok=True)
    file.write_text(text)
    return file


def test_a_wheel_appears_with_its_manifest(tmp_path: Path) -> None:
    wheel = tmp_path / "dist" / "a.whl"
    publish_wheel(packed(tmp_path, "wheel"), wheel, {"key": "k"})
    assert sorted(path.name for path in wheel.parent.iterdir()) == ["a.whl", "a.whl.json"]
    assert json.loads(wheel.with_name("a.whl.json").read_text()) == {"key": "k"}
    assert read_manifest(wheel) == {"key": "k"}


def test_a_newer_wheel_takes_the_place_of_an_older_one(tmp_path: Path) -> None:
    wheel = tmp_path / "dist" / "a.whl"
    for text in ("old", "new"):
        publish_wheel(packed(tmp_path, text), wheel, {"key": text})
    assert wheel.read_text() == "new"
    assert read_manifest(wheel) == {"key": "new"}


def test_a_published_wheel_gets_another_manifest(tmp_path: Path) -> None:
    wheel = tmp_path / "dist" / "a.whl"
    publish_wheel(packed(tmp_path, "wheel"), wheel, {"key": "old"})
    publish_wheel(wheel, wheel, {"key": "new"})
    assert (wheel.read_text(), read_manifest(wheel)) == ("wheel", {"key": "new"})


def test_documents_appear_with_their_wheel_and_go_with_it(tmp_path: Path) -> None:
    old = tmp_path / "dist" / "old.whl"
    wheel = tmp_path / "dist" / "a.whl"
    publish_wheel(packed(tmp_path, "old"), old, {"key": "k"}, documents={".cdx.json": b"old"})
    documents = {".cdx.json": b"new", ".intoto.json": b"s"}
    publish_wheel(packed(tmp_path, "new"), wheel, {"key": "k"}, old, documents)
    assert {path.name: path.read_text() for path in wheel.parent.iterdir() if path != wheel} == {
        "a.whl.json": '{\n "key": "k"\n}\n',
        "a.whl.cdx.json": "new",
        "a.whl.intoto.json": "s",
    }
    publish_wheel(wheel, wheel, {"key": "k"}, documents={".cdx.json": b"newer"})
    assert sorted(path.name for path in wheel.parent.iterdir()) == [
        "a.whl",
        "a.whl.cdx.json",
        "a.whl.json",
    ]
    withdraw_wheel(wheel, tmp_path / "packed" / "a.whl")
    assert list(wheel.parent.iterdir()) == []


def test_a_wheel_that_must_be_verified_again_leaves_dist(tmp_path: Path) -> None:
    wheel = tmp_path / "dist" / "a.whl"
    aside = tmp_path / "packed" / "a.whl"
    publish_wheel(packed(tmp_path, "wheel"), wheel, {"key": "k"})
    withdraw_wheel(wheel, aside)
    assert list(wheel.parent.iterdir()) == []
    assert aside.read_text() == "wheel"


def write_archive(path: Path, sha256: str, file_format: int = formats.DEBUG_ARCHIVE) -> Path:
    """Write an archive with debug information of the wheel with this digest, without a library."""
    index = json.dumps({"format": file_format, "wheel_sha256": sha256, "libraries": {}})
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("index.json", index)
    return path


def test_an_archive_with_debug_information_goes_along(tmp_path: Path) -> None:
    wheel = tmp_path / "dist" / "a.whl"
    archive = wheel.with_name("a.whl.debuginfo.zip")
    manifest = {"sha256": "1" * 64}
    new = write_archive(tmp_path / "new.zip", "1" * 64)
    publish_wheel(packed(tmp_path, "wheel"), wheel, manifest, debug_archive=new)
    assert (archive.is_file(), new.exists()) == (True, False)
    aside = tmp_path / "packed" / "a.whl"
    withdraw_wheel(wheel, aside)
    assert list(wheel.parent.iterdir()) == []
    moved = aside.with_name(archive.name)
    publish_wheel(aside, wheel, manifest, debug_archive=moved)
    publish_wheel(wheel, wheel, manifest)
    assert archive.is_file(), "a build without the option made the same wheel"
    publish_wheel(packed(tmp_path, "other"), wheel, {"sha256": "2" * 64})
    assert not archive.exists(), "the wheel is another one"


def test_an_archive_of_a_newer_format_is_not_taken_for_one_of_another_wheel(tmp_path: Path) -> None:
    wheel = tmp_path / "dist" / "a.whl"
    wheel.parent.mkdir()
    archive = wheel.with_name("a.whl.debuginfo.zip")
    write_archive(archive, "1" * 64, formats.DEBUG_ARCHIVE + 1)
    before = archive.read_bytes()
    publish_wheel(packed(tmp_path, "wheel"), wheel, {"sha256": "2" * 64})
    assert archive.read_bytes() == before
    archive.write_bytes(b"no archive")
    publish_wheel(packed(tmp_path, "wheel"), wheel, {"sha256": "2" * 64})
    assert not archive.exists()


def test_dist_may_lie_on_another_disk(tmp_path: Path) -> None:
    memory = Path("/dev/shm")  # noqa: S108 - only its disk counts
    if not memory.is_dir() or memory.stat().st_dev == tmp_path.stat().st_dev:
        pytest.skip("this machine has one disk")
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        (tmp_path / "dist").symlink_to(folder)
        wheel = tmp_path / "dist" / "a.whl"
        source = packed(tmp_path, "wheel")
        publish_wheel(source, wheel, {"key": "k"})
        assert sorted(path.name for path in wheel.parent.iterdir()) == ["a.whl", "a.whl.json"]
        assert (wheel.read_text(), source.exists()) == ("wheel", False)
        withdraw_wheel(wheel, source)
        assert (source.read_text(), list(wheel.parent.iterdir())) == ("wheel", [])


def planned(platform: str, *, upper_bound: bool) -> PlannedWheel:
    wheel = tiny_plans.plan("tinytorch", "1.0+cpu").wheel
    name = wheel.file_name.replace(wheel.platform_tag, platform)
    return replace(wheel, file_name=name, platform_tag=platform, tag_is_upper_bound=upper_bound)


def test_a_wheel_lies_under_the_tag_that_its_symbols_gave_it(tmp_path: Path) -> None:
    expected = planned("manylinux_2_36_x86_64", upper_bound=True)
    assert find_wheel(tmp_path, expected) == tmp_path / expected.file_name
    older = tmp_path / expected.file_name.replace("2_36", "2_34")
    another = tmp_path / expected.file_name.replace("manylinux_2_36", "linux")
    publish_wheel(packed(tmp_path, "older"), older, {"planned": expected.file_name})
    publish_wheel(packed(tmp_path, "linux"), another, {"planned": another.name})
    assert find_wheel(tmp_path, expected) == older
    assert find_wheel(tmp_path, planned("linux_x86_64", upper_bound=False)) == another


def test_a_wheel_of_a_container_has_the_tag_of_its_image(tmp_path: Path) -> None:
    expected = planned("manylinux_2_36_x86_64", upper_bound=True)
    wheels = {}
    for planned_tag in ("manylinux_2_41_x86_64", "manylinux_2_41_aarch64", "linux_x86_64"):
        computed_tag = planned_tag.replace("2_41", "2_39")
        wheel = tmp_path / expected.file_name.replace(expected.platform_tag, computed_tag)
        manifest = {"planned": expected.file_name.replace(expected.platform_tag, planned_tag)}
        publish_wheel(packed(tmp_path, planned_tag), wheel, manifest)
        wheels[planned_tag] = wheel
    assert find_wheel(tmp_path, expected) == tmp_path / expected.file_name
    assert find_wheel(tmp_path, expected, contained=True) == wheels["manylinux_2_41_x86_64"]


def test_a_wheel_with_another_tag_replaces_the_earlier_wheel(tmp_path: Path) -> None:
    expected = planned("manylinux_2_36_x86_64", upper_bound=True)
    for tag in ("2_35", "2_34"):
        wheel = tmp_path / "dist" / expected.file_name.replace("2_36", tag)
        earlier = find_wheel(tmp_path / "dist", expected)
        publish_wheel(packed(tmp_path, tag), wheel, {"planned": expected.file_name}, earlier)
    assert find_wheel(tmp_path / "dist", expected) == wheel
    assert sorted(wheel.parent.iterdir()) == [wheel, manifest_path(wheel)]


def test_a_damaged_manifest_counts_as_empty(tmp_path: Path) -> None:
    wheel = tmp_path / "a.whl"
    assert read_manifest(wheel) == {}
    for damaged in ("", "[]", "{", "\0"):
        manifest_path(wheel).write_text(damaged)
        assert read_manifest(wheel) == {}


def test_a_full_disk_leaves_the_old_wheel_and_the_files_beside_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel = tmp_path / "dist" / "a.whl"
    publish_wheel(packed(tmp_path, "old"), wheel, {"key": "old"})
    wheel.with_name("a.whl.intoto.jsonl").write_text("signed")
    before = {path.name: path.read_text() for path in wheel.parent.iterdir()}
    move = Path.replace

    def replace_on_one_disk(path: Path, target: Path) -> Path:
        if path.parent.name == "tree":
            raise OSError(errno.EXDEV, "another disk")
        return move(path, target)

    def copy_half(_: Path, target: Path) -> None:
        Path(target).write_text("ne")
        raise OSError(errno.ENOSPC, "full")

    new = packed(tmp_path, "new")
    with monkeypatch.context() as patch:
        patch.setattr(Path, "replace", replace_on_one_disk)
        patch.setattr(shutil, "copy2", copy_half)
        with pytest.raises(OSError, match="full"):
            publish_wheel(new, wheel, {"key": "new"})
    after = {path.name: path.read_text() for path in wheel.parent.iterdir()}
    # This file is small, and the manifest of the next wheel replaces it.
    assert after.pop(".a.whl.json.new")
    assert after == before
