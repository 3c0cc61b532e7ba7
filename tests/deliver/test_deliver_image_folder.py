"""The folder of an image: whole, ours, and never over somebody else's."""

import os
from pathlib import Path

from tests.support.refusals import refused
from torchmill.deliver.image import folder
from torchmill.deliver.image.dockerfile import ImageRecipe

ROOT = Path(__file__).parents[2]
FACTS = ROOT / "build_configs"


def _recipe(text: str, **copied: str) -> ImageRecipe:
    return ImageRecipe({"Dockerfile": text, "entry": "#!/bin/sh\n"}, copied, (), frozenset({"entry"}))


def _write(place: Path, recipe: ImageRecipe, sources: dict[str, Path] | None = None) -> None:
    folder.write_image_folder(place, recipe, sources or {}, ROOT, FACTS)


def test_a_folder_is_written_and_written_again(tmp_path: Path) -> None:
    wheel = tmp_path / "a.whl"
    wheel.write_bytes(b"wheel")
    place = tmp_path / "new/image"
    _write(
        place,
        _recipe("FROM a\n", **{"wheels/a.whl": "a.whl", "requirements.txt": "requirements.txt"}),
        {"a.whl": wheel},
    )
    assert (place / "requirements.txt").read_bytes() == (ROOT / "requirements.txt").read_bytes()
    assert os.access(place / "entry", os.X_OK)
    assert (place / "wheels/a.whl").samefile(wheel)
    _write(place, _recipe("FROM b\n"))
    assert (place / "Dockerfile").read_text() == "FROM b\n"
    assert sorted(entry.name for entry in place.iterdir()) == ["Dockerfile", "entry", folder.IMAGE_RECORD]
    assert wheel.read_bytes() == b"wheel"
    assert [entry.name for entry in place.parent.iterdir()] == ["image"]


def test_the_suite_is_copied_without_what_it_made(tmp_path: Path) -> None:
    _write(tmp_path / "image", _recipe("FROM a\n", suite="suite"))
    suite = tmp_path / "image/suite"
    assert {"noxfile.py", "tasks.py", "requirements.txt", "torchmill", "build_configs"} <= {
        entry.name for entry in suite.iterdir()
    }
    assert list(suite.rglob("__pycache__")) == []
    assert (suite / "build_configs/images.toml").read_bytes() == (FACTS / "images.toml").read_bytes()


def test_somebody_elses_files_stay(tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text("FROM theirs\n")
    with refused("foreign-folder"):
        _write(tmp_path, _recipe("FROM a\n"))
    assert (tmp_path / "Dockerfile").read_text() == "FROM theirs\n"


def test_ours_changed_by_hand_stays(tmp_path: Path) -> None:
    place = tmp_path / "image"
    _write(place, _recipe("FROM a\n"))
    (place / "Dockerfile").write_text("FROM a\nRUN mine\n")
    with refused("changed-by-hand"):
        _write(place, _recipe("FROM b\n"))
    assert "mine" in (place / "Dockerfile").read_text()


def test_what_was_put_beside_ours_stays(tmp_path: Path) -> None:
    place = tmp_path / "image"
    _write(place, _recipe("FROM a\n"))
    (place / "notes.txt").write_text("mine")
    with refused("foreign-folder"):
        _write(place, _recipe("FROM b\n"))


def test_a_place_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / "link").symlink_to(tmp_path)
    for name in ("file", "link"):
        with refused("foreign-folder"):
            _write(tmp_path / name, _recipe("FROM a\n"))
    with refused("not-writable"):
        _write(tmp_path / "file/image", _recipe("FROM a\n"))


def test_a_damaged_record_is_not_trusted(tmp_path: Path) -> None:
    _write(tmp_path / "image", _recipe("FROM a\n"))
    (tmp_path / "image" / folder.IMAGE_RECORD).write_text("{}")
    with refused("record-damaged"):
        _write(tmp_path / "image", _recipe("FROM a\n"))
