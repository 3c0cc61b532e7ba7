"""Diagnose a build's log: match the first error against the catalogue in causes.toml."""

import re
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from fnmatch import translate
from functools import cache, lru_cache
from typing import Any, get_args

from torchmill.config.facts import FailureCause, Precedence
from torchmill.config.versions import is_within
from torchmill.core.errors import BuildError, ConfigError, TorchmillError
from torchmill.core.paths import locate_page
from torchmill.plan import first_error
from torchmill.plan.first_error import LOG_WORDS, BuildFailure, LogLine
from torchmill.plan.line_patterns import (
    LinePattern,
    PatternIndex,
    bounded_pattern,
    cut_text,
    literals_of,
    may_match,
)

# All quotes are made one, and the words of all tools those of GNU's in English, which patterns know.
_QUOTES = str.maketrans(
    dict.fromkeys("\N{LEFT SINGLE QUOTATION MARK}\N{RIGHT SINGLE QUOTATION MARK}“”`«»", "'")
)
_MOST_LINES = (
    20_000  # such lines, from the first and from the last, that are looked at in a flood of errors
)
_SHARE_OF_HEAD = 0.5  # of the time for a diagnosis that is spent on the first lines of a long log
_RANKS = get_args(Precedence)
_SECONDS = 1.5  # of processor time for the comparison with the catalogue
_WORDINGS = [
    (literals_of(pattern), bounded_pattern(pattern), words)
    for pattern, words in LOG_WORDS["wordings"]
]


@dataclass(frozen=True, slots=True)
class DiagnosedCause:
    """A cause, and what told it: a line of the log, and what was being made there."""

    cause: FailureCause
    line: LogLine
    target: str | None


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """What a log says: the first error, and the cause that the catalogue knows for it."""

    failure: BuildFailure | None  # None: the log names none
    match: DiagnosedCause | None  # None: the catalogue has no entry for it
    unread: str = ""  # what was not looked at, as a sentence

    @property
    def headline(self) -> str:
        """Return what failed, in the words of the tool that said it."""
        if self.match is None or (self.failure and self.failure.number == self.match.line.number):
            return str(self.failure) if self.failure else "no failure"
        words = first_error.shorten_message(self.match.line.text)
        return f"{self.match.target}: {words}" if self.match.target else words

    @property
    def line_number(self) -> int:
        """Return the number of the line that says it, counted from 1; 0 where there is none."""
        said = self.match.line if self.match else self.failure
        return said.number if said else 0

    @property
    def exit_code(self) -> int:
        """Return 0 where the cause is known, 8 where only the failure is, or a report of it, 1 where there is none."""
        if self.match and self.match.cause.precedence != "report":
            return 0
        return BuildError.exit_code if self.failure or self.match else TorchmillError.exit_code


def diagnose(
    catalogue: Sequence[FailureCause],
    log: Iterable[str],
    release: str | None = None,
    clock: Callable[[], float] = time.process_time,
) -> Diagnosis:
    """Return the first error in the lines of a log and the cause that tells it best.

    `release` is the torch release that was built, where that is known: it rules causes out. Of the
    causes that a line tells, what the machine lacks goes before all others and a general one behind
    them; then the earliest line wins, and on one line the earlier entry of the catalogue. A mere report
    is looked for in the first error alone. `clock` tells the processor time, of which no more than some seconds are
    spent. Raises ConfigError for a pattern that is no regular expression.
    """
    reading = first_error.last_run(log)
    run = reading.lines
    fitting = [cause for cause in catalogue if release is None or is_within(cause.release, release)]
    failure = first_error.first_failure(run)
    first = [line for line in run if failure and line.number == failure.number]
    reports = [cause for cause in fitting if cause.precedence == "report"]
    causes = [cause for cause in fitting if cause.precedence != "report"]
    budget = DiagnosisBudget(_SECONDS, clock)
    match = _match_cause(causes, run, budget) or _match_cause(reports, first, budget)
    return Diagnosis(failure, match, _unread(reading, budget))


