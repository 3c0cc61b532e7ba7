"""Package indexes: the files of a project."""

import os
from typing import Any

import pytest
import requests
from packaging.version import Version

from tests.support.index_server import Index, serving
from tests.support.refusals import refused
from torchmill.fetch import package_index
from torchmill.fetch.package_index import DEFAULT_INDEX, configured_index, project_files

NAME = "base-1.0.0-cp39-cp39-manylinux1_x86_64.whl"


def test_a_json_page_is_read() -> None:
    index = Index()
    index.add(
        NAME,
        b"x",
        **{"requires-python": ">=3.8", "upload-time": "2022-12-15T10:00:00Z", "yanked": "broken"},
    )
    with serving(index), requests.Session() as session:
        (file,) = project_files(session, index.url, "base")
        assert file.url == index.url.replace("/simple", f"/files/{NAME}"), (
            "absolute, without the hash"
        )
    assert (file.name, file.requires_python, file.uploaded) == (
        NAME,
        ">=3.8",
        "2022-12-15T10:00:00Z",
    )
    assert file.yanked


def test_versions_are_those_of_wheels_and_source_archives() -> None:
    index = Index()
    for name in (NAME, "base-1.1.tar.gz", "base-1.2.0.exe", "base-extras-2.0.tar.gz", "base-x.zip"):
        index.add(name, b"x")
    with serving(index), requests.Session() as session:
        files = project_files(session, index.url, "base")
    versions = package_index.offered_versions(files, "base")
    assert sorted(map(str, versions)) == ["1.0.0", "1.1"]


def test_an_html_page_is_read() -> None:
    index = Index(json=False)
    index.add(NAME, b"x", **{"requires-python": ">=3.8,<4"})
    index.add(NAME.replace("1.0.0", "1.0.1"), b"x", **{"upload-time": "2023-01-01", "yanked": ""})
    with serving(index), requests.Session() as session:
        first, second = project_files(session, f"{index.url}/", "base")
    assert (first.name, first.requires_python, first.uploaded, first.yanked) == (
        NAME,
        ">=3.8,<4",
        None,
        False,
    )
    assert (second.requires_python, second.uploaded, second.yanked) == (None, "2023-01-01", True)


def test_digest_and_size_of_a_file_are_read() -> None:
    index = Index()
    index.add(NAME, b"x", hashes={"sha256": "12ab"}, size=1)
    index.add(NAME.replace("1.0.0", "1.0.1"), b"x", url="../../files/other.whl")
    with serving(index), requests.Session() as session:
        first, second = project_files(session, index.url, "base")
        index.json = False
        (third, _) = project_files(session, index.url, "base")
    assert (first.sha256, first.size) == ("12ab", 1)
    assert (second.sha256, second.size) == (None, None)
    assert (third.sha256, third.size) == ("0", None), "in HTML it is at the end of the link"


def test_an_unreachable_index_is_refused() -> None:
    with serving(Index()) as index:
        gone = index.url
    with (
        requests.Session() as session,
        refused("index-unreadable"),
    ):
        project_files(session, gone, "base")


def test_an_answer_that_is_no_page_is_refused() -> None:
    with serving(Index()) as index, requests.Session() as session, refused("index-unreadable"):
        project_files(session, index.url.replace("/simple", "/nowhere"), "base")


def test_the_index_is_the_one_that_pip_uses() -> None:
    assert (
        configured_index({"PIP_INDEX_URL": "https://mirror.example/simple"})
        == "https://mirror.example/simple"
    )
    nothing = {
        "PIP_CONFIG_FILE": "/dev/null",
        "HOME": "/nonexistent",
        "XDG_CONFIG_DIRS": "/nonexistent",
    }
    assert configured_index(nothing) == DEFAULT_INDEX


@pytest.mark.parametrize(
    "index",
    [
        "user:secret@host/simple",
        "htps://me:secret@host/simple",
        "https://me:se/secret@host/simple",
        "https://me:secret@[bad/simple",
    ],
)
def test_an_invalid_index_is_refused_without_its_password(index: str) -> None:
    with refused("index-unreadable") as caught:
        configured_index({**os.environ, "PIP_INDEX_URL": index})
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(("size", "read"), [("5", 5), (None, None), (0, None)])
def test_sizes_and_digests_of_careless_indexes_are_read(size: Any, read: int | None) -> None:
    index = Index()
    index.add(NAME, b"x", hashes={"sha256": "12AB"}, size=size)
    with serving(index), requests.Session() as session:
        (file,) = project_files(session, index.url, "base")
    assert (file.sha256, file.size) == ("12ab", read)


@pytest.mark.parametrize("attributes", [{"filename": None}, {"size": "big"}])
def test_nonsense_on_a_page_is_refused(attributes: dict[str, Any]) -> None:
    index = Index()
    index.add(NAME, b"x", **attributes)
    with serving(index), requests.Session() as session, refused("index-unreadable"):
        project_files(session, index.url, "base")


def test_a_link_that_is_no_address_is_left_out() -> None:
    page = '<a href="http://[bad/a-1.tar.gz">a</a> <a href="a-2.tar.gz">a</a>'
    (file,) = package_index.parse_html_page(page, "https://index.example/a/")
    assert file.url == "https://index.example/a/a-2.tar.gz"


def test_files_with_names_and_bounds_beyond_all_measure_are_left_out() -> None:
    digits = "9" * 5000  # of which Python makes no number
    page = (
        f'<a href="a-{digits}.tar.gz">a</a> <a href="a-{digits}-py3-none-any.whl">a</a> '
        f'<a href="a-1.tar.gz" data-requires-python="&gt;={digits}">a</a> <a href="a-2.tar.gz">a</a>'
    )
    files = package_index.parse_html_page(page, "https://index.example/a/")
    assert [file.name for file in files] == ["a-2.tar.gz"]
    assert package_index.offered_versions(files, "a") == {Version("2")}


def test_a_page_of_very_many_tags_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(package_index, "MOST_TAGS", 10)
    link = '<a href="a-1.tar.gz">a</a>'
    assert len(package_index.parse_html_page(link * 10, "https://index.example/a/")) == 10
    for page in (link * 11, "<b>" * 11, "<br/>" * 11):
        with refused("page-too-large"):
            package_index.parse_html_page(page, "https://index.example/a/")
