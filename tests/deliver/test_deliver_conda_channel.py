"""A channel from packages of dist/conda/: brought up to date, and never somebody else's."""

import json
import platform
import shutil
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.refusals import refused
from torchmill.config import facts_reader
from torchmill.config.facts import Facts
from torchmill.core.paths import Layout
from torchmill.deliver.conda import channel

rattler = pytest.importorskip("rattler", reason="needs py-rattler")
pytest.importorskip("rattler_build", reason="needs py-rattler-build")
extract = pytest.importorskip("rattler.package_streaming").extract
stand_ins = pytest.importorskip("tests.support.conda_stand_ins")

SUBDIR = {"x86_64": "linux-64", "aarch64": "linux-aarch64"}.get(platform.machine(), "osx-arm64")


@pytest.fixture(scope="module")
def sample() -> Facts:
    """Return the facts of the sample."""
    return facts_reader.read_facts(Path(__file__).parents[2] / "sample" / "build_configs")


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path / "home", tmp_path / "cache")


def packed(
    layout: Layout, name: str, text: str = "one", subdir: str = SUBDIR, build: str = "0"
) -> Path:
    """Put a package with one file into dist/conda/, and return its path."""
    files = layout.root / "files"
    shutil.rmtree(files, ignore_errors=True)
    (files / "share").mkdir(parents=True)
    (files / "share" / f"{name}.txt").write_text(text)
    return Path(stand_ins.package(layout.conda, subdir, name, "1.0", files, build=build))


def listed(out: Path, subdir: str = SUBDIR) -> list[str]:
    return sorted(json.loads((out / subdir / "repodata.json").read_text())["packages.conda"])


def state(out: Path) -> dict[str, bytes]:
    return {
        path.relative_to(out).as_posix(): path.read_bytes()
        for path in out.rglob("*")
        if path.is_file()
    }


def test_a_channel_has_an_index_for_each_machine_and_noarch(
    sample: Facts, layout: Layout, tmp_path: Path
) -> None:
    packed(layout, "tinytorch")
    packed(layout, "tinytorch", subdir="osx-arm64", build="1")
    out = tmp_path / "deep" / "channel"
    output = channel.write_channel(sample, layout, out)
    assert output.splitlines()[0] == f"{out}: a channel of 2 packages, 2 of them new"
    assert f"conda install -c {out.as_uri()} -c conda-forge tinytorch" in output
    for subdir in (SUBDIR, "osx-arm64", "noarch"):
        names = {path.name for path in (out / subdir).iterdir()}
        assert {"repodata.json", "repodata.json.zst", "repodata_shards.msgpack.zst"} <= names
    assert listed(out, "osx-arm64")[-1] == "tinytorch-1.0-1.conda"
    assert listed(out, "noarch") == []
    assert [path.name for path in out.parent.iterdir()] == ["channel"]


def test_a_channel_is_updated(sample: Facts, layout: Layout, tmp_path: Path) -> None:
    packed(layout, "tinytorch")
    out = tmp_path / "channel"
    channel.write_channel(sample, layout, out)
    before = (out / SUBDIR / "tinytorch-1.0-0.conda").stat()
    packed(layout, "tinyvision")
    assert "2 packages, 1 of them new" in channel.write_channel(sample, layout, out)
    assert (out / SUBDIR / "tinytorch-1.0-0.conda").stat().st_mtime_ns == before.st_mtime_ns
    assert listed(out) == ["tinytorch-1.0-0.conda", "tinyvision-1.0-0.conda"]
    assert "2 packages, 0 of them new" in channel.write_channel(sample, layout, out)
    shutil.rmtree(layout.conda)
    packed(layout, "tinyaudio")
    # packages that are no longer in dist/ stay in the channel
    assert "3 packages, 1 of them new" in channel.write_channel(sample, layout, out)
    (out / SUBDIR / "tinyvision-1.0-0.conda").unlink()
    channel.write_channel(sample, layout, out)
    assert listed(out) == ["tinyaudio-1.0-0.conda", "tinytorch-1.0-0.conda"]


