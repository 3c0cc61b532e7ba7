"""`--from pypi`: archives of an index of our own, and what is wrong with some of them."""

import gzip
import hashlib
import io
import tarfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.index_server import Index, serving
from tests.support.refusals import refused
from tests.support.silent_progress import SilentProgress
from tests.support.source_upstream import layout, package, release
from torchmill.core.paths import Layout
from torchmill.fetch.source import fetcher, verification
from torchmill.fetch.source.request import SourceRequest
from torchmill.fetch.source.source_dir import load_source


def sdist(version: str, setup: str = "setup.py") -> bytes:
    """Return a tiny source archive."""
    made = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=made, mode="wb", mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as tar,
    ):
        for file in (setup, "PKG-INFO"):
            info = tarfile.TarInfo(f"torch-{version}/{file}")
            info.size = len(version)
            tar.addfile(info, io.BytesIO(version.encode()))
    return made.getvalue()


def add(index: Index, name: str, content: bytes, **said: Any) -> str:
    """Put a file on the index, with its digest; return that."""
    digest = hashlib.sha256(content).hexdigest()
    index.add(name, content, **({"hashes": {"sha256": digest}} | said))
    return digest


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    with serving(Index()) as served:
        monkeypatch.setenv("PIP_INDEX_URL", served.url)
        yield served


@pytest.fixture
def place(tmp_path: Path) -> Layout:
    return layout(tmp_path)


def asked(
    tag: str = "v2.1", pypi: str | None = "Torch", sha256: str | None = None
) -> SourceRequest:
    """Return a request for a release of a package that is nowhere but on PyPI."""
    wanted = replace(package(""), pypi=pypi)
    return SourceRequest(wanted, replace(release(tag, None), sha256=sha256), origin="pypi")


def downloads(index: Index) -> int:
    return sum(line.startswith("GET /files/") for line in index.asked)


def test_the_archive_of_the_release_is_checked_and_unpacked(index: Index, place: Layout) -> None:
    add(index, "torch-2.1.1.tar.gz", sdist("2.1.1"))
    add(index, "torch-2.1-py3-none-any.whl", b"a wheel")
    digest = add(
        index, "torch-2.1.0.tar.gz", sdist("2.1.0"), yanked="old"
    )  # asked for by its very version
    found = fetcher.fetch_source(asked(sha256=digest), place, SilentProgress())
    assert (found.path / "PKG-INFO").read_text() == "2.1.0"
    assert (found.provider, found.commit, found.archive, found.verified) == (
        "pypi",
        None,
        digest,
        True,
    )
    assert found.origin == f"PyPI's torch-2.1.0.tar.gz (sha256 {digest}, as recorded)"
    assert load_source(place, "torch", "v2.1") == found
    verification.check_source(found)
    assert downloads(index) == 1
    assert fetcher.fetch_source(asked(), place, SilentProgress()) == found
    assert downloads(index) == 1, "what is there is not asked for again"
    with refused("digest-differs-from-facts"):
        fetcher.fetch_source(asked(sha256="e" * 64), place, SilentProgress())
    assert {path.name for path in place.source("torch").iterdir()} == {"v2.1", "lock"}


def test_digests_in_links_of_an_index_count(index: Index, place: Layout) -> None:
    index.json = False
    content = sdist("2.1")
    index.add("torch-2.1.tar.gz", content)
    with refused("wrong-digest"):
        fetcher.fetch_source(asked(), place, SilentProgress())


def test_what_changed_in_the_tree_is_named_with_its_cure(index: Index, place: Layout) -> None:
    add(index, "torch-2.1.tar.gz", sdist("2.1"))
    found = fetcher.fetch_source(asked(), place, SilentProgress())
    (found.path / "PKG-INFO").write_text("mine")
    with refused("source-changed") as raised:
        verification.check_source(found)
    assert "PKG-INFO" in str(raised.value)
    assert "`invoke fetch --tag v2.1 --from pypi --discard`" in str(raised.value)


Break = Callable[[Index], object]


@pytest.mark.parametrize(
    ("broken", "request_", "code"),
    [
        (
            lambda index: add(index, "torch-2.0.tar.gz", sdist("2.0")),
            asked(),
            "release-not-on-index",
        ),
        (lambda _: None, asked(), "release-not-on-index"),
        (
            lambda index: add(index, "torch-2.1.tar.gz", sdist("2.1"), hashes={"sha256": "f" * 64}),
            asked(),
            "wrong-digest",
        ),
        (
            lambda index: index.add(
                "torch-2.1.tar.gz", sdist("2.1"), url="../../files/torch-2.1.tar.gz"
            ),
            asked(),
            "no-digest-on-index",
        ),
        (
            lambda index: add(index, "torch-2.1.tar.gz", sdist("2.1")),
            asked(sha256="e" * 64),
            "digest-differs-from-facts",
        ),
        (
            lambda index: add(index, "torch-2.1.tar.gz", sdist("2.1", "README")),
            asked(),
            "no-python-project",
        ),
        (lambda _: None, asked(pypi=None), "no-pypi-project"),
    ],
)
def test_what_is_wrong_is_said_and_nothing_is_left(
    index: Index, place: Layout, broken: Break, request_: SourceRequest, code: str
) -> None:
    broken(index)
    with refused(code):
        fetcher.fetch_source(request_, place, SilentProgress())
    assert load_source(place, "torch", "v2.1") is None
    left = [
        path for path in place.source("torch").rglob("*") if path.is_file() and path.name != "lock"
    ]
    assert [path.name for path in left if path.suffix != ".gz"] == []


def test_whoever_the_index_knows_is_named_to_it_and_to_nobody_else(
    index: Index, place: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(index, "torch-2.1.tar.gz", sdist("2.1"))
    monkeypatch.setenv("PIP_INDEX_URL", index.url.replace("://", "://me:p%40ss@"))
    found = fetcher.fetch_source(asked(), place, SilentProgress())
    assert (found.path / "PKG-INFO").read_text() == "2.1"
    assert index.users == ["me:p@ss", "me:p@ss"]
    with refused("release-not-on-index"):
        fetcher.fetch_source(asked("v2.2"), place, SilentProgress())


def test_an_index_that_does_not_answer_is_named_with_the_ways_out(
    place: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with refused("index-unreadable"):
        fetcher.fetch_source(asked(), place, SilentProgress())
