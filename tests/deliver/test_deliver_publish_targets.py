"""The forms of the targets that --to takes."""

import pytest

from tests.support.refusals import refused
from torchmill.deliver.publish import targets
from torchmill.deliver.publish.folder import FolderTarget
from torchmill.deliver.publish.github import GithubReleases
from torchmill.deliver.publish.index import IndexTarget

SECRET = "s3cr3t"  # noqa: S105 - it is no secret


@pytest.mark.parametrize(
    ("to", "code"),
    [
        ("", "no-target"),
        ("gs://bucket/x", "unknown-target"),
        (f"ftp://user:{SECRET}@host/x", "unknown-target"),
        (f"https//user:{SECRET}@host/x", "unknown-target"),
        ("wheels.example/simple", "unknown-target"),
        ("pypirc:", "unknown-repository"),
        ("github:me", "invalid-target"),
        ("github:me/../x", "invalid-target"),
        (f"https://user:{SECRET}@host/", "password-in-url"),
        ("s3://", "invalid-target"),
        (f"s3://key:{SECRET}@bucket", "invalid-target"),
        ("s3://b?x", "invalid-target"),
        ("s3:bucket", "invalid-target"),
        ("github:me/..", "invalid-target"),
        (f"https://{SECRET}@host/", "password-in-url"),
        (f"https://user:{SECRET}/{SECRET}@host/", "invalid-url"),
        ("https://[::1/", "invalid-url"),
        ("https://host:http/", "invalid-url"),
        ("https:///x", "invalid-url"),
        (f"https://host/?token={SECRET}@", "invalid-url"),
        ("file://host/x", "invalid-url"),
        ("file:", "invalid-url"),
        ("file:x", "invalid-url"),
        ("file:///x?y", "invalid-url"),
        ("~nobody-is-called-so/x", "unknown-user"),
    ],
)
def test_an_invalid_target_is_refused_without_its_password(to: str, code: str) -> None:
    with refused(code) as error:
        targets.choose_target(to, {"GH_TOKEN": "t"})
    assert SECRET not in str(error.value)


def test_each_target_has_its_form() -> None:
    environ = {"GH_TOKEN": "t"}
    assert isinstance(targets.choose_target("out", environ), FolderTarget)
    assert isinstance(targets.choose_target("./wheels.example/simple", environ), FolderTarget)
    assert targets.choose_target("file:///a/b%20c", environ).name == "/a/b c"
    assert isinstance(targets.choose_target("https://host/x", environ), IndexTarget)
    index = targets.choose_target("http://[::1]:8080/", environ)
    assert isinstance(index, IndexTarget)
    assert index.name == "http://[::1]:8080/"
    assert index.simple == "http://[::1]:8080/simple"
    releases = targets.choose_target("github:me/wheels@v1.13.1+cpu", environ)
    assert isinstance(releases, GithubReleases)
    assert releases.repository == "me/wheels"
    assert releases.tag == "v1.13.1+cpu"


def test_only_an_index_has_another_url_for_reading() -> None:
    with refused("simple-without-index"):
        targets.choose_target("out", {}, "https://host/simple")
    with refused("password-in-url"):
        targets.choose_target("https://host", {}, "https://word@host/simple")


def test_github_needs_a_token() -> None:
    with refused("no-token"):
        targets.choose_target("github:me/wheels", {})
    with refused("invalid-url"):
        targets.choose_target("github:me/wheels", {"GH_TOKEN": "t", "GITHUB_API_URL": "nowhere"})
