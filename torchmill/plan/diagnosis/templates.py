"""Fill facts into the sentences and commands of a cause.

A text has places such as `{torch_cuda|X.Y}`: the name of a fact, and what stands there if the fact
is not known; a fact whose value is "" leaves nothing there. Other braces, such as those of a Python
dictionary, stay.

In a command a shell can read some facts itself: then a variable stands in place of an unknown one
(shell_values.toml), and nobody has to replace "X.Y" by hand.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from torchmill.core.package_data import read_table_beside

_PLACE = re.compile(r"\{(?P<fact>[a-z_]+)\|(?P<fallback>[^{}|]*)\}")
_COMMAND = re.compile(r"`(?P<command>[^`]+)`")
_SHELL_VALUES = read_table_beside(__file__, "shell_values.toml")
_NO_SHELL = "windows"  # the system whose prompt does not replace a command by what it prints


@dataclass(frozen=True, slots=True)
class ShellValue:
    """How a shell reads a fact: into which variable, and by which command."""

    variable: str
    command: str


@cache
def _shell_values() -> Mapping[str, ShellValue]:
    """Return the facts that a shell can read, by their names."""
    return {
        name: ShellValue(table["variable"], table["command"].strip())
        for name, table in _SHELL_VALUES["fact"].items()
    }


def fill_facts(text: str, values: Mapping[str, str]) -> str:
    """Return a text with the values of facts, or their fallbacks, in its places."""
    return _PLACE.sub(lambda place: values.get(place["fact"], place["fallback"]), text)


def fill_cure(cure: str, values: Mapping[str, str]) -> str:
    """Return a cure with the values of facts in its places, and commands that run as they are.

    In commands, a shell reads unknown facts that it can read; elsewhere fallbacks stand for them.
    """
    if values.get("system") != _NO_SHELL:
        cure = _COMMAND.sub(lambda match: f"`{_read_facts(match['command'], values)}`", cure)
    return fill_facts(cure, values)


def _read_facts(command: str, values: Mapping[str, str]) -> str:
    """Return a command in which a shell reads unknown facts, before the rest of it.

    A command that needs two different values in one variable stays as it is, and so does a place in
    single quotes, where a shell replaces nothing.
    """
    if not re.match(_SHELL_VALUES["commands"], command):
        return command
    reading: dict[str, str] = {}  # variable -> the command that prints its value
    filled: list[str] = []
    position = 0
    for place in _PLACE.finditer(command):
        shell_value = _shell_values().get(place["fact"])
        is_quoted = command.count("'", 0, place.start()) % 2 == 1
        if shell_value is None or is_quoted or values.get(place["fact"]):
            continue
        reader = reading.setdefault(shell_value.variable, shell_value.command)
        if reader != shell_value.command:
            return command
        is_in_word = command[place.end() : place.end() + 1].isalnum()
        name = f"${{{shell_value.variable}}}" if is_in_word else f"${shell_value.variable}"
        filled.append(command[position : place.start()] + name)
        position = place.end()
    filled.append(command[position:])
    assignments = [f"{variable}=$({reader}) && " for variable, reader in reading.items()]
    return "".join([*assignments, *filled])


def facts_in(text: str) -> tuple[str, ...]:
    """Return the names of the facts for which a text has places."""
    return tuple(place["fact"] for place in _PLACE.finditer(text))
