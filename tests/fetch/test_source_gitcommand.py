"""What git is told, and what its complaints are taken for."""

import pytest

from torchmill.fetch.source.git_command import GitFailure, complaint_gist, diagnose_git, git_environment


@pytest.mark.parametrize(
    ("output", "cause"),
    [
        ("fatal: write error: No space left on device\nfatal: the remote end hung up", GitFailure.FULL),
        ("fatal: unable to access 'https://h/': Could not resolve host: h", GitFailure.UNREACHABLE),
        ("fatal: unable to access 'https://h/': CONNECT tunnel failed, response 403", GitFailure.UNREACHABLE),
        (
            "fatal: unable to access 'https://h/': The requested URL returned error: 503",
            GitFailure.UNREACHABLE,
        ),
        ("remote: Repository not found.\nfatal: repository 'https://h/' not found", GitFailure.MISSING),
        ("fatal: could not read Username for 'https://h': terminal prompts disabled", GitFailure.MISSING),
        ("error: Server does not allow request for unadvertised object 1234", GitFailure.REFUSED),
        ("fatal: remote error: upload-pack: not our ref 1234", GitFailure.REFUSED),
        ("fatal: detected dubious ownership in repository at '/a'", GitFailure.FOREIGN),
        ("fatal: bad object 1234", GitFailure.OTHER),
    ],
)
def test_why_git_failed(output: str, cause: GitFailure) -> None:
    assert diagnose_git(output) is cause


def test_the_line_that_says_most() -> None:
    said = "Cloning\nerror: RPC failed\nfatal: unable to access 'https://me:pw@h/': no.\nhint: x"
    assert complaint_gist(said) == "unable to access 'https://h/': no"


def test_settings_that_a_user_gave_git_stay() -> None:
    base = {
        "GIT_CONFIG_COUNT": "1",
        "GIT_CONFIG_KEY_0": "http.proxy",
        "GIT_CONFIG_VALUE_0": "p",
        "GIT_DIR": "x",
    }
    env = git_environment(base)
    keys = [env[f"GIT_CONFIG_KEY_{number}"] for number in range(int(env["GIT_CONFIG_COUNT"]))]
    assert keys[0] == "http.proxy"
    assert len(set(keys)) == len(keys) > 10
    assert env["GIT_TERMINAL_PROMPT"] == "0"
    assert "GIT_DIR" not in env
