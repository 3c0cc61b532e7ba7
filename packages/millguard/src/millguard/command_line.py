"""The command `millguard`: guard a command, report on it, explain it, exchange what was learned."""

import argparse
import contextlib
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from millguard.status_line import StatusLine
from millguard.usage import UsageError, parse_jobs, parse_size

if TYPE_CHECKING:
    from millguard.guarded_command import GuardedResult

USAGE = """\
usage: millguard [OPTIONS] -- COMMAND...
       millguard report [FILE]
       millguard explain [-j JOBS]
       millguard costs list | export FILE | import FILE

Run a build with as many compilers at a time as its memory allows.

  millguard -- pip install flash-attn
  millguard -- cmake --build build
  millguard --memory 12GiB -- make -j16

options:
  --memory SIZE   for all compilers together, such as 12GiB (default: what the machine has left)
  -j, --jobs N    compilers at a time, at most (default: the processors that there are)
  --report FILE   write what was slow, what was big, and what waited: .txt, .html or .svg
  -q, --quiet     print nothing but errors
  -h, --help      print this text
  --version       print the version

The exit code is the command's own; 2 is for options that are wrong, 126 for a command that cannot
be run, 127 for one that is not found.
"""
OTHER_COMMANDS = ("report", "explain", "costs")
WRONG_USAGE = 2
ENDED_BY_PIPE = 128 + signal.SIGPIPE


class _Parser(argparse.ArgumentParser):
    """A parser that raises UsageError."""

    def error(self, message: str) -> NoReturn:
        raise UsageError(message)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with its arguments, by default those of this process; return the exit code."""
    if sys.platform == "win32":
        _say("it does not run on Windows: use WSL, where it does")
        return WRONG_USAGE
    try:
        return _dispatch(list(sys.argv[1:] if arguments is None else arguments))
    except UsageError as error:
        _say(f"{error} (see `millguard --help`)")
        return WRONG_USAGE
    except BrokenPipeError:  # whoever read the output has seen enough
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123, SIM115 - till the end
        return ENDED_BY_PIPE


def _dispatch(arguments: list[str]) -> int:
    if arguments and arguments[0] in OTHER_COMMANDS:
        from millguard import run_commands

        return run_commands.run(arguments[0], arguments[1:])
    words, command = _split(arguments)
    options = _parse_options(words)
    if options.help or not (arguments or options.version):
        sys.stdout.write(USAGE)
        return 0
    if options.version:
        from importlib.metadata import version

        sys.stdout.write(f"millguard {version('millguard')}\n")
        return 0
    if not command:
        raise UsageError("there is no command to run: millguard -- COMMAND...")
    return _guard(command, options)


def _split(arguments: list[str]) -> tuple[list[str], list[str]]:
    """Return the options of millguard, and the command.

    The command begins after `--`, or with the first word that is not an option of ours.
    """
    takes_value = {"--memory", "--jobs", "-j", "--report"}
    position = 0
    while position < len(arguments):
        word = arguments[position]
        if word == "--":
            return arguments[:position], arguments[position + 1 :]
        if not word.startswith("-"):
            return arguments[:position], arguments[position:]
        position += 2 if word in takes_value else 1
    return arguments, []


def _parse_options(words: list[str]) -> argparse.Namespace:
    parser = _Parser(prog="millguard", add_help=False, allow_abbrev=False)
    parser.add_argument("--memory", type=str)
    parser.add_argument("-j", "--jobs", type=str)
    parser.add_argument("--report", type=Path)
    parser.add_argument("-q", "--quiet", action="store_true")
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("--version", action="store_true")
    return parser.parse_args(words)


def _guard(command: list[str], options: argparse.Namespace) -> int:
    # not needed for `--help`, and not to be had on Windows
    from millguard.guarded_command import CommandNotStartedError, GuardOptions, run_guarded

    chosen = GuardOptions(
        memory=None if options.memory is None else parse_size(options.memory),
        jobs=None if options.jobs is None else parse_jobs(options.jobs),
    )
    if options.report is not None:
        from millguard import reports

        reports.check_target(options.report)
    status = None if options.quiet else StatusLine()
    try:
        result = run_guarded(command, chosen, status)
    except CommandNotStartedError as error:
        _say(str(error))
        return error.exit_code
    if status is not None:
        _summarize(result, command[0], status)
    if options.report is not None:
        _write_report(result, options.report)
    if result.signal is not None:
        _end_by_signal(result.signal)
    return result.exit_code


def _summarize(result: "GuardedResult", program: str, status: StatusLine) -> None:
    if not result.was_guarded:
        return  # which was said when it began
    if result.account.units:
        status.report(result.account.summary())
    elif not result.unguarded.counts:
        status.report(f"{program} started no compiler that had to be guarded")
    for message in result.unguarded.messages():
        status.report(message)


def _write_report(result: "GuardedResult", target: Path) -> None:
    from millguard import recorded_runs, reports

    if result.recording is None:
        _say(f"{target} was not written: the build was not recorded")
        return
    try:
        reports.write_report(recorded_runs.load_run(result.recording), target)
    except (OSError, recorded_runs.NoRunError) as error:
        _say(f"{target} was not written: {error}")


def _end_by_signal(number: int) -> None:
    """End as the command did, so that a shell or make sees the signal and not only a code."""
    with contextlib.suppress(OSError):  # SIGKILL's handler cannot be set, and needs not be
        signal.signal(number, signal.SIG_DFL)
    sys.stderr.flush()
    os.kill(os.getpid(), number)


def _say(message: str) -> None:
    sys.stderr.write(f"millguard: {message}\n")
