"""The real tasks without a process of their own, for tests of many command lines."""

import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from invoke import Exit, Program

import tasks
from tests.support.commands import InvokeHere
from tests.support.made_index import UV
from torchmill.commands import command_line
from torchmill.config import remembered_facts
from torchmill.config.facts import Facts
from torchmill.core import exits, reaper
from torchmill.core.exits import exit_with_error


@pytest.fixture(scope="module")
def clients(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of Poetry and PDM, each in the versions that it was released with."""
    # the newest PDM does not start with the newest httpx: "locked" are the versions that it was tested with
    return installed_programs(tmp_path_factory, "poetry>=2.1", "pdm[locked]>=2.22")


@pytest.fixture(scope="module")
def hatch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the program Hatch, which does not take the versions that PDM was released with."""
    return installed_programs(tmp_path_factory, "hatch>=1.16") / "hatch"


def installed_programs(factory: pytest.TempPathFactory, *packages: str) -> Path:
    """Install packages from PyPI into an environment of their own; return the folder of programs."""
    folder = factory.mktemp("clients")
    subprocess.run([UV, "venv", "-q", "--python", sys.executable, folder / "v"], check=True)
    subprocess.run([UV, "pip", "install", "-q", "--python", folder / "v", *packages], check=True)
    return folder / "v" / "bin"


@pytest.fixture
def invoke(
    tmp_path: Path,
    shipped: Facts,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> InvokeHere:
    """Return what runs a line after "invoke" in a checkout below `tmp_path`, in which nothing was made."""
    monkeypatch.setenv("TORCHMILL_HOME", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(remembered_facts, "load_facts", lambda _: shipped)
    monkeypatch.setattr(reaper, "watch_run", lambda: None)  # of a run that is a process
    monkeypatch.delenv("TORCHMILL_TAG", raising=False)
    monkeypatch.setenv("TORCHMILL_PROBE", "off")

    def run(line: str) -> tuple[int, str, str]:
        words = command_line.read_command_line(["invoke", *shlex.split(line)])
        monkeypatch.setattr(command_line, "COMMAND_LINE", words)
        monkeypatch.setattr(exits._Output, "printed", False)  # by an earlier line
        code = run_tasks(words.words)
        printed = capsys.readouterr()
        return code, printed.out, printed.err

    return run


def run_tasks(words: Sequence[str]) -> int:
    """Run the tasks of a command line as invoke does when it has loaded tasks.py; return its exit code."""

    class Loaded(Program):
        def parse_collection(self) -> None:
            exit_with_error(command_line.answer_words, as_exit)(
                tasks.namespace, command_line.COMMAND_LINE
            )
            super().parse_collection()

    try:
        Loaded(namespace=tasks.namespace).run(list(words))
    except SystemExit as end:
        return int(end.code or 0)
    return 0


def as_exit(message: str, code: int) -> Exit:
    return Exit(message, code=code)
