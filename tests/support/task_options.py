"""The options of the real tasks, as a command line has invoke see them."""

from collections.abc import Sequence
from unittest.mock import patch

from invoke import Argument

import tasks
from torchmill.commands import command_line


def task_options(name: str, words: Sequence[str] | None = None) -> list[Argument]:
    """Return the options of a task of tasks.py; `words` are the command line, by default "invoke" and the name."""
    line = command_line.read_command_line(words or ["invoke", name])
    with patch.object(command_line, "COMMAND_LINE", line):
        options: list[Argument] = tasks.namespace[name].get_arguments()
    return options
