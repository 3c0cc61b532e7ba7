"""How a command ends: whatever is raised becomes one message and an exit code, never a traceback."""

import atexit
import functools
import json
import os
import platform
import re
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
from torchmill.core.paths import CHECKOUT
from torchmill.core.plain_text import as_plain_text
from torchmill.core.programs import install_command, record_programs
from torchmill.core.system_errors import is_of_system, machine_error
from torchmill.core.urls import hide_password

TaskBody = Callable[..., None]


def exit_with_error(
    body: TaskBody, ended: Callable[[str, int], Exception], *, as_json: bool = False
) -> TaskBody:
    """Return `body` such that an error raises what `ended` makes of its message and exit code.

    With `as_json` the error is printed as JSON, too, for a program that reads standard output.
    """

    @functools.wraps(body)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        try:
            body(*args, **kwargs)
            print_now(
                "", end=""
            )  # else it is Python's end that meets a pipe without a reader, or a full disk
        except BrokenPipeError:
            _close_stdout()
        except (Exception, KeyboardInterrupt) as error:
            if is_of_runner(error):
                raise
            shown = as_torchmill_error(error)
            _drop_unwritable_output()
            if as_json and not _Output.printed:  # what a command printed is one document already
                print_now(json.dumps(error_data(shown), indent=1))
            raise ended(format_error(shown), shown.exit_code) from None

    return wrapper


def format_error(error: BaseException) -> str:
    """Return anything that was raised as people and programs read it: "error[no-timeline]: …"."""
    shown = as_torchmill_error(error)
    return as_plain_text(f"error[{shown.code}]: {shown}")


def error_data(error: TorchmillError) -> dict[str, Any]:
    """Return an error as --json prints it: code, exit code, message, and the command that helps.

    "cure" is the first command that the message names, without a promise that it is enough; None
    if it names none.
    """
    commands = re.findall(r"`((?:invoke|nox|torchmill|pip|apt|apt-get|dnf) [^`]+)`", str(error))
    description = {
        "code": error.code,
        "exit_code": error.exit_code,
        "message": as_plain_text(str(error)),
        "cure": commands[0] if commands else None,
    }
    return {KEY: JSON_OUTPUT, "error": description}


def prepare_program() -> None:
    """Have everything that ends nox or invoke end it with one message; record how people run both here."""
    sys.excepthook = show_uncaught
    open_closed_streams()
    atexit.register(_write_last_output)
    record_programs(os.environ)


def open_closed_streams() -> None:
    """Open standard streams that whoever started this closed: Python has None for them, and programs fail on them.

    What a locale cannot write is replaced from now on.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            os.set_inheritable(number, True)
            setattr(sys, name, os.fdopen(number, "w" if number else "r", encoding="utf-8"))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(
                errors="replace"
            )  # pictures of text, where the locale has no such characters


def show_uncaught(_: type[BaseException], error: BaseException, __: object) -> None:
    """Show what was raised outside of a task or session, by Invoke or Nox themselves: for `sys.excepthook`."""
    if isinstance(error, BrokenPipeError):
        _close_stdout()
        return
    of_output = isinstance(error, OSError) and error.filename is None
    if of_output:  # of the runners, what they print alone has no name
        error.filename = os.path.realpath("/dev/stdout")  # type: ignore[attr-defined]
    shown = as_torchmill_error(error)
    sys.stderr.write(f"{format_error(shown)}\n")
    _drop_unwritable_output()
    if of_output:
        sys.exit(shown.exit_code)


def is_of_runner(error: BaseException) -> bool:
    """Tell whether an error is one by which Nox or Invoke itself ends a session or a task."""
    return type(error).__module__.partition(".")[0] in {"nox", "invoke"}


def as_torchmill_error(error: BaseException) -> TorchmillError:
    """Return what to show of anything that was raised: one of our own errors as it is."""
    known_error = error if isinstance(error, TorchmillError) else _translate_millpress(error)
    if known_error is not None:
        return known_error
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
    if (
        isinstance(error, ModuleNotFoundError)
        and (error.name or "").partition(".")[0] != "torchmill"
    ):
        how = install_command(["-r", str(CHECKOUT / "requirements.txt")], Path(sys.executable))
        return HostError(
            f"the package {error.name} is not installed: run `{how}`", code="package-missing"
        )
    gist = hide_password(" ".join(f"{type(error).__name__}: {error}".split()))[:200]
    return UnforeseenError(
        f"torchmill has a bug ({gist}): please report it{_write_traceback(error)}",
        code="unforeseen",
    )


def _translate_millpress(error: BaseException) -> TorchmillError | None:
    """Return our error for one of millpress, with its message and code; None for any other."""
    errors = sys.modules.get("millpress.errors")  # not imported: `nox -l` runs without millpress
    if errors is None or not isinstance(error, errors.MillpressError):
        return None
    kinds = (
        (errors.InputError, BuildError),
        (errors.OptionError, ConfigError),
        (errors.RepairError, VerifyError),
        (errors.CommandFailedError, TorchmillError),  # before ToolError, whose subclass it is
        (errors.ToolError, HostError),
        (errors.WheelError, DeliveryError),
    )
    for kind, our_kind in kinds:
        if isinstance(error, kind):
            return our_kind(str(error), code=error.code)
    return TorchmillError(str(error), code=error.code)


def _write_traceback(error: BaseException) -> str:
    """Write the traceback into a file, and return a clause that names it; "" where that is not possible."""
    import tempfile
    import traceback

    text = "".join(traceback.format_exception(error))
    about = f"Python {platform.python_version()}, {platform.platform()}\n"
    try:
        with tempfile.NamedTemporaryFile(
            "w",
            prefix="torchmill-",
            suffix=".txt",
            delete=False,
            encoding="utf-8",
            errors="replace",
        ) as file:
            file.write(about + hide_password(text))
    except OSError:
        return ""
    return f" with the file {file.name}"


class _Output:
    """Whether this program has printed something."""

    printed = False


def print_now(what: object, end: str = "\n") -> None:
    """Print something now; that nobody reads it any more, such as `head`, keeps nothing from going on.

    Raises HostError, which names the file that standard output goes to, where that cannot be written.
    """
    try:
        text = as_plain_text(str(what), colours=True)
        _Output.printed = _Output.printed or bool(text)
        print(text, end=end, flush=True)  # noqa: T201 - what tasks print
    except BrokenPipeError:
        _close_stdout()
    except OSError as error:
        raise machine_error(error, Path("/dev/stdout").resolve()) from None


def _write_last_output() -> None:
    """Write what the runners printed last: of a full disk, Python's own end would say no file and no cure."""
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _close_stdout()
    except OSError as error:
        shown = machine_error(error, Path("/dev/stdout").resolve())
        sys.stderr.write(f"{format_error(shown)}\n")
        sys.stderr.flush()
        os._exit(shown.exit_code)  # nothing else changes the exit code at this point


def _drop_unwritable_output() -> None:
    """Drop output for which there is no room: else some Pythons try again at their end, and exit with 120."""
    try:
        sys.stdout.flush()
    except OSError:
        _close_stdout()


def _close_stdout() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
