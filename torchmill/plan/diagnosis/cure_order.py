"""Put the parts of a cure for this machine before those for others.

A cure is a text of parts, with "; " between them. A part may begin with the words for which kind
of machine or build it is, "conda: …", "Windows: …", "an extension: …": cure_words.toml lists them
with the facts that they ask for. Parts whose facts are known to hold go first; those whose facts
are known not to hold are left out.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache

from torchmill.core.package_data import read_table_beside
from torchmill.plan.diagnosis.candidates import meets
from torchmill.plan.diagnosis.shell_words import adapt_commands
from torchmill.plan.diagnosis.templates import fill_cure

_WORDS = read_table_beside(__file__, "cure_words.toml")


@dataclass(frozen=True, slots=True)
class CureWord:
    """Words at the beginning of a part, and the condition that they state."""

    pattern: re.Pattern[str]
    fact: str
    condition: str


@cache
def _cure_words() -> tuple[CureWord, ...]:
    """Return the words of cure_words.toml."""
    return tuple(
        CureWord(re.compile(table["words"]), table["fact"], table["value"])
        for table in _WORDS["word"]
    )


def split_parts(cure: str) -> list[str]:
    """Return the parts of a cure.

    A semicolon within backticks or brackets separates nothing. A part that begins with a word such
    as "then" belongs to the one before it.
    """
    parts: list[str] = []
    for text in _split_at_semicolons(cure):
        if parts and re.match(_WORDS["continuation"], text):
            parts[-1] += f"; {text}"
        else:
            parts.append(text)
    return parts


def _split_at_semicolons(cure: str) -> Iterator[str]:
    """Yield the texts between the semicolons of a cure that are in no backticks or brackets."""
    start = 0
    depth = 0
    in_command = False
    for position, character in enumerate(cure):
        if character == "`":
            in_command = not in_command
        elif not in_command and character == "(":
            depth += 1
        elif not in_command and character == ")":
            depth -= 1
        elif character == ";" and not in_command and depth <= 0:
            yield cure[start:position].strip()
            start = position + 1
    yield cure[start:].strip()


def order_cure(cure: str, values: Mapping[str, str]) -> str:
    """Return a cure with its parts in order, those for this machine first, others left out.

    If all parts are for others, the cure stays as it is.
    """
    parts = split_parts(cure)
    fitting = [part for part in parts if part_verdict(part, values) == "fits"]
    open_parts = [part for part in parts if part_verdict(part, values) == "open"]
    ordered = [*fitting, *open_parts]
    return "; ".join(ordered or parts)


def write_cure(cure: str, values: Mapping[str, str]) -> str:
    """Return a cure for this machine.

    Facts are filled in, the parts for this machine go first, and commands are those of its installer
    and shell.
    """
    return adapt_commands(order_cure(fill_cure(cure, values), values), values)


def part_verdict(part: str, values: Mapping[str, str]) -> str:
    """Return whether a part is for this machine: "fits", "open" (it does not say) or "other"."""
    verdict = "open"
    for word in _cure_words():
        if not word.pattern.match(part):
            continue
        value = values.get(word.fact)
        if value is None:
            continue
        if not meets(word.condition, value):
            return "other"
        verdict = "fits"
    return verdict


def first_command(cure: str) -> str:
    """Return the first command of a cure that mends; "" if it names none.

    Commands are in backticks, as are names of files and lines of code. What only shows something
    counts if there is no other command, and a line of code if there is no command at all.
    """
    texts: Sequence[str] = re.findall(r"`([^`]+)`", cure)
    commands = [text for text in texts if re.match(_WORDS["commands"], text)]
    mending = [text for text in commands if not re.match(_WORDS["showing"], text)]
    return next(iter([*mending, *commands, *texts]), "")
