"""Outcomes of an attack: how many cases ended well, and which did not.

A *case* is one fault and what torchmill made of it: RIGHT, REFUSED, or a failure, described in words.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from millpress.errors import MillpressError

from torchmill.core.errors import TorchmillError, UnforeseenError

RIGHT = "right"  # the result is the same as without the fault
REFUSED = "refused"  # with an error that has a code, and nothing wrong was accepted
FAILED = "failed"
_REPORT_EVERY = 20  # cases


@dataclass
class Tally:
    """The outcomes of one class of attack."""

    name: str
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)  # further counts of an attack's own

    def add(self, case: str, outcome: str) -> None:
        """Count a case; an outcome other than RIGHT and REFUSED describes a failure."""
        survived = outcome in {RIGHT, REFUSED}
        self.outcomes[outcome if survived else FAILED] += 1
        if not survived:
            self.failures.append(f"{case}: {outcome}")
            self._report(f"case {self.outcomes.total()}: {self.failures[-1]}")
        # So that a long run that somebody interrupts has shown something.
        if self.outcomes.total() % _REPORT_EVERY == 0:
            self._report(f"{dict(self.outcomes)}, {dict(self.notes)}")

    def _report(self, text: str) -> None:
        print(f"{self.name}, {text}", file=sys.stderr, flush=True)

    def row(self) -> tuple[str, ...]:
        """Return the class, and how many cases were tried, right, refused and failed."""
        counts = [self.outcomes[outcome] for outcome in (RIGHT, REFUSED, FAILED)]
        return self.name, str(self.outcomes.total()), *map(str, counts)


def all_failures(tallies: Iterable[Tally]) -> list[str]:
    """Return the failures of all classes, each with the name of its class."""
    failures = []
    for tally in tallies:
        failures += [f"{tally.name}: {failure}" for failure in tally.failures]
    return failures


@dataclass(frozen=True)
class CommandOutcome:
    """How one command ended that met a fault, or that ran after one."""

    result: str = ""  # RIGHT, REFUSED, or "" if there is a complaint
    code: str = ""  # of the error that refused
    complaint: str = ""  # what must not happen, and did

    @classmethod
    def of(cls, attempt: Callable[[], str], expected: str) -> CommandOutcome:
        """Call a function that should return `expected` or raise an error of torchmill; return how it ended."""
        try:
            result = attempt()
        except (TorchmillError, MillpressError) as error:
            unforeseen = isinstance(error, UnforeseenError) or not error.code
            return cls(REFUSED, error.code, f"unforeseen: {error}" if unforeseen else "")
        except Exception as error:  # noqa: BLE001 - any other exception is a failure of torchmill
            return cls(complaint=f"{type(error).__name__}: {error}")
        if result != expected:
            return cls(complaint="something wrong was taken")
        return cls(RIGHT)


def judge(
    first: CommandOutcome, second: CommandOutcome, lasting_codes: Collection[str] = ()
) -> str:
    """Return the outcome of a case: of the command that met the fault, and the same command after it.

    The second command must end well, or with an error whose code is one of `lasting_codes`.
    """
    if first.complaint:
        return first.complaint
    if second.complaint:
        return f"afterwards {second.complaint}"
    if second.result != RIGHT and second.code not in lasting_codes:
        return f"{first.code or first.result}, and afterwards still {second.code}"
    return first.result
