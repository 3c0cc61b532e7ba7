"""Every error that a user can act on, with its exit code and a stable code; checks of options."""

from collections.abc import Callable, Collection, Iterable
from typing import TypeVar

T = TypeVar("T")


class TorchmillError(Exception):
    """An error that the user can act on: shown as one message, never as a traceback.

    All errors of a class have one `exit_code`. `code` names a single error ("source-not-fetched")
    and stays the same if the words change: tests and programs match it.
    """

    exit_code = 1
    # Seconds after which the step that failed may succeed, as a server asks for them or 0.0. None:
    # it will fail again. `retries.repeat` repeats such steps.
    retry_after: float | None = None

    def __init__(self, message: str = "", *, code: str) -> None:
        super().__init__(message)
        self.code = code

    def __init_subclass__(cls, *, exit_code: int | None = None) -> None:
        """Give a class of errors its exit code; by default the parent class's."""
        if exit_code is not None:
            cls.exit_code = exit_code


class ConfigError(TorchmillError, exit_code=2):
    """A fact in build_configs/ or an option is wrong."""


class ImpossibleBuildError(TorchmillError, exit_code=3):
    """No release supports the requested cell, or a fact forbids it."""


class UnknownReleaseError(TorchmillError, exit_code=4):
    """The tag or the identifier is unknown."""


class SourceError(TorchmillError, exit_code=5):
    """The source is missing, incomplete, changed, or not the recorded commit."""


class NetworkError(TorchmillError, exit_code=6):
    """A required host cannot be reached."""


class HostError(TorchmillError, exit_code=7):
    """This machine lacks a tool, an interpreter, or room.

    `cure` says what helps, as the end of the message. It is given apart from `reason` where the
    doctor shows both in places of their own; "" if all of the message is the reason.
    """

    def __init__(self, reason: str = "", *, code: str, cure: str = "") -> None:
        super().__init__(f"{reason}: {cure}" if cure else reason, code=code)
        self.reason = reason
        self.cure = cure


class BuildError(TorchmillError, exit_code=8):
    """A command of the build failed."""


class VerifyError(TorchmillError, exit_code=9):
    """The wheel was built, but is not what the plan promised."""


class BusyError(TorchmillError, exit_code=10):
    """Another run works on the same cell or source."""


class MemoryBuildError(TorchmillError, exit_code=11):
    """One file needs more memory to compile than the machine has."""


class GpuError(TorchmillError, exit_code=13):
    """No GPU is available to test the wheels on."""


class DeliveryError(TorchmillError, exit_code=14):
    """The delivered files are not what their records say, or somebody else owns the destination."""


class UnfinishedBuildError(TorchmillError, exit_code=15):
    """The build ended as requested, before its wheel was made."""


class StepError(TorchmillError, exit_code=16):
    """A step of a build is impossible; raised before the first step begins."""


class NothingToCompileError(TorchmillError, exit_code=17):
    """A package has nothing that is compiled against torch: pip installs it."""


class WheelsOnlyError(TorchmillError, exit_code=18):
    """The index has wheels of a package, and no source to build it from."""


class SetupNetworkError(TorchmillError, exit_code=19):
    """The setup.py of a package needs a network, which no build has."""


class OtherWheelError(TorchmillError, exit_code=20):
    """A wheel was built once more, and came out with other bytes."""


class InterruptedBuildError(TorchmillError, exit_code=130):
    """The user stopped the run (exit code of SIGINT in a shell)."""


class UnforeseenError(TorchmillError, exit_code=70):  # EX_SOFTWARE of sysexits.h
    """A bug in torchmill."""


def did_you_mean(word: str, choices: Iterable[str], most: int = 1) -> str:
    """Return the end of a message, "; did you mean --arch-list?"; "" if no choice resembles a word.

    At most `most` choices are suggested. A word that is itself a choice, which the user may have
    written in the wrong place, is the only suggestion.
    """
    suggestions = _suggest(word, list(choices), most)
    if not suggestions:
        return ""
    return f"; did you mean {' or '.join(suggestions)}?"


def _suggest(word: str, choices: list[str], most: int) -> list[str]:
    """Return at most `most` of the choices that resemble a word, the most similar one first."""
    from difflib import get_close_matches  # slow to import, and only needed for a wrong word

    if word in choices:
        return [word]
    if word.startswith("--"):
        # An abbreviation: --arch means --arch-list, though --torch resembles it more.
        completions = [choice for choice in choices if choice.startswith(word)]
        if completions:
            return completions[:most]
    # Compared in lower case, because difflib takes "A" and "a" for entirely different.
    by_lowercase = {choice.lower(): choice for choice in choices}
    matches = get_close_matches(word.strip().lower(), by_lowercase, most)
    return [by_lowercase[match] for match in matches]


def require_choice(subject: str, word: str, choices: Collection[str], code: str) -> str:
    """Return `word` if it is one of the choices.

    Raises ConfigError with `code`, which lists the choices, for any other word. `subject` says what
    is chosen, such as "kind".
    """
    if word in choices:
        return word
    hint = did_you_mean(word, choices)
    raise ConfigError(
        f"unknown {subject} '{word}': choose from {', '.join(choices)}{hint}", code=code
    )


def require_count(option: str, text: str, least: int, most: int, code: str) -> int:
    """Return the whole number that is an option's text.

    Raises ConfigError with `code` if it is not a number, or not between `least` and `most`.
    """
    # int() also accepts other digits, signs and underscores, and takes long for a million digits.
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(most))
    if not is_number or not least <= int(text) <= most:
        raise ConfigError(
            f"{option} {text[:40]}: give a whole number from {least} to {most}", code=code
        )
    return int(text)


def parse_option(option: str, text: str, parse: Callable[[str], T], code: str) -> T:
    """Return `parse(text)` for the text of an option.

    Raises ConfigError with `code` if `parse` raises ValueError.
    """
    try:
        return parse(text)
    except ValueError as error:
        raise ConfigError(f"{option}: {error}", code=code) from None
