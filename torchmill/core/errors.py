"""Every error that a user can act on, with its exit code and a stable code; what is told of a word that is unknown."""

import contextlib
import shlex
from collections.abc import Callable, Collection, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


class TorchmillError(Exception):
    """Something the user can act on: shown as one message, never as a traceback.

    `exit_code` says which kind of error it is. `code` names the very error ("source-not-fetched") and stays
    the same when its words change: tests and programs match it.
    """

    exit_code = 1

    def __init__(self, message: str = "", *, code: str) -> None:
        super().__init__(message)
        self.code = code


class ConfigError(TorchmillError):
    """A fact in build_configs/ or an option is wrong."""

    exit_code = 2


class ImpossibleBuildError(TorchmillError):
    """No release supports the cell that was asked for, or a fact forbids it."""

    exit_code = 3


class UnknownReleaseError(TorchmillError):
    """The tag, or the identifier, names nothing we know."""

    exit_code = 4


class SourceError(TorchmillError):
    """The source is missing, half-made, changed, or not the commit that was recorded."""

    exit_code = 5


class NetworkError(TorchmillError):
    """A host that is needed cannot be reached."""

    exit_code = 6


class HostError(TorchmillError):
    """This machine lacks a tool, an interpreter, or room."""

    exit_code = 7


class BuildError(TorchmillError):
    """A command of the build failed."""

    exit_code = 8


class VerifyError(TorchmillError):
    """The wheel was built, but is not what the plan promised."""

    exit_code = 9


class BusyError(TorchmillError):
    """Another run works on the same cell or source."""

    exit_code = 10


class MemoryBuildError(TorchmillError):
    """One file of the build needs more memory than there is, even with all of it to itself."""

    exit_code = 11


class GpuError(TorchmillError):
    """No GPU answers the wheels that shall be tried on one."""

    exit_code = 13


class DeliveryError(TorchmillError):
    """What shall be delivered is not what it says, or the place it goes to is somebody else's."""

    exit_code = 14


class UnfinishedBuildError(TorchmillError):
    """The build ended as it was asked to, before its wheel was made."""

    exit_code = 15


class InterruptedBuildError(TorchmillError):
    """The user stopped the run (exit code of SIGINT in a shell)."""

    exit_code = 130


class UnforeseenError(TorchmillError):
    """Something that nobody foresaw: a mistake in torchmill."""

    exit_code = 70  # EX_SOFTWARE of sysexits.h


def did_you_mean(word: str, known: Iterable[str], most: int = 1) -> str:
    """Return the known words next to one, itself alone if it is known, as the end of a message; "" without any."""
    from difflib import get_close_matches  # only where something is wrong

    words = list(known)
    longer = [one for one in words if word[:2] == "--" and one.startswith(word)]  # --arch: --arch-list, not --torch
    low = {one.lower(): one for one in words}
    alike = (low[one] for one in get_close_matches(word.strip().lower(), low, most))
    near = [word] if word in words else longer[:most] or list(alike)
    return f"; did you mean {' or '.join(near)}?" if near else ""


def require_choice(what: str, word: str, choices: Collection[str], code: str) -> str:
    """Return a word that is one of several choices; raise ConfigError, with all of them, for any other."""
    if word in choices:
        return word
    hint = did_you_mean(word, choices)
    raise ConfigError(f"unknown {what} '{word}': choose from {', '.join(choices)}{hint}", code=code)


def require_count(option: str, text: str, least: int, most: int, code: str) -> int:
    """Return the number that is the text of an option; raise ConfigError for one out of bounds, or none."""
    if not (text.isascii() and text.isdecimal() and len(text) <= len(str(most)) and least <= int(text) <= most):
        raise ConfigError(f"{option} {text[:40]}: give a whole number from {least} to {most}", code=code)
    return int(text)


def parse_option(option: str, text: str, parse: Callable[[str], T], code: str) -> T:
    """Return what `parse` makes of the text of an option; raise ConfigError where it raises ValueError."""
    try:
        return parse(text)
    except ValueError as error:
        raise ConfigError(f"{option}: {error}", code=code) from None


@contextlib.contextmanager
def require_package(what: str, requirement: str, code: str) -> Iterator[None]:
    """Raise HostError where a package that `what` needs cannot be imported in the block."""
    try:
        yield
    except ImportError:
        how = f"run `python -m pip install {shlex.quote(requirement)}`"
        raise HostError(f"{what} needs {requirement}, which is not installed: {how}", code=code) from None
