"""What an attack tried, and what did not survive it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

RIGHT = "right"  # the result is what it would have been without the fault
REFUSED = "refused"  # one sentence, an exit code, and nothing wrong was taken


@dataclass
class Tally:
    """The outcomes of one class of attack."""

    name: str
    outcomes: Counter[str] = field(default_factory=Counter)
    failures: list[str] = field(default_factory=list)

    def add(self, case: str, outcome: str) -> None:
        """Count a case; an outcome other than RIGHT and REFUSED is a failure, in words."""
        fine = outcome in {RIGHT, REFUSED}
        self.outcomes[outcome if fine else "failed"] += 1
        if not fine:
            self.failures.append(f"{case}: {outcome}")

    def row(self) -> tuple[str, ...]:
        """Return the class, how many were tried, right, refused, failed."""
        counts = (self.outcomes[name] for name in (RIGHT, REFUSED, "failed"))
        return self.name, str(self.outcomes.total()), *map(str, counts)


def all_failures(tallies: Iterable[Tally]) -> list[str]:
    """Return the failures of all classes, each with the name of its class."""
    return [f"{one.name}: {failure}" for one in tallies for failure in one.failures]
