"""The errors of millpress: a class for each kind, and a code that stays when the words change.

What the operating system refuses (a full disk, a folder closed to the user) is an ordinary OSError
that names the file.
"""

from collections.abc import Sequence


class MillpressError(Exception):
    """Something the user can act on; the message says what failed, why, and what helps.

    `code` names the very error ("library-not-found"). Programs and tests match it, never the words.
    """

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code


class InputError(MillpressError):
    """A raw wheel, a staged tree or a library is damaged, or not what a build leaves."""


class OptionError(MillpressError):
    """An argument or an environment variable is wrong: a platform tag, SOURCE_DATE_EPOCH."""


class RepairError(MillpressError):
    """A wheel cannot keep what its platform tag promises."""


class ToolError(MillpressError):
    """A program or package that repair needs is missing on this machine, or does not run."""


class CommandFailedError(ToolError):
    """A program that repair runs ended with another exit code than zero."""


class WheelError(MillpressError):
    """A finished wheel is damaged, contradicts its name, or is unsafe to extract."""


def first_problems(problems: Sequence[str], most: int = 3) -> str:
    """Return the first problems in one clause, and how many more there are."""
    clause = "; ".join(problems[:most])
    if len(problems) > most:
        clause += f"; and {len(problems) - most} more"
    return clause
