"""Every error that a user can act on, with its exit code and a stable code; what is told of a word that is unknown."""

import contextlib
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import TypeVar

from torchmill.core.programs import install_command

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

    def __init_subclass__(cls, *, exit_code: int | None = None) -> None:
        """Give a kind of error its exit code; without one it has that of the kind which it belongs to."""
        cls.exit_code = cls.exit_code if exit_code is None else exit_code


class ConfigError(TorchmillError, exit_code=2):
    """A fact in build_configs/ or an option is wrong."""


class ImpossibleBuildError(TorchmillError, exit_code=3):
    """No release supports the cell that was asked for, or a fact forbids it."""


class UnknownReleaseError(TorchmillError, exit_code=4):
    """The tag, or the identifier, names nothing we know."""


class SourceError(TorchmillError, exit_code=5):
    """The source is missing, half-made, changed, or not the commit that was recorded."""


class NetworkError(TorchmillError, exit_code=6):
    """A host that is needed cannot be reached."""


class HostError(TorchmillError, exit_code=7):
    """This machine lacks a tool, an interpreter, or room."""


class BuildError(TorchmillError, exit_code=8):
    """A command of the build failed."""


class VerifyError(TorchmillError, exit_code=9):
    """The wheel was built, but is not what the plan promised."""


class BusyError(TorchmillError, exit_code=10):
    """Another run works on the same cell or source."""


class MemoryBuildError(TorchmillError, exit_code=11):
    """One file of the build needs more memory than there is, even with all of it to itself."""


class GpuError(TorchmillError, exit_code=13):
    """No GPU answers the wheels that shall be tried on one."""


class DeliveryError(TorchmillError, exit_code=14):
    """What shall be delivered is not what it says, or the place it goes to is somebody else's."""


class UnfinishedBuildError(TorchmillError, exit_code=15):
    """The build ended as it was asked to, before its wheel was made."""


class StepError(TorchmillError, exit_code=16):
    """A step of a build cannot be done, which was seen before the first one was begun."""


class InterruptedBuildError(TorchmillError, exit_code=130):
    """The user stopped the run (exit code of SIGINT in a shell)."""


class UnforeseenError(TorchmillError, exit_code=70):  # EX_SOFTWARE of sysexits.h
    """Something that nobody foresaw: a mistake in torchmill."""


def did_you_mean(word: str, known: Iterable[str], most: int = 1) -> str:
    """Return the known words next to one, itself alone if it is known, as the end of a message; "" without any."""
    from difflib import get_close_matches  # only where something is wrong

    words = list(known)
    longer = [
        one for one in words if word[:2] == "--" and one.startswith(word)
    ]  # --arch: --arch-list, not --torch
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
    if not (
        text.isascii()
        and text.isdecimal()
        and len(text) <= len(str(most))
        and least <= int(text) <= most
    ):
        raise ConfigError(
            f"{option} {text[:40]}: give a whole number from {least} to {most}", code=code
        )
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
        how = f"run `{install_command([requirement], Path(sys.executable))}`"
        raise HostError(
            f"{what} needs {requirement}, which is not installed: {how}", code=code
        ) from None
