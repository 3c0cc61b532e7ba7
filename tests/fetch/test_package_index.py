"""Package indexes: the files of a project, and members of wheels that are not downloaded."""

from pathlib import Path

import requests

from tests.support.index_server import MILLION, Index, serving, wheel
from tests.support.refusals import refused
from tests.support.silent_progress import SilentBar
from tools.remote_wheel import RemoteWheel, read_remote_wheels
from torchmill.core.console import ProgressBar
from torchmill.fetch.package_index import DEFAULT_INDEX, configured_index, project_files

NAME = "base-1.0.0-cp39-cp39-manylinux1_x86_64.whl"


def test_a_json_page_is_read() -> None:
    index = Index()
    index.add(
        NAME, b"x", **{"requires-python": ">=3.8", "upload-time": "2022-12-15T10:00:00Z", "yanked": "broken"}
    )
    with serving(index), requests.Session() as session:
        (file,) = project_files(session, index.url, "base")
        assert file.url == index.url.replace("/simple", f"/files/{NAME}"), "absolute, without the hash"
    assert (file.name, file.requires_python, file.uploaded) == (NAME, ">=3.8", "2022-12-15T10:00:00Z")
    assert file.yanked


def test_an_html_page_says_the_same() -> None:
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


def test_what_a_file_is_known_by_is_read() -> None:
    index = Index()
    index.add(NAME, b"x", hashes={"sha256": "12ab"}, size=1)
    index.add(NAME.replace("1.0.0", "1.0.1"), b"x", url="../../files/other.whl")
    with serving(index), requests.Session() as session:
        first, second = project_files(session, index.url, "base")
        index.json = False
        (third, _) = project_files(session, index.url, "base")
    assert (first.sha256, first.size) == ("12ab", 1)
    assert (second.sha256, second.size) == (None, None)
    assert (third.sha256, third.size) == ("0", None), "a page has it at the end of the link"


def test_an_index_that_does_not_answer_is_told() -> None:
    with serving(Index()) as index:
        gone = index.url
    with (
        requests.Session() as session,
        refused("index-unreadable"),
    ):
        project_files(session, gone, "base")


def test_an_answer_that_is_no_page_is_told() -> None:
    with serving(Index()) as index, requests.Session() as session, refused("index-unreadable"):
        project_files(session, index.url.replace("/simple", "/nowhere"), "base")


def test_the_index_is_the_one_that_pip_uses() -> None:
    assert (
        configured_index({"PIP_INDEX_URL": "https://mirror.example/simple"})
        == "https://mirror.example/simple"
    )
    nothing = {"PIP_CONFIG_FILE": "/dev/null", "HOME": "/nonexistent", "XDG_CONFIG_DIRS": "/nonexistent"}
    assert configured_index(nothing) == DEFAULT_INDEX


VERSION_PY = "__version__ = '1.0.0'\ncuda: Optional[str] = '11.7'\ngit_version = '{}'\n"


def fetched(index: Index, cache: Path, bar: ProgressBar | None = None) -> tuple[RemoteWheel, ...]:
    with requests.Session() as session:
        return read_remote_wheels(project_files(session, index.url, "base"), cache, bar or SilentBar())


def test_a_wheel_tells_what_stands_in_it(tmp_path: Path) -> None:
    index = Index()
    content = wheel(
        "base",
        "1.0.0",
        requires=["numpy", 'nvidia-cudnn-cu11 (==8.5.0.96) ; platform_system == "Linux"'],
        requires_python=">=3.8",
        version_py=VERSION_PY.format("a" * 40),
        libraries={"libtorch_cpu.so": 2 * MILLION},
    )
    index.add("base-1.0.0-1-cp313-cp313t-manylinux_2_28_x86_64.whl", content)
    index.add("base-1.0.0.tar.gz", b"a source archive is no wheel")
    with serving(index):
        (found,) = fetched(index, tmp_path)
    assert (found.python, found.platform, found.build) == ("3.13t", "manylinux_2_28_x86_64", 1)
    assert (found.commit, found.cuda, found.requires_python) == ("a" * 40, "11.7", ">=3.8")
    assert found.requires[1].startswith("nvidia-cudnn-cu11 (==8.5.0.96)")
    assert found.libraries == {"libtorch_cpu.so": 2 * MILLION}


def test_a_wheel_is_not_downloaded(tmp_path: Path) -> None:
    index = Index()
    name = "base-1.0.0-cp39-cp39-win_amd64.whl"
    index.add(name, wheel("base", "1.0.0"))
    with serving(index):
        fetched(index, tmp_path)
        assert [line for line in index.asked if "/files/" in line and "bytes=" not in line] == []
        asked = len(index.asked)
        (again,) = fetched(index, tmp_path)
        assert len(index.asked) == asked + 1, "only the page is asked for again: the wheel is remembered"
    assert (again.python, again.commit, again.cuda, again.requires) == ("3.9", None, None, ())


def test_the_cache_knows_a_file_that_was_replaced(tmp_path: Path) -> None:
    index = Index()
    index.add("base-1.0.0-py3-none-any.whl", wheel("base", "1.0.0", requires=["numpy<2"]))
    with serving(index):
        (before,) = fetched(index, tmp_path)
    with serving(index):  # at another address
        index.add("base-1.0.0-py3-none-any.whl", wheel("base", "1.0.0", requires=["numpy"]))
        (after,) = fetched(index, tmp_path)
    assert (before.python, before.requires, after.requires) == (None, ("numpy<2",), ("numpy",))


def test_a_file_that_is_no_archive_is_told(tmp_path: Path) -> None:
    index = Index()
    index.add("base-1.0.0-py3-none-any.whl", b"not a zip archive" * 100)
    with serving(index), refused("wheel-unreadable"):
        fetched(index, tmp_path)
    assert list(tmp_path.iterdir()) == [], "nothing half-read is remembered"
