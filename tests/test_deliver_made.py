"""What was made of a wheel is kept while nothing of it changed, and made again where anything did."""

import json
import os
from pathlib import Path

import pytest

from torchmill import artifact, digests
from torchmill.deliver import made
from torchmill.recall import Recall

PARTS = {"wheel": "a.whl", "wheel_sha256": "1", "recipe": "2", "facts": "3", "code": "4"}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Return a file with the record of what it was made of."""
    path = tmp_path / "a.zip"
    path.write_bytes(b"made")
    made.note(path, PARTS, digests.sha256(path), {"consumer": "5"})
    return path


def kept(file: Path, **changed: str) -> bool:
    recall = Recall(file.with_name("recall.json"))
    return made.kept([file], PARTS | changed, recall) == file


def test_nothing_changed(file: Path) -> None:
    assert kept(file)
    assert json.loads(artifact.manifest_of(file).read_text()) == {
        "sha256": digests.sha256(file),
        "size": 4,
        "consumer": "5",
        "made_of": [PARTS],
    }


@pytest.mark.parametrize("part", PARTS)
def test_any_part_that_changed_is_seen(file: Path, part: str) -> None:
    assert not kept(file, **{part: "other"})


def test_a_part_more_or_less_is_seen(file: Path) -> None:
    assert not kept(file, tools="6")
    made.note(file, PARTS | {"tools": "6"}, digests.sha256(file), {})
    assert not kept(file)


def test_an_edited_file_is_seen_whatever_its_size_and_time_say(file: Path) -> None:
    seen = file.stat()
    file.write_bytes(b"mode")
    os.utime(file, ns=(seen.st_atime_ns, seen.st_mtime_ns))
    assert not kept(file)


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"made_of": 1}', '{"made_of": ["x"], "sha256": null}'])
def test_a_record_that_is_damaged_says_nothing(file: Path, text: str) -> None:
    artifact.manifest_of(file).write_text(text)
    assert not kept(file)
    made.note(file, PARTS, digests.sha256(file), {})
    assert kept(file)


def test_a_deleted_file_or_record_is_seen(file: Path) -> None:
    content = file.read_bytes()
    file.unlink()
    assert not kept(file)
    file.write_bytes(content)
    assert kept(file)
    artifact.manifest_of(file).unlink()
    assert not kept(file)


def test_wheels_that_make_the_same_bytes_have_one_file(file: Path) -> None:
    """As those of two Pythons make one archive: neither is reason to make it again."""
    other = PARTS | {"wheel": "b.whl", "wheel_sha256": "9"}
    made.note(file, other, digests.sha256(file), {})
    assert kept(file)
    assert kept(file, **other)
    made.note(file, PARTS | {"code": "new"}, digests.sha256(file), {})
    assert not kept(file), "of each wheel the newest is told"
    assert kept(file, **other)
    file.write_bytes(b"another")
    made.note(file, PARTS, digests.sha256(file), {})
    assert kept(file)
    assert not kept(file, **other), "those bytes are gone"


def test_code_is_all_files_of_a_room(tmp_path: Path) -> None:
    recall = Recall(tmp_path / "recall.json")
    one, other = made.code(recall, "deliver/made.py"), made.code(recall, "deliver/options.py")
    assert len({one, other, made.code(recall, "deliver"), made.code(recall, "deliver/libtorch")}) == 4
    assert one == made.code(recall, "deliver/made.py")


def test_a_package_that_is_not_installed_has_no_version() -> None:
    assert made.version("pytest") == pytest.__version__
    assert made.version("torchmill-of-nobody") == ""
