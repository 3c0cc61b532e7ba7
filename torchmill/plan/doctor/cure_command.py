"""Read the commands in a cure, as opposed to its sentences, which only a person can follow.

A cure is the text of a finding that says how to mend it: commands joined by "&&", or a sentence.
"""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from torchmill.plan import system_packages

_PACKAGE_MANAGERS = frozenset(
    {
        "sudo",
        "xcode-select",
        "winget",
        *(command[0] for command in system_packages.INSTALL_COMMANDS.values()),
    }
)
_PROGRAMS = _PACKAGE_MANAGERS | {"uv", "pip", "pyenv"}
_TASKS = ("deps", "fetch", "toolkit", "image")  # of invoke, in the order in which they run
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
# An ellipsis and FOLDER stand for words that the user has to fill in, and a sentence has its commands
# between backquotes.
_SENTENCE = re.compile(r"[…`]|=FOLDER")


@dataclass(frozen=True, slots=True)
class CureCommand:
    """A command that can be run as it is."""

    variables: Mapping[str, str]  # that are set for it
    words: tuple[str, ...]  # a program and its arguments; behind "invoke" comes one of _TASKS

    @property
    def starts_session(self) -> bool:
        """Tell whether the command starts a session of nox, and so a build."""
        return self.words[0] == "nox"

    @property
    def session_options(self) -> tuple[str, ...]:
        """Return the options that the command gives to a session: the words behind "--"."""
        if "--" not in self.words:
            return ()
        return self.words[self.words.index("--") + 1 :]

    @property
    def text(self) -> str:
        """Return the command as it is typed."""
        # A shell takes 'NAME=a b' as the name of a program: only the value may be in quotes.
        parts = [f"{name}={shlex.quote(value)}" for name, value in self.variables.items()]
        parts.append(shlex.join(self.words))
        return " ".join(parts)

    @property
    def rank(self) -> int:
        """Return the command's place in the order in which the commands of a build run.

        Package managers come first, then tasks of invoke in their own order, then all other
        commands. Commands with the same place run in any order.
        """
        if self.words[0] in _PACKAGE_MANAGERS:
            return 0
        if self.words[0] == "invoke":
            return 1 + _TASKS.index(self.words[1])
        return 1 + len(_TASKS)


def read_commands(cure: str) -> list[CureCommand | None]:
    """Return the commands that a cure joins with "&&"; None for a part that is a sentence."""
    return [_read_command(part) for part in cure.split(" && ")]


def is_command(cure: str) -> bool:
    """Tell whether a cure can be run as it is, all of it."""
    return None not in read_commands(cure)


def _read_command(part: str) -> CureCommand | None:
    """Return the command that a part of a cure is; None for a sentence, or if words are missing."""
    try:
        words = shlex.split(part)
    except ValueError:  # an apostrophe
        return None
    variables: dict[str, str] = {}
    while words:
        assignment = _ASSIGNMENT.fullmatch(words[0])
        if assignment is None:
            break
        variables[assignment[1]] = assignment[2]
        words.pop(0)
    if not _is_runnable(words) or _SENTENCE.search(part):
        return None
    if any(word.endswith((";", ",")) for word in words):
        return None
    return CureCommand(variables, tuple(words))


def _is_runnable(words: list[str]) -> bool:
    """Tell whether words begin as a command that torchmill runs for a user."""
    match words:
        case ["nox", *_]:
            return True
        case ["invoke", task, *_]:
            return task in _TASKS
        case [program, *_]:
            return program in _PROGRAMS
        case _:
            return False
