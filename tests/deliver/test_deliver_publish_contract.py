"""What holds for every target: files are published once, and never replaced."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import boto3
import pytest

from tests.support import documented_wheels
from tests.support import publishing_servers as servers
from tests.support.publishing_servers import GitHub
from tests.support.refusals import refused
from torchmill.commands.publish import deliver_files, refuse_impossible_options
from torchmill.deliver.publish import targets, upload_set
from torchmill.deliver.publish.upload_set import PublishTarget, UploadFile
from torchmill.wheel import dist_files, finished_wheel

BUCKET = "contract"
OTHER = b"another"


class Place(Protocol):
    """A place with the files that are published there, seen from behind its target."""

    # The error code of a target to which another program has added the file since it was asked.
    appeared_code: str

    def target(self) -> PublishTarget:
        """Return a target of the place that knows nothing of earlier runs."""

    def add(self, name: str, content: bytes) -> None:
        """Add a file as another program would."""

    def contents(self) -> Mapping[str, bytes]:
        """Return the content of each file, by name."""


@dataclass
class FolderPlace:
    folder: Path
    appeared_code: str = "file-appeared"

    def target(self) -> PublishTarget:
        return targets.choose_target(str(self.folder), {})

    def add(self, name: str, content: bytes) -> None:
        self.folder.mkdir(exist_ok=True)
        (self.folder / name).write_bytes(content)

    def contents(self) -> Mapping[str, bytes]:
        if not self.folder.exists():
            return {}
        return {path.name: path.read_bytes() for path in self.folder.iterdir()}


@dataclass
class IndexPlace(FolderPlace):
    """The folder that pypiserver serves."""

    url: str = ""
    appeared_code: str = "simple-differs"

    def target(self) -> PublishTarget:
        environ = {
            "PATH": "/usr/bin:/bin",
            "HOME": str(self.folder),
            "TWINE_USERNAME": servers.USER,
            "TWINE_PASSWORD": servers.PASSWORD,
        }
        return targets.choose_target(self.url, environ)


@dataclass
class GithubPlace:
    hub: GitHub
    appeared_code: str = "file-appeared"

    def target(self) -> PublishTarget:
        environ = {"GH_TOKEN": servers.TOKEN, "GITHUB_API_URL": self.hub.url}
        return targets.choose_target(f"github:{self.hub.repository}@v1", environ)

    def add(self, name: str, content: bytes) -> None:
        release = self.hub.releases[0] if self.hub.releases else self.hub.release("v1")
        self.hub.add(release, name, content)

    def contents(self) -> Mapping[str, bytes]:
        contents = {}
        for release in self.hub.releases:
            for asset in release["assets"]:
                contents[asset["name"]] = self.hub.contents[asset["id"]]
        return contents


@dataclass
class BucketPlace:
    client: Any
    appeared_code: str = "file-appeared"

    def target(self) -> PublishTarget:
        return targets.choose_target(f"s3://{BUCKET}", {})

    def add(self, name: str, content: bytes) -> None:
        self.client.put_object(Bucket=BUCKET, Key=name, Body=content)

    def contents(self) -> Mapping[str, bytes]:
        contents = {}
        for entry in self.client.list_objects_v2(Bucket=BUCKET).get("Contents", ()):
            answer = self.client.get_object(Bucket=BUCKET, Key=entry["Key"])
            contents[entry["Key"]] = answer["Body"].read()
        return contents


@pytest.fixture(scope="module")
def s3() -> Iterator[Mapping[str, str]]:
    with servers.s3(BUCKET) as environ:
        yield environ


@pytest.fixture(params=["folder", "index", "github", "bucket"])
def place(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Place]:
    match request.param:
        case "folder":
            yield FolderPlace(tmp_path / "there")
        case "index":
            with servers.pypiserver(tmp_path / "packages") as url:
                yield IndexPlace(tmp_path / "packages", url=url)
        case "github":
            with servers.github() as hub:
                yield GithubPlace(hub)
        case "bucket":
            for name, value in request.getfixturevalue("s3").items():
                monkeypatch.setenv(name, value)
            client = boto3.client("s3")
            client.create_bucket(Bucket=BUCKET)
            bucket = BucketPlace(client)
            for name in bucket.contents():
                client.delete_object(Bucket=BUCKET, Key=name)
            yield bucket


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> list[UploadFile]:
    """Return a wheel with its documents; the wheel is the last file."""
    wheel = documented_wheels.built(tmp_path_factory.mktemp("dist"), "1.13.1+cpu")
    return list(
        upload_set.upload_files(finished_wheel.read_wheel(wheel), dist_files.DOCUMENT_SUFFIXES)
    )


@pytest.fixture
def files(built: list[UploadFile], place: Place) -> list[UploadFile]:
    """Return the files that the place takes."""
    return built if place.target().takes_documents else built[-1:]


def contents_of(files: Iterable[UploadFile]) -> Mapping[str, bytes]:
    return {file.name: file.path.read_bytes() for file in files}


def publish(place: Place, files: list[UploadFile], *, dry_run: bool = False) -> list[str]:
    return [outcome for _, outcome in deliver_files(place.target(), files, dry_run=dry_run)]


def test_files_are_published_once(place: Place, files: list[UploadFile]) -> None:
    assert publish(place, files) == [upload_set.UPLOADED] * len(files)
    assert place.contents() == contents_of(files)
    assert publish(place, files) == [upload_set.PRESENT] * len(files)
    assert place.contents() == contents_of(files)


def test_an_equal_file_of_another_program_stays(place: Place, files: list[UploadFile]) -> None:
    place.add(files[0].name, files[0].path.read_bytes())
    expected = [upload_set.PRESENT] + [upload_set.UPLOADED] * (len(files) - 1)
    assert publish(place, files) == expected
    assert place.contents() == contents_of(files)


def test_another_file_of_the_name_is_never_replaced(place: Place, files: list[UploadFile]) -> None:
    place.add(files[-1].name, OTHER)
    with refused("file-exists") as error:
        publish(place, files)
    assert files[-1].sha256 in str(error.value)
    assert place.contents() == {files[-1].name: OTHER}


def test_a_file_that_appears_during_a_run_is_never_replaced(
    place: Place, files: list[UploadFile]
) -> None:
    other = "other-1.0-py3-none-any.whl"
    place.add(other, OTHER)  # so that the place exists
    target = place.target()
    target.existing_digests(files)
    place.add(files[-1].name, OTHER)
    with refused(place.appeared_code):
        target.upload(files[-1])
    assert place.contents() == {other: OTHER, files[-1].name: OTHER}


def test_a_dry_run_changes_nothing(place: Place, files: list[UploadFile]) -> None:
    assert publish(place, files, dry_run=True) == [upload_set.ABSENT] * len(files)
    assert place.contents() == {}


def test_a_target_lists_and_removes_files_if_it_says_so(
    place: Place, files: list[UploadFile]
) -> None:
    target = place.target()
    if not target.removes_files:
        with refused("contradictory-options"):
            refuse_impossible_options(target, sign_key="", manifest=False, keep="1")
        return
    refuse_impossible_options(target, sign_key="", manifest=False, keep="1")
    publish(place, files)
    stored = {file.name: file for file in target.stored_files()}
    assert stored.keys() == {file.name for file in files}
    for file in files:
        assert stored[file.name].digest() == file.sha256
        assert b"".join(stored[file.name].read()) == file.path.read_bytes()
    stored[files[0].name].remove()
    assert place.contents() == contents_of(files[1:])


def test_documents_are_refused_for_a_target_that_takes_none(place: Place) -> None:
    target = place.target()
    for options in ({"sign_key": "key.pem"}, {"manifest": True}):
        arguments: dict[str, Any] = {"sign_key": "", "manifest": False, "keep": "", **options}
        if target.takes_documents:
            refuse_impossible_options(target, **arguments)
        else:
            with refused("contradictory-options"):
                refuse_impossible_options(target, **arguments)
