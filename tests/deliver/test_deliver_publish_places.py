"""What may stand after --to."""

import pytest

from tests.support.refusals import refused
from torchmill.core.errors import ConfigError
from torchmill.deliver.publish import targets
from torchmill.deliver.publish.folder import FolderTarget
from torchmill.deliver.publish.github import GithubReleases
from torchmill.deliver.publish.index import IndexTarget


@pytest.mark.parametrize(
    ("to", "said"),
    [
        ("", "say where to"),
        ("gs://bucket/x", "no such place"),
        ("ftp://user:word@host/x", "--to ftp://host/x: there is no such place"),
        ("github:me", "github:OWNER/NAME"),
        ("github:me/../x", "github:OWNER/NAME"),
        ("https://user:word@host/", "a password has no place"),
        ("s3://", "s3://BUCKET"),
        ("s3://key:word@bucket", "s3://BUCKET"),
        ("s3://b?x", "s3://BUCKET"),
        ("s3:bucket", "s3://BUCKET"),
        ("github:me/..", "github:OWNER/NAME"),
        ("https://word@host/", "--to https://host/: a password has no place"),
        ("https://user:pass/word@host/", "--to https://host/: is no address"),
        ("https://[::1/", "is no address"),
        ("https://host:http/", "is no address"),
        ("https:///x", "names no server"),
        ("https://host/?token=word@", "has a query"),
        ("file://host/x", "no folder of this machine"),
        ("file:", "no folder of this machine"),
        ("file:x", "no folder of this machine"),
        ("file:///x?y", "no folder of this machine"),
        ("~nobody-is-called-so/x", "no user of that name"),
    ],
)
def test_what_is_no_place_is_refused_and_no_password_repeated(to: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said) as error:
        targets.choose_target(to, {"GH_TOKEN": "t"})
    assert "word@" not in str(error.value)
    assert "pass" not in str(error.value).replace("a password has", "").replace("TWINE_PASSWORD", "")


def test_each_place_has_its_form() -> None:
    environ = {"GH_TOKEN": "t"}
    assert isinstance(targets.choose_target("out", environ), FolderTarget)
    assert targets.choose_target("file:///a/b%20c", environ).name == "/a/b c"
    assert isinstance(targets.choose_target("https://host/x", environ), IndexTarget)
    six = targets.choose_target("http://[::1]:8080/", environ)
    assert isinstance(six, IndexTarget)
    assert (six.name, six.simple) == ("http://[::1]:8080/", "http://[::1]:8080/simple")
    found = targets.choose_target("github:me/wheels@v1.13.1+cpu", environ)
    assert isinstance(found, GithubReleases)
    assert (found.repository, found.tag) == ("me/wheels", "v1.13.1+cpu")


def test_only_an_index_is_read_elsewhere() -> None:
    with refused("simple-without-index"):
        targets.choose_target("out", {}, "https://host/simple")
    with refused("password-in-command"):
        targets.choose_target("https://host", {}, "https://word@host/simple")


def test_github_needs_a_token() -> None:
    with refused("no-token"):
        targets.choose_target("github:me/wheels", {})
    with pytest.raises(ConfigError, match="GITHUB_API_URL nowhere: does not begin with https://"):
        targets.choose_target("github:me/wheels", {"GH_TOKEN": "t", "GITHUB_API_URL": "nowhere"})
