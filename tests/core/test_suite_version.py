"""The version of torchmill: git's description of a checkout, or that of the installed wheel."""

import subprocess
import tomllib
from pathlib import Path

from tests.support.commands import ROOT
from torchmill.core.running_python import OLDEST
from torchmill.core.suite_version import UNKNOWN, suite_version


def git(folder: Path, *words: str) -> str:
    result = subprocess.run(
        ["git", "-C", str(folder), *words], capture_output=True, text=True, check=True
    )
    return result.stdout.strip()


def test_a_checkout_is_described_by_git(tmp_path: Path) -> None:
    git(tmp_path, "init", "-q")
    git(tmp_path, "commit", "-q", "--allow-empty", "-m", "first")
    assert suite_version(tmp_path) == git(tmp_path, "rev-parse", "--short", "HEAD")
    git(tmp_path, "tag", "v0.2.0")
    git(tmp_path, "tag", "millguard-v9.9.9")
    assert suite_version(tmp_path) == "v0.2.0"
    (tmp_path / "changed").touch()
    git(tmp_path, "add", "changed")
    assert suite_version(tmp_path) == "v0.2.0-dirty"


def test_a_copy_without_its_repository_is_unknown(tmp_path: Path) -> None:
    assert suite_version(tmp_path) == UNKNOWN
    (tmp_path / ".git").write_text("gitdir: /nowhere\n")
    assert suite_version(tmp_path) == UNKNOWN


def test_the_oldest_python_is_that_of_the_project() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    oldest = ".".join(map(str, OLDEST))
    assert project["project"]["requires-python"] == f">={oldest}"
    assert project["tool"]["mypy"]["python_version"] == oldest
