"""The real tasks without a process of their own, for tests of many command lines."""

import shlex
from pathlib import Path

import pytest
from invoke import Collection, Program

import tasks
from tests.support.commands import InvokeHere
from torchmill.config.facts import Facts
from torchmill.core import reaper
from torchmill.core.errors import ConfigError
from torchmill.core.paths import Layout


@pytest.fixture
def invoke(
    tmp_path: Path,
    shipped: Facts,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> InvokeHere:
    """Return what runs a line after "invoke" in a checkout below `tmp_path`, in which nothing was made."""
    monkeypatch.setattr(tasks, "LAYOUT", Layout(tmp_path, tmp_path / "cache"))
    monkeypatch.setattr(tasks, "_load_facts", lambda: shipped)
    monkeypatch.setattr(reaper, "watch_run", lambda: None)  # of a run that is a process
    monkeypatch.delenv("TORCHMILL_TAG", raising=False)
    monkeypatch.setenv("TORCHMILL_PROBE", "off")

    def told(line: str) -> tuple[int, str, str]:
        words = shlex.split(line)
        own = ["invoke", *words[: words.index("--")]] if "--" in words else ["invoke", *words]
        monkeypatch.setattr(tasks, "REST", words[len(own) :])
        code = 0
        try:
            program = Program(namespace=Collection(tasks.make_task(words[0], own)))
            program.run(own)
        except ConfigError as slip:  # which tasks.py ends with, when it is loaded
            return slip.exit_code, "", f"error: {slip}"
        except SystemExit as end:
            code = int(end.code or 0)
        said = capsys.readouterr()
        return code, said.out, said.err

    return told
