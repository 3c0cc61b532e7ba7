"""`--keep N`: which releases are old, and which of their files are removed from a target."""

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import boto3
import pytest
from press_support import written_wheels

from tests.support import documented_wheels
from tests.support import publishing_servers as servers
from tests.support.refusals import refused
from torchmill.commands.command import CommandOutput
from torchmill.commands.publish import publish_wheels
from torchmill.core.errors import DeliveryError
from torchmill.core.paths import Layout
from torchmill.core.process import CommandError
from torchmill.deliver import retention
from torchmill.deliver.publish.upload_set import StoredFile
from torchmill.wheel import dist_files

OLD = "tinytorch-1.9.0+cpu-py3-none-any.whl"
MIDDLE = "tinytorch-1.12.0+cpu-py3-none-any.whl"
NEW = "tinytorch-1.13.1+cpu-py3-none-any.whl"
CUDA = "tinytorch-1.9.0+cu117-py3-none-any.whl"
SUFFIXES = ("", *dist_files.DOCUMENT_SUFFIXES, dist_files.MANIFEST_SUFFIX)


def file_name(
    version: str, python: str = "cp310-cp310", platform: str = "manylinux_2_17_x86_64"
) -> str:
    return f"torch-{version}-{python}-{platform}.whl"


def test_each_package_variant_python_and_platform_has_its_own_newest() -> None:
    newest = [
        file_name("1.13.1+cpu"),
        file_name("1.13.1+cpu", platform="manylinux2014_x86_64.manylinux_2_17_x86_64"),
        file_name("1.12.0+cu118"),
        file_name("1.12.0+cpu", "cp37-cp37m"),
        file_name("1.12.0+cpu", platform="manylinux_2_17_aarch64"),
        file_name("1.12.0", platform="macosx_11_0_arm64"),
        "torchvision-0.14.1+cpu-cp310-cp310-linux_x86_64.whl",
    ]
    old = [
        file_name("1.9.0+cpu", platform="linux_x86_64"),
        file_name("1.12.0+cpu", platform="manylinux_2_28_x86_64"),
    ]
    assert retention.older_wheels([*old, *newest], 1) == sorted(old)
    assert retention.older_wheels([*old, *newest], 2) == old[:1]
    assert retention.older_wheels([*old, *newest], 0) == []


def test_yanked_versions_do_not_count() -> None:
    versions = [file_name(f"{version}+cpu") for version in ("2.1.0", "2.0.0", "1.10.0", "1.9.0")]
    assert retention.older_wheels(versions, 2) == sorted([versions[2], versions[3]])
    assert retention.older_wheels(versions, 1, versions[:1]) == sorted([versions[2], versions[3]])
    # a yanked one stays if it is newer than the oldest that is kept
    assert retention.older_wheels(versions, 2, versions[1:2]) == [versions[3]]
    assert retention.older_wheels(versions, 1, versions) == [], "all of them are yanked"


def test_pre_releases_are_counted_by_themselves() -> None:
    """Otherwise a pre-release could remove the last final release, and nightly builds pile up."""
    candidates = [file_name(f"{version}+cpu") for version in ("2.1.0rc1", "2.0.0rc2", "2.0.0rc1")]
    finals = [file_name(f"{version}+cpu") for version in ("2.0.0", "1.13.1")]
    assert retention.older_wheels([*candidates, *finals], 1) == sorted([*candidates[1:], finals[1]])


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "two", "²", "1e3", " 2", "9" * 5000])
def test_an_invalid_number_is_refused(text: str) -> None:
    with refused("invalid-keep"):
        retention.parse_keep(text)


@dataclass
class Place:
    """A target, and access to it that does not go through torchmill."""

    to: str
    names: Callable[[], set[str]]
    add: Callable[[str, bytes], object]


def _folder(folder: Path, _: pytest.MonkeyPatch) -> Iterator[Place]:
    folder.mkdir()
    yield Place(
        str(folder),
        lambda: {path.name for path in folder.iterdir()},
        lambda name, content: (folder / name).write_bytes(content),
    )


def _bucket(_: Path, patch: pytest.MonkeyPatch) -> Iterator[Place]:
    with servers.s3("kept") as environ:
        for name, value in environ.items():
            patch.setenv(name, value)
        client = boto3.client("s3")
        client.create_bucket(Bucket="kept")
        deeper = f"whl/cpu/{OLD}.intoto.json"
        client.put_object(Bucket="kept", Key=deeper, Body=b"of another place")

        def names() -> set[str]:
            contents = client.list_objects_v2(Bucket="kept")["Contents"]
            keys = {entry["Key"] for entry in contents} - {deeper}
            return {key.removeprefix("whl/") for key in keys}

        yield Place(
            "s3://kept/whl",
            names,
            lambda name, content: client.put_object(Bucket="kept", Key=f"whl/{name}", Body=content),
        )
        assert client.get_object(Bucket="kept", Key=deeper)["Body"].read() == b"of another place"


def _github(_: Path, patch: pytest.MonkeyPatch) -> Iterator[Place]:
    with servers.github() as hub:
        patch.setenv("GH_TOKEN", servers.TOKEN)
        patch.setenv("GITHUB_API_URL", hub.url)
        nightly = hub.release("nightly")  # none that is for a version of a package
        hub.add(nightly, OLD, b"of somebody else")
        yield Place(
            f"github:{hub.repository}",
            lambda: {asset["name"] for release in hub.releases[1:] for asset in release["assets"]},
            lambda name, content: hub.add(hub.releases[-1], name, content),
        )
        assert hub.names("nightly") == [OLD]


