"""What git is told, and what its complaints are taken for."""

import pytest

from torchmill.source.gitcommand import Cause, diagnose, environment, gist


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
