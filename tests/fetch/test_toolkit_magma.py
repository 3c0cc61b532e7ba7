"""MAGMA from packages, or from a folder or an archive of the user's."""

import hashlib
import shutil
import tarfile
import threading
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from tests.support.fatbins import library, piece
from tests.support.made_up_magma import header, install, static
from tests.support.made_up_providers import ARCH, MadeUp, shop, source
from tests.support.refusals import refused
from tests.support.silent_progress import SilentProgress
from torchmill.config.arch_list import unserved_capabilities
from torchmill.config.model import Facts
from torchmill.fetch.toolkit import magma
from torchmill.fetch.toolkit.provision import ProvisionContext, install_from_providers
from torchmill.fetch.toolkit.request import ProviderOffer, ProviderRefusal, ToolkitRequest
from torchmill.host.provisioned import list_provisioned

NAME = "magma-2.6.1-cu118-7.0_8.6+PTX"
MAGMA = source("conda", "magma", cuda="11.8")


def asked(version: str = "2.6.1", listed: str = "") -> ToolkitRequest:
    return ToolkitRequest("magma", version, "11.8", ARCH, listed)


def offering(cache: Path, facts: Facts, put: Callable[[Path], None] = install, *codes: str) -> ProvisionContext:
    sources = [replace(MAGMA, capabilities=codes)]
    return replace(
        shop(cache, sources, MadeUp("conda", {"2.6.1": put})), unserved=partial(unserved_capabilities, facts)
    )


@pytest.mark.parametrize(
    ("path", "where"),
    [
        ("include/magma_v2.h", "include/magma_v2.h"),
        ("usr/include/magma.h", "include/magma.h"),
        ("lib/libmagma.a", "lib/libmagma.a"),
        ("usr/lib/x86_64-linux-gnu/libmagma.a", "lib/libmagma.a"),
        ("usr/lib/libmagma.so.2", None),
        ("lib/libmagma_sparse.a", None),
        ("usr/include/magma.mod", None),
        ("lib/pkgconfig/magma.pc", None),
    ],
)
def test_headers_and_the_static_library_have_a_place(path: str, where: str | None) -> None:
    assert magma.place_magma_file(path) == where


def test_its_name_says_what_its_code_is_for(tmp_path: Path, shipped: Facts) -> None:
    made = install_from_providers(asked("2.6"), offering(tmp_path, shipped))
    assert (made.name, list_provisioned(tmp_path, ARCH)) == (NAME, {NAME: made})
    assert (made.record.kind, made.record.version, made.home.name) == ("magma", "2.6.1", f"{NAME}-{ARCH}")
    unable = offering(tmp_path, shipped, lambda _: pytest.fail("it is kept"))
    assert install_from_providers(asked(listed="7.5;8.9"), unable) == made
    assert install_from_providers(asked(""), unable) == made


def test_one_of_other_capabilities_lies_beside_it(tmp_path: Path, shipped: Facts) -> None:
    first = install_from_providers(asked(), offering(tmp_path, shipped))

    def older(folder: Path) -> None:
        install(folder)
        (folder / "lib/libmagma.a").unlink()
        static(folder / "lib/libmagma.a", (piece(61),))

    second = install_from_providers(asked(listed="6.1"), offering(tmp_path, shipped, older))
    assert {first.name, second.name} == set(list_provisioned(tmp_path, ARCH)) == {NAME, "magma-2.6.1-cu118-6.1"}


def test_magma_without_the_capabilities_is_not_downloaded(tmp_path: Path, shipped: Facts) -> None:
    unable = offering(tmp_path, shipped, lambda _: pytest.fail("it does not serve"), "5.0", "7.0")
    with refused("no-provider") as raised:
        install_from_providers(asked(listed="7.0;8.0"), unable)
    assert "\n  conda: its code is for 5.0;7.0, and none for 8.0\n" in str(raised.value)
    assert "(`--from PATH`)" in str(raised.value)


def test_magma_that_proves_to_lack_capabilities_is_not_kept(tmp_path: Path, shipped: Facts) -> None:
    with refused("magma-lacks-capability"):
        install_from_providers(asked(listed="5.0;7.0"), offering(tmp_path, shipped))
    assert list_provisioned(tmp_path, ARCH) == {}


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (
            lambda folder: (folder / "include/magma_types.h").write_text(header("2.7.0")),
            "wrong-magma-version",
        ),
        (lambda folder: (folder / "include/magma_types.h").unlink(), "wrong-magma-version"),
        (lambda folder: static(folder / "lib/libmagma.a", ()), "magma-without-gpu-code"),
        (lambda folder: (folder / "lib/libmagma.a").unlink(), "incomplete-toolkit"),
    ],
)
def test_what_is_another_thing_is_refused(
    tmp_path: Path, shipped: Facts, spoil: Callable[[Path], object], code: str
) -> None:
    def spoilt(folder: Path) -> None:
        install(folder)
        if code == "magma-without-gpu-code":
            (folder / "lib/libmagma.a").unlink()  # ar would add to it
        spoil(folder)

    with refused(code):
        install_from_providers(asked(), offering(tmp_path, shipped, spoilt))
    assert list_provisioned(tmp_path, ARCH) == {}


@pytest.fixture
def installed(tmp_path: Path) -> Path:
    install(tmp_path / "opt/magma")
    (tmp_path / "opt/magma/lib/libmagma.so").touch()  # the static one goes first
    return tmp_path / "opt/magma"


def ask(place: object, cache: Path, version: str = "") -> ProviderOffer | ProviderRefusal:
    return magma.user_magma(str(place), ["magma-cu118"], "").offer(
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
    assert (answer.request.name, answer.full, answer.provider) == ("magma-2.6.1-cu118", "2.6.1", "given")
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


def test_other_things_than_magma_are_refused(installed: Path, tmp_path: Path) -> None:
    other = ask(installed, tmp_path, "2.7")
    assert isinstance(other, ProviderRefusal)
    assert (other.sentence, other.has) == (f"{installed} is magma 2.6.1", ("2.6.1",))
    empty = ask(tmp_path, tmp_path)
    assert isinstance(empty, ProviderRefusal)
    assert empty.sentence.endswith("has no include/magma_types.h: it is not MAGMA")
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


def test_paths_differ_from_names_of_providers() -> None:
    assert [magma.is_place(one) for one in ("conda", "/opt/magma", "./m", "~/m", "m.tar.gz", "")] == [
        False, True, True, True, True, False,
    ]  # fmt: skip
    for asked in ([], ["cudnn-cu11"], ["magma-cu118", "magma-cu121"]):
        with refused("only-magma-from-a-place"):
            magma.user_magma("/opt/magma", asked, "")
