"""Changes in a fetched tree are noticed, even if times and sizes do not show them."""

import io
import json
import os
import shutil
import tarfile
import time
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.documents import assert_fits
from tests.support.refusals import refused
from tests.support.silent_progress import SilentProgress
from tests.support.source_upstream import Forge, layout, package, release
from torchmill.commands.fetch import describe_source
from torchmill.core import stat_cache
from torchmill.core.console import ProgressBar
from torchmill.core.paths import Layout
from torchmill.core.stat_cache import StatCache
from torchmill.fetch.source import local
from torchmill.fetch.source.fetcher import fetch_source
from torchmill.fetch.source.request import SourceRequest
from torchmill.fetch.source.source import Source
from torchmill.fetch.source.source_dir import (
    RECORD,
    SourceDir,
    SourceProof,
    load_source,
    read_record,
)
from torchmill.fetch.source.verification import (
    check_source,
    touched_since_check,
    verify_source,
)


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    monkeypatch.setattr(
        stat_cache, "SETTLED_SECONDS", -3600.0
    )  # files that were written just now are remembered too
    return layout(tmp_path)


@pytest.fixture
def stat_cache_file(tmp_path: Path) -> StatCache:
    return StatCache(tmp_path / "stat-cache.json")


@pytest.fixture
def unpacked(tmp_path: Path, place: Layout) -> Source:
    """Fetch a source without a history."""
    tree = tmp_path / "torch-1"
    tree.mkdir()
    (tree / "setup.py").write_text("version = 1\n")
    (tree / "link").symlink_to("setup.py")
    request = SourceRequest(
        package("https://forge.invalid/a/torch.git"), release("v1", None), origin=str(tree)
    )
    return fetch_source(request, place, SilentProgress())


@pytest.fixture
def cloned(tmp_path: Path, place: Layout) -> Source:
    """Fetch a source from a git repository."""
    forge = Forge(tmp_path / "forge", (tmp_path / "forge").as_uri())
    commit = forge.commit("a/torch", {"setup.py": "version = 1\n"}, tag="v1")
    return fetch_source(
        SourceRequest(package(forge.url("a/torch")), release("v1", commit)), place, SilentProgress()
    )


def edit(file: Path, text: str) -> None:
    """Change a file, but neither its size nor its time."""
    seen = file.stat()
    assert len(text) == seen.st_size
    file.write_text(text)
    os.utime(file, ns=(seen.st_atime_ns, seen.st_mtime_ns))


@pytest.mark.parametrize("kind", ["unpacked", "cloned"])
def test_an_edit_hidden_from_times_and_sizes_is_noticed(
    kind: str, request: pytest.FixtureRequest, stat_cache_file: StatCache
) -> None:
    source = request.getfixturevalue(kind)
    verify_source(source, stat_cache_file)
    edit(source.path / "setup.py", "version = 2\n")
    check_source(source)  # compares only times and sizes
    for _ in range(2):
        with refused("uncommitted-changes" if kind == "cloned" else "source-changed"):
            verify_source(source, stat_cache_file)
    edit(source.path / "setup.py", "version = 1\n")
    verify_source(source, stat_cache_file)


@pytest.mark.parametrize(("stated", "is_other"), [("1.0.0a0", False), ("2.0.0", True)])
def test_a_folder_that_states_another_version_says_so_everywhere(
    tmp_path: Path, place: Layout, stated: str, is_other: bool
) -> None:
    tree = tmp_path / "torch"
    tree.mkdir()
    (tree / "setup.py").write_text("version = 1\n")
    (tree / "version.txt").write_text(f"{stated}\n")
    request = SourceRequest(
        package("https://forge.invalid/a/torch.git"), release("v1.0", None), origin=str(tree)
    )
    source = fetch_source(request, place, SilentProgress())
    clause = f"its version.txt says {stated}, not "
    assert (clause in source.title) is is_other
    assert (clause in describe_source(source)) is is_other
    again = load_source(place, source.package, source.tag)
    assert again is not None
    assert again.contradiction == source.contradiction


def test_all_files_get_one_date(tmp_path: Path, place: Layout) -> None:
    tree = tmp_path / "torch-1"
    tree.mkdir()
    for number, name in enumerate(("setup.py", "one.h", "other.h")):
        (tree / name).write_text("#pragma once\n")
        os.utime(tree / name, (10**9 + number, 10**9 + number))
    (tree / "link").symlink_to("absent")
    request = SourceRequest(
        package("https://forge.invalid/a/torch.git"), release("v1", None), origin=str(tree)
    )
    source = fetch_source(request, place, SilentProgress())
    dates = {path.lstat().st_mtime_ns for path in source.path.iterdir() if not path.is_symlink()}
    assert len(dates) == 1
    check_source(source)


