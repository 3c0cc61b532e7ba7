"""Where repositories are asked for."""

import pytest

from tests.support.refusals import refused
from torchmill.fetch.source.request import hide_password, host_of, mirror_candidates, require_allowed_url


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (
            "https://github.com/pytorch/pytorch.git",
            ("https://m/git/pytorch/pytorch.git", "https://m/git/pytorch.git"),
        ),
        ("https://github.com/a/b", ("https://m/git/a/b.git", "https://m/git/b.git")),
        ("git@github.com:a/b.git", ("https://m/git/a/b.git", "https://m/git/b.git")),
        ("https://gitlab.com/group/a/b.git/", ("https://m/git/a/b.git", "https://m/git/b.git")),
    ],
)
def test_places_in_a_mirror(url: str, expected: tuple[str, ...]) -> None:
    assert mirror_candidates(url, "https://m/git/") == expected


@pytest.mark.parametrize("old", ["git://github.com/a/b.git", "http://github.com/a/b.git"])
def test_addresses_that_github_has_retired(old: str) -> None:
    assert mirror_candidates(old, None) == ("https://github.com/a/b.git",)


@pytest.mark.parametrize(
    "url", ["http://h/a", "ext::sh -c x", "-oProxyCommand=x", "ftp://h/a", "fd::17", "a\nb"]
)
def test_addresses_that_are_not_fetched_from(url: str) -> None:
    with refused("untrusted-protocol"):
        require_allowed_url(url)


@pytest.mark.parametrize(
    ("url", "host"),
    [
        ("https://user@github.com:8443/a/b.git", "github.com"),
        ("git@github.com:a/b.git", "github.com"),
        ("ssh://git@host/a", "host"),
        ("file:///a/b", "file:///a/b"),
    ],
)
def test_host_of(url: str, host: str) -> None:
    assert host_of(url) == host


def test_passwords_are_not_shown() -> None:
    assert hide_password("cannot read https://me:secret@host/a.git") == "cannot read https://host/a.git"
