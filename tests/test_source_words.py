"""The pure parts of fetching: addresses, git's words, its environment."""

import pytest

from torchwright.errors import SourceError
from torchwright.source.gitcommand import Cause, diagnose, environment, gist
from torchwright.source.mirror import allowed, candidates, host_of, shown
from torchwright.source.progress import Step, parse


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
    assert candidates(url, "https://m/git/") == expected


@pytest.mark.parametrize("old", ["git://github.com/a/b.git", "http://github.com/a/b.git"])
def test_addresses_that_github_has_retired(old: str) -> None:
    assert candidates(old, None) == ("https://github.com/a/b.git",)


@pytest.mark.parametrize(
    "url", ["http://h/a", "ext::sh -c x", "-oProxyCommand=x", "ftp://h/a", "fd::17", "a\nb"]
)
def test_addresses_that_are_not_fetched_from(url: str) -> None:
    with pytest.raises(SourceError, match="https, ssh, git or file"):
        allowed(url)


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
    assert shown("cannot read https://me:secret@host/a.git") == "cannot read https://host/a.git"


@pytest.mark.parametrize(
    ("output", "cause"),
    [
        ("fatal: write error: No space left on device\nfatal: the remote end hung up", Cause.FULL),
        ("fatal: unable to access 'https://h/': Could not resolve host: h", Cause.UNREACHABLE),
        ("fatal: unable to access 'https://h/': CONNECT tunnel failed, response 403", Cause.UNREACHABLE),
        ("fatal: unable to access 'https://h/': The requested URL returned error: 503", Cause.UNREACHABLE),
        ("remote: Repository not found.\nfatal: repository 'https://h/' not found", Cause.MISSING),
        ("fatal: could not read Username for 'https://h': terminal prompts disabled", Cause.MISSING),
        ("error: Server does not allow request for unadvertised object 1234", Cause.REFUSED),
        ("fatal: remote error: upload-pack: not our ref 1234", Cause.REFUSED),
        ("fatal: detected dubious ownership in repository at '/a'", Cause.FOREIGN),
        ("fatal: bad object 1234", Cause.OTHER),
    ],
)
def test_why_git_failed(output: str, cause: Cause) -> None:
    assert diagnose(output) is cause


def test_the_line_that_says_most() -> None:
    said = "Cloning\nerror: RPC failed\nfatal: unable to access 'https://me:pw@h/': no.\nhint: x"
    assert gist(said) == "unable to access 'https://h/': no"


@pytest.mark.parametrize(
    ("line", "step"),
    [
        (
            "Receiving objects:  45% (1234/2743), 10.20 MiB | 3.10 MiB/s",
            Step(1234, 2743, "Receiving objects, 10.20 MiB | 3.10 MiB/s"),
        ),
        ("remote: Counting objects: 100% (8/8), done.        ", Step(8, 8, "Counting objects")),
        ("Updating files:   3% (3/100)", Step(3, 100, "Updating files")),
        (" * [new tag]   v1 -> v1", None),
        ("remote: Enumerating objects: 10, done.", None),
    ],
)
def test_progress_of_git(line: str, step: Step | None) -> None:
    assert parse(line) == step


def test_settings_that_a_user_gave_git_stay() -> None:
    base = {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "http.proxy",
        "GIT_CONFIG_VALUE_0": "p",
        "GIT_DIR": "x",
    }
    env = environment(base)
    keys = [env[f"GIT_CONFIG_KEY_{number}"] for number in range(int(env["GIT_CONFIG_COUNT"]))]
    assert keys[0] == "http.proxy"
    assert len(set(keys)) == len(keys) > 10
    assert env["GIT_TERMINAL_PROMPT"] == "0"
    assert "GIT_DIR" not in env
