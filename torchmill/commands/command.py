"""The output of the functions that tasks call, and the help of the tasks' options."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """The output of a command, for people and for programs, and how it ends."""

    text: str
    data: Any = None  # for --json
    require: Callable[[], None] = lambda: None  # is called after printing, and may raise
    exit_code: int = 0

    def __str__(self) -> str:
        return self.text


@cache
def read_help() -> Mapping[str, Mapping[str, str]]:
    """Return the help of options, by task and option.

    Under "shared" are options that mean the same in several tasks.
    """
    from torchmill.core.package_data import read_table_beside

    return read_table_beside(__file__, "help.toml")
