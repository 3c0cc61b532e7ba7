"""A fetched tree that was changed is noticed, even if times and sizes do not show it."""

import io
import os
import shutil
import tarfile
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.refusals import refused
from tests.support.silent_progress import SilentProgress
from tests.support.source_upstream import Forge, layout, package, release
from torchmill.core import stat_cache
from torchmill.core.console import ProgressBar
from torchmill.core.paths import Layout
from torchmill.core.stat_cache import StatCache
from torchmill.fetch.source import local
from torchmill.fetch.source.fetcher import fetch_source
from torchmill.fetch.source.request import SourceRequest
from torchmill.fetch.source.source import Source
from torchmill.fetch.source.source_dir import SourceProof, read_record
from torchmill.fetch.source.verification import check_source, verify_source


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Layout:
    monkeypatch.setattr(
        stat_cache, "SETTLED_SECONDS", -3600.0
    )  # what was made just now is remembered too
    return layout(tmp_path)


@pytest.fixture
def recall(tmp_path: Path) -> StatCache:
    return StatCache(tmp_path / "recall.json")


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
    """Write a file as somebody does whose clock shows the time of the one before."""
    seen = file.stat()
    assert len(text) == seen.st_size
    file.write_text(text)
    os.utime(file, ns=(seen.st_atime_ns, seen.st_mtime_ns))


@pytest.mark.parametrize("kind", ["unpacked", "cloned"])
def test_an_edit_that_times_and_sizes_hide_is_seen(
    kind: str, request: pytest.FixtureRequest, recall: StatCache
) -> None:
    source = request.getfixturevalue(kind)
    verify_source(source, recall)
    edit(source.path / "setup.py", "version = 2\n")
    check_source(source)  # which looks at no more than those
    for _ in range(2):
        with refused("uncommitted-changes" if kind == "cloned" else "source-changed"):
            verify_source(source, recall)
    edit(source.path / "setup.py", "version = 1\n")
    verify_source(source, recall)


def test_all_files_have_one_date_whenever_each_was_written(tmp_path: Path, place: Layout) -> None:
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


def test_a_copy_of_the_tree_is_as_good_and_looked_through_once(
    unpacked: Source, recall: StatCache
) -> None:
    """As a cache of CI brings it back: every file is another to the file system."""
    verify_source(unpacked, recall)
    aside = unpacked.path.with_name("aside")
    shutil.copytree(unpacked.path, aside, symlinks=True)
    shutil.rmtree(unpacked.path)
    aside.rename(unpacked.path)
    verify_source(unpacked, recall)
    for path in unpacked.path.iterdir():  # tar keeps seconds alone, other ways no times at all
        os.utime(path, (2 * 10**9, 2 * 10**9), follow_symlinks=False)
    check_source(unpacked)
    verify_source(unpacked, recall)
    record = read_record(unpacked.path.parent)
    assert record is not None
    assert record.source.contents
    (unpacked.path / "link").unlink()
    (unpacked.path / "link").symlink_to("absent")
    with refused("source-changed"):
        verify_source(unpacked, recall)


@pytest.mark.parametrize(
    ("origin", "code"),
    [
        ("https://[bad/x.tar.gz", "invalid-url"),
        ("file://[bad/x", "invalid-url"),
        ("~nosuchuser/src", "no-such-origin"),
    ],
)
def test_an_origin_that_is_no_address(tmp_path: Path, origin: str, code: str) -> None:
    asked = SourceRequest(package("https://h/x.git"), release("v1", None), origin=origin)
    with refused(code):
        fetch_source(asked, layout(tmp_path), SilentProgress())


def test_the_digest_of_a_source_that_is_there_counts(tmp_path: Path) -> None:
    archive = tmp_path / "a.tar.gz"
    with tarfile.open(archive, "w:gz") as file:
        member = tarfile.TarInfo("top/setup.py")
        member.size = 1
        file.addfile(member, io.BytesIO(b"\n"))
    asked = SourceRequest(package("https://h/x.git"), release("v1", None), origin=str(archive))
    fetch_source(asked, layout(tmp_path), SilentProgress())
    with refused("wrong-digest"):
        fetch_source(replace(asked, sha256="0" * 64), layout(tmp_path), SilentProgress())


def test_what_is_changed_while_it_is_copied_is_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "src"
    folder.mkdir()
    (folder / "setup.py").write_text("1\n")
    copy = local._copy_folder

    def edit(source: Path, tree: Path, bar: ProgressBar) -> tuple[str, SourceProof]:
        found = copy(source, tree, bar)
        (folder / "setup.py").write_text("twenty\n")
        return found

    asked = SourceRequest(package("https://h/x.git"), release("v1", None), origin=str(folder))
    with monkeypatch.context() as patch:
        patch.setattr(local, "_copy_folder", edit)
        fetch_source(asked, layout(tmp_path), SilentProgress())
    assert (
        fetch_source(asked, layout(tmp_path), SilentProgress()).path / "setup.py"
    ).read_text() == "twenty\n"
