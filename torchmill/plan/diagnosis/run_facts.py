"""Read the facts of the run that fails out of a log that holds several: one after another, or mixed.

A log to which a second build was appended names two compilers; one of several services or jobs, each
line of which begins with a name, as many as there are of these. The facts of the run and the source
that fail go before those of the others.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torchmill.plan.diagnosis.log_facts import FactCollector
from torchmill.plan.diagnosis.situation import Fact
from torchmill.plan.log_lines import LogLine

_MOST_SOURCES = 16


@dataclass(frozen=True, slots=True)
class FailingRun:
    """Where a log fails."""

    begins_behind: int = 0  # the number of the line that ends the run before it; 0: there is none
    source: str = ""  # of the line that shows the failure


class RunFactCollector:
    """Collects the facts of the lines that it is shown, for each run and each source."""

    def __init__(self, ends_run: Callable[[str], bool]) -> None:
        """`ends_run` tells whether a line ends a run."""
        self._ends_run = ends_run
        self._all = FactCollector()
        # Of the lines behind the end of each run; a later end does not stop those of an earlier.
        self._behind: dict[int, FactCollector] = {}
        self._by_source: dict[str, FactCollector] = {}

    def see(self, line: LogLine) -> None:
        """Look at a line of the log."""
        self._all.see(line)
        for collector in self._behind.values():
            collector.see(line)
        if line.source and len(self._by_source) < _MOST_SOURCES:
            self._by_source.setdefault(line.source, FactCollector())
        if line.source in self._by_source:
            self._by_source[line.source].see(line)
        if self._ends_run(line.text):
            # A run that begins behind an earlier end is not the last one.
            last = max(self._behind, default=0)
            self._behind = {end: self._behind[end] for end in (last,) if last}
            self._behind[line.number] = FactCollector()

    def facts(self, run: FailingRun) -> list[Fact]:
        """Return the facts of all lines so far, those of the run that fails in place of others.

        Where several sources are mixed, nothing that others say is a fact of the one that fails.
        """
        if run.source in self._by_source and len(self._by_source) > 1:
            return self._by_source[run.source].facts()
        by_name = {fact.name: fact for fact in self._all.facts()}
        behind = self._behind.get(run.begins_behind)
        if behind is not None:
            by_name |= {fact.name: fact for fact in behind.facts()}
        return list(by_name.values())
