"""Publishing to a folder, and what holds of every place: chosen wheels, sound ones, and none replaced."""

import shutil
from collections.abc import Sequence
from pathlib import Path

import pytest
from millpress import wheel_file
from press_support import written_wheels

from tests.support import commands, documented_wheels
from tests.support.refusals import refused
from torchmill.commands.command import CommandOutput
from torchmill.commands.publish import publish_wheels, select_wheels
from torchmill.core.digests import hash_file
from torchmill.core.errors import DeliveryError
from torchmill.core.paths import Layout
from torchmill.deliver.publish import upload_set
from torchmill.wheel import dist_files

CUDA, CPU = "tinytorch-1.13.1+cu117-py3-none-any.whl", "tinytorch-1.13.1+cpu-py3-none-any.whl"


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with dist/, in which there are two wheels."""
    home = tmp_path_factory.mktemp("built")
    for version in ("1.13.1+cu117", "1.13.1+cpu"):
        documented_wheels.built(home / "dist", version)
    return home


@pytest.fixture
def home(built: Path, tmp_path: Path) -> Path:
    shutil.copytree(built, tmp_path / "home")
    return tmp_path / "home"


def publish(home: Path, to: object, **options: object) -> CommandOutput:
    return publish_wheels(Layout(home, home / "cache"), to=str(to), **options)  # type: ignore[arg-type]


def test_wheels_and_their_papers_go_to_a_folder(home: Path, tmp_path: Path) -> None:
    output = publish(home, tmp_path / "a" / "b")
    file_names = sorted(path.name for path in (tmp_path / "a" / "b").iterdir())
    assert file_names == sorted(
        f"{name}{end}" for name in (CUDA, CPU) for end in ("", *dist_files.DOCUMENT_SUFFIXES)
    )
    assert output.text.count(upload_set.UPLOADED) == 6
    for name in file_names:
        assert (tmp_path / "a" / "b" / name).read_bytes() == (home / "dist" / name).read_bytes()


def test_what_is_published_holds_without_its_manifest(home: Path, tmp_path: Path) -> None:
    publish(home, tmp_path / "there")
    publish(home, tmp_path / "again", dist=str(tmp_path / "there"))
    assert len(list((tmp_path / "again").iterdir())) == 6


def test_a_manifest_goes_only_where_that_is_asked(home: Path, tmp_path: Path) -> None:
    publish(home, f"file://{tmp_path}/there", manifest=True, variant="cpu")
    assert (tmp_path / "there" / f"{CPU}.json").is_file()


def test_once_more_changes_nothing(home: Path, tmp_path: Path) -> None:
    publish(home, tmp_path / "there")
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "there").iterdir()}
    assert publish(home, tmp_path / "there").text.count(upload_set.PRESENT) == 6
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "there").iterdir()} == before


def test_what_is_left_of_an_interrupted_run_is_brought(home: Path, tmp_path: Path) -> None:
    publish(home, tmp_path / "there")
    (tmp_path / "there" / CPU).unlink()
    output = publish(home, tmp_path / "there").data
    assert [file["name"] for file in output["files"] if file["said"] == upload_set.UPLOADED] == [
        CPU
    ]


def test_another_file_of_the_name_is_never_replaced(home: Path, tmp_path: Path) -> None:
    target = tmp_path / "there"
    target.mkdir()
    (target / CPU).write_bytes(b"another")
    digest = documented_wheels.manifest(home / "dist" / CPU)["sha256"]
    with refused("file-exists") as error:
        publish(home, target)
    assert digest in str(error.value)
    assert "ae448ac86c4e8e4dec645729708ef41873ae79c6dff84eff73360989487f08e5" in str(error.value)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == {CPU: b"another"}


def test_a_rehearsal_brings_nothing(home: Path, tmp_path: Path) -> None:
    assert publish(home, tmp_path / "there", dry_run=True).text.count(upload_set.ABSENT) == 6
    assert not (tmp_path / "there").exists()


def test_wheels_are_chosen_by_name_variant_and_tag(home: Path) -> None:
    documented_wheels.built(home / "dist", "0.14.1+cpu", name="tinyvision")
    written_wheels.made(home / "dist", "other", "1.0")

    def names(package_names: Sequence[str] = (), variant: str = "", tag: str = "") -> list[str]:
        return [
            f"{file.name} {file.version}"
            for file in select_wheels(home / "dist", package_names, variant, tag)
        ]

    with refused("wheels-disagree"):
        names()
    (home / "dist" / "other-1.0-py3-none-any.whl").unlink()
    assert len(names()) == 3
    assert names(["TinyVision"]) == ["tinyvision 0.14.1+cpu"]
    assert names(variant="cpu") == ["tinytorch 1.13.1+cpu", "tinyvision 0.14.1+cpu"]
    assert names(["tinytorch", "other"], tag="v1.13.1") == [
        "tinytorch 1.13.1+cpu",
        "tinytorch 1.13.1+cu117",
    ]


def test_each_wheel_is_hashed_once(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hashed: list[str] = []

    def noted(path: Path) -> str:
        hashed.append(path.name)
        return hash_file(path)

    monkeypatch.setattr(wheel_file, "hash_file", noted)
    select_wheels(home / "dist", (), "", "")
    assert sorted(hashed) == [CPU, CUDA]


def test_wheels_that_are_not_what_they_say_are_not_published(home: Path, tmp_path: Path) -> None:
    (home / "dist" / f"{CPU}{dist_files.SBOM_SUFFIX}").write_text("{}")
    written_wheels.made(home / "dist", "other", "1.0")
    with pytest.raises(DeliveryError) as error:
        publish(home, tmp_path / "there")
    assert "other-1.0-py3-none-any.whl: sound, but nothing says who made it" in str(error.value)
    assert f"{CPU}: SBOM" in str(error.value)
    assert not (tmp_path / "there").exists()
    publish(home, tmp_path / "there", variant="cu117")


def test_where_no_wheel_is_meant_that_is_said(home: Path, tmp_path: Path) -> None:
    with refused("no-such-wheel"):
        publish(home, tmp_path / "there", tag="v9")


def test_the_task_publishes(home: Path, tmp_path: Path) -> None:
    options = ("--to", str(tmp_path / "there"), "--name", "tinytorch", "--variant", "cpu")
    process = commands.run("invoke", "publish", *options, home=home)
    assert process.returncode == 0, process.stderr
    assert (tmp_path / "there" / CPU).is_file()
