"""The files of a source tree."""

from pathlib import Path

import pytest

from tests.support.refusals import refused
from torchmill.fetch.source import tree


def test_linked_repositories_are_removed_and_their_targets_stay(tmp_path: Path) -> None:
    """An archive may have a link in the place of any .git."""
    for folder in ("real/.git/objects", "linked", "filed", "target"):
        (tmp_path / "tree" / folder).mkdir(parents=True)
    source = tmp_path / "tree"
    (source / "target/config").write_text("mine")
    (source / "linked/.git").symlink_to("../target")
    (source / "filed/.git").write_text("gitdir: ../target")
    (source / ".git").symlink_to("nowhere")
    tree.remove_repositories(source)
    assert not [path for path in source.rglob("*") if path.name == ".git"]
    assert (source / "target/config").read_text() == "mine"


def test_a_file_that_vanishes_meanwhile_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kept").write_text("kept")
    before = tree.take_fingerprint(tmp_path), tree.digest_contents(tmp_path)
    (tmp_path / "brief").write_text("brief")
    entries = list(tree.walk_tree(tmp_path))
    (tmp_path / "brief").unlink()
    monkeypatch.setattr(tree, "walk_tree", lambda _: entries)
    assert (tree.take_fingerprint(tmp_path), tree.digest_contents(tmp_path)) == before


@pytest.mark.parametrize(
    "content",
    [b"[build-system", b"build-system = 1", b"\xff", b"a = " + b"9" * 5000, b"a = " + b"[" * 5000],
)
def test_a_pyproject_that_cannot_be_read_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "pyproject.toml").write_bytes(content)
    with refused("unreadable-pyproject"):
        tree.read_build_backend(tmp_path)


@pytest.mark.parametrize(
    ("name", "content", "clause"),
    [
        ("version.txt", "2.4.1a0\n", ""),
        ("version.txt", "2.4.1", ""),
        ("version.txt", "2.5.0a0\n", "its version.txt says 2.5.0a0, not 2.4.1"),
        ("version.txt", "2.4\n", "its version.txt says 2.4, not 2.4.1"),
        ("version.txt", "see setup.py\n", ""),
        ("version.txt", "\xff", ""),
        ("PKG-INFO", "Metadata-Version: 2.1\nName: torch\nVersion: 2.4.1\n\nVersion: 3\n", ""),
        (
            "PKG-INFO",
            "Metadata-Version: 2.1\nVersion: 2.3.1.post1\n",
            "its PKG-INFO says 2.3.1.post1, not 2.4.1",
        ),
        ("setup.py", "version = '1.0'\n", ""),
    ],
)
def test_another_version_that_a_source_states_is_named(
    tmp_path: Path, name: str, content: str, clause: str
) -> None:
    (tmp_path / name).write_bytes(content.encode("latin-1"))
    assert tree.version_clause(tmp_path, "2.4.1") == clause
