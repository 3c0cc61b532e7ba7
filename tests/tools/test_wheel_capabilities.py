"""Compute capabilities are read in a library of a wheel on the index."""

import io
import zipfile
from pathlib import Path

import requests

from tests.support.index_server import Index, serving, wheel
from tests.support.silent_progress import SilentBar
from tools.remote_wheel import read_remote_wheels
from tools.wheel_capabilities import LIBRARY, with_capabilities
from torchmill.fetch.package_index import project_files

PLATFORM = "manylinux_2_28_x86_64"


def with_library(version: str, content: bytes, cuda: str = "'12.8'") -> bytes:
    stream = io.BytesIO(wheel("base", version, version_py=f"cuda = {cuda}\n"))
    with zipfile.ZipFile(stream, "a") as archive:
        archive.writestr(f"base/lib/{LIBRARY}", content)
    return stream.getvalue()


def read_capabilities(index: Index, cache: Path) -> dict[str, tuple[str, ...]]:
    with requests.Session() as session:
        files = project_files(session, index.url, "base")
        wheels = read_remote_wheels(files, cache, SilentBar())
    return {
        wheel.name.split("-cp")[0]: wheel.capabilities
        for wheel in with_capabilities(wheels, files, cache, SilentBar())
    }


def test_the_list_is_read_from_one_cuda_wheel_of_each_release(tmp_path: Path) -> None:
    index = Index()
    code = b"\x7fELF\x00is sm_90 there\x00\x01sm_75 sm_90a sm_100 sm_120 compute_120\x00rest"
    index.add(f"base-2.0.0-cp310-cp310-{PLATFORM}.whl", with_library("2.0.0", code))
    index.add(f"base-1.0.0-cp39-cp39-{PLATFORM}.whl", with_library("1.0.0", b"no list in it"))
    index.add("base-3.0.0-cp310-cp310-win_amd64.whl", with_library("3.0.0", code))
    index.add(f"base-4.0.0-cp310-cp310-{PLATFORM}.whl", with_library("4.0.0", code, cuda="None"))
    with serving(index):
        capabilities = read_capabilities(index, tmp_path)
        assert capabilities == {
            "base-2.0.0": ("7.5", "9.0a", "10.0", "12.0+PTX"),
            "base-1.0.0": (),
            "base-3.0.0": (),
            "base-4.0.0": (),
        }
        request_count = len(index.requests)
        assert read_capabilities(index, tmp_path) == capabilities
        assert len(index.requests) == request_count + 1, "only the page is downloaded again"
