"""Index, channel and folders of images: shown, removed where they are named, and nothing of others."""

import platform
import subprocess
from pathlib import Path

import pytest

from tests.support import kept_things as kept
from tests.support.made_index import Home
from tests.support.paper_wheels import made
from torchmill.commands.clean import removal
from torchmill.commands.clean.removal import CleanOutcome
from torchmill.commands.clean.stored import StoragePlace, items_of_kinds
from torchmill.config.model import Facts
from torchmill.deliver.image.dockerfile import ImageRecipe, write_image_folder
from torchmill.deliver.index import scan

ROOT = Path(__file__).parents[2]
SUBDIR = {"x86_64": "linux-64", "aarch64": "linux-aarch64"}.get(platform.machine(), "osx-arm64")


@pytest.fixture
def place(tmp_path: Path, known: Facts) -> StoragePlace:
    return kept.place(tmp_path, known)


def clean(place: StoragePlace, *names: str, age: str = "") -> CleanOutcome:
    said = removal.parse_criteria(place.facts, names, age, "", "")
    return removal.clean_items(place, said)


def shown(place: StoragePlace, kind: str) -> list[str]:
    return [item.name for item in items_of_kinds(place) if item.kind == kind and item.find()]


def files(folder: Path) -> set[str]:
    found = {path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()}
    return {name for name in found if not name.endswith("/lock")}


@pytest.fixture
def indexed(place: StoragePlace) -> Home:
    """Write an index of two variants, one of them yanked."""
    made(place.layout.dist)
    made(place.layout.dist, version="1.0+cu118")
    home = Home(place.layout.root, place.facts)
    home.index(yank=["tinytorch==1.0+cu118"], reason="broken")
    return home


REMEMBERED = f"{scan.FOLDER}/{scan.STATE_FILE}"


def test_an_index_goes_where_it_is_named_and_what_is_yanked_stays_noted(place: StoragePlace, indexed: Home) -> None:
    out = place.layout.index
    before = files(out)
    assert shown(place, "index") == ["index"]
    clean(place, age="0s")
    assert files(out) == before, "nobody named it"
    clean(place, "index")
    assert files(out) == {REMEMBERED}
    assert shown(place, "index") == []
    assert len(list(place.layout.dist.glob("*.whl"))) == 2
    indexed.index()
    assert files(out) == before
    known = scan.load_state(out)
    assert known is not None
    assert dict(known.yanked) == {"tinytorch==1.0+cu118": "broken"}


@pytest.mark.usefixtures("indexed")
def test_an_index_with_something_of_others_stays(place: StoragePlace) -> None:
    out = place.layout.index
    page = next(path for path in sorted(out.rglob("index.html")) if path.parent != out)
    text = page.read_text()
    for foreign in (page, out / "notes" / "todo.txt", page.parent / "more.html"):
        foreign.parent.mkdir(exist_ok=True)
        foreign.write_text("mine")
        before = files(out)
        ((_, why),) = clean(place, "index").kept
        assert why == f"{foreign} was not written by `invoke index`, or changed since"
        assert files(out) == before
        foreign.unlink()
        page.write_text(text)
    (out / "elsewhere").symlink_to(place.layout.dist)
    assert [item.name for item, _ in clean(place, "index").kept] == ["index"]
    assert len(list(place.layout.dist.glob("*.whl"))) == 2


@pytest.mark.usefixtures("indexed")
def test_an_index_in_which_somebody_works_stays(place: StoragePlace) -> None:
    before = files(place.layout.index)
    with subprocess.Popen(["sleep", "60"], cwd=place.layout.index) as user:
        ((_, why),) = clean(place, "index").kept
        user.kill()
    assert why == f"in use by process {user.pid} (sleep 60)"
    assert files(place.layout.index) == before


@pytest.mark.usefixtures("indexed")
def test_an_index_that_is_being_written_or_cannot_be_read_stays(place: StoragePlace) -> None:
    out = place.layout.index
    before = files(out)
    with kept.held(out / scan.FOLDER / "lock"):
        assert [item.kind for item, _ in clean(place, "index").kept] == ["index"]
    (out / REMEMBERED).write_text("{")
    ((_, why),) = clean(place, "index").kept
    assert REMEMBERED in why
    assert files(out) == before


