"""The folder of an index: runs that are stopped, foreign files, and damaged documents."""

import base64
import hashlib
import json
import os
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from press_support.written_wheels import made

from tests.support import documented_wheels
from tests.support.made_index import Home
from tests.support.refusals import refused
from torchmill.config.facts import Facts
from torchmill.core.digests import hash_file
from torchmill.core.errors import DeliveryError
from torchmill.deliver.index import folder, scan, state
from torchmill.deliver.index.folder import LINK, IndexContents
from torchmill.deliver.index.state import IndexState
from torchmill.wheel import dist_files


def test_files_of_a_stopped_run_belong_to_the_index(tmp_path: Path, small_facts: Facts) -> None:
    home = Home(tmp_path, small_facts)
    made(home.dist)
    home.index()
    page = (home.out / "index.html").read_bytes()
    made(home.dist, version="1.1+cpu")
    made(home.dist, version="1.2+cpu")
    first, second, third = scan.scan_wheels([home.dist], {}, ())
    before = state.load_state(home.out)
    assert before is not None
    changed = replace(third, stamp="9 9 9")  # as if its file had changed after it was read
    contents = IndexContents({"index.html": "new"}, (first, second, changed), IndexState())
    with refused("changed-meanwhile"):
        folder.write_folder(home.out, contents, before, LINK)
    assert (home.out / "index.html").read_bytes() == page, "a page names no missing wheel"
    assert (home.out / second.entry.place).exists()
    assert not (home.out / third.entry.place).exists()
    assert home.told()["foreign"] == []
    assert home.names("tinytorch") == [wheel.entry.file for wheel in (first, second, third)]


def test_a_manifest_that_just_changed_is_read_again(tmp_path: Path, small_facts: Facts) -> None:
    """It may change once more at the same time of a coarse clock, and keep its stamp."""
    home = Home(tmp_path, small_facts)
    wheel = documented_wheels.built(home.dist)
    for file in home.dist.iterdir():
        os.utime(file, (1, 1))
    (settled,) = scan.scan_wheels([home.dist], {}, ())
    assert settled.remembered.stamp
    os.utime(dist_files.manifest_path(wheel))
    (changed,) = scan.scan_wheels([home.dist], {}, ())
    assert not changed.remembered.stamp


def test_a_wheel_that_changed_after_it_was_read_is_not_copied(
    tmp_path: Path, small_facts: Facts
) -> None:
    home = Home(tmp_path, small_facts)
    made(home.dist)
    (wheel,) = scan.scan_wheels([home.dist], {}, ())
    with wheel.path.open("ab") as file:
        file.write(b"more")
    contents = IndexContents({}, (wheel,), IndexState())
    with refused("changed-meanwhile"):
        folder.write_folder(home.out, contents, IndexState(), folder.COPY)
    assert [path.name for path in home.out.rglob("*") if path.is_file()] == ["index.json"]


@pytest.fixture
def home(tmp_path: Path, small_facts: Facts) -> Home:
    """Return a checkout with an index of one wheel."""
    home = Home(tmp_path, small_facts)
    made(home.dist)
    home.index()
    return home


def _blocked(home: Home, place: Path) -> None:
    """See that a run refuses a place, and changes nothing."""
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
def test_foreign_folders_in_places_of_the_index_are_refused(home: Home, place: str) -> None:
    path = home.out / place
    path.unlink(missing_ok=True)
    path.mkdir()
    (path / "thesis.tex").write_text("dear")
    _blocked(home, path)


def test_foreign_pipes_and_links_in_places_of_the_index_are_refused(home: Home) -> None:
    page = home.out / "index.html"
    page.unlink()
    os.mkfifo(page)
    _blocked(home, page)
    page.unlink()
    page.symlink_to("nowhere")
    _blocked(home, page)


