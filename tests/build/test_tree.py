"""The tree of a cell: when it is kept, and when it is made anew."""

import errno
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.refusals import refused
from torchmill.build.tree import BuildTree, copy_source, fill_placeholders
from torchmill.config.model import Source
from torchmill.core.files import report_disk_full


def source(path: Path) -> Source:
    return Source("base", "1.0.0", "v1.0.0", "git", "here", "1" * 40, path, verified=True)


def test_a_copy_is_whole_and_replaces_the_old_one(tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    (origin / "sub").mkdir(parents=True)
    (origin / "sub" / "run.sh").write_text("echo")
    (origin / "sub" / "run.sh").chmod(0o755)
    (origin / "link").symlink_to("sub/run.sh")
    tree = BuildTree(tmp_path / "tree")
    (tree.source / "stale").mkdir(parents=True)
    for note in (tree.key_file, tree.interpreter_file, tree.external_inputs_file):
        note.write_text("k")
    assert tree.is_prepared("k")
    assert not tree.is_prepared("other")
    copy_source(tree, source(origin))
    assert not tree.key_file.exists(), "a tree is complete only when its patches are in"
    assert not tree.interpreter_file.exists(), "what is fresh has served nobody"
    assert not tree.external_inputs_file.exists()
    assert sorted(path.name for path in tree.source.iterdir()) == ["link", "sub"]
    assert (tree.source / "link").is_symlink()
    assert (tree.source / "sub" / "run.sh").stat().st_mode & 0o111


def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    with refused("disk-full"), report_disk_full(tmp_path):
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(PermissionError), report_disk_full(tmp_path):
        raise PermissionError


@pytest.fixture
def tiny_disk(tmp_path: Path) -> Iterator[Path]:
    """Yield a folder on a file system of one MiB."""
    folder = tmp_path / "disk"
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", str(folder)]
    if subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("a small file system can be mounted by root only")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def test_a_source_too_large_for_the_disk(tmp_path: Path, tiny_disk: Path) -> None:
    origin = tmp_path / "origin"
    origin.mkdir()
    (origin / "large").write_bytes(bytes(2 * 1024**2))
    tree = BuildTree(tiny_disk / "tree")
    tree.folder.mkdir()
    with refused("disk-full"):
        copy_source(tree, source(origin))
    assert not tree.key_file.exists(), "what was half copied does not count as a tree"


def test_placeholders() -> None:
    assert fill_placeholders("${venv}/bin:$$ORIGIN", {"venv": "/v"}) == "/v/bin:$ORIGIN"
    with refused("unknown-placeholder"):
        fill_placeholders("${nowhere}", {})
