"""MAGMA out of a folder or an archive that a user names."""

import hashlib
import shutil
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support.fatbins import library
from tests.support.made_up_magma import install
from tests.support.made_up_providers import ARCH
from tests.support.refusals import refused
from tests.support.silent_progress import SilentProgress
from torchmill.fetch.toolkit import magma
from torchmill.fetch.toolkit.request import ProviderOffer, ProviderRefusal, ToolkitRequest


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    install(tmp_path / "opt/magma")
    (tmp_path / "opt/magma/lib/libmagma.so").touch()  # the static one goes first
    return tmp_path / "opt/magma"


def ask(place: object, cache: Path, version: str = "") -> ProviderOffer | ProviderRefusal:
    return magma.user_magma(str(place), ["magma-cu118"]).offer(
        ToolkitRequest("magma", version, "11.8", ARCH), (), cache, SilentProgress()
    )


def filled(answer: ProviderOffer | ProviderRefusal, folder: Path) -> set[str]:
    assert not isinstance(answer, ProviderRefusal), answer
    folder.mkdir()
    answer.fill(folder)
    assert not folder.with_name("given").exists()
    return {str(one.relative_to(folder)) for one in folder.rglob("*") if one.is_file()}


WHOLE = {"include/magma_types.h", "include/magma_v2.h", "lib/libmagma.a"}


def test_a_folder_is_copied(installed: Path, tmp_path: Path) -> None:
    answer = ask(installed, tmp_path, "2.6")
    assert filled(answer, tmp_path / "home") == WHOLE
    assert not isinstance(answer, ProviderRefusal)
    assert (answer.wanted.name, answer.full, answer.provider) == ("magma-2.6.1-cu118", "2.6.1", "given")
    (piece,) = answer.pieces
    assert (piece.url, piece.size) == (str(installed), (installed / "lib/libmagma.a").stat().st_size)


def test_a_shared_library_is_taken_with_its_names(installed: Path, tmp_path: Path) -> None:
    shutil.rmtree(installed / "lib")
    library(installed / "lib64/libmagma.so.2", {})
    (installed / "lib64/libmagma.so").symlink_to("libmagma.so.2")
    names = filled(ask(installed, tmp_path), tmp_path / "home")
    assert names == {*WHOLE, "lib/libmagma.so", "lib/libmagma.so.2"} - {"lib/libmagma.a"}
    assert (tmp_path / "home/lib/libmagma.so").is_symlink()


@pytest.mark.parametrize("name", ["magma.tar.bz2", "magma.zip"])
def test_an_archive_is_unpacked(installed: Path, tmp_path: Path, name: str) -> None:
    archive = tmp_path / name
    if name.endswith(".zip"):
        with zipfile.ZipFile(archive, "w") as packed:
            for file in installed.rglob("*.[ah]"):
                packed.write(file, file.relative_to(installed.parent))  # within a folder
    else:
        with tarfile.open(archive, "w:bz2") as tar:
            for part in ("include", "lib"):
                tar.add(installed / part, part)
    answer = ask(archive, tmp_path)
    assert filled(answer, tmp_path / "home") == WHOLE
    assert not isinstance(answer, ProviderRefusal)
    assert answer.pieces[0].sha256 == hashlib.sha256(archive.read_bytes()).hexdigest()


@pytest.fixture
def served(installed: Path, tmp_path: Path) -> Iterator[str]:
    """Serve an archive; its URL with its digest."""
    shelf = tmp_path / "shelf"
    shelf.mkdir()
    with tarfile.open(shelf / "magma.tar.gz", "w:gz") as tar:
        tar.add(installed, "magma")
    digest = hashlib.sha256((shelf / "magma.tar.gz").read_bytes()).hexdigest()
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(shelf)))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield f"http://127.0.0.1:{server.server_address[1]}/magma.tar.gz#sha256={digest}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_url_is_downloaded_and_checked(served: str, tmp_path: Path) -> None:
    assert filled(ask(served, tmp_path), tmp_path / "home") == WHOLE
    wrong = f"{served.partition('=')[0]}={'0' * 64}"
    with refused("wrong-digest"):
        ask(wrong, tmp_path / "other")
    with refused("no-digest-in-url"):
        ask(served.partition("#")[0], tmp_path)


def test_what_is_no_magma_is_told(installed: Path, tmp_path: Path) -> None:
    other = ask(installed, tmp_path, "2.7")
    assert isinstance(other, ProviderRefusal)
    assert (other.sentence, other.has) == (f"{installed} is magma 2.6.1", ("2.6.1",))
    empty = ask(tmp_path, tmp_path)
    assert isinstance(empty, ProviderRefusal)
    assert empty.sentence.endswith("has no include/magma_types.h: it is no MAGMA")
    with refused("no-such-origin"):
        ask(tmp_path / "nothing", tmp_path)
    torn = tmp_path / "torn.tar.gz"
    torn.write_bytes(b"\x1f\x8b" + b"torn" * 9)
    with refused("damaged-archive"):
        ask(torn, tmp_path)


def test_a_source_is_not_taken_for_an_installation(installed: Path, tmp_path: Path) -> None:
    shutil.rmtree(installed / "lib")
    with refused("magma-without-library"):
        filled(ask(installed, tmp_path), tmp_path / "home")


def test_places_are_told_from_providers() -> None:
    assert [magma.is_place(one) for one in ("conda", "/opt/magma", "./m", "~/m", "m.tar.gz", "")] == [
        False, True, True, True, True, False,
    ]  # fmt: skip
    for asked in ([], ["cudnn-cu11"], ["magma-cu118", "magma-cu121"]):
        with refused("only-magma-from-a-place"):
            magma.user_magma("/opt/magma", asked)
