"""Programs that repair runs: their output, and how they fail."""

import sys

import pytest
from millpress.errors import CommandFailedError
from millpress.programs import run_program
from press_support.expected_errors import refused


def run_python(code: str) -> str:
    return run_program([sys.executable, "-c", code])


def test_the_output_is_returned() -> None:
    assert run_python("print('a'); print('b')") == "a\nb\n"


def test_the_last_line_says_why_a_program_failed() -> None:
    with refused("command-failed") as caught:
        run_python("import sys; print('first', file=sys.stderr); sys.exit('no such section')")
    assert isinstance(caught.value, CommandFailedError)
    assert str(caught.value).endswith("ended with exit code 1: no such section")


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no signals")
def test_a_killed_program_is_named_with_its_signal() -> None:
    with refused("command-failed") as caught:
        run_python("import os, signal; os.kill(os.getpid(), signal.SIGKILL)")
    assert "was killed by SIGKILL: it printed nothing" in str(caught.value)


def test_a_program_that_cannot_be_started_is_named() -> None:
    with refused("program-not-runnable") as caught:
        run_program(["/nowhere/patchelf", "--version"])
    assert "`/nowhere/patchelf` cannot be run here (No such file" in str(caught.value)
    assert str(caught.value).endswith("install it for this machine")


def test_a_command_that_is_too_long_says_nothing_of_the_installation() -> None:
    with refused("program-not-runnable") as caught:
        run_program([sys.executable, "-c", "x" * (1 << 22)])
    assert "install it" not in str(caught.value)