@pytest.fixture(params=[_folder, _bucket, _github], ids=["folder", "bucket", "github"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    yield from request.param(tmp_path / "there", monkeypatch)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    dist = tmp_path_factory.mktemp("built")
    for version in ("1.9.0+cpu", "1.9.0+cu117", "1.12.0+cpu", "1.13.1+cpu"):
        documented_wheels.built(dist, version, release=f"v{version.partition('+')[0]}")
    return dist


@pytest.fixture
def publish(built: Path, tmp_path: Path) -> Callable[..., CommandOutput]:
    """Return a function that publishes wheels of these names."""

    def run(to: str, *wheels: str, **options: bool | str) -> CommandOutput:
        home = tmp_path / "home"
        shutil.rmtree(home, ignore_errors=True)
        for name in wheels:
            (home / "dist").mkdir(parents=True, exist_ok=True)
            for suffix in SUFFIXES:
                shutil.copy2(built / f"{name}{suffix}", home / "dist")
        return publish_wheels(Layout(home, home / "cache"), to=to, manifest=True, **options)  # type: ignore[arg-type]

    return run


def files_of(*wheels: str) -> set[str]:
    """Return the names of wheels and of the files beside them."""
    names: set[str] = set()
    for wheel in wheels:
        names.update(f"{wheel}{suffix}" for suffix in SUFFIXES)
    return names


def older(output: CommandOutput) -> dict[str, str]:
    """Return the outcome of each older file, which the text and the data agree on."""
    outcomes = {entry["name"]: entry["said"] for entry in output.data["older"]}
    for name, outcome in outcomes.items():
        assert f"  {name}: {outcome}" in output.text
    return outcomes


def test_old_releases_are_removed_with_their_documents(
    place: Place, publish: Callable[..., CommandOutput], tmp_path: Path
) -> None:
    publish(place.to, OLD, CUDA, MIDDLE)
    foreign = written_wheels.made(tmp_path / "foreign", version="1.0+cpu")
    unproved = "tinytorch-1.1.0+cpu-py3-none-any.whl"  # its statement is of another wheel
    foreign_files = {
        foreign.name: foreign.read_bytes(),
        f"{foreign.name}.cdx.json": b"{}",
        unproved: b"another",
        f"{unproved}.intoto.json": (tmp_path / "home/dist" / f"{OLD}.intoto.json").read_bytes(),
        "notes.txt": b"notes of somebody",
    }
    for name, content in foreign_files.items():
        place.add(name, content)
    before = files_of(OLD, CUDA, MIDDLE) | foreign_files.keys()
    assert place.names() == before
    output = publish(place.to, NEW, keep="2", dry_run=True)
    assert older(output) == dict.fromkeys(files_of(OLD), "would be removed")
    assert place.names() == before
    output = publish(place.to, NEW, keep="2")
    assert older(output) == dict.fromkeys(files_of(OLD), "removed")
    assert place.names() == files_of(CUDA, MIDDLE, NEW) | foreign_files.keys()
    assert older(publish(place.to, NEW, keep="2")) == {}
    output = publish(place.to, OLD, MIDDLE, keep="1")
    assert older(output) == dict.fromkeys(files_of(MIDDLE), "removed") | {OLD: "not uploaded"}
    assert place.names() == files_of(CUDA, NEW) | foreign_files.keys()


def test_a_removal_that_was_interrupted_is_continued(
    publish: Callable[..., CommandOutput], tmp_path: Path
) -> None:
    target = tmp_path / "there"
    publish(str(target), OLD, NEW)
    for suffix in ("", dist_files.MANIFEST_SUFFIX):
        (target / f"{OLD}{suffix}").unlink()
    publish(str(target), NEW, keep="1")
    assert {path.name for path in target.iterdir()} == files_of(NEW)


def test_nothing_is_removed_if_the_upload_is_refused(
    publish: Callable[..., CommandOutput], tmp_path: Path
) -> None:
    target = tmp_path / "there"
    publish(str(target), OLD)
    (target / NEW).write_bytes(b"another")
    with refused("file-exists"):
        publish(str(target), NEW, keep="1")
    assert {path.name for path in target.iterdir()} == files_of(OLD) | {NEW}


def test_a_refused_removal_names_the_files_that_are_removed() -> None:
    def refuse() -> None:
        raise DeliveryError("it is closed", code="upload-refused")

    files = [
        StoredFile("a.whl", digest=str, read=list, remove=str),
        StoredFile("a.whl.json", digest=str, read=list, remove=refuse),
    ]
    with refused("upload-refused") as error:
        retention.remove_files(files)
    assert str(error.value) == "it is closed (everything is uploaded; removed: a.whl)"


def test_a_refused_removal_stays_an_error_of_its_class() -> None:
    def refuse() -> None:
        raise CommandError(["rm", "a.whl"], 1, "it is busy")

    with refused("command-failed") as error:
        retention.remove_files([StoredFile("a.whl", digest=str, read=list, remove=refuse)])
    assert isinstance(error.value, CommandError)
    assert str(error.value).endswith("it is busy (everything is uploaded; removed: nothing)")


def test_nothing_can_be_removed_from_an_index(publish: Callable[..., CommandOutput]) -> None:
    with refused("contradictory-options"):
        publish("https://index.example", keep="1")
