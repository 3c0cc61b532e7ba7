"""Where a task ends: our own errors become one message and their exit code."""

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

from torchmill.errors import SuiteError

Body = Callable[..., None]


def translated(body: Body, ended: Callable[[str, int], Exception]) -> Body:
    """Return `body` such that an error of ours raises what `ended` makes of its message and exit code."""

    @functools.wraps(body)
    def wrapper(*args: Any, **kwargs: Any) -> None:
        try:
            body(*args, **kwargs)
            print(end="", flush=True)  # noqa: T201 - else it is Python's end that meets a pipe without a reader
        except SuiteError as error:
            raise ended(f"error: {error}", error.exit_code) from None
        except BrokenPipeError:
            _read_enough()

    return wrapper


def say(what: object) -> None:
    """Print something now; that nobody reads it any more, such as `head`, keeps nothing from going on."""
    try:
        print(what, flush=True)  # noqa: T201 - what tasks print
    except BrokenPipeError:
        _read_enough()


def _read_enough() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