@pytest.mark.parametrize("name", ["", "index.json", "lock"])
def test_links_in_the_place_of_the_state_are_refused(home: Home, name: str) -> None:
    path = home.out / state.STATE_FOLDER / name
    target = home.path / "target"
    path.rename(target)
    path.symlink_to(target)
    content = target.read_bytes() if name else b""
    _blocked(home, path)
    assert path.is_symlink()
    assert not name or target.read_bytes() == content


def test_a_foreign_hidden_folder_makes_no_index(tmp_path: Path, small_facts: Facts) -> None:
    home = Home(tmp_path, small_facts)
    made(home.dist)
    hidden = home.out / state.STATE_FOLDER
    hidden.mkdir(parents=True)
    (hidden / "selected.json").write_text("a checkout's")
    with refused("foreign-folder"):
        home.index()
    # a run that was stopped before it wrote anything leaves only the lock, or half of a state
    (hidden / "selected.json").rename(hidden / "lock")
    half = hidden / ".index.json.0123abcd-1"
    half.write_text("{")
    home.index()
    link = home.path / "link"
    link.symlink_to("nowhere")
    with refused("broken-link"):
        home.index(out=str(link))


def test_documents_about_another_wheel_are_refused(tmp_path: Path, small_facts: Facts) -> None:
    home = Home(tmp_path, small_facts)
    wheel = documented_wheels.built(tmp_path / "built")
    shutil.copytree(wheel.parent, home.dist)
    home.index(manifest=True)
    for suffix in (".json", ".intoto.json", ".cdx.json"):
        file = home.dist / f"{wheel.name}{suffix}"
        sound = file.read_bytes()
        file.write_text(file.read_text().replace(hash_file(wheel), "0" * 64))
        with refused("wheels-rejected"):
            home.index(manifest=True)
        file.write_bytes(sound)
    envelope = home.dist / f"{wheel.name}.intoto.jsonl"
    invalid_payload = base64.b64encode(b"{}").decode() + "A"
    envelope.write_text(json.dumps({"payload": invalid_payload, "signatures": []}))
    with refused("foreign-document"):
        home.index()


def test_a_new_wheel_is_examined_with_its_documents(tmp_path: Path, small_facts: Facts) -> None:
    """A wheel that the index has already is examined again if one of them changed."""
    home = Home(tmp_path, small_facts)
    wheel = documented_wheels.built(tmp_path / "built")
    shutil.copytree(wheel.parent, home.dist)
    file = home.dist / f"{wheel.name}.cdx.json"
    sound = file.read_text()
    for _ in range(2):
        file.write_text(sound.replace('"CycloneDX"', '"SPDX"'))
        with refused("wheels-rejected"):
            home.index()
        file.write_text(sound)
        home.index()


def test_only_unfinished_files_of_the_index_are_removed(home: Home) -> None:
    backup = home.out / ".index.html.20261122"
    backup.write_text("of an editor")
    half = home.out / state.STATE_FOLDER / folder.FRESH
    half.write_text("half of a wheel")
    made(home.dist, version="1.1+cpu")
    assert home.told()["foreign"] == [backup.name]
    assert backup.read_text() == "of an editor"
    assert not half.exists()


def test_pages_are_removed_before_the_documents_that_they_name(home: Home) -> None:
    contents = IndexContents({}, (), IndexState())
    before = state.load_state(home.out)
    assert before is not None
    wheel = "cpu/tinytorch-1.0+cpu-py3-none-any.whl"
    document = f"{wheel}.intoto.json"
    (home.out / document).write_bytes(b"")
    written = {**before.written, document: (hashlib.sha256().hexdigest(),)}
    outcome = folder.write_folder(home.out, contents, replace(before, written=written), LINK)
    assert outcome.removed[-3:] == (wheel, document, f"{wheel}.metadata")


def test_a_refusal_of_the_disk_is_reported(home: Home) -> None:
    made(home.dist, version="9.0+cpu")
    (home.out / state.STATE_FOLDER / folder.FRESH).mkdir()
    with refused("not-writable"):
        home.index()