class DiagnosisBudget:
    """Processor time that is spent; the first line for which none was left."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._clock, self._seconds, self._began = clock, seconds, clock()
        self.stopped_at = 0  # number of a line, counted from 1; 0: there was time for all

    def allows(self, line: LogLine, share: float = 1.0) -> bool:
        """Tell whether there is time for another line, of which `share` may be spent so far."""
        if self._clock() - self._began < share * self._seconds:
            return True
        self.stopped_at = self.stopped_at or line.number
        return False


def _unread(reading: first_error.LogReading, budget: DiagnosisBudget) -> str:
    """Return a sentence on what was not looked at; "" if everything was."""
    parts = [reading.skipped] if reading.skipped else []
    if budget.stopped_at:
        parts.append(
            f"lines from {budget.stopped_at} on were not compared with the catalogue: that took too long"
        )
    return "; ".join(parts)


class _Catalogue:
    """Causes in the order of their precedence, and the patterns by which a line tells them."""

    def __init__(self, causes: Sequence[FailureCause]) -> None:
        self.causes = sorted(causes, key=_rank)
        self._patterns = [
            (number, pattern)
            for number, cause in enumerate(self.causes)
            for pattern in _patterns(cause)
        ]
        self._index = PatternIndex([pattern for _, pattern in self._patterns])

    def told_cause(self, said: str, below: int) -> FailureCause | None:
        """Return the first cause that a line tells, of those whose rank is below a number."""
        for candidate in self._index.candidates(said):
            number, pattern = self._patterns[candidate]
            cause = self.causes[number]
            if _rank(cause) >= below:
                return None
            if (match := pattern.search(said)) and (told := _with_name(cause, pattern, match)):
                return told
        return None


@lru_cache(maxsize=4)
def _index_catalogue(causes: tuple[FailureCause, ...]) -> _Catalogue:
    return _Catalogue(causes)


def _match_cause(
    catalogue: Sequence[FailureCause], run: Sequence[LogLine], budget: DiagnosisBudget
) -> DiagnosedCause | None:
    telling = {
        line.text: line
        for line in reversed(run)
        if any(word in line.text for word in LOG_WORDS["trouble"])
    }
    suspects = list(reversed(telling.values()))  # each text once
    known = _index_catalogue(tuple(catalogue))
    head, tail = suspects[:_MOST_LINES], suspects[_MOST_LINES:][-_MOST_LINES:]
    found = _earliest(known, head, len(_RANKS), budget, _SHARE_OF_HEAD if tail else 1.0)
    if found is None or _rank(found[0]) > 0:
        # A machine that ran out of something says so at the end, so what is nearest to the end goes first.
        found = _earliest(known, reversed(tail), 1, budget) or found
    return found and DiagnosedCause(*found, first_error.target_of_line(run, run.index(found[1])))


def _earliest(
    catalogue: _Catalogue,
    lines: Iterable[LogLine],
    below: int,
    budget: DiagnosisBudget,
    share: float = 1.0,
) -> tuple[FailureCause, LogLine] | None:
    """Return the cause of the best precedence below a rank, and the first of the lines that tells it."""
    found: tuple[FailureCause, LogLine] | None = None
    for line in lines:
        if below == 0 or not budget.allows(line, share):
            break
        if told := catalogue.told_cause(_in_gnus_words(line.text), below):
            found, below = (told, line), _rank(told)
    return found


def _in_gnus_words(text: str) -> str:
    said = cut_text(text).translate(_QUOTES)
    for literals, pattern, words in _WORDINGS:
        if may_match(literals, said.lower()):
            said = pattern.sub(words, said)
    return cut_text(said)


def _with_name(
    cause: FailureCause, pattern: LinePattern, match: re.Match[str]
) -> FailureCause | None:
    """Return the cause with what is known of the name in the line; None where nothing is known of that name."""
    if "name" not in pattern.names:
        return cause
    name = _unmangle(match["name"])
    known = [answer for names, answer in _answers(cause.known) if names.fullmatch(name)]
    if cause.known and not known:
        return None
    told = {key: getattr(cause, key).replace("{name}", name) for key in ("cause", "cure")}
    return replace(
        cause, **{key: text.replace("{answer}", "".join(known[:1])) for key, text in told.items()}
    )


@cache
def _answers(known: str) -> list[tuple[re.Pattern[str], str]]:
    lines = (line.rpartition(": ") for line in known.splitlines())  # "zlib1g-dev: zlib.h zconf.h"
    return [
        (re.compile("|".join(map(translate, names.split()))), answer) for answer, _, names in lines
    ]


def _unmangle(name: str) -> str:
    """Return the scopes and the name in a C++ name as linkers know it ("c10::Error"), or the name itself."""
    parts, rest = [], re.sub(r"_Z(?:T[VIS]|GV)?N?[rVKRO]*", "", name, count=1)
    while name.startswith("_Z") and (length := re.match(r"\d+", rest)):
        end = length.end() + int(length[0])
        parts.append(rest[length.end() : end])
        rest = rest[end:]
    return "::".join(parts) or name


def _rank(cause: FailureCause) -> int:
    return _RANKS.index(cause.precedence)


@cache
def _patterns(cause: FailureCause) -> list[LinePattern]:
    try:
        return [LinePattern(pattern) for pattern in cause.patterns]
    except re.error as error:
        raise ConfigError(
            f"causes.toml: {cause.name}: {error.pattern!r} is not a valid regular expression: {error}",
            code="invalid-cause-pattern",
        ) from None


def diagnosis_as_text(diagnosis: Diagnosis, log: str) -> str:
    """Return a diagnosis for a person to read; `log` is what the log is called."""
    unread = [f"  {diagnosis.unread}"] if diagnosis.unread else []
    if diagnosis.failure is None and diagnosis.match is None:
        return "\n".join(
            [f"{log} shows no failure{' in what was read' if unread else ''}", *unread]
        )
    lines = [f"{log}:{diagnosis.line_number}: {diagnosis.headline}", *diagnosis_advice(diagnosis)]
    if (
        diagnosis.match
        and diagnosis.failure
        and diagnosis.failure.number < diagnosis.match.line.number
    ):
        lines.append(f"  before that, on line {diagnosis.failure.number}: {diagnosis.failure}")
    return "\n".join([*lines, *unread])


def diagnosis_advice(diagnosis: Diagnosis) -> list[str]:
    """Return the cause and the fix, a line each; or that none is known."""
    if diagnosis.match is None:
        page = locate_page("docs/how-to/diagnose-a-failed-build.md")
        return [f"  cause: the catalogue has no entry for this; {page} says how to add one"]
    cause = diagnosis.match.cause
    return [f"  cause: {cause.cause} ({cause.name})", f"  fix:   {cause.cure}"]


def diagnosis_as_data(diagnosis: Diagnosis, log: str) -> dict[str, Any]:
    """Return a diagnosis as JSON-ready data; what is not known is null."""
    told, failure = diagnosis.match, diagnosis.failure
    cause = told and {
        name: getattr(told.cause, name) for name in ("name", "cause", "cure", "source")
    }
    line = told and {"line": told.line.number, "text": told.line.text, "making": told.target}
    return {
        "log": log,
        "failure": asdict(failure) if failure else None,
        "cause": cause and line and cause | line,
        "unread": diagnosis.unread or None,
    }
