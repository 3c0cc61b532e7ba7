"""Read the commands in a cure, as opposed to its sentences, which only a person can follow.

A cure is the text of a finding that says how to mend it: commands joined by "&&", or a sentence.
Some commands can be run as they are; those that have a word for the user to fill in are treated as
sentences.
"""

import re
import shlex
from collections.abc import Mapping
from dataclasses import dataclass

from torchmill.plan import system_packages

# They install compilers and other tools. pip and uv, which install packages of Python, come later.
_TOOL_INSTALLERS = frozenset(
    {
        "sudo",
        "xcode-select",
        "winget",
        *(command[0] for command in system_packages.INSTALL_COMMANDS.values()),
    }
)
_PROGRAMS = _TOOL_INSTALLERS | {"uv", "pip", "pyenv"}
_TASKS = ("deps", "fetch", "toolkit", "image")  # of invoke, in the order in which they run
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.DOTALL)
_PLACEHOLDER = re.compile(r"…|=FOLDER")  # for words that the user has to fill in
_QUOTE = "`"  # around a command in a sentence


@dataclass(frozen=True, slots=True)
class CureCommand:
    """A command that can be run as it is."""

    variables: Mapping[str, str]  # of the environment, set for this command alone
    words: tuple[str, ...]  # a program and its arguments; "invoke" is followed by one of _TASKS

    @property
    def starts_session(self) -> bool:
        """Tell whether the command starts a session of nox, and so a build."""
        return self.words[0] == "nox"

    @property
    def session_options(self) -> tuple[str, ...]:
        """Return the options that the command gives to a session: the words after "--"."""
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
        """Return the command's place in the order in which the cures of a build run.

        Installers of tools, such as apt, come first, then the tasks of invoke in the order of
        _TASKS, then all other commands, such as those of pip and nox. Commands with the same place
        run in any order.
        """
        if self.words[0] in _TOOL_INSTALLERS:
            return 0
        if self.words[0] == "invoke":
            return 1 + _TASKS.index(self.words[1])
        return 1 + len(_TASKS)


def read_commands(cure: str) -> list[CureCommand | None]:
    """Return the commands that a cure joins with "&&"; None for a part that cannot be run as it is.

    Such a part is a sentence, or a command with a word that the user has to fill in.
    """
    return [_read_command(part) for part in cure.split(" && ")]


def is_command(cure: str) -> bool:
    """Tell whether every part of a cure is a command that can be run as it is."""
    return None not in read_commands(cure)


def _read_command(part: str) -> CureCommand | None:
    """Return a part of a cure as a command; None if it cannot be run as it is."""
    try:
        words = shlex.split(part)
    except ValueError:  # an apostrophe in a sentence, which a shell takes for an open quote
        return None
    variables: dict[str, str] = {}
    while words:
        assignment = _ASSIGNMENT.fullmatch(words[0])
        if assignment is None:
            break
        variables[assignment[1]] = assignment[2]
        words.pop(0)
    if not _starts_command(words) or _PLACEHOLDER.search(part) or _QUOTE in part:
        return None
    # A sentence that begins with the name of a program: "pip install spam, or set SPAM_HOME".
    if any(word.endswith((";", ",")) for word in words):
        return None
    return CureCommand(variables, tuple(words))


def _starts_command(words: list[str]) -> bool:
    """Tell whether words begin like a command that torchmill may run for the user."""
    match words:
        case ["nox", *_]:
            return True
        case ["invoke", task, *_]:
            return task in _TASKS
        case [program, *_]:
            return program in _PROGRAMS
        case _:
            return False
