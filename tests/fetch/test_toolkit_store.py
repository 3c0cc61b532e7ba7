"""The cache of installed toolkits, and its downloads."""

import errno
import hashlib
import os
import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.index_server import Index, serving
from tests.support.refusals import refused
from tests.support.repeated_steps import downloaded_names
from tests.support.silent_progress import SilentBar
from torchmill.config.toolkit import ProviderPackage
from torchmill.core.errors import HostError
from torchmill.fetch.toolkit.request import ToolkitRequest
from torchmill.fetch.toolkit.store import fetch_piece, make_in_store
from torchmill.host.provisioned import RECORD, ProvisionedFolder, ProvisionRecord, list_provisioned

PIECE = ProviderPackage("debian", "nvcc", "11.8.89", "nvcc.deb", "", "ab" * 32, 7)
RECORDED = ProvisionRecord("toolkit", "11.8", "11.8.89", "debian", (PIECE,))


def filled(folder: Path) -> tuple[str, ProvisionRecord]:
    assert list(folder.iterdir()) == []
    (folder / "bin").mkdir()
    (folder / "bin/nvcc").write_text("nvcc")
    return "11.8", RECORDED


def quiet(_: str) -> None:
    pass


def fail_if_called(_: Path) -> tuple[str, ProvisionRecord]:
    raise AssertionError("it is there")


def make(
    cache: Path,
    fill: Callable[[Path], tuple[str, ProvisionRecord]],
    note: Callable[[str], None] = quiet,
) -> ProvisionedFolder:
    request = ToolkitRequest("toolkit", "11.8", None, "x86_64")
    return make_in_store(
        cache, request, lambda: list_provisioned(cache, "x86_64").get("11.8"), fill, note
    )


def test_an_installed_toolkit_has_its_record(tmp_path: Path) -> None:
    assert list_provisioned(tmp_path, "x86_64") == {}
    installed = make(tmp_path, filled)
    assert installed.home == tmp_path / "toolkits/11.8-x86_64"
    assert (installed.home / "bin/nvcc").read_text() == "nvcc"
    assert list_provisioned(tmp_path, "x86_64") == {"11.8": installed}
    assert installed.record == RECORDED
    assert list_provisioned(tmp_path, "aarch64") == {}, "it is for another arch"
    assert make(tmp_path, fail_if_called) == installed


def test_a_failed_installation_leaves_nothing(tmp_path: Path) -> None:
    def broken(folder: Path) -> tuple[str, ProvisionRecord]:
        (folder / "half").write_text("half")
        raise HostError("no", code="no")

    for _ in range(2):
        with refused("no"):
            make(tmp_path, broken)
    assert list_provisioned(tmp_path, "x86_64") == {}
    leftover = tmp_path / "toolkits/.making-11.8-x86_64/whole"
    leftover.mkdir()
    (leftover / "half").write_text("of a run that was killed")
    make(tmp_path, filled)
    assert not leftover.exists()


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"kind": "toolkit", "pieces": [{"nonsense": 1}]}']
)
def test_a_folder_without_a_record_is_installed_anew(tmp_path: Path, text: str) -> None:
    folder = make(tmp_path, filled).home
    (folder / RECORD).write_text(text)
    assert list_provisioned(tmp_path, "x86_64") == {}
    (folder / "bin/nvcc").write_text("changed")
    make(tmp_path, filled)
    assert (folder / "bin/nvcc").read_text() == "nvcc"


def test_a_full_disk_is_reported(tmp_path: Path) -> None:
    def full(_: Path) -> tuple[str, ProvisionRecord]:
        raise OSError(errno.ENOSPC, "No space left on device")

    with refused("disk-full"):
        make(tmp_path, full)


def test_two_processes_install_once(tmp_path: Path) -> None:
    noted = threading.Event()
    begun = threading.Event()
    notes: list[str] = []

    def slow(folder: Path) -> tuple[str, ProvisionRecord]:
        begun.set()
        assert noted.wait(60)
        return filled(folder)

    def note(text: str) -> None:
        notes.append(text)
        noted.set()

    first = threading.Thread(target=make, args=(tmp_path, slow))
    first.start()
    assert begun.wait(60)
    assert make(tmp_path, fail_if_called, note).record == RECORDED
    first.join()
    assert notes == [f"waiting for the run that installs 11.8 (process {os.getpid()})"]


def test_a_cache_that_cannot_be_written_is_reported(tmp_path: Path) -> None:
    (tmp_path / "toolkits").write_text("a file")
    with pytest.raises(HostError):
        make(tmp_path, filled)
    assert list_provisioned(tmp_path, "x86_64") == {}
    assert (tmp_path / "toolkits").is_file()


CONTENT = b"a wheel, say"


def piece(url: str, content: bytes = CONTENT) -> ProviderPackage:
    digest = hashlib.sha256(content).hexdigest()
    return ProviderPackage(
        "pypi",
        "nvcc",
        "13.0",
        "nvcc.whl",
        url.replace("/simple", "/files/nvcc.whl"),
        digest,
        len(content),
    )


def test_a_piece_is_downloaded_once(tmp_path: Path) -> None:
    with serving(Index()) as index:
        index.add("nvcc.whl", CONTENT)
        for _ in range(2):
            file = fetch_piece(piece(index.url), tmp_path, SilentBar())
            assert file == tmp_path / "nvcc.whl"
            assert file.read_bytes() == CONTENT
        assert len(index.requests) == 1


def test_a_piece_with_another_digest_is_deleted(tmp_path: Path) -> None:
    with serving(Index()) as index:
        index.add("nvcc.whl", CONTENT)
        with refused("wrong-digest"):
            fetch_piece(piece(index.url, b"something else"), tmp_path, SilentBar())
        assert downloaded_names(tmp_path) == []
        assert fetch_piece(piece(index.url), tmp_path, SilentBar()).is_file()


def test_missing_files_and_hosts_are_reported(tmp_path: Path) -> None:
    with serving(Index()) as index:
        with refused("download-refused"):
            fetch_piece(piece(index.url), tmp_path, SilentBar())
        url = index.url
    with refused("host-unreachable"):
        fetch_piece(piece(url), tmp_path, SilentBar())


def test_an_earlier_download_is_checked(tmp_path: Path) -> None:
    with serving(Index()) as index:
        index.add("nvcc.whl", CONTENT)
        (tmp_path / "nvcc.whl").write_bytes(CONTENT[:-1])
        with refused("wrong-digest"):
            fetch_piece(piece(index.url), tmp_path, SilentBar())
        assert fetch_piece(piece(index.url), tmp_path, SilentBar()).read_bytes() == CONTENT


def test_a_piece_without_a_digest_is_refused(tmp_path: Path) -> None:
    with serving(Index()) as index:
        index.add("nvcc.whl", CONTENT)
        with refused("wrong-digest"):
            fetch_piece(replace(piece(index.url), sha256=""), tmp_path, SilentBar())
        assert downloaded_names(tmp_path) == []
