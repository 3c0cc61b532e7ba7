"""What a person is asked in a terminal, and the commands that are run there for them."""

import os
import shlex
import sys
from collections.abc import Callable, Collection, Iterable
from importlib.util import find_spec
from itertools import takewhile

from torchmill.commands.command import CommandOutput
from torchmill.core.console import fit_screen
from torchmill.core.errors import ConfigError, HostError
from torchmill.core.exits import print_now
from torchmill.core.paths import CHECKOUT
from torchmill.core.process import run_in_terminal
from torchmill.core.urls import hide_password
from torchmill.plan.doctor.cures import Cures

FETCH = "invoke fetch"  # whose cure is of a warning: the doctor is asked before there are sources
STOPPED = "stopped: the same command goes on from here"
_FINDS = {"nox": "--noxfile", "invoke": "--search-root"}  # the suite, whatever folder this is
Trial = tuple[
    str, str
]  # a command, and what was found before it ran: that differs once another step was done
_OF_PYTHON = {"invoke", "nox", "pip", "uv"}  # run by the Python that runs this


def agree(question: str, *, yes: bool, default: bool = True) -> bool:
    """Ask, and return whether the answer is yes; it is where all was agreed to before.

    Raises ConfigError where nobody can be asked.
    """
    if yes:
        return True
    if not sys.stdin.isatty():
        raise ConfigError(f"{question} Nobody can be asked here: add --yes", code="nobody-to-ask")
    print_now(f"{question} [{'Y/n' if default else 'y/N'}] ", end="")
    answer = sys.stdin.readline()
    agreed = {"y", "yes", *([""] if default else [])}
    return answer != "" and answer.strip().lower() in agreed  # at its end, a terminal gives ""


def bring_missing(
    examine: Callable[[], Cures],
    *,
    all_of_it: bool,
    yes: bool = False,
    agreed: Collection[str] = (),
) -> CommandOutput | None:
    """Run the cures of what is missing, and those that only then appear; ask before each that was not `agreed` to.

    Return how it ended where it did not succeed. Raises HostError where `all_of_it` is needed, and something is
    missing that no command brings.
    """
    done: set[Trial] = set()
    while True:
        cures = examine()
        if all_of_it:
            _require_curable(cures, done)
        new = [
            command
            for command, finding in cures.commands.items()
            if (command, finding.found) not in done
        ]
        if not new:
            return None
        if unseen := [command for command in new if command not in agreed]:
            print_now(fit_screen(hide_password(show_cures(cures, unseen))))
            if not agree("Go on?", yes=yes):
                return CommandOutput("nothing was done" if not done else STOPPED, exit_code=1)
        done |= {(command, cures.commands[command].found) for command in new}
        if code := _run_cures(cures, new):
            return CommandOutput(STOPPED, exit_code=code)


def show_cures(cures: Cures, commands: Iterable[str]) -> str:
    """Return a list of commands with what each is for."""
    found = [(command, cures.commands[command]) for command in commands]
    return "\n".join(
        [
            "to do, in this order:",
            *(f"  {how}\n      {one.subject}: {one.found}" for how, one in found),
        ]
    )


def _require_curable(cures: Cures, done: Collection[Trial]) -> None:
    tried = [
        finding
        for command, finding in cures.commands.items()
        if (command, finding.found) in done and finding.verdict == "failure"
    ]
    if lacking := [*cures.incurable, *tried]:
        lines = "\n".join(
            dict.fromkeys(f"  {one.sentence()}" for one in lacking)
        )  # cells lack the same
        raise HostError(
            f"this machine lacks what no command can install:\n{lines}", code="not-curable"
        )


def _run_cures(cures: Cures, commands: Iterable[str]) -> int:
    """Run commands; return the exit code of the first that fails where a build does not go on without it."""
    for command in commands:
        code = run_step(command)
        if code and (cures.commands[command].verdict == "failure" or command.startswith(FETCH)):
            return code
        if code:
            print_now(f"`{hide_password(command)}` failed: the build goes on without it")
    return 0


def run_step(line: str) -> int:
    """Run one command as a user would, in this terminal, and return its exit code."""
    print_now(f"\n$ {hide_password(line)}")
    words = shlex.split(line)
    variables = dict(word.split("=", 1) for word in takewhile(lambda word: "=" in word, words))
    program, *rest = words[len(variables) :]
    argv = [sys.executable, "-P", "-m", program] if program in _OF_PYTHON else [program]
    if program == "pip" and find_spec("pip") is None:  # environments that uv makes have none
        argv = [*argv[:-1], "uv", "pip"]
        variables["UV_PYTHON"] = sys.executable
    if program in _FINDS:
        argv += [_FINDS[program], str(CHECKOUT / ("noxfile.py" if program == "nox" else ""))]
    return run_in_terminal([*argv, *rest], {**os.environ, **variables})
