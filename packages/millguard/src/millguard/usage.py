"""Words of a command line as values."""

import argparse
import re
from typing import NoReturn

MOST_JOBS = 4096
_MOST_DIGITS = 9
_UNITS = {"": 1, "k": 2**10, "m": 2**20, "g": 2**30, "t": 2**40}
_SIZE = re.compile(r"(\d{1,9}(?:\.\d{1,9})?) ?([kmgt]?)(?:i?b)?", re.IGNORECASE)
_SMALLEST_MEMORY = 2**24  # bytes: less is a slip, such as "12" for 12 GiB


class UsageError(Exception):
    """The words after `millguard` are wrong; the message says how."""


class WordParser(argparse.ArgumentParser):
    """A parser that raises UsageError for wrong words instead of ending the process.

    The message begins with `command`, such as "report"; "" stands for millguard without a command.
    With `add_help`, `--help` prints the options and ends the process.
    """

    def __init__(self, command: str = "", *, add_help: bool = True) -> None:
        program = f"millguard {command}".strip()
        super().__init__(prog=program, add_help=add_help, allow_abbrev=False)
        self._prefix = f"{command}: " if command else ""

    def error(self, message: str) -> NoReturn:
        """Raise UsageError."""
        raise UsageError(f"{self._prefix}{message}")


def parse_size(text: str) -> int:
    """Return the bytes that a text such as "12GiB" or "1.5g" says; "GB" and "g" mean GiB, too.

    Raises UsageError for another text, and for less than 16 MiB, in which no compiler runs.
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"--memory: '{text}' is not a size such as 12GiB or 800M")
    size = int(float(match[1]) * _UNITS[match[2].lower()])
    if size < _SMALLEST_MEMORY:
        message = f"--memory: '{text}' is too little for a compiler"
        if not match[2] and float(match[1]) > 0:
            message += f"; did you mean {match[1]}GiB?"
        raise UsageError(message)
    return size


def parse_jobs(text: str) -> int:
    """Return a number of jobs. Raises UsageError unless it is from 1 to MOST_JOBS."""
    # int refuses thousands of digits by an error of its own.
    is_number = text.isdecimal() and len(text) <= _MOST_DIGITS
    if not is_number or not 1 <= int(text) <= MOST_JOBS:
        raise UsageError(f"--jobs: '{text}' is not a number from 1 to {MOST_JOBS}")
    return int(text)
