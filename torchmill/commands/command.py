"""What an invoke task needs to know of the function that does its work."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any


@dataclass(frozen=True, slots=True)
class TaskCommand:
    """A task of invoke: `run` takes the facts ("_" where it needs none), the layout and the task's options.

    What `run` returns is printed, with --json its `data`. Where that has a method `require`, it is called
    afterwards, and may fail; where it has an `exit_code`, the task ends with it.
    """

    run: Callable[..., object]
    help: Mapping[str, str] = field(
        default_factory=dict
    )  # of options whose choices other modules list, by name
    repeated: tuple[str, ...] = ()  # options that may be given several times
    argument: str = ""  # the option that may also be given without its name
    required: bool = False  # the argument is
    json: bool = False  # takes --json, beside `run`'s parameters
    session_options: tuple[str, ...] = ()  # of plan/options.py, for `run`'s parameter `options`
    folded: bool = True  # on a terminal; False where what is printed is the text of a file
    rest: str = ""  # `run`'s parameter that takes the words after --


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """What a command prints, for people and for programs, and how it ends."""

    text: str
    data: Any = None  # JSON-ready
    require: Callable[[], None] = lambda: None
    exit_code: int = 0

    def __str__(self) -> str:
        return self.text


@cache
def read_help() -> Mapping[str, Mapping[str, Any]]:
    """Return what options mean, by task and option.

    "shared" are those that mean the same in several tasks; "examples" has a list of commands for each task.
    """
    from torchmill.core.files import read_table_beside  # only where a task is named

    return read_table_beside(__file__, "help.toml")