def test_a_folder_that_no_index_and_no_channel_wrote_is_not_ours(place: StoragePlace) -> None:
    for out in (place.layout.index, place.layout.channel, place.layout.images / "mine"):
        kept.write(out / "index.html", 10)
    assert [shown(place, kind) for kind in ("index", "channel", "images")] == [[], [], []]
    clean(place, "index", "channel", "images")
    assert all((out / "index.html").is_file() for out in (place.layout.index, place.layout.channel))


@pytest.fixture
def channel(place: StoragePlace) -> Path:
    """Write a channel of two packages."""
    pytest.importorskip("rattler", reason="needs py-rattler")
    pytest.importorskip("rattler_build", reason="needs py-rattler-build")
    from tests.support.conda_stand_ins import package
    from torchmill.config import facts_reader
    from torchmill.deliver.conda.channel import write_channel

    content = kept.write(place.layout.root / "content" / "share" / "a.txt", 10)
    for name in ("one", "two"):
        package(place.layout.dist / "conda", SUBDIR, name, "1.0", content.parents[1])
    write_channel(facts_reader.read_facts(ROOT / "sample" / "build_configs"), place.layout, place.layout.channel)
    return place.layout.channel


def test_a_channel_goes_whole_where_it_is_named(place: StoragePlace, channel: Path) -> None:
    assert len(list(channel.rglob("*.conda"))) == 2
    assert shown(place, "channel") == ["channel"]
    clean(place, age="0s")
    assert len(list(channel.rglob("*.conda"))) == 2
    clean(place, "channel")
    assert files(channel) == set()
    assert shown(place, "channel") == []
    assert len(list((place.layout.dist / "conda").rglob("*.conda"))) == 2


@pytest.mark.parametrize("strange", [f"{SUBDIR}/three-1.0-0.conda", "notes.txt", f"{SUBDIR}/mine/repodata.json"])
def test_a_channel_with_something_of_others_stays(place: StoragePlace, channel: Path, strange: str) -> None:
    kept.write(channel / strange, 10)
    before = files(channel)
    ((_, why),) = clean(place, "channel").kept
    assert why == f"{channel / strange} was not written by `invoke index`, or changed since"
    assert files(channel) == before
    (channel / strange).unlink()
    one = next(channel.rglob("one-*.conda"))
    one.write_bytes(one.read_bytes() + b"x")
    assert [why for _, why in clean(place, "channel").kept] == [
        f"{one} was not written by `invoke index`, or changed since"
    ]


def test_folders_of_images_go_where_they_are_named_and_stay_where_they_were_changed(
    place: StoragePlace,
) -> None:
    for name in ("runtime-a", "runtime-b", "runtime-c"):
        recipe = ImageRecipe({"Dockerfile": "FROM a\n"}, {}, (), frozenset())
        write_image_folder(place.layout.images / name, recipe, {}, ROOT, ROOT / "build_configs")
    assert shown(place, "images") == ["runtime-a", "runtime-b", "runtime-c"]
    (place.layout.images / "runtime-b" / "Dockerfile").write_text("FROM mine\n")
    with kept.held(kept.write(place.layout.images / ".locks" / "runtime-c" / "lock", 0)):
        outcome = clean(place, "images")
    assert [item.name for item, _ in outcome.removed] == ["runtime-a"]
    assert {item.name for item, _ in outcome.kept} == {"runtime-b", "runtime-c"}
    assert "was changed by hand" in next(why for item, why in outcome.kept if item.name == "runtime-b")
    assert shown(place, "images") == ["runtime-b", "runtime-c"]


@pytest.mark.usefixtures("indexed")
def test_what_an_interrupted_clean_put_away_goes_with_the_next(place: StoragePlace) -> None:
    layout = place.layout
    page = next(layout.index.rglob("index.html"))
    homes = (layout.index, page.parent, layout.channel / SUBDIR, layout.images)
    gone = [kept.write(home / ".gone-999999999-0-a", 10) for home in homes]
    clean(place, "logs")
    assert not [path for path in gone if path.exists()]
    assert page.is_file()
