"""`--from pypi`: archives of a local index, intact and broken ones."""

import gzip
import hashlib
import io
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.changed_facts import change_groups
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
    archive = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=archive, mode="wb", mtime=0) as zipped,
        tarfile.open(fileobj=zipped, mode="w") as tar,
    ):
        for file in (setup, "PKG-INFO"):
            info = tarfile.TarInfo(f"torch-{version}/{file}")
            info.size = len(version)
            tar.addfile(info, io.BytesIO(version.encode()))
    return archive.getvalue()


def add(index: Index, name: str, content: bytes, **attributes: Any) -> str:
    """Put a file on the index, and return its digest."""
    digest = hashlib.sha256(content).hexdigest()
    index.add(name, content, **({"hashes": {"sha256": digest}} | attributes))
    return digest


@pytest.fixture
def index(monkeypatch: pytest.MonkeyPatch) -> Iterator[Index]:
    with serving(Index()) as served:
        monkeypatch.setenv("PIP_INDEX_URL", served.url)
        yield served


@pytest.fixture
def place(tmp_path: Path) -> Layout:
    return layout(tmp_path)


def make_request(
    tag: str = "v2.1", pypi: str | None = "Torch", sha256: str | None = None
) -> SourceRequest:
    """Return a request for a release of a package that is only on PyPI."""
    torch = change_groups(package(""), source={"pypi": pypi})
    digested = change_groups(release(tag, None), proof={"sha256": sha256})
    return SourceRequest(torch, digested, origin="pypi")


def downloads(index: Index) -> int:
    return sum(line.startswith("GET /files/") for line in index.requests)


def test_the_archive_of_the_release_is_checked_and_unpacked(index: Index, place: Layout) -> None:
    add(index, "torch-2.1.1.tar.gz", sdist("2.1.1"))
    add(index, "torch-2.1-py3-none-any.whl", b"a wheel")
    digest = add(
        index, "torch-2.1.0.tar.gz", sdist("2.1.0"), yanked="old"
    )  # requested by exactly this version
    source = fetcher.fetch_source(make_request(sha256=digest), place, SilentProgress())
    assert (source.path / "PKG-INFO").read_text() == "2.1.0"
    assert (source.provider, source.commit, source.archive, source.verified) == (
        "pypi",
        None,
        digest,
        True,
    )
    assert source.origin == f"PyPI's torch-2.1.0.tar.gz (sha256 {digest}, as recorded)"
    assert load_source(place, "torch", "v2.1") == source
    verification.check_source(source)
    assert downloads(index) == 1
    assert fetcher.fetch_source(make_request(), place, SilentProgress()) == source
    assert downloads(index) == 1, "the second fetch downloads nothing"
    with refused("digest-differs-from-facts"):
        fetcher.fetch_source(make_request(sha256="e" * 64), place, SilentProgress())
    assert {path.name for path in place.source("torch").iterdir()} == {"v2.1", "lock"}


def test_of_several_archives_the_recorded_one_is_taken(index: Index, place: Layout) -> None:
    digest = add(index, "torch-2.1.tar.gz", sdist("2.1"))
    add(index, "torch-2.1.zip", b"another archive")
    source = fetcher.fetch_source(make_request(sha256=digest), place, SilentProgress())
    assert (source.archive, source.verified) == (digest, True)


def test_digests_in_links_are_compared(index: Index, place: Layout) -> None:
    index.json = False
    content = sdist("2.1")
    index.add("torch-2.1.tar.gz", content)
    with refused("wrong-digest"):
        fetcher.fetch_source(make_request(), place, SilentProgress())


def test_a_changed_tree_is_refused_with_the_command_that_helps(index: Index, place: Layout) -> None:
    add(index, "torch-2.1.tar.gz", sdist("2.1"))
    source = fetcher.fetch_source(make_request(), place, SilentProgress())
    (source.path / "PKG-INFO").write_text("mine")
    with refused("source-changed") as raised:
        verification.check_source(source)
    assert "PKG-INFO" in str(raised.value)
    assert "`invoke fetch --tag v2.1 --from pypi --discard`" in str(raised.value)


Damage = Callable[[Index], object]


@pytest.mark.parametrize(
    ("broken", "request_", "code"),
    [
        (
            lambda index: add(index, "torch-2.0.tar.gz", sdist("2.0")),
            make_request(),
            "release-not-on-index",
        ),
        (lambda _: None, make_request(), "release-not-on-index"),
        (
            lambda index: add(index, "torch-2.1.tar.gz", sdist("2.1"), hashes={"sha256": "f" * 64}),
            make_request(),
            "wrong-digest",
        ),
        (
            lambda index: index.add(
                "torch-2.1.tar.gz", sdist("2.1"), url="../../files/torch-2.1.tar.gz"
            ),
            make_request(),
            "no-digest-on-index",
        ),
        (
            lambda index: add(index, "torch-2.1.tar.gz", sdist("2.1")),
            make_request(sha256="e" * 64),
            "digest-differs-from-facts",
        ),
        (
            lambda index: add(index, "torch-2.1.tar.gz", sdist("2.1", "README")),
            make_request(),
            "no-python-project",
        ),
        (lambda _: None, make_request(pypi=None), "no-pypi-project"),
    ],
)
def test_unusable_archives_are_refused_and_leave_nothing(
    index: Index, place: Layout, broken: Damage, request_: SourceRequest, code: str
) -> None:
    broken(index)
    with refused(code):
        fetcher.fetch_source(request_, place, SilentProgress())
    assert load_source(place, "torch", "v2.1") is None
    leftovers = [
        path for path in place.source("torch").rglob("*") if path.is_file() and path.name != "lock"
    ]
    assert [path.name for path in leftovers if path.suffix not in {".gz", ".lock"}] == []


def test_a_login_is_sent_to_the_index_only(
    index: Index, place: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    add(index, "torch-2.1.tar.gz", sdist("2.1"))
    monkeypatch.setenv("PIP_INDEX_URL", index.url.replace("://", "://me:p%40ss@"))
    source = fetcher.fetch_source(make_request(), place, SilentProgress())
    assert (source.path / "PKG-INFO").read_text() == "2.1"
    assert index.users == ["me:p@ss", "me:p@ss"]
    with refused("release-not-on-index"):
        fetcher.fetch_source(make_request("v2.2"), place, SilentProgress())


def test_an_unreachable_index_is_refused(place: Layout, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    with refused("index-unreadable"):
        fetcher.fetch_source(make_request(), place, SilentProgress())
