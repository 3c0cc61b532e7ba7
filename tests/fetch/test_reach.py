"""Probing addresses ends within seconds, whatever a server does."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.index_server import Index, gone_index, serving
from torchmill.fetch.reach import probe_addresses


@contextmanager
def trickling() -> Iterator[str]:
    """Serve a head that never ends, in single bytes, so that no timeout is reached."""
    ended = threading.Event()

    def trickle(client: socket.socket) -> None:
        with client:
            while not ended.wait(0.02):
                try:
                    client.send(b"H")
                except OSError:
                    return

    def accept(server: socket.socket) -> None:
        while not ended.is_set():
            try:
                client, _ = server.accept()
            except OSError:
                return
            threading.Thread(target=trickle, args=(client,), daemon=True).start()

    with socket.create_server(("127.0.0.1", 0)) as server:
        threading.Thread(target=accept, args=(server,), daemon=True).start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}/page"
        ended.set()


def test_existing_pages_answer() -> None:
    with serving(Index()) as index:
        page = f"{index.url}/torch/"
        assert probe_addresses([page, page], {}) == {page: ""}
        assert index.requests == ["GET /simple/torch/"], "each address is probed once"


def test_a_missing_page_is_named_without_its_password() -> None:
    with serving(Index()) as index:
        address = index.url.replace("http://", "http://me:s3cret@").replace(
            "/simple", "/channel/repodata.json?token=a"
        )
        (complaint,) = probe_addresses([address], {}).values()
    assert complaint.endswith("/channel/repodata.json answers 404 Not Found")
    assert "s3cret" not in complaint


def test_an_unreachable_host_is_named_once() -> None:
    with gone_index() as gone:
        answers = probe_addresses([f"{gone.url}/a/", f"{gone.url}/b/"], {})
    assert set(answers.values()) == {"127.0.0.1 cannot be reached (connection refused)"}


def test_hanging_servers_are_given_up_together(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TORCHMILL_SILENCE", "0.3")
    began = time.monotonic()
    with socket.create_server(("127.0.0.1", 0)) as silent, trickling() as slow:
        quiet = f"http://127.0.0.1:{silent.getsockname()[1]}/page"
        answers = probe_addresses(
            [slow, *(f"{quiet}{number}" for number in range(9))], {"TORCHMILL_SILENCE": "0.3"}
        )
    assert len(answers) == 10
    assert all("no answer in" in complaint for complaint in answers.values())
    assert time.monotonic() - began < 30, "not ten times the limit of a host"


def test_files_are_checked(tmp_path: Path) -> None:
    (tmp_path / "here").touch()
    answers = probe_addresses([str(tmp_path / "here"), (tmp_path / "gone").as_uri()], {})
    assert list(answers.values()) == ["", f"there is no {tmp_path}/gone"]


@pytest.mark.parametrize(
    "address", ["git@github.com:pytorch/pytorch", "ssh://git@host/x", "http://[bad/", "s3://bucket"]
)
def test_addresses_that_cannot_be_probed_are_left_out(address: str) -> None:
    assert probe_addresses([address], {}) == {}


def test_nothing_is_probed_if_that_is_switched_off(tmp_path: Path) -> None:
    assert (
        probe_addresses([str(tmp_path / "gone"), "http://127.0.0.1:1/"], {"TORCHMILL_PROBE": "off"})
        == {}
    )
