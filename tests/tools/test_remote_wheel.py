"""Members of wheels on an index are read without downloading the wheels."""

from pathlib import Path

import requests

from tests.support.index_server import MILLION, Index, serving, wheel
from tests.support.refusals import refused
from tests.support.silent_progress import SilentBar
from tools.remote_wheel import RemoteWheel, read_remote_wheels
from torchmill.core.console import ProgressBar
from torchmill.fetch.package_index import project_files

VERSION_PY = "__version__ = '1.0.0'\ncuda: Optional[str] = '11.7'\ngit_version = '{}'\n"


def read_wheels(
    index: Index, cache: Path, bar: ProgressBar | None = None
) -> tuple[RemoteWheel, ...]:
    with requests.Session() as session:
        return read_remote_wheels(
            project_files(session, index.url, "base"), cache, bar or SilentBar()
        )


def test_metadata_of_a_wheel_are_read(tmp_path: Path) -> None:
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
        (remote,) = read_wheels(index, tmp_path)
    assert (remote.python, remote.platform, remote.build) == ("3.13t", "manylinux_2_28_x86_64", 1)
    assert (remote.commit, remote.cuda, remote.requires_python) == ("a" * 40, "11.7", ">=3.8")
    assert remote.requires[1].startswith("nvidia-cudnn-cu11 (==8.5.0.96)")
    assert remote.libraries == {"libtorch_cpu.so": 2 * MILLION}


def test_a_wheel_is_not_downloaded(tmp_path: Path) -> None:
    index = Index()
    name = "base-1.0.0-cp39-cp39-win_amd64.whl"
    index.add(name, wheel("base", "1.0.0"))
    with serving(index):
        read_wheels(index, tmp_path)
        assert [line for line in index.requests if "/files/" in line and "bytes=" not in line] == []
        request_count = len(index.requests)
        (remote,) = read_wheels(index, tmp_path)
        assert len(index.requests) == request_count + 1, "only the page is downloaded again"
    assert (remote.python, remote.commit, remote.cuda, remote.requires) == ("3.9", None, None, ())


def test_a_replaced_file_is_read_again(tmp_path: Path) -> None:
    index = Index()
    index.add("base-1.0.0-py3-none-any.whl", wheel("base", "1.0.0", requires=["numpy<2"]))
    with serving(index):
        (before,) = read_wheels(index, tmp_path)
    with serving(index):  # with another URL
        index.add("base-1.0.0-py3-none-any.whl", wheel("base", "1.0.0", requires=["numpy"]))
        (after,) = read_wheels(index, tmp_path)
    assert (before.python, before.requires, after.requires) == (None, ("numpy<2",), ("numpy",))


def test_a_file_that_is_no_archive_is_refused(tmp_path: Path) -> None:
    index = Index()
    index.add("base-1.0.0-py3-none-any.whl", b"not a zip archive" * 100)
    with serving(index), refused("wheel-unreadable"):
        read_wheels(index, tmp_path)
    assert list(tmp_path.iterdir()) == [], "nothing is cached"
