"""Toolkits from conda channels."""

import asyncio
import bz2
import io
import json
import platform
import socket
import subprocess
import sys
import tarfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support.index_server import Index, gone_index, serving
from tests.support.refusals import refused
from tests.support.silent_progress import SilentProgress
from torchmill.config.facts_reader import read_facts
from torchmill.config.toolkit import ToolkitSource
from torchmill.core import locks
from torchmill.core.console import ProgressDisplay
from torchmill.fetch.toolkit import conda
from torchmill.fetch.toolkit.conda import SUBDIRS, is_toolkit_package
from torchmill.fetch.toolkit.layout import placer
from torchmill.fetch.toolkit.request import ProviderOffer, ProviderRefusal, ToolkitRequest

rattler = pytest.importorskip("rattler", reason="needs py-rattler")

ARCH = platform.machine()
TARGET = "targets/x86_64-linux"
NVCC = "#!/bin/sh\necho 'Cuda compilation tools, release 12.6, V12.6.85'\n"

pytestmark = pytest.mark.skipif(
    ARCH not in SUBDIRS or sys.platform != "linux",
    reason="there are toolkits for Linux servers only",
)


def package(
    channel: Path,
    name: str,
    version: str,
    files: Mapping[str, str],
    *,
    depends: Sequence[str] = (),
    relocated: Sequence[str] = (),
) -> Path:
    """Write a package; the text "-> TARGET" makes a link, `relocated` files contain the prefix."""
    entries = [
        {
            "_path": path,
            "path_type": "softlink" if text.startswith("-> ") else "hardlink",
            **(
                {"prefix_placeholder": "/made/here", "file_mode": "text"}
                if path in relocated
                else {}
            ),
        }
        for path, text in files.items()
    ]
    index = {
        "name": name,
        "version": version,
        "build": "0",
        "build_number": 0,
        "depends": list(depends),
        "subdir": SUBDIRS[ARCH],
    }
    about = {
        "info/index.json": json.dumps(index),
        "info/paths.json": json.dumps({"paths": entries, "paths_version": 1}),
        "info/licenses/LICENSE": "terms",
    }
    file = channel / SUBDIRS[ARCH] / f"{name}-{version}-0.tar.bz2"
    file.parent.mkdir(parents=True, exist_ok=True)
    (channel / "noarch").mkdir(exist_ok=True)
    with bz2.open(file, "wb") as stream, tarfile.open(fileobj=stream, mode="w") as archive:
        for path, text in {**about, **files}.items():
            info = tarfile.TarInfo(path)
            info.mode = 0o755 if "bin/" in path else 0o644
            if text.startswith("-> "):
                info.type, info.linkname = tarfile.SYMTYPE, text.removeprefix("-> ")
                archive.addfile(info)
            else:
                info.size = len(text.encode())
                archive.addfile(info, io.BytesIO(text.encode()))
    return file


@pytest.fixture
def channel(tmp_path: Path) -> Path:
    """Make a channel with tiny toolkits 12.5 and 12.6, and a C++ compiler that they require."""
    folder = tmp_path / "channel"
    for version in ("12.5", "12.6"):
        package(folder, "cuda-version", version, {})
        package(
            folder,
            "cuda-nvcc-impl",
            f"{version}.85",
            {"bin/nvcc": NVCC, f"{TARGET}/bin/nvcc": "-> ../../../bin/nvcc", "nvvm/bin/cicc": ""},
            depends=[f"cuda-version {version}.*", "gxx_impl", f"cuda-cudart-dev {version}.*"],
        )
        package(
            folder,
            "cuda-cudart-dev",
            f"{version}.77",
            {
                f"{TARGET}/include/cuda_runtime_api.h": f"runtime {version}",
                f"{TARGET}/include/cuda.h": "",
                f"{TARGET}/lib/libcudart.so.{version}.77": "library",
                f"{TARGET}/lib/libcudart.so.12": f"-> libcudart.so.{version}.77",
                f"{TARGET}/lib/stubs/libcuda.so": "stub",
                "lib/libcudart.so.12": f"-> ../{TARGET}/lib/libcudart.so.12",
                f"lib/libcudart.so.{version}.77": f"-> ../{TARGET}/lib/libcudart.so.{version}.77",
                "lib/pkgconfig/cudart.pc": "prefix=/made/here",
                f"{TARGET}/lib/cmake/where.cmake": "/made/here",
            },
            depends=[f"cuda-version {version}.*"],
            relocated=["lib/pkgconfig/cudart.pc", f"{TARGET}/lib/cmake/where.cmake"],
        )
    package(folder, "gxx_impl", "13.3", {"bin/g++": "", "lib/libstdc++.so": ""})
    asyncio.run(rattler.index.index_fs(folder))
    return folder


