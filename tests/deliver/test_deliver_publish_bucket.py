"""A bucket as a target: boto3 against moto's S3."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from botocore.exceptions import IncompleteReadError

from tests.support import documented_wheels
from tests.support import publishing_servers as servers
from tests.support.refusals import refused
from torchmill.commands.publish import deliver_files
from torchmill.deliver.publish import bucket, targets, upload_set
from torchmill.deliver.publish.upload_set import UploadFile
from torchmill.wheel import dist_files, finished_wheel

BUCKET = "wheels"


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> list[UploadFile]:
    wheel = documented_wheels.built(tmp_path_factory.mktemp("dist"), "1.13.1+cpu")
    return list(
        upload_set.upload_files(finished_wheel.read_wheel(wheel), dist_files.DOCUMENT_SUFFIXES)
    )


@pytest.fixture(scope="module")
def server() -> Iterator[dict[str, str]]:
    with servers.s3(BUCKET) as environ:
        yield environ


@pytest.fixture
def client(server: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a client of an empty bucket; boto3 is configured by the environment."""
    for name, value in server.items():
        monkeypatch.setenv(name, value)
    client = boto3.client("s3")
    client.create_bucket(Bucket=BUCKET)
    for key in names(client):
        client.delete_object(Bucket=BUCKET, Key=key)
    return client


def publish(files: list[UploadFile], to: str = f"s3://{BUCKET}/whl/cpu/") -> list[str]:
    return [outcome for _, outcome in deliver_files(targets.choose_target(to, {}), files)]


def names(client: Any) -> list[str]:
    contents = client.list_objects_v2(Bucket=BUCKET).get("Contents", ())
    return [entry["Key"] for entry in contents]


def test_files_are_uploaded_below_the_prefix(client: Any, files: list[UploadFile]) -> None:
    assert publish(files) == [upload_set.UPLOADED] * 3
    assert names(client) == sorted(f"whl/cpu/{file.name}" for file in files)
    assert publish(files) == [upload_set.PRESENT] * 3


def test_a_missing_or_unreachable_bucket_is_reported(
    client: Any, files: list[UploadFile], monkeypatch: pytest.MonkeyPatch
) -> None:
    del client
    with refused("no-bucket"):
        publish(files, "s3://absent/x")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    with refused("host-unreachable"):
        publish(files)


def test_a_file_that_is_too_large_for_s3_is_refused(client: Any, files: list[UploadFile]) -> None:
    del client
    large = UploadFile(
        files[-1].path, files[-1].sha256, bucket.BucketTarget.size_limit + 1, files[-1].wheel
    )
    with refused("target-refuses"):
        publish([large])


def test_a_password_of_the_endpoint_is_not_shown(
    files: list[UploadFile], client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    del client
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://me:secret@127.0.0.1:9")
    with refused("host-unreachable") as caught:
        publish(files)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("variable", "value"),
    [
        ("AWS_PROFILE", "nobodys"),
        ("AWS_ENDPOINT_URL", "minio:9000"),
        ("AWS_ENDPOINT_URL", "http://[::1"),
        ("AWS_DEFAULT_REGION", "bad_region/x"),
        ("AWS_CONFIG_FILE", "{folder}/config"),
    ],
)
def test_wrong_settings_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variable: str, value: str
) -> None:
    (tmp_path / "config").write_text("no settings\n")
    monkeypatch.setenv(variable, value.format(folder=tmp_path))
    monkeypatch.setattr(boto3, "DEFAULT_SESSION", None)  # it has read the configuration
    with refused("invalid-target"):
        targets.choose_target("s3://bucket/x", {}, "")


def test_a_connection_that_breaks_during_a_comparison_is_reported(
    files: list[UploadFile],
) -> None:
    class Broken:
        def __getattr__(self, verb: str) -> Any:
            return lambda **_: {"ContentLength": 9, "Body": self} if verb != "read" else self.read

        def read(self, amt: int) -> bytes:
            raise IncompleteReadError(actual_bytes=1, expected_bytes=amt)

    with refused("host-unreachable"):
        bucket.BucketTarget("bucket", "", Broken()).existing_digests(files)
