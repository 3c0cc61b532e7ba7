"""The end of a command: every error becomes one message and an exit code, never a traceback.

The "runners" are nox and invoke, the programs that start sessions and tasks.
"""

import atexit
import functools
import gc
import json
import os
import platform
import re
import select
import sys
from collections.abc import Callable
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from torchmill.core.errors import (
    BuildError,
    ConfigError,
    DeliveryError,
    HostError,
    InterruptedBuildError,
    TorchmillError,
    UnforeseenError,
    VerifyError,
)
from torchmill.core.formats import JSON_OUTPUT, KEY
from torchmill.core.paths import CHECKOUT, IS_INSTALLED
from torchmill.core.plain_text import as_plain_text
from torchmill.core.programs import install_command, record_programs
from torchmill.core.system_errors import is_of_system, machine_error
from torchmill.core.urls import hide_password

TaskBody = Callable[..., None]
_CURE = re.compile(r"`((?:invoke|nox|torchmill|pip|apt|apt-get|dnf) [^`]+)`")
_OBJECTS_BEFORE_COLLECTION = 50_000  # a few megabytes
_GIST_CHARACTERS = 200  # of an unforeseen error


def exit_with_error(
    body: TaskBody, make_exit: Callable[[str, int], Exception], *, as_json: bool = False
) -> TaskBody:
    """Return a function that calls `body` and raises `make_exit(message, exit_code)` for any error.

    Errors of the runners pass as they are. If the reader of standard output has ended, nothing is
    raised. With `as_json` the error is also printed as JSON, for a program that reads standard
    output, unless something was printed there before.
    """

    @functools.wraps(body)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        try:
            body(*args, **kwargs)
            # Flushes: a closed pipe or a full disk must raise here, not when Python ends.
            print_now("", end="")
        except (Exception, KeyboardInterrupt) as error:
            if is_of_runner(error):
                raise
            if isinstance(error, BrokenPipeError) and _has_lost_reader():
                _close_stdout()
                return
            torchmill_error = as_torchmill_error(error)
            _drop_unwritable_output()
            # A command prints its JSON document as a whole. After it, a second document would make
            # the output invalid.
            if as_json and not _Output.printed:
                print_now(json.dumps(error_data(torchmill_error), indent=1))
            message = format_error(torchmill_error)
            raise make_exit(message, torchmill_error.exit_code) from None

    return wrapper


def format_error(error: BaseException) -> str:
    """Return the message for any exception, with its error code: "error[no-timeline]: …"."""
    torchmill_error = as_torchmill_error(error)
    return as_plain_text(f"error[{torchmill_error.code}]: {torchmill_error}")


def error_data(error: TorchmillError) -> dict[str, Any]:
    """Return an error as --json prints it: code, exit code, message, and the command that helps.

    That command, "cure", is the first one that the message names; None if it names none. It may be
    only a part of the cure.
    """
    commands = _CURE.findall(str(error))
    description = {
        "code": error.code,
        "exit_code": error.exit_code,
        "message": as_plain_text(str(error)),
        "cure": commands[0] if commands else None,
    }
    return {KEY: JSON_OUTPUT, "error": description}


def prepare_program() -> None:
    """Prepare the process of a runner, before any other work.

    An error that a runner does not catch is shown as one message. Standard streams that are closed
    are opened, and output that cannot be written when the process ends is an error as well. The
    environment gets the commands by which people start the runners (`record_programs`). Garbage is
    looked for seldom, because a command ends before there is much of it.
    """
    # Python's own limit, 700 new objects, makes it look 60 times while it imports the modules of a
    # command and reads the facts: 8 % of the processor time of `invoke plan` (2026-12-01).
    gc.set_threshold(_OBJECTS_BEFORE_COLLECTION)
    sys.excepthook = show_uncaught
    open_closed_streams()
    atexit.register(_write_last_output)
    record_programs(os.environ)


