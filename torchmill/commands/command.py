"""The output of the functions that tasks call, and the help of the tasks' options."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any


@dataclass(frozen=True, slots=True)
class CommandOutput:
    """What a command prints, for people and for programs, and how it ends."""

    text: str  # for people
    data: Any = None  # for programs: what --json prints
    # Called after printing; it raises the error with which the command ends, if there is one.
    require: Callable[[], None] = lambda: None
    exit_code: int = 0  # of the process, unless `require` raises

    def __str__(self) -> str:
        return self.text


@cache
def read_help() -> Mapping[str, Mapping[str, str]]:
    """Return the help texts of options, by task and by the name of the option.

    Options that mean the same in several tasks are under "shared" in place of a task.
    """
    from torchmill.core.package_data import read_table_beside

    return read_table_beside(__file__, "help.toml")
