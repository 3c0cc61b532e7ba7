"""What may stand after `--` for that which is made of a wheel; all else there is for the wheel itself."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NoReturn

from torchmill.errors import ConfigError

NUMBER = "--build-number"
MOST = 999_999_999  # as a build number; more is a slip, such as a date with its time


@dataclass(frozen=True, slots=True)
class Own:
    """What was said of the thing that is made."""

    number: int | None = None  # the build number of a conda package; None: that of the wheel

    @property
    def words(self) -> tuple[str, ...]:
        """Return the words that say it."""
        return () if self.number is None else (f"{NUMBER}={self.number}",)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{self.prog}: {message}: write it as {NUMBER}=1")


def of_conda(arguments: Sequence[str], prog: str) -> tuple[Own, list[str]]:
    """Return what the words after -- say of a conda package, and those that are for its wheel.

    Raises ConfigError for a build number that is none.
    """
    parser = _Parser(prog=prog, usage=argparse.SUPPRESS, allow_abbrev=False, add_help=False)
    parser.add_argument(NUMBER, metavar="N", help="of the conda package; by default the wheel's, else 0")
    said, rest = parser.parse_known_args(list(arguments))
    if not {"--help", "-h"}.isdisjoint(rest):  # that of the wheel's options follows
        parser.print_help()
    return Own(None if said.build_number is None else _number(said.build_number, prog)), rest


def of_none(arguments: Sequence[str], prog: str) -> tuple[Own, list[str]]:  # noqa: ARG001 - as `of_conda`
    """Return that all words after -- are for the wheel."""
    return Own(), list(arguments)


def _number(text: str, prog: str) -> int:
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(MOST))
    if not is_number:
        raise ConfigError(f"{prog}: {NUMBER} '{text[:40]}': give a whole number from 0 to {MOST}")
    return int(text)
