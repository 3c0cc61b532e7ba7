"""Questions to a person in a terminal, and the commands that are run there for them.

A *cure* is a command that the doctor names for a finding, such as `apt install ninja-build`.
"""

import os
import shlex
import sys
from collections.abc import Callable, Collection, Iterable
from typing import TextIO

from torchmill.commands.command import CommandOutput
from torchmill.core.console import format_for_user
from torchmill.core.errors import ConfigError, HostError
from torchmill.core.exits import print_now
from torchmill.core.paths import CHECKOUT
from torchmill.core.process import CommandError, run_in_terminal, stream
from torchmill.core.programs import has_pip
from torchmill.core.urls import hide_password
from torchmill.core.uv_program import uv_command
from torchmill.plan.doctor.cures import Cures
from torchmill.plan.family_results import SessionEnd

# The beginning of the cure for missing sources. The doctor reports them as a warning, because a
# machine can be judged without them; but no build goes on without them.
FETCH = "invoke fetch"
STOPPED = "stopped: the same command goes on from here"
# Programs that are run as modules of this Python: PATH may have those of another environment.
_MODULES = {"invoke", "nox", "pip", "uv"}

# A cure that was run, and the state of its finding before that. The same cure is run again only
# if the state has changed, as when another cure has installed half of what is missing.
Trial = tuple[str, str]


def agree(question: str, *, yes: bool, default: bool = True) -> bool:
    """Ask a question, and tell whether the answer is yes; with `yes` it is not asked.

    `default` is the answer of an empty line. Raises ConfigError if nobody can be asked.
    """
    if yes:
        return True
    if not sys.stdin.isatty():
        raise ConfigError(f"{question} Nobody can be asked here: add --yes", code="nobody-to-ask")
    print_now(f"{question} [{'Y/n' if default else 'y/N'}] ", end="")
    line = sys.stdin.readline()
    if line == "":
        # The end of the input, such as Ctrl-D: not even an empty line.
        return False
    answer = line.strip().lower()
    return answer in {"y", "yes"} or (default and answer == "")


def bring_missing(
    examine: Callable[[], Cures],
    *,
    require_all: bool,
    yes: bool = False,
    agreed: Collection[str] = (),
) -> CommandOutput | None:
    """Run the cures of a machine until none is left, and ask before each round of them.

    `examine` returns the cures that the machine needs now: a cure may lead to findings that nobody
    could see before it. Nothing is asked about commands that were `agreed` to before. With
    `require_all`, raises HostError for a failure that no command cures. Returns None, or the output
    of a command that ends because the user said no or a cure failed.
    """
    tried: set[Trial] = set()
    while True:
        cures = examine()
        if require_all:
            _require_curable(cures, tried)
        commands = []
        for command, finding in cures.commands.items():
            if (command, finding.state) not in tried:
                commands.append(command)
        if not commands:
            return None
        unseen = [command for command in commands if command not in agreed]
        if unseen:
            print_now(format_for_user(hide_password(show_cures(cures, unseen))))
            if not agree("Go on?", yes=yes):
                return CommandOutput(STOPPED if tried else "nothing was done", exit_code=1)
        for command in commands:
            tried.add((command, cures.commands[command].state))
        code = _run_cures(cures, commands)
        if code:
            return CommandOutput(STOPPED, exit_code=code)


def show_cures(cures: Cures, commands: Iterable[str]) -> str:
    """Return a list of commands with their purposes."""
    lines = ["to do, in this order:"]
    for command in commands:
        finding = cures.commands[command]
        lines.append(f"  {command}\n      {finding.subject}: {finding.state}")
    return "\n".join(lines)


def _require_curable(cures: Cures, tried: Collection[Trial]) -> None:
    """Raise HostError for failures that no command cures, or that their cure did not change."""
    failures = [*cures.incurable]
    for command, finding in cures.commands.items():
        if (command, finding.state) in tried and finding.verdict == "failure":
            failures.append(finding)
    if failures:
        # Several builds may lack the same thing: its line is shown once.
        lines = dict.fromkeys(f"  {finding.sentence()}" for finding in failures)
        raise HostError(
            "this machine lacks what no command can install:\n" + "\n".join(lines),
            code="not-curable",
        )


def _run_cures(cures: Cures, commands: Iterable[str]) -> int:
    """Run commands; return the exit code of the first failure that stops the build, or 0."""
    for command in commands:
        code = run_step(command)
        if not code:
            continue
        if cures.commands[command].verdict == "failure" or command.startswith(FETCH):
            return code
        print_now(f"`{hide_password(command)}` failed: the build goes on without it")
    return 0


def run_step(line: str) -> int:
    """Run one command as a user would, in this terminal, and return its exit code.

    Variables may be set in front of it: "CC=gcc-11 nox -s wheel-3.10-cpu".
    """
    print_now(f"\n$ {hide_password(line)}")
    argv, variables = _split_step(line)
    return run_in_terminal(argv, {**os.environ, **variables})


def stream_step(line: str, log: TextIO) -> SessionEnd:
    """Run one command as `run_step` does, but without input; return its exit code and its output.

    TORCHMILL_TAG of this process is not passed on. `log` gets the lines as they come. Raises
    InterruptedBuildError after Ctrl-C.
    """
    log.write(f"\n$ {hide_password(line)}\n")
    argv, variables = _split_step(line)
    environment = dict(os.environ)
    # The line names its release, which a variable of the user's shell must not replace.
    environment.pop("TORCHMILL_TAG", None)
    environment |= variables
    lines: list[str] = []
    try:
        stream(argv, cwd=None, env=environment, log=log, on_line=lines.append)
    except CommandError as error:
        return SessionEnd(error.returncode, lines)
    return SessionEnd(0, lines)


def _split_step(line: str) -> tuple[list[str], dict[str, str]]:
    """Return the words of a command that start it, and the variables that are set in front of it."""
    variables = {}
    words = shlex.split(line)
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        variables[name] = value
    program, *arguments = words
    if program == "pip" and not has_pip():
        # Environments that uv makes have no pip, but uv.
        argv = [*uv_command(), "pip"]
        variables["UV_PYTHON"] = sys.executable
    else:
        argv = _program_argv(program)
    return [*argv, *arguments], variables


def _program_argv(program: str) -> list[str]:
    """Return the words that start a program; nox and invoke find the suite from any folder."""
    if program not in _MODULES:
        return [program]
    argv = [sys.executable, "-P", "-m", program]
    if program == "nox":
        return [*argv, "--noxfile", str(CHECKOUT / "noxfile.py")]
    if program == "invoke":
        return [*argv, "--search-root", str(CHECKOUT)]
    return argv
