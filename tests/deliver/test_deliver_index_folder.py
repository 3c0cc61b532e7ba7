"""The folder of an index, where a run does not come to its end."""

import base64
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from press_support.written_wheels import made

from tests.support import told_wheels
from tests.support.made_index import Home
from tests.support.refusals import refused
from torchmill.config.facts import Facts
from torchmill.core.digests import hash_file
from torchmill.core.errors import DeliveryError
from torchmill.deliver.index import folder, scan, state
from torchmill.deliver.index.folder import LINK, IndexContents
from torchmill.deliver.index.state import IndexState


def _silent(done: int, total: int, name: str) -> None:
    """Note nothing."""


def test_what_a_stopped_run_wrote_is_known_as_ours(tmp_path: Path, known: Facts) -> None:
    home = Home(tmp_path, known)
    made(home.dist)
    home.index()
    page = (home.out / "index.html").read_bytes()
    made(home.dist, version="1.1+cpu")
    made(home.dist, version="1.2+cpu")
    first, second, third = scan.scan_wheels([home.dist], {}, ())
    before = state.load_state(home.out)
    assert before is not None
    wheels = (
        first,
        second,
        replace(third, stamp="9 9 9"),
    )  # as if it had changed after it was read
    with refused("changed-meanwhile"):
        folder.write_folder(
            home.out, IndexContents({"index.html": "new"}, wheels, IndexState()), before, LINK
        )
    assert (home.out / "index.html").read_bytes() == page, (
        "a page does not name what is not there yet"
    )
    assert (home.out / second.entry.place).exists()
    assert not (home.out / third.entry.place).exists()
    assert home.told()["foreign"] == []
    assert home.names("tinytorch") == [one.entry.file for one in (first, second, third)]


def test_a_copy_that_is_not_what_was_read_does_not_appear(tmp_path: Path, known: Facts) -> None:
    home = Home(tmp_path, known)
    made(home.dist)
    (found,) = scan.scan_wheels([home.dist], {}, ())
    with found.path.open("ab") as file:
        file.write(b"more")
    with refused("changed-meanwhile"):
        folder.write_folder(
            home.out, IndexContents({}, (found,), IndexState()), IndexState(), folder.COPY
        )
    assert [path.name for path in home.out.rglob("*") if path.is_file()] == ["index.json"]


@pytest.fixture
def home(tmp_path: Path, known: Facts) -> Home:
    """Return a checkout with an index of one wheel."""
    home = Home(tmp_path, known)
    made(home.dist)
    home.index()
    return home


def _blocked(home: Home, place: Path) -> None:
    """Expect that a run names a place, and changes nothing."""
    made(home.dist, version="9.0+cpu")
    before = home.look()
    with pytest.raises(DeliveryError) as refusal:
        home.index()
    assert refusal.value.code in {"foreign-file", "foreign-folder"}
    assert str(place) in str(refusal.value)
    assert home.look() == before


@pytest.mark.parametrize(
    "place", ["index.html", "cpu/tinytorch/index.html", "cpu/tinytorch-9.0+cpu-py3-none-any.whl"]
)
def test_folders_of_others_in_our_places_are_refused_and_stay(home: Home, place: str) -> None:
    path = home.out / place
    path.unlink(missing_ok=True)
    path.mkdir()
    (path / "thesis.tex").write_text("dear")
    _blocked(home, path)


def test_pipes_and_links_of_others_in_our_places_are_refused_and_stay(home: Home) -> None:
    page = home.out / "index.html"
    page.unlink()
    os.mkfifo(page)
    _blocked(home, page)
    page.unlink()
    page.symlink_to("nowhere")
    _blocked(home, page)


@pytest.mark.parametrize("name", ["", "index.json", "lock"])
def test_the_state_of_an_index_is_no_link(home: Home, name: str) -> None:
    kept = home.out / state.FOLDER / name
    theirs = home.path / "theirs"
    kept.rename(theirs)
    kept.symlink_to(theirs)
    content = theirs.read_bytes() if name else b""
    _blocked(home, kept)
    assert kept.is_symlink()
    assert not name or theirs.read_bytes() == content


def test_a_hidden_folder_of_others_is_no_index(tmp_path: Path, known: Facts) -> None:
    home = Home(tmp_path, known)
    made(home.dist)
    hidden = home.out / state.FOLDER
    hidden.mkdir(parents=True)
    (hidden / "selected.json").write_text("a checkout's")
    with refused("foreign-folder"):
        home.index()
    (hidden / "selected.json").rename(hidden / "lock")
    home.index()  # of a run that was stopped before it wrote anything
    link = home.path / "link"
    link.symlink_to("nowhere")
    with refused("broken-link"):
        home.index(out=str(link))


def test_files_about_another_wheel_are_not_published(tmp_path: Path, known: Facts) -> None:
    home = Home(tmp_path, known)
    mine, other = (told_wheels.built(tmp_path / where) for where in ("mine", "other"))
    shutil.copytree(mine.parent, home.dist)
    home.index(manifest=True)
    for suffix in (".json", ".intoto.json", ".cdx.json"):
        file = home.dist / f"{mine.name}{suffix}"
        sound = file.read_bytes()
        file.write_text(file.read_text().replace(hash_file(mine), "0" * 64))
        with refused("wheels-rejected"):
            home.index(manifest=True)
        file.write_bytes(sound)
    envelope = home.dist / f"{mine.name}.intoto.jsonl"
    envelope.write_text(
        json.dumps({"payload": base64.b64encode(b"{}").decode() + "A", "signatures": []})
    )
    with refused("foreign-document"):
        home.index()
    assert other.name == mine.name


def test_a_new_wheel_is_examined_with_the_files_about_it(tmp_path: Path, known: Facts) -> None:
    """And so is one that the index has already, where these changed."""
    home, mine = Home(tmp_path, known), told_wheels.built(tmp_path / "mine")
    shutil.copytree(mine.parent, home.dist)
    file = home.dist / f"{mine.name}.cdx.json"
    sound = file.read_text()
    for _ in range(2):
        file.write_text(sound.replace('"CycloneDX"', '"SPDX"'))
        with refused("wheels-rejected"):
            home.index()
        file.write_text(sound)
        home.index()


def test_names_like_those_of_halves_are_left(home: Home) -> None:
    theirs = home.out / ".index.html.20261122"  # as an editor or a backup has it
    theirs.write_text("mine")
    half = home.out / state.FOLDER / folder.FRESH
    half.write_text("half of a wheel")
    made(home.dist, version="1.1+cpu")
    assert home.told()["foreign"] == [theirs.name]
    assert theirs.read_text() == "mine"
    assert not half.exists()


def test_what_the_disk_refuses_is_told(home: Home) -> None:
    made(home.dist, version="9.0+cpu")
    (home.out / state.FOLDER / folder.FRESH).mkdir()
    with refused("not-writable"):
        home.index()