@pytest.fixture
def served(channel: Path) -> Iterator[str]:
    """Serve the channel."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: object) -> None:  # noqa: A002 (the base class's)
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(channel)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


PACKAGES = ("cuda-nvcc-impl", "cuda-version {version}.*")


def ask_channels(
    cache: Path, *channels: str, packages: Sequence[str] = PACKAGES
) -> ProviderOffer | ProviderRefusal:
    """Request CUDA 12.6, with each channel as a source of its own, and return the answer."""
    sources = [
        ToolkitSource("conda", "toolkit", ("12.6",), tuple(packages), (ARCH,), (channel,), None, "")
        for channel in channels
    ]
    answer = conda.offer(
        ToolkitRequest("toolkit", "12.6", None, ARCH), sources, cache, SilentProgress()
    )
    assert isinstance(answer, ProviderOffer | ProviderRefusal)
    return answer


def test_a_solution_becomes_one_cuda_home(served: str, tmp_path: Path) -> None:
    offer = ask_channels(tmp_path / "cache", served)
    assert isinstance(offer, ProviderOffer), offer
    assert [(piece.name, piece.version) for piece in offer.pieces] == [
        ("cuda-cudart-dev", "12.6.77"),
        ("cuda-nvcc-impl", "12.6.85"),
        ("cuda-version", "12.6"),
    ]
    assert (offer.full, offer.provider) == ("12.6.85", "conda")
    assert all(piece.size and len(piece.sha256) == 64 for piece in offer.pieces)
    home = tmp_path / "place" / "home"
    home.mkdir(parents=True)
    offer.fill(home)
    output = subprocess.run([home / "bin/nvcc"], capture_output=True, text=True, check=True).stdout
    assert "release 12.6" in output
    assert not (home / "bin/nvcc").is_symlink()
    assert (home / "include/cuda_runtime_api.h").read_text() == "runtime 12.6"
    assert (home / "lib64/libcudart.so").resolve().name == "libcudart.so.12.6.77"
    assert (home / "lib64/stubs/libcuda.so").read_text() == "stub"
    assert (home / "licenses/cuda-cudart-dev/LICENSE").read_text() == "terms"
    names = [path.name for path in home.rglob("*")]
    assert not {"g++", "libstdc++.so", "cudart.pc", "where.cmake", "info"} & set(names)
    assert [path.name for path in home.parent.iterdir()] == ["home"], "no temporary folder remains"


def test_one_process_reads_channels_at_a_time(channel: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    with ThreadPoolExecutor(1) as pool:
        with locks.wait_for_file(cache / "downloads/channels.lock", pytest.fail):
            asking = pool.submit(ask_channels, cache, channel.as_uri())
            with pytest.raises(TimeoutError):
                asking.result(timeout=3)
        assert isinstance(asking.result(timeout=60), ProviderOffer)


def test_links_survive_moving_the_folder(channel: Path, tmp_path: Path) -> None:
    offer = ask_channels(tmp_path / "cache", channel.as_uri())
    assert isinstance(offer, ProviderOffer), offer
    home = tmp_path / "place" / "home"
    home.mkdir(parents=True)
    offer.fill(home)
    moved = home.rename(tmp_path / "moved")
    assert [path for path in moved.rglob("*") if path.is_symlink() and not path.exists()] == []
    assert not list((tmp_path / "cache").glob(f"downloads/*-{ARCH}/*")), (
        "files of a local channel are not copied"
    )


def test_the_next_channel_is_asked_if_one_does_not_have_it(served: str, tmp_path: Path) -> None:
    empty = tmp_path / "empty"
    package(empty, "cuda-version", "12.6", {})
    asyncio.run(rattler.index.index_fs(empty))
    assert isinstance(ask_channels(tmp_path / "cache", empty.as_uri(), served), ProviderOffer)


def test_the_refusal_names_what_a_channel_lacks(served: str, tmp_path: Path) -> None:
    answer = ask_channels(
        tmp_path / "cache", served, packages=("cuda-nvcc-impl", "cuda-version 12.7.*")
    )
    assert isinstance(answer, ProviderRefusal)
    assert answer.reason.startswith(f"{served} does not have all of it (")
    assert "cuda-version 12.7.*" in answer.reason
    assert "\n" not in answer.reason


def test_an_unreachable_channel_is_named(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    answer = ask_channels(tmp_path / "cache", f"http://127.0.0.1:{port}/closed")
    assert isinstance(answer, ProviderRefusal)
    assert answer.reason == "127.0.0.1 cannot be reached (connection refused)"


def test_a_silent_channel_is_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHMILL_SILENCE", "0.1")
    with socket.create_server(("127.0.0.1", 0)) as server:  # takes connections, but never answers
        answer = ask_channels(
            tmp_path / "cache", f"http://127.0.0.1:{server.getsockname()[1]}/silent"
        )
    assert isinstance(answer, ProviderRefusal)
    assert "cannot be read (" in answer.reason


def test_an_invalid_channel_is_named(served: str, tmp_path: Path) -> None:
    answer = ask_channels(tmp_path / "cache", f"{served}/nothing")
    assert isinstance(answer, ProviderRefusal)
    assert answer.reason.startswith(f"{served}/nothing ")
    misnamed = ask_channels(tmp_path / "cache", "http://:bad")
    assert isinstance(misnamed, ProviderRefusal)
    assert misnamed.reason.startswith("http://:bad names no channel (")


def test_a_package_that_is_not_the_listed_one_is_refused(
    channel: Path, served: str, tmp_path: Path
) -> None:
    offers = (
        ask_channels(tmp_path / "one", served),
        ask_channels(tmp_path / "two", channel.as_uri()),
    )
    name = f"{SUBDIRS[ARCH]}/cuda-cudart-dev-12.6.77-0.tar.bz2"
    (channel / name).write_bytes((channel / name).read_bytes()[:-7] + b"changed")
    home = tmp_path / "home"
    home.mkdir()
    for offer in offers:
        assert isinstance(offer, ProviderOffer)
        with refused("wrong-digest"):
            offer.fill(home)


def test_a_missing_py_rattler_is_the_reason_of_the_refusal(
    served: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "rattler", None)  # as if it were not installed
    with gone_index() as gone:
        monkeypatch.setenv("PIP_INDEX_URL", gone.url)
        answer = ask_channels(tmp_path, served)
    assert isinstance(answer, ProviderRefusal)
    assert answer.reason.startswith(
        "it needs py-rattler, which could not be installed (cannot reach 127.0.0.1 ("
    )


def test_py_rattler_is_not_installed_for_an_unreachable_channel(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "rattler", None)
    with serving(Index()) as index, gone_index() as gone:
        monkeypatch.setenv("PIP_INDEX_URL", index.url)
        answer = ask_channels(tmp_path, gone.url)
    assert isinstance(answer, ProviderRefusal)
    assert answer.reason == "127.0.0.1 cannot be reached (connection refused)"
    assert index.requests == []


def test_a_mirror_replaces_the_server_of_anaconda(
    served: str, channel: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("CONDA_CHANNEL_ALIAS", served.removesuffix("/"))
    (channel / "nvidia" / "label").mkdir(parents=True)
    for folder in (SUBDIRS[ARCH], "noarch"):
        (channel / folder).rename(channel / "nvidia" / "label" / folder)
    offer = ask_channels(tmp_path / "cache", "nvidia/label")
    assert isinstance(offer, ProviderOffer), offer
    assert all(piece.url.startswith(f"{served}/nvidia/label/") for piece in offer.pieces)
    assert conda.channel_address("nvidia", {}) == "https://conda.anaconda.org/nvidia"
    assert conda.channel_address("https://own.example/channel", {}) == "https://own.example/channel"


def test_shipped_channels_and_packages_can_be_parsed() -> None:
    sources = read_facts(Path(__file__).parents[2] / "build_configs").toolkit_sources
    toolkits = [source for source in sources if source.provider == "conda"]
    assert toolkits
    for source in toolkits:
        assert all(rattler.Channel(name).base_url.startswith("https://") for name in source.places)
        for spec in source.packages:
            rattler.MatchSpec(spec.replace("{version}", source.versions[0]), strict=True)
        if source.kind == "toolkit":
            assert (
                source.packages[0]
                .split()[1]
                .removeprefix("==")
                .startswith(f"{source.versions[0]}.")
            )


def test_magma_is_found_by_the_beginning_of_a_version(tmp_path: Path) -> None:
    folder = tmp_path / "channel"
    for version in ("2.5.4", "2.6.1"):
        files = {
            "include/magma_v2.h": version,
            "lib/libmagma.a": version,
            "lib/libmagma_sparse.a": "",
            "lib/pkgconfig/magma.pc": "",
        }
        package(folder, "magma-cuda118", version, files, depends=["blas"])
    package(folder, "blas", "1.0", {"lib/libblas.so": ""})
    asyncio.run(rattler.index.index_fs(folder))
    channel = (folder.as_uri(),)
    spec = ToolkitSource(
        "conda", "magma", (), ("magma-cuda118 ={version}",), (ARCH,), channel, "11.8", "", ("7.0",)
    )
    for beginning, version in (("", "2.6.1"), ("2.6", "2.6.1"), ("2.5.4", "2.5.4")):
        answer = conda.offer(
            ToolkitRequest("magma", beginning, "11.8", ARCH),
            [spec],
            tmp_path / "cache",
            SilentProgress(),
        )
        assert isinstance(answer, ProviderOffer), answer
        assert (answer.request.name, len(answer.pieces)) == (f"magma-{version}-cu118", 1)
        home = tmp_path / version / beginning / "home"
        home.mkdir(parents=True)
        answer.fill(home)
        assert (home / "lib/libmagma.a").read_text() == version
        names = {str(path.relative_to(home)) for path in home.rglob("*") if path.is_file()}
        assert names == {"include/magma_v2.h", "lib/libmagma.a", "licenses/magma-cuda118/LICENSE"}


@pytest.mark.parametrize(
    ("path", "place"),
    [
        ("bin/nvcc", "bin/nvcc"),
        ("lib/libcudart.so.11.0", "lib64/libcudart.so.11.0"),
        ("lib/stubs/libcuda.so", "lib64/stubs/libcuda.so"),
        ("targets/x86_64-linux/lib/libcudart.so.12", "lib64/libcudart.so.12"),
        ("targets/sbsa-linux/include/cuda.h", "include/cuda.h"),
        ("targets/x86_64-linux/nvvm/libdevice/libdevice.10.bc", "nvvm/libdevice/libdevice.10.bc"),
        ("lib/cmake/cub/cub-config.cmake", "lib64/cmake/cub/cub-config.cmake"),
        ("lib/pkgconfig/cudart.pc", None),
        ("lib/python3.12/site-packages/x.py", None),
        ("etc/conda/activate.d/nvcc.sh", None),
        ("info/index.json", None),
        ("targets/x86_64-linux/lib64", None),
        ("LICENSE", None),
        ("lib/../../outside", None),
    ],
)
def test_files_of_packages_are_placed(path: str, place: str | None) -> None:
    assert placer("conda")(path) == place


@pytest.mark.parametrize(
    "package",
    [
        "cuda-nvcc",
        "cuda-cccl_linux-64",
        "cuda-nvcc-dev_linux-64",
        "cuda-cudart-dev",
        "libcublas",
        "libcusparse-dev",
    ],
)
def test_compiler_and_libraries_belong_to_a_toolkit(package: str) -> None:
    assert is_toolkit_package(package)


@pytest.mark.parametrize(
    "package",
    [
        "gcc_impl_linux-64",
        "libcurl",
        "libstdcxx-ng",
        "cuda-gdb",
        "cuda-nsight",
        "cuda-nvvp",
        "libnpp",
    ],
)
def test_other_packages_do_not_belong_to_a_toolkit(package: str) -> None:
    assert not is_toolkit_package(package)


REQUEST = ToolkitRequest("toolkit", "12.6", None, "x86_64")


def of_channel(spec: str, channel: str) -> ToolkitSource:
    return ToolkitSource("conda", "toolkit", ("12.6",), (spec,), ("x86_64",), (channel,), None, "")


def test_a_password_of_a_channel_is_not_shown(served: str, tmp_path: Path) -> None:
    address = served.replace("http://", "http://me:secret@")
    screen, source = io.StringIO(), of_channel("cuda-nvcc ==12.6.1", address)
    answer = conda.offer(REQUEST, [source], tmp_path, ProgressDisplay(screen))
    assert isinstance(answer, ProviderRefusal)
    assert served.removeprefix("http://") in screen.getvalue()
    assert "secret" not in f"{screen.getvalue()} {answer}"


def test_an_invalid_package_spec_is_refused(tmp_path: Path) -> None:
    source = of_channel("cuda-nvcc 12.6.1", tmp_path.as_uri())
    assert isinstance(conda.offer(REQUEST, [source], tmp_path, SilentProgress()), ProviderRefusal)
