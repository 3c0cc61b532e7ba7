"""The tree of a cell: when it is kept, when it is made anew, and who may use it."""

import errno
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from torchwright import lookup, plan
from torchwright.errors import BusyError, ConfigError, HostError
from torchwright.model import Facts, Host, Options, Source
from torchwright.tree import Tree, copy_source, disk_full_told, is_prepared, key, locked, resolve

HOST = Host("x86_64", "linux", cores=4, memory=2**35, glibc="2.36")


def source(path: Path) -> Source:
    return Source("base", "1.0.0", "v1.0.0", "git", "here", "1" * 40, path, verified=True)


def test_the_key_follows_everything_that_changes_the_result(known: Facts, tmp_path: Path) -> None:
    cell = lookup.find(known, "wheel-3.10-cpu", "x86_64", known.releases["base"][0])
    base = plan.compute(known, cell, HOST, Options())
    tools = {"gcc": "12.2", "python": "3.10.13"}
    first = key(base, source(tmp_path), known.patches, tools)
    assert first == key(base, source(tmp_path), known.patches, dict(tools))
    for slower in (Options(jobs=1), Options(memory=2**30)):
        fewer = plan.compute(known, cell, HOST, slower)
        assert fewer.jobs < base.jobs
        assert key(fewer, source(tmp_path), known.patches, tools) == first, "jobs change how fast, not what"
    changed = [
        key(base, source(tmp_path), known.patches, tools | {"gcc": "13.1"}),
        key(base, replace(source(tmp_path), commit="2" * 40), known.patches, tools),
        key(base, replace(source(tmp_path), submodules={"a": "3"}), known.patches, tools),
        key(
            plan.compute(known, cell, HOST, Options(settings={"USE_X": "1"})),
            source(tmp_path),
            known.patches,
            tools,
        ),
        key(replace(base, requirements=("numpy<3",)), source(tmp_path), known.patches, tools),
    ]
    assert len({first, *changed}) == 1 + len(changed)


def test_the_key_follows_the_text_of_a_patch(known: Facts, tmp_path: Path) -> None:
    cell = lookup.find(known, "wheel-3.10-cpu", "x86_64", known.releases["base"][0])
    patched = replace(plan.compute(known, cell, HOST, Options()), patches=("base/a.patch",))
    patch = known.patches / "base" / "a.patch"
    patch.parent.mkdir(parents=True)
    keys = set()
    for text in ("one", "two"):
        patch.write_text(text)
        keys.add(key(patched, source(tmp_path), known.patches, {}))
    assert len(keys) == 2


def test_a_copy_is_whole_and_replaces_the_old_one(tmp_path: Path) -> None:
    origin = tmp_path / "origin"
    (origin / "sub").mkdir(parents=True)
    (origin / "sub" / "run.sh").write_text("echo")
    (origin / "sub" / "run.sh").chmod(0o755)
    (origin / "link").symlink_to("sub/run.sh")
    tree = Tree(tmp_path / "tree")
    (tree.source / "stale").mkdir(parents=True)
    tree.key_file.write_text("k")
    assert is_prepared(tree, "k")
    assert not is_prepared(tree, "other")
    copy_source(tree, source(origin))
    assert not tree.key_file.exists(), "a tree is complete only when its patches are in"
    assert sorted(path.name for path in tree.source.iterdir()) == ["link", "sub"]
    assert (tree.source / "link").is_symlink()
    assert (tree.source / "sub" / "run.sh").stat().st_mode & 0o111


def test_two_runs_do_not_share_a_tree(tmp_path: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from torchwright.tree import locked\n"
        "with locked(Path(sys.argv[1]), 'cell'): print('got it')"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    root = Path(__file__).parents[1]
    with locked(tmp_path, "cell"):
        other = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert other.returncode != 0
    assert "cell is being built by another run" in other.stderr
    assert subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout == "got it\n"


def test_the_same_process_cannot_take_a_tree_twice(tmp_path: Path) -> None:
    with locked(tmp_path, "cell"), pytest.raises(BusyError), locked(tmp_path, "cell"):
        pass


def test_a_full_disk_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(HostError, match=r"is full .* free\): make room"), disk_full_told(tmp_path):
        raise OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(PermissionError), disk_full_told(tmp_path):
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
    tree = Tree(tiny_disk / "tree")
    tree.folder.mkdir()
    with pytest.raises(HostError, match=r"is full .* free\): make room"):
        copy_source(tree, source(origin))
    assert not tree.key_file.exists(), "what was half copied does not count as a tree"


def test_placeholders() -> None:
    assert resolve("${venv}/bin:$$ORIGIN", {"venv": "/v"}) == "/v/bin:$ORIGIN"
    with pytest.raises(ConfigError, match="'nowhere' stands for nothing"):
        resolve("${nowhere}", {})
