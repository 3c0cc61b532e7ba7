"""What an attack tried, and what did not survive it."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field

from millpress.errors import MillpressError

from torchmill.core.errors import TorchmillError, UnforeseenError

RIGHT = "right"  # the result is what it would have been without the fault
_REPORTED = 20  # after so many cases the tally so far is shown
REFUSED = "refused"  # one sentence, an exit code, and nothing wrong was taken


@dataclass
class Tally:
    """The outcomes of one class of attack."""

    name: str
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)  # what else was counted

    def add(self, case: str, outcome: str) -> None:
        """Count a case; an outcome other than RIGHT and REFUSED is a failure, in words."""
        fine = outcome in {RIGHT, REFUSED}
        self.outcomes[outcome if fine else "failed"] += 1
        if self.outcomes.total() % _REPORTED == 0:  # of a long run that somebody ends, this stays
            print(
                f"{self.name}: {dict(self.outcomes)}, {dict(self.notes)}",
                file=sys.stderr,
                flush=True,
            )
        if not fine:
            self.failures.append(f"{case}: {outcome}")
            print(
                f"{self.name}, case {self.outcomes.total()}: {self.failures[-1]}",
                file=sys.stderr,
                flush=True,
            )

    def row(self) -> tuple[str, ...]:
        """Return the class, how many were tried, right, refused, failed."""
        counts = (self.outcomes[name] for name in (RIGHT, REFUSED, "failed"))
        return self.name, str(self.outcomes.total()), *map(str, counts)


def all_failures(tallies: Iterable[Tally]) -> list[str]:
    """Return the failures of all classes, each with the name of its class."""
    return [f"{one.name}: {failure}" for one in tallies for failure in one.failures]


@dataclass(frozen=True)
class Outcome:
    """How one command ended under a fault, or after it."""

    result: str = ""  # RIGHT, or REFUSED, or "" where it was neither
    code: str = ""  # of the error
    complaint: str = ""  # what must not be

    @classmethod
    def of(cls, attempt: Callable[[], str], expected: str) -> Outcome:
        """Return how something ended that should return `expected`, or raise an error of ours."""
        try:
            found = attempt()
        except (TorchmillError, MillpressError) as error:
            wrong = isinstance(error, UnforeseenError) or not error.code
            return cls(REFUSED, error.code, f"unforeseen: {error}" if wrong else "")
        except Exception as error:  # noqa: BLE001 - which is what is looked for
            return cls(complaint=f"{type(error).__name__}: {error}")
        return cls(RIGHT) if found == expected else cls(complaint="something wrong was taken")


def judge(first: Outcome, second: Outcome, by_hand: Collection[str] = ()) -> str:
    """Return the outcome of a fault: of the command that met it, and of the same command afterwards.

    `by_hand` are the codes of errors that the second command may end with.
    """
    if first.complaint or second.complaint:
        return first.complaint or f"afterwards {second.complaint}"
    if second.result != RIGHT and second.code not in by_hand:
        return f"{first.code or first.result}, and afterwards still {second.code}"
    return first.result
