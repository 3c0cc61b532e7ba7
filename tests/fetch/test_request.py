"""Requests for sources, and the addresses of repositories and mirrors."""

from dataclasses import replace

import pytest

from tests.support.changed_facts import change_groups
from tests.support.refusals import refused
from torchmill.config.facts import Facts
from torchmill.config.release_lookup import find_release, partner_releases
from torchmill.core.urls import hide_password, host_of
from torchmill.fetch.source.git_command import mirror_candidates, require_allowed_url
from torchmill.fetch.source.request import source_requests


def test_a_release_is_requested_alone_or_with_its_partners(small_facts: Facts) -> None:
    release = find_release(small_facts, "base", "v1.0.0")
    alone = source_requests(small_facts, [release], ref="abc", mirror="file:///m", origin="")
    assert [(request.title, request.mirror, request.origin) for request in alone] == [
        ("base abc", "file:///m", None)
    ]
    with_partner = source_requests(
        small_facts,
        partner_releases(small_facts, release, ["base", "vision"]),
        ref="",
        mirror="",
        origin="debian",
    )
    assert [(request.title, request.ref, request.origin) for request in with_partner] == [
        ("base v1.0.0", None, "debian"),
        ("addon v0.1.0", None, "debian"),
    ]


def test_a_ref_of_several_packages_is_refused(small_facts: Facts) -> None:
    release = find_release(small_facts, "base", "v1.0.0")
    with refused("ref-of-several"):
        source_requests(
            small_facts,
            partner_releases(small_facts, release, ["base", "addon"]),
            ref="abc",
            mirror="",
            origin="",
        )


def test_a_ref_of_a_package_without_a_repository_is_refused(small_facts: Facts) -> None:
    """Nobody has given --from, so the message must not speak of it."""
    release = find_release(small_facts, "base", "v1.0.0")
    package = change_groups(small_facts.packages["base"], source={"repository": ""})
    facts = replace(small_facts, packages={**small_facts.packages, "base": package})
    (request,) = source_requests(facts, [release], ref="abc", mirror="", origin="")
    with refused("conflicting-options") as caught:
        request.validate()
    assert "--from" not in str(caught.value)


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
def test_candidates_in_a_mirror(url: str, expected: tuple[str, ...]) -> None:
    assert mirror_candidates(url, "https://m/git/") == expected


@pytest.mark.parametrize("old", ["git://github.com/a/b.git", "http://github.com/a/b.git"])
def test_addresses_that_github_has_retired_are_replaced(old: str) -> None:
    assert mirror_candidates(old, None) == ("https://github.com/a/b.git",)


def test_a_mirror_with_a_nul_is_refused() -> None:
    with refused("untrusted-protocol"):
        mirror_candidates("https://github.com/a/b.git", "/mnt/mirror\0s")


@pytest.mark.parametrize(
    "url", ["http://h/a", "ext::sh -c x", "-oProxyCommand=x", "ftp://h/a", "fd::17", "a\nb"]
)
def test_untrusted_addresses_are_refused(url: str) -> None:
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
def test_host_of_an_address(url: str, host: str) -> None:
    assert host_of(url) == host


def test_passwords_are_not_shown() -> None:
    for login in ("me:secret@", "ghp_token@", "me:p@ss@", ":secret@", "me:@"):
        assert (
            hide_password(f"cannot read https://{login}host/a@b.git")
            == "cannot read https://host/a@b.git"
        )
    assert hide_password("ssh://me:secret@host/a") == "ssh://host/a"
    assert (
        hide_password("ssh://git@host/a, https://host:80/b, c@d")
        == "ssh://git@host/a, https://host:80/b, c@d"
    )
