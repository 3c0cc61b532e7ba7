"""What an invoke task needs to know of the function that does its work."""

from collections.abc import Callable, Mapping
from json import dumps
from typing import Any, NamedTuple

from torchmill.core.dataclass import dataclass

SHARED_HELP = {
    "json": "print JSON",
    "host": "a TOML file that describes another machine",
    "tag": "the release; default: the selected one",
}  # of several tasks' options


@dataclass(frozen=True, slots=True)
class TaskCommand:
    """A task of invoke: `run` takes the facts ("_" where it needs none), the layout and the task's options.

    What `run` returns is printed. Where that has a method `require`, it is called afterwards, and may fail;
    where it has an `exit_code`, the task ends with it.
    """

    run: Callable[..., object]
    help: Mapping[str, str]  # of each option that SHARED_HELP does not tell of
    repeated: tuple[str, ...] = ()  # options that may be given several times
    argument: str = ""  # the option that may also be given without its name
    required: bool = False  # the argument is
    short_flags: bool = True
    session_options: tuple[str, ...] = ()  # of plan/options.py, for `run`'s parameter `options`
    rest: str = ""  # `run`'s parameter that takes the words after --


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """What a command prints, and how it ends."""

    text: str
    require: Callable[[], None] = lambda: None
    exit_code: int = 0

    def __str__(self) -> str:
        """Return the text."""
        return self.text


class CommandAnswer(NamedTuple):
    """One answer for people and for programs."""

    text: str
    data: Any  # JSON-ready

    def as_json_or_text(self, json: bool) -> str:
        """Return the data as JSON, or the text."""
        return dumps(self.data, indent=1) if json else self.text
