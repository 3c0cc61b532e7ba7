"""A project's own facts replace shipped ones; other files are ignored."""

import os
from pathlib import Path

import pytest

from tests.support.refusals import refused
from torchmill.config.own_facts import merge_facts


@pytest.fixture
def shipped(tmp_path: Path) -> Path:
    return write_files(
        tmp_path / "shipped", {"gpus.toml": "shipped", "packages/torch.toml": "shipped"}
    )


def write_files(folder: Path, texts: dict[str, str]) -> Path:
    """Write files into a folder, and return it."""
    folder.mkdir(exist_ok=True)
    for name, text in texts.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text, encoding="utf-8")
    return folder


def texts_of(folder: Path | None) -> dict[str, str]:
    """Return the text of each file in a folder, by its path."""
    assert folder is not None
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_text("utf-8") for path in files}


def test_a_file_of_the_project_replaces_the_shipped_one(shipped: Path, tmp_path: Path) -> None:
    folder = write_files(
        tmp_path / "own",
        {
            "gpus.toml": "own",
            "packages/mine.toml": "own",
            "releases/9.toml": "own",
            "patches/torch/fix.patch": "own",
        },
    )
    assert texts_of(merge_facts(folder, shipped, tmp_path / "cache")) == {
        "gpus.toml": "own",
        "packages/torch.toml": "shipped",
        "packages/mine.toml": "own",
        "releases/9.toml": "own",
        "patches/torch/fix.patch": "own",
    }


def test_the_shipped_facts_about_wheels_stay(shipped: Path, tmp_path: Path) -> None:
    about_wheels = {"wheel_code/torch.toml": "shipped", "package_wheels/mine.toml": "shipped"}
    write_files(shipped, about_wheels)
    folder = write_files(tmp_path / "own", {"gpus.toml": "own"})
    merged = texts_of(merge_facts(folder, shipped, tmp_path / "cache"))
    assert merged.items() >= about_wheels.items()


@pytest.mark.parametrize(
    "name",
    [
        ".bashrc",
        "README.md",
        "other.toml",
        "packages/.mine.toml",
        "packages/run.sh",
        "patches/.git/config",
        "a/gpus.toml",
        "schemas/gpus.schema.json",
    ],
)
def test_files_that_are_no_facts_are_left_out(name: str, shipped: Path, tmp_path: Path) -> None:
    folder = write_files(tmp_path / "own", {name: "own"})
    assert merge_facts(folder, shipped, tmp_path / "cache") is None
    write_files(folder, {"gpus.toml": "own"})
    merged = texts_of(merge_facts(folder, shipped, tmp_path / "cache"))
    assert merged == {"gpus.toml": "own", "packages/torch.toml": "shipped"}


def test_a_project_without_facts_has_the_shipped_ones(shipped: Path, tmp_path: Path) -> None:
    assert merge_facts(tmp_path / "absent", shipped, tmp_path / "cache") is None
    assert not (tmp_path / "cache").exists()


def test_merged_facts_are_never_changed(shipped: Path, tmp_path: Path) -> None:
    folder = write_files(tmp_path / "own", {"gpus.toml": "own"})
    first = merge_facts(folder, shipped, tmp_path / "cache")
    assert merge_facts(folder, shipped, tmp_path / "cache") == first
    write_files(folder, {"gpus.toml": "own again"})
    second = merge_facts(folder, shipped, tmp_path / "cache")
    assert (texts_of(first)["gpus.toml"], texts_of(second)["gpus.toml"]) == ("own", "own again")


def test_a_fact_that_is_no_small_file_is_refused(shipped: Path, tmp_path: Path) -> None:
    folder = write_files(tmp_path / "own", {})
    os.mkfifo(folder / "gpus.toml")
    with refused("fact-not-a-file"):
        merge_facts(folder, shipped, tmp_path / "cache")
    (folder / "gpus.toml").unlink()
    (folder / "gpus.toml").touch()
    os.truncate(folder / "gpus.toml", 1 << 25)
    with refused("fact-not-a-file"):
        merge_facts(folder, shipped, tmp_path / "cache")
