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


def test_a_sparse_index_is_unknown(repository: Path) -> None:
    """An entry of it may be a folder, whose files it does not list."""
    identity = ["-c", "user.name=a", "-c", "user.email=a@example.com"]
    (repository / "other").mkdir()
    (repository / "other" / "file").touch()
    git(repository, "add", ".")
    git(repository, *identity, "commit", "-q", "-m", "files")
    git(repository, "sparse-checkout", "set", "--cone", "--sparse-index", "other")
    assert list_tracked(repository, STATE) is None


def test_a_url_with_sha256_does_not_change_the_digests(repository: Path) -> None:
    git(repository, "remote", "add", "origin", "https://example.com/sha256.git")
    assert len(list_tracked(repository / ".state", STATE) or ()) == 2


def test_the_digests_of_a_repository_may_be_sha256(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q", "--object-format=sha256")
    (tmp_path / ".state").mkdir()
    (tmp_path / ".state" / "a").touch()
    git(tmp_path, "add", ".")
    assert list_tracked(tmp_path / ".state", STATE) == [TrackedFile("a", is_link=False)]


def test_a_file_with_a_conflict_is_listed_once(repository: Path) -> None:
    listing = subprocess.run(
        ["git", "-C", str(repository), "ls-files", "--stage", ".state/a"],
        check=True,
        capture_output=True,
        text=True,
    ).stdout
    mode, digest, _ = listing.split(maxsplit=2)
    git(repository, "update-index", "--force-remove", ".state/a")
    stages = "".join(f"{mode} {digest} {stage}\t.state/a\n" for stage in (1, 2, 3))
    subprocess.run(
        ["git", "-C", str(repository), "update-index", "--index-info"],
        check=True,
        input=stages,
        text=True,
    )
    files = list_tracked(repository / ".state", STATE)
    assert files == [TrackedFile("a", is_link=False), TrackedFile("link", is_link=True)]
