"""The files that git tracks, read from its index as git writes it."""

import re
import subprocess
from pathlib import Path

import pytest

from torchmill.core.git_index import TrackedFile, list_tracked

STATE = re.compile(rb"\.state/")


def git(folder: Path, *words: str) -> None:
    subprocess.run(["git", "-C", str(folder), *words], check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """Return a repository that tracks a thousand files, a file of state and a link."""
    git(tmp_path, "init", "-q")
    for number in range(1000):
        (tmp_path / f"file-{number:04}").touch()
    (tmp_path / ".state").mkdir()
    (tmp_path / ".state" / "a").touch()
    (tmp_path / ".state" / "link").symlink_to("a")
    git(tmp_path, "add", ".")
    return tmp_path


@pytest.mark.parametrize("version", ["2", "4"])
def test_tracked_files_are_listed(repository: Path, version: str) -> None:
    git(repository, "update-index", "--index-version", version)
    files = list_tracked(repository / ".state", STATE)
    assert files == [TrackedFile("a", is_link=False), TrackedFile("link", is_link=True)]


def test_without_a_path_of_interest_nothing_is_listed(repository: Path) -> None:
    git(repository, "rm", "-q", "--cached", ".state/link")  # which looks like a split index
    assert list_tracked(repository, re.compile(b"nowhere")) == []


def test_a_split_index_is_unknown(repository: Path) -> None:
    """Its paths are in another file; the bitmap of those that were removed may be of any size."""
    git(repository, "update-index", "--split-index")
    assert list_tracked(repository, STATE) is None
    removed = [f"file-{number:04}" for number in range(0, 1000, 3)]
    git(repository, "rm", "-q", "--cached", *removed)
    assert list_tracked(repository, STATE) is None
