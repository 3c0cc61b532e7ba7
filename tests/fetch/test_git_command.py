"""Git's environment, its progress, and what its output means."""

import os
import subprocess

import pytest

from tests.support.refusals import refused
from tests.support.silent_progress import SilentBar
from torchmill.core.silence import silence_limit
from torchmill.fetch.source.git_command import (
    PROTOCOLS,
    GitFailure,
    complaint_gist,
    diagnose_git,
    git_environment,
    show_git_progress,
)


@pytest.mark.parametrize("count", ["abc", "-1", "2", "99999999999999999999"])
def test_a_wrong_config_count_is_refused(count: str) -> None:
    base = {"GIT_CONFIG_COUNT": count, "GIT_CONFIG_KEY_0": "user.name", "GIT_CONFIG_VALUE_0": "x"}
    with refused("invalid-git-config-count"):
        git_environment(base)


@pytest.mark.parametrize("silence", ["x", "0", "-1", "nan"])
def test_a_wrong_limit_of_silence_is_refused(silence: str) -> None:
    with refused("invalid-silence"):
        silence_limit({"TORCHMILL_SILENCE": silence})


@pytest.mark.parametrize(
    ("output", "cause"),
    [
        ("fatal: write error: No space left on device\nfatal: the remote end hung up", "full"),
        ("fatal: unable to access 'https://h/': Could not resolve host: h", "unreachable"),
        (
            "fatal: unable to access 'https://h/': CONNECT tunnel failed, response 403",
            "unreachable",
        ),
        (
            "fatal: unable to access 'https://h/': The requested URL returned error: 503",
            "unreachable",
        ),
        ("remote: Repository not found.\nfatal: repository 'https://h/' not found", "missing"),
        ("fatal: could not read Username for 'https://h': terminal prompts disabled", "missing"),
        ("error: Server does not allow request for unadvertised object 1234", "refused"),
        ("fatal: remote error: upload-pack: not our ref 1234", "refused"),
        ("fatal: detected dubious ownership in repository at '/a'", "foreign"),
        ("fatal: unsafe repository ('/a' is owned by someone else)", "foreign"),
        ("fatal: bad object 1234", "damaged"),
        ("error: unable to read 49444c3e546bf240bed24a101e747422d1f8a0ee", "damaged"),
        (
            "error: object 1234: hasDotgit: contains '.git'\nfatal: fsck error in packed object",
            "damaged",
        ),
        ("fatal: write error: Broken pipe", "unreachable"),
        ("fatal: expected flush after ref listing", "unreachable"),
        ("fatal: Could not read from remote repository.", "unreachable"),
        ("git@h: Permission denied.\nfatal: Could not read from remote repository.", "missing"),
        ("fatal: something new", "other"),
    ],
)
def test_causes_of_failure_are_diagnosed(output: str, cause: GitFailure) -> None:
    assert diagnose_git(output) == cause


def test_the_gist_is_the_fatal_error_without_password() -> None:
    output = "Cloning\nerror: RPC failed\nfatal: unable to access 'https://me:pw@h/': no.\nhint: x"
    assert complaint_gist(output) == "unable to access 'https://h/': no"


def test_settings_in_variables_are_passed_on() -> None:
    base = {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "http.proxy",
        "GIT_CONFIG_VALUE_0": "p",
        "GIT_DIR": "x",
    }
    env = git_environment(base)
    expected = {
        "http.proxy": "p",
        "protocol.allow": "never",
        **{f"protocol.{name}.allow": "always" for name in PROTOCOLS},
    }
    for key, value in expected.items():
        argv = ["git", "config", "--get", key]
        result = subprocess.run(
            argv,
            env={**env, "PATH": os.environ["PATH"]},
            capture_output=True,
            text=True,
            check=True,
        )
        assert result.stdout == f"{value}\n"
    assert env["GIT_TERMINAL_PROMPT"] == "0"
    assert "GIT_DIR" not in env


@pytest.mark.parametrize(
    ("line", "step"),
    [
        (
            "Receiving objects:  45% (1234/2743), 10.20 MiB | 3.10 MiB/s",
            (1234, 2743, "Receiving objects, 10.20 MiB | 3.10 MiB/s"),
        ),
        ("remote: Counting objects: 100% (8/8), done.        ", (8, 8, "Counting objects")),
        ("Updating files:   3% (3/100)", (3, 100, "Updating files")),
        (" * [new tag]   v1 -> v1", None),
        ("remote: Enumerating objects: 10, done.", None),
    ],
)
def test_progress_lines_move_the_bar(
    line: str, step: tuple[int, int, str] | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[tuple[object, ...]] = []
    bar = SilentBar()
    monkeypatch.setattr(bar, "update", lambda *update: steps.append(update))
    show_git_progress(bar, line)
    assert steps == ([step] if step else [])