def open_closed_streams() -> None:
    """Open the standard streams that the parent process closed.

    Python has None for a closed stream, on which programs fail. From now on, characters that the
    locale cannot write are replaced.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            os.set_inheritable(number, True)  # child processes need the stream, too
            mode = "w" if number else "r"
            setattr(sys, name, os.fdopen(number, mode, encoding="utf-8"))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):  # tests may replace it
            stream.reconfigure(errors="replace")  # the matrix and charts use box characters


def show_uncaught(_: type[BaseException], error: BaseException, __: object) -> None:
    """Show an error that no task and no session has caught; to be used as `sys.excepthook`.

    Python then exits with 1, as nox does for every failure. If standard output cannot be written,
    the exit code is that of the HostError that `print_now` would raise.
    """
    if isinstance(error, BrokenPipeError) and _has_lost_reader():
        _close_stdout()
        return
    # The runners open files by name: an OSError without a name comes from what they print.
    is_of_output = isinstance(error, OSError) and error.filename is None
    if is_of_output:
        error.filename = os.path.realpath("/dev/stdout")  # type: ignore[attr-defined]
    torchmill_error = as_torchmill_error(error)
    sys.stderr.write(f"{format_error(torchmill_error)}\n")
    _drop_unwritable_output()
    if is_of_output:
        sys.exit(torchmill_error.exit_code)


def is_of_runner(error: BaseException) -> bool:
    """Tell whether an error is one of nox or invoke, by which they end a session or a task."""
    return type(error).__module__.partition(".")[0] in {"nox", "invoke"}


def as_torchmill_error(error: BaseException) -> TorchmillError:
    """Return the error to show for any exception; a TorchmillError is returned as it is.

    An exception that nobody has foreseen becomes an UnforeseenError, and its traceback is written
    into a file for the user's report.
    """
    translated: TorchmillError | None
    if isinstance(error, TorchmillError):
        translated = error
    else:
        translated = _translate_millpress(error)
    if translated is not None:
        return translated
    if isinstance(error, KeyboardInterrupt):
        return InterruptedBuildError(
            "interrupted: run the same command to go on", code="interrupted"
        )
    if isinstance(error, OSError) and is_of_system(error):
        return machine_error(error, None)
    if isinstance(error, MemoryError) or "can't start new thread" in str(error):
        return HostError(
            "no memory is left: free some, or raise `ulimit -v` and `-u`, then retry",
            code="no-memory",
        )
    if isinstance(error, ModuleNotFoundError):
        package = (error.name or "").partition(".")[0]
        if package != "torchmill":  # a missing module of torchmill itself is a bug
            return _package_missing(error)
    gist = " ".join(f"{type(error).__name__}: {error}".split())
    gist = hide_password(gist)[:_GIST_CHARACTERS]
    return UnforeseenError(
        f"torchmill has a bug ({gist}): please report it{_write_traceback(error)}",
        code="unforeseen",
    )


def _package_missing(error: ModuleNotFoundError) -> HostError:
    """Return the error for a package that torchmill requires, with the command that installs it."""
    arguments = ["-r", str(CHECKOUT / "requirements.txt")]
    if IS_INSTALLED:
        arguments = ["torchmill"]  # pip installs the requirements that it lacks
    command = install_command(arguments, Path(sys.executable))
    return HostError(
        f"the package {error.name} is not installed: run `{command}`", code="package-missing"
    )


def _translate_millpress(error: BaseException) -> TorchmillError | None:
    """Return the TorchmillError for an error of millpress, with the same message and code.

    None if the error is not one of millpress.
    """
    errors = sys.modules.get("millpress.errors")  # not imported: `nox -l` runs without millpress
    if errors is None or not isinstance(error, errors.MillpressError):
        return None
    classes = (
        (errors.InputError, BuildError),
        (errors.OptionError, ConfigError),
        (errors.RepairError, VerifyError),
        (errors.CommandFailedError, TorchmillError),  # before ToolError, whose subclass it is
        (errors.ToolError, HostError),
        (errors.WheelError, DeliveryError),
    )
    for millpress_class, torchmill_class in classes:
        if isinstance(error, millpress_class):
            return torchmill_class(str(error), code=error.code)
    return TorchmillError(str(error), code=error.code)


def _write_traceback(error: BaseException) -> str:
    """Write the traceback into a file, and return a clause that names it; "" if that fails."""
    import tempfile
    import traceback

    text = "".join(traceback.format_exception(error))
    header = f"Python {platform.python_version()}, {platform.platform()}\n"
    try:
        with tempfile.NamedTemporaryFile(
            "w",
            prefix="torchmill-",
            suffix=".txt",
            delete=False,
            encoding="utf-8",
            errors="replace",
        ) as file:
            file.write(header + hide_password(text))
    except OSError:
        return ""
    return f" with the file {file.name}"


class _Output:
    """The state of this process's standard output."""

    printed = False  # `print_now` has printed some text


def print_now(value: object, end: str = "\n") -> None:
    """Print the text of a value as `as_plain_text` makes it, with its colours, and flush it.

    If the reader of the output has ended, as `head` does, later output is dropped, and the command
    goes on. Raises HostError if standard output cannot be written, with the name of its file.
    """
    try:
        text = as_plain_text(str(value), colours=True)
        _Output.printed = _Output.printed or bool(text)
        print(text, end=end, flush=True)  # noqa: T201 - the output of tasks
    except BrokenPipeError:
        _close_stdout()
    except OSError as error:
        raise machine_error(error, Path("/dev/stdout").resolve()) from None


def _write_last_output() -> None:
    """Flush the last output of a runner when the process ends.

    If it cannot be written, shows the error, and ends the process at once with its exit code. The
    message that Python would show names neither the file nor a cure.
    """
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _close_stdout()
    except OSError as error:
        host_error = machine_error(error, Path("/dev/stdout").resolve())
        sys.stderr.write(f"{format_error(host_error)}\n")
        sys.stderr.flush()
        # In a function of atexit, sys.exit() does not change the exit code.
        os._exit(host_error.exit_code)


def _drop_unwritable_output() -> None:
    """Drop buffered output that cannot be written.

    Otherwise Python tries to write it again at its end, and exits with 120
    (https://docs.python.org/3/library/sys.html#sys.exit).
    """
    try:
        sys.stdout.flush()
    except OSError:
        _close_stdout()


def _has_lost_reader() -> bool:
    """Tell whether the program that reads standard output has ended, as `head` does.

    A BrokenPipeError does not name its pipe, which may also lead to a child process or a server.
    """
    if not hasattr(select, "poll"):  # Windows
        return True
    poll = select.poll()
    try:
        poll.register(sys.stdout.fileno(), 0)  # errors and hangups are reported in any case
    except OSError:  # a stand-in for standard output without a file
        return False
    return bool(poll.poll(0))


def _close_stdout() -> None:
    """Drop all further output: standard output stays valid, and to flush it succeeds."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