def test_a_copy_of_the_tree_is_verified_anew(unpacked: Source, stat_cache_file: StatCache) -> None:
    """A cache of CI restores the tree with other inodes and other times."""
    verify_source(unpacked, stat_cache_file)
    aside = unpacked.path.with_name("aside")
    shutil.copytree(unpacked.path, aside, symlinks=True)
    shutil.rmtree(unpacked.path)
    aside.rename(unpacked.path)
    verify_source(unpacked, stat_cache_file)
    for path in unpacked.path.iterdir():  # tar keeps only seconds
        os.utime(path, (2 * 10**9, 2 * 10**9), follow_symlinks=False)
    check_source(unpacked)
    verify_source(unpacked, stat_cache_file)
    record = read_record(unpacked.path.parent)
    assert record is not None
    assert record.source.contents
    document = json.loads((unpacked.path.parent / "source.json").read_text("utf-8"))
    assert_fits(document, "source_record")
    (unpacked.path / "link").unlink()
    (unpacked.path / "link").symlink_to("absent")
    with refused("source-changed"):
        verify_source(unpacked, stat_cache_file)


@pytest.mark.parametrize("recorded", [True, False], ids=["whole", "half deleted"])
def test_an_old_tree_is_put_back_only_if_it_is_whole(tmp_path: Path, recorded: bool) -> None:
    slot = SourceDir(tmp_path, "v1")
    (slot.old / "tree").mkdir(parents=True)
    if recorded:
        (slot.old / RECORD).write_text("{}")
    slot.recover()
    assert slot.tree.exists() == recorded
    assert not slot.old.exists()


def test_no_old_tree_comes_back_after_discarding(tmp_path: Path) -> None:
    slot = SourceDir(tmp_path, "v1")
    for folder in (slot.old, slot.folder):
        (folder / "tree").mkdir(parents=True)
        (folder / RECORD).write_text("{}")
    slot.discard()
    slot.recover()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("origin", "code"),
    [
        ("https://[bad/x.tar.gz", "invalid-url"),
        ("file://[bad/x", "invalid-url"),
        ("~nosuchuser/src", "no-such-origin"),
    ],
)
def test_an_invalid_origin_is_refused(tmp_path: Path, origin: str, code: str) -> None:
    request = SourceRequest(package("https://h/x.git"), release("v1", None), origin=origin)
    with refused(code):
        fetch_source(request, layout(tmp_path), SilentProgress())


def test_a_fetched_source_with_another_digest_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "a.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        member = tarfile.TarInfo("top/setup.py")
        member.size = 1
        file.addfile(member, io.BytesIO(b"\n"))
    request = SourceRequest(package("https://h/x.git"), release("v1", None), origin=str(archive))
    fetch_source(request, layout(tmp_path), SilentProgress())
    with refused("wrong-digest"):
        fetch_source(replace(request, sha256="0" * 64), layout(tmp_path), SilentProgress())


def test_a_change_during_the_copy_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "src"
    folder.mkdir()
    (folder / "setup.py").write_text("1\n")
    copy = local._copy_folder

    def edit(source: Path, tree: Path, bar: ProgressBar) -> tuple[str, SourceProof]:
        result = copy(source, tree, bar)
        (folder / "setup.py").write_text("twenty\n")
        return result

    request = SourceRequest(package("https://h/x.git"), release("v1", None), origin=str(folder))
    with monkeypatch.context() as patch:
        patch.setattr(local, "_copy_folder", edit)
        fetch_source(request, layout(tmp_path), SilentProgress())
    assert (
        fetch_source(request, layout(tmp_path), SilentProgress()).path / "setup.py"
    ).read_text() == "twenty\n"


def test_a_record_from_the_future_proves_nothing(unpacked: Source) -> None:
    """After the clock was set back, an edit is older than the record."""
    folder = unpacked.path.parent
    later = time.time() + 1
    while touched_since_check(folder) and time.time() < later:  # the files were written just now
        os.utime(folder / RECORD)
    assert not touched_since_check(folder)
    tomorrow = time.time() + 86400
    os.utime(folder / RECORD, (tomorrow, tomorrow))
    assert touched_since_check(folder)
