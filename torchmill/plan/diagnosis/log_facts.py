"""Read facts out of the lines of a log: which compiler, toolkit, torch and machine it shows.

The patterns are in log_facts.toml. Of a fact the pattern that stands first counts, and of its
matches the first, or the last if the fact says so: what a tool prints of itself goes before a path,
and a path before what a person wrote.
"""

import re
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import Any

from torchmill.config.versions import labelled_cuda
from torchmill.core.package_data import read_table_beside
from torchmill.plan.diagnosis.situation import Fact
from torchmill.plan.line_patterns import LinePattern, cut_text
from torchmill.plan.log_lines import LogLine

FACT_TABLES: Mapping[str, Mapping[str, Any]] = read_table_beside(__file__, "log_facts.toml")
_HEAD_LINES = 30_000
_TAIL_LINES = 5000
_BLOCK_LINES = 64  # lines that are searched for literals at a time
# A pattern that was not found in so many lines is searched for in short lines only:
# commands of compilers are long and alike, and what describes a machine is short.
_PATIENCE = 1000
_SHORT_LINE = 120  # characters
_LONGEST_TEXT = 200  # characters of a line that a fact keeps
# A form in which a value is written -> the value as facts have it.
_FORMS: Mapping[str, Callable[[str], str]] = {
    "": str,
    "label": lambda text: labelled_cuda(f"cu{text}"),  # "117" of a wheel's label cu117
    # "310" of a wheel's tag cp310; the major version has one digit.
    "tag": lambda text: f"{text[0]}.{text[1:]}",
    # "86" of sm_86; the minor version has one digit.
    "sm": lambda text: f"{text[:-1]}.{text[-1]}",
    # Toolset 14.38 of Visual Studio has compiler 19.38.
    "toolset": lambda text: f"19.{text}",
    # 11040 of the driver's version of CUDA is 11.4.
    "runtime": lambda text: f"{int(text) // 1000}.{int(text) % 1000 // 10}",
    "lower": str.lower,
}


@dataclass(frozen=True, slots=True, eq=False)
class FactPattern:
    """A pattern by which a fact is recognized."""

    fact: str
    rank: int  # its place among the patterns of the fact; 0 is the best
    pattern: LinePattern
    form: str
    value: str  # the fact's value; "{}" stands for what the group of the pattern matches
    is_stated: bool  # people write it, and may mean something else by it
    takes_last: bool  # of several matches the last counts


@dataclass(frozen=True, slots=True)
class _BestMatch:
    """The best match so far for a fact."""

    rank: int
    fact: Fact


@cache
def _fact_patterns() -> tuple[FactPattern, ...]:
    """Return the patterns of log_facts.toml, the best of all facts first.

    They are read when a log is: every session imports this module, and few diagnose a failure.
    """
    patterns: list[FactPattern] = []
    for name, table in FACT_TABLES.items():
        for rank, entry in enumerate(table["patterns"]):
            # A pattern alone, or with a form, or with a value of its own.
            settings = {"pattern": entry} if isinstance(entry, str) else entry
            patterns.append(
                FactPattern(
                    name,
                    rank,
                    LinePattern(settings["pattern"]),
                    settings.get("form", ""),
                    settings.get("value", "{}"),
                    bool(settings.get("stated", False)),
                    bool(table.get("last", False)),
                )
            )
    return tuple(sorted(patterns, key=lambda pattern: pattern.rank))


class FactCollector:
    """Collects the facts of the lines that it is shown."""

    def __init__(self) -> None:
        self._best: dict[str, _BestMatch] = {}
        self._block: list[LogLine] = []
        self._line_count = 0
        self._tail: deque[LogLine] = deque(maxlen=_TAIL_LINES)
        self._open = list(_fact_patterns())  # those whose match would change something
        self._misses = dict.fromkeys(self._open, 0)  # lines that were searched without a match

    def see(self, line: LogLine) -> None:
        """Look at a line of the log.

        In the middle of a long log nothing is looked for: there are commands of compilers, and what
        describes a machine stands at the beginning or was pasted at the end.
        """
        if not line.text:
            return
        self._line_count += 1
        if self._line_count > _HEAD_LINES:
            self._tail.append(line)
            return
        self._block.append(line)
        if len(self._block) >= _BLOCK_LINES:
            self._search_block()

    def facts(self) -> list[Fact]:
        """Return the facts of all lines so far."""
        self._search_block()
        while self._tail:
            self._block = [self._tail.popleft() for _ in range(min(_BLOCK_LINES, len(self._tail)))]
            self._search_block()
        return [candidate.fact for candidate in self._best.values()]

    def _search_block(self) -> None:
        """Search the lines of the block, which is empty afterwards.

        Most literals are in no line of a block, so one search through all of its text rules a
        pattern out.
        """
        if not self._block:
            return
        lowered = "\n".join(line.text for line in self._block).lower()
        lowered_lines: list[str] = []
        for pattern in tuple(self._open):
            literals = pattern.pattern.literals
            if literals is not None and not any(literal in lowered for literal in literals):
                continue
            lowered_lines = lowered_lines or lowered.split("\n")
            self._search_lines(pattern, lowered_lines)
        self._block.clear()
        self._open = [pattern for pattern in self._open if self._is_open(pattern)]

    def _search_lines(self, pattern: FactPattern, lowered_lines: list[str]) -> None:
        """Search the lines of the block for a pattern."""
        literals = pattern.pattern.literals
        is_tired = self._misses[pattern] > _PATIENCE
        for line, lowered in zip(self._block, lowered_lines, strict=False):
            if not self._is_open(pattern):
                return
            if literals is not None and not any(literal in lowered for literal in literals):
                continue
            if is_tired and len(lowered) > _SHORT_LINE:
                continue
            match = pattern.pattern.search(cut_text(line.text))
            if match:
                self._keep(pattern, match, line)
            else:
                self._misses[pattern] += 1

    def _is_open(self, pattern: FactPattern) -> bool:
        """Tell whether a match of a pattern would count for more than what was seen so far."""
        best = self._best.get(pattern.fact)
        if best is None or pattern.rank < best.rank:
            return True
        return pattern.takes_last and pattern.rank == best.rank

    def _keep(self, pattern: FactPattern, match: re.Match[str], line: LogLine) -> None:
        """Take a match as the value of its fact."""
        # Each alternative of a pattern has a group of its own: "value", "value2".
        matched = next((text for text in match.groupdict().values() if text), "")
        text = _FORMS[pattern.form](matched) if matched else ""
        fact = Fact(
            pattern.fact,
            pattern.value.replace("{}", text).strip(),
            "log",
            line.number,
            line.text.strip()[:_LONGEST_TEXT],
            is_stated=pattern.is_stated,
        )
        self._best[pattern.fact] = _BestMatch(pattern.rank, fact)


def probe_of(name: str) -> str:
    """Return the command that shows a fact on the machine; "" if there is none."""
    return str(FACT_TABLES.get(name, {}).get("probe", ""))


def is_of_the_line(name: str) -> bool:
    """Tell whether of a fact the line that shows the cause says more than any other line."""
    return bool(FACT_TABLES.get(name, {}).get("of_the_line", False))


def label_of(name: str) -> str:
    """Return what a fact is called in sentences: "nvcc of CUDA" for "cuda"."""
    return str(FACT_TABLES.get(name, {}).get("label", name))
