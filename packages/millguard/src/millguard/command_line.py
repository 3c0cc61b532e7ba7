"""The command `millguard`: guard a command, report on it, explain it, exchange what was learned."""

import argparse
import contextlib
import io
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, TextIO

from millguard.quantities import printable
from millguard.status_line import StatusLine
from millguard.usage import UsageError, WordParser, parse_jobs, parse_size

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
FAILED = 1
WRONG_USAGE = 2
SIGNALLED = 128  # and the number of the signal, as a shell has it
ENDED_BY_PIPE = 141  # 128 and SIGPIPE, which `signal` does not name on Windows


class EndRequested(KeyboardInterrupt):
    """Another signal than SIGINT asked this process to end, before the command ran or after it."""

    def __init__(self, number: int) -> None:
        super().__init__(number)
        self.number = number


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command with its arguments, by default those of this process; return the exit code.

    If a signal ended the guarded command, or asked for the end, this process ends by that signal.
    """
    _prepare_streams()
    if sys.platform == "win32":
        _print_error("it does not run on Windows: use WSL, where it does")
        return WRONG_USAGE
    try:
        code = _dispatch(list(sys.argv[1:] if arguments is None else arguments))
        sys.stdout.flush()  # or Python does it at its end, and prints its own message if it fails
    except UsageError as error:
        _print_error(f"{error} (see `millguard --help`)")
        return WRONG_USAGE
    except KeyboardInterrupt as request:  # before the command ran, or in a command without one
        number = request.number if isinstance(request, EndRequested) else signal.SIGINT
        _end_by_signal(number)
        return SIGNALLED + number
    except BrokenPipeError:  # the reader of the output has seen enough
        _discard_output()
        return ENDED_BY_PIPE
    except OSError as error:  # such as a full disk under the output
        _discard_output()
        _print_error(str(error))
        return FAILED
    return code


def _prepare_streams() -> None:
    """Make stdout and stderr take any text.

    Python has None for a stream that was closed by the caller (`2>&-`). A file name may hold
    characters that the encoding of the output lacks.
    """
    if sys.stdout is None:
        sys.stdout = _open_nothing()
    if sys.stderr is None:
        sys.stderr = _open_nothing()
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


def _open_nothing() -> TextIO:
    """Return a stream that drops what is written. The command does not inherit it."""
    return open(os.devnull, "w", encoding="utf-8")  # noqa: PTH123 - to the end


def _discard_output() -> None:
    """Let the rest of the output go nowhere.

    The descriptor is replaced and not only `sys.stdout`: Python writes the rest of the old stream
    at its end. https://docs.python.org/3/library/signal.html#note-on-sigpipe
    """
    with contextlib.suppress(OSError, ValueError):
        nothing = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nothing, sys.stdout.fileno())
        os.close(nothing)


def _dispatch(arguments: list[str]) -> int:
    if arguments and arguments[0] in OTHER_COMMANDS:
        from millguard import run_commands

        return run_commands.run(arguments[0], arguments[1:])
    option_words, command = _split(arguments)
    options = _parse_options(option_words)
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
    """Return the options of millguard, and the command, in two lists.

    The command begins after `--`, or with the first word that is neither an option nor the value of
    one. argparse cannot tell that: it would take the command's options for millguard's.
    """
    options_with_value = {"--memory", "--jobs", "-j", "--report"}
    position = 0
    while position < len(arguments):
        word = arguments[position]
        if word == "--":
            return arguments[:position], arguments[position + 1 :]
        if not word.startswith("-"):
            return arguments[:position], arguments[position:]
        position += 2 if word in options_with_value else 1
    return arguments, []


def _parse_options(option_words: list[str]) -> argparse.Namespace:
    """Return the values of millguard's options. Raises UsageError."""
    parser = WordParser(add_help=False)
    parser.add_argument("--memory", type=str)
    parser.add_argument("-j", "--jobs", type=str)
    parser.add_argument("--report", type=Path)
    parser.add_argument("-q", "--quiet", action="store_true")
    parser.add_argument("-h", "--help", action="store_true")
    parser.add_argument("--version", action="store_true")
    return parser.parse_args(option_words)


def _guard(command: list[str], options: argparse.Namespace) -> int:
    """Run the command under a guard, and report on it as the options say; return its exit code."""
    # Imported here, because these modules take a while, and `--help` needs none of them.
    from millguard.guarded_command import CommandNotStartedError, GuardOptions, run_guarded
    from millguard.observers import installed_observers

    observers, problems = installed_observers()
    chosen = GuardOptions(
        memory=None if options.memory is None else parse_size(options.memory),
        jobs=None if options.jobs is None else parse_jobs(options.jobs),
        observers=observers,
    )
    if options.report is not None:
        from millguard import reports

        reports.check_target(options.report)
    status = None if options.quiet else StatusLine()
    _handle_end_signals()
    if status is not None:
        for problem in problems:
            status.report(problem)
    try:
        result = run_guarded(command, chosen, status)
    except CommandNotStartedError as error:
        _print_error(str(error))
        return error.exit_code
    if status is not None:
        for message in result.messages(command[0]):
            status.report(message)
    if options.report is not None:
        _write_report(result, options.report)
    if result.signal is not None:
        _end_by_signal(result.signal)
    return result.exit_code


def _handle_end_signals() -> None:
    """Let signals that ask for an end raise EndRequested.

    Their default action would leave the guard's folder behind.
    """
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _request_end)


def _request_end(number: int, _frame: FrameType | None) -> None:
    """Handle a signal by an exception, so that everything is put away."""
    raise EndRequested(number)


def _write_report(result: "GuardedResult", target: Path) -> None:
    """Write the report on a command that has ended; if that fails, its exit code stays."""
    from millguard import recorded_runs, reports

    if result.recording is None:
        _print_error(f"{target} was not written: the build was not recorded")
        return
    try:
        reports.write_report(recorded_runs.load_run(result.recording), target)
    except (OSError, recorded_runs.NoRunError) as error:
        _print_error(f"{target} was not written: {error}")


def _end_by_signal(number: int) -> None:
    """End as the command did, so that a shell or make sees the signal and not only a code.

    Returns if the signal does not end this process, because the caller has blocked it.
    """
    import resource

    with contextlib.suppress(OSError, ValueError):
        # The command may have dumped its memory to `core`; a dump of ours would replace that.
        _, hard_limit = resource.getrlimit(resource.RLIMIT_CORE)
        resource.setrlimit(resource.RLIMIT_CORE, (0, hard_limit))
    with contextlib.suppress(
        OSError
    ):  # SIGKILL's action cannot be set; it ends this process anyway
        signal.signal(number, signal.SIG_DFL)
    with contextlib.suppress(OSError):
        sys.stderr.flush()
    os.kill(os.getpid(), number)


def _print_error(message: str) -> None:
    with contextlib.suppress(OSError):  # the terminal is gone: the exit code must arrive
        sys.stderr.write(f"millguard: {printable(message)}\n")