def test_the_channel_is_listed_as_often_for_many_packages_as_for_few(
    sample: Facts, layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "channel"
    listings: list[Path] = []
    glob = Path.glob

    def counted_glob(folder: Path, pattern: str) -> Iterator[Path]:
        listings.append(folder)
        return iter(glob(folder, pattern))

    monkeypatch.setattr(Path, "glob", counted_glob)
    packed(layout, "tinytorch")
    channel.write_channel(sample, layout, out)
    counts = []
    for name in ("tinyvision", "tinyaudio", "tinytext"):
        packed(layout, name)
        listings.clear()
        channel.write_channel(sample, layout, out)
        counts.append(listings.count(out))
    assert len(set(counts)) == 1


def test_a_package_of_the_older_format_is_indexed_too(
    sample: Facts, layout: Layout, tmp_path: Path
) -> None:
    """`cph transmute` writes such packages for clients that know only that format."""
    file = packed(layout, "tinytorch")
    extract(file, tmp_path / "package")
    old = file.with_name(file.name.replace(".conda", ".tar.bz2"))
    with tarfile.open(old, "w:bz2") as archive:
        for part in (tmp_path / "package").iterdir():
            archive.add(part, part.name)
    out = tmp_path / "channel"
    assert "2 packages, 2 of them new" in channel.write_channel(sample, layout, out)
    index = json.loads((out / SUBDIR / "repodata.json").read_text())
    assert list(index["packages"]) == [old.name]
    assert list(index["packages.conda"]) == [file.name]
    assert "2 packages, 0 of them new" in channel.write_channel(sample, layout, out)
    old.rename(old.with_name("tinytorch-2.0-0.tar.bz2"))
    with refused("conda-package-renamed"):
        channel.write_channel(sample, layout, out)


def test_a_run_that_was_stopped_is_continued(sample: Facts, layout: Layout, tmp_path: Path) -> None:
    packed(layout, "tinytorch")
    out = tmp_path / "channel"
    channel.write_channel(sample, layout, out)
    for index in (out / SUBDIR).glob("repodata*"):  # the packages are there, the index is not
        index.unlink()
    channel.write_channel(sample, layout, out)
    assert listed(out) == ["tinytorch-1.0-0.conda"]


def test_another_package_of_the_same_name_is_refused(
    sample: Facts, layout: Layout, tmp_path: Path
) -> None:
    packed(layout, "tinytorch")
    out = tmp_path / "channel"
    channel.write_channel(sample, layout, out)
    before = state(out)
    packed(layout, "tinytorch", "another")
    packed(layout, "tinyvision")
    with refused("package-exists"):
        channel.write_channel(sample, layout, out)
    assert state(out) == before


def test_a_foreign_folder_is_left_alone(sample: Facts, layout: Layout, tmp_path: Path) -> None:
    packed(layout, "tinytorch")
    out = tmp_path / "photos"
    out.mkdir()
    (out / "holiday.jpg").write_text("sun")
    with refused("foreign-channel"):
        channel.write_channel(sample, layout, out)
    assert state(out) == {"holiday.jpg": b"sun"}
    with refused("foreign-channel"):
        channel.write_channel(sample, layout, out / "holiday.jpg")


def test_foreign_and_changed_packages_in_a_channel_are_refused(
    sample: Facts, layout: Layout, tmp_path: Path
) -> None:
    file = packed(layout, "tinytorch")
    out = tmp_path / "channel"
    channel.write_channel(sample, layout, out)
    foreign = out / SUBDIR / "magma-2.6-0.tar.bz2"
    foreign.write_text("")
    with refused("foreign-package"):
        channel.write_channel(sample, layout, out)
    foreign.unlink()
    published = out / SUBDIR / file.name
    data = published.read_bytes()
    published.unlink()
    published.write_bytes(data + b" ")
    with refused("channel-changed"):
        channel.write_channel(sample, layout, out)


def test_a_damaged_package_is_refused(sample: Facts, layout: Layout, tmp_path: Path) -> None:
    file = packed(layout, "tinytorch")
    content = file.read_bytes()
    for damaged in (b"not a package", content[:-30]):
        file.write_bytes(damaged)
        with refused("conda-package-damaged"):
            channel.write_channel(sample, layout, tmp_path / "channel")
    assert not (tmp_path / "channel").exists()


@pytest.mark.parametrize(
    "place", [f"{SUBDIR}/tinytorch-2.0-0.conda", "win-64/tinytorch-1.0-0.conda"]
)
def test_a_package_with_another_name_or_folder_is_refused(
    sample: Facts, layout: Layout, tmp_path: Path, place: str
) -> None:
    file = packed(layout, "tinytorch")
    target = layout.conda / place
    target.parent.mkdir(exist_ok=True)
    file.rename(target)
    with refused("conda-package-renamed"):
        channel.write_channel(sample, layout, tmp_path / "channel")
    assert not (tmp_path / "channel").exists()


def test_missing_packages_and_a_missing_py_rattler_are_refused(
    sample: Facts, layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with refused("no-conda-packages"):
        channel.write_channel(sample, layout, tmp_path / "channel")
    monkeypatch.setitem(sys.modules, "rattler", None)
    with refused("conda-tools-missing"):
        channel.write_channel(sample, layout, tmp_path / "channel")
