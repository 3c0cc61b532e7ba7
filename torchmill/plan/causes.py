"""Diagnose a build's log: match its lines against the catalogue of causes in causes.toml."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import translate
from functools import cache, lru_cache
from typing import Literal, NamedTuple, get_args

from torchmill.config.facts import Facts, FailureCause, Precedence
from torchmill.config.versions import is_within
from torchmill.core.errors import BuildError, ConfigError, TorchmillError
from torchmill.plan import first_error
from torchmill.plan.diagnosis.candidates import CandidateRanking, judge
from torchmill.plan.diagnosis.cure_order import write_cure
from torchmill.plan.diagnosis.log_end import LogEnd
from torchmill.plan.diagnosis.log_facts import FactCollector, is_of_the_line
from torchmill.plan.diagnosis.named_paths import NamedPath, PathCollector
from torchmill.plan.diagnosis.rule_facts import add_rule_facts
from torchmill.plan.diagnosis.run_facts import FailingRun, RunFactCollector
from torchmill.plan.diagnosis.situation import Fact, Situation, make_situation
from torchmill.plan.diagnosis.templates import fill_facts
from torchmill.plan.first_error import BuildFailure
from torchmill.plan.line_patterns import (
    LinePattern,
    PatternIndex,
    bounded_pattern,
    cut_text,
    literals_of,
    may_match,
)
from torchmill.plan.log_lines import LOG_WORDS, LogLine, LogReading, ends_run, last_run

# Tools quote in many ways, and patterns know only one.
_QUOTES = str.maketrans(
    dict.fromkeys("\N{LEFT SINGLE QUOTATION MARK}\N{RIGHT SINGLE QUOTATION MARK}“”`«»", "'")
)
# What other tools and languages write, in the English words of GNU tools that patterns know.
_WORDINGS = [
    (literals_of(pattern), bounded_pattern(pattern), words)
    for pattern, words in LOG_WORDS["wordings"]
]
_DOUBT = [(literals_of(pattern), bounded_pattern(pattern)) for pattern in LOG_WORDS["doubt"]]
_SUCCESS = [(literals_of(pattern), bounded_pattern(pattern)) for pattern in LOG_WORDS["success"]]
_FOREIGN_LETTER = re.compile(r"[^\W\d_a-zA-Z]")
# Releases that answers of known_names.toml name: "came in torch 2.2", "has been gone since torch 2.0".
_ANSWER_FACTS = {
    "came_in": re.compile(r"\bcame (?:in|with) (?!CUDA)\w+ (?P<value>\d+\.\d+)"),
    "gone_since": re.compile(r"\bgone (?:since|as of) \w+ (?P<value>\d+\.\d+)"),
    "came_in_cuda": re.compile(r"\bcame in CUDA (?P<value>\d+(?:\.\d+)?)"),
    "gone_in_cuda": re.compile(r"\bwas removed in CUDA (?P<value>\d+(?:\.\d+)?)"),
}
# The file with a compiler's error: "a.cpp:2:10: fatal error: x", "C:\\a.cu(7): error: x".
_FILE_OF_LINE = re.compile(r"\s*(?P<file>(?:[A-Za-z]:)?[^\s:(]+\.\w+)(?::\d+[:,]|\(\d+\)) ?")
_RANKS = get_args(Precedence)  # the best first
_MACHINE_RANK = 0  # of causes that the machine lacks something
# In a flood of errors, so many lines are compared with the catalogue: the first ones, and the last.
_MOST_LINES = 20_000
_SECONDS = 1.5  # of processor time for the comparison with the catalogue
_SHARE_OF_HEAD = 0.5  # of that time, for the first lines of a log that also has last ones

# Returns what this machine says about a log that names some paths and shows some facts.
ReadMachine = Callable[[Sequence[NamedPath], Sequence[Fact]], Iterable[Fact]]


@dataclass(frozen=True, slots=True)
class DiagnosedCause:
    """A cause from the catalogue, and the line of the log that shows it.

    Its sentences are those of the candidate that the facts support, with the facts filled in.
    """

    cause: FailureCause
    line: LogLine
    target: str | None  # that ninja was making when it wrote the line
    entry: FailureCause  # the cause as the catalogue has it, with the name of the line filled in
    name: str = ""  # in the line: "75" of compute_75
    answer: str = ""  # what known_names.toml says about the name
    ranking: CandidateRanking = field(default_factory=CandidateRanking)  # of the candidates


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """The first error of a log, and the cause that the catalogue has for it."""

    failure: BuildFailure | None  # None: the log shows none
    match: DiagnosedCause | None  # None: the catalogue has no entry for it
    unread: str = ""  # the lines that were not compared with the catalogue, as a sentence
    situation: Situation = field(default_factory=Situation)
    in_doubt: bool = False  # whether a log without a failure is sound
    succeeds_at: int = 0  # the line that shows success after the failure; 0: none does

    @property
    def outcome(self) -> Literal["found", "sound", "unknown"]:
        """Return whether the log shows a failure, or is sound; "unknown": it cannot be told."""
        if self.failure is not None or self.match is not None:
            return "found"
        return "unknown" if self.in_doubt or self.unread else "sound"

    @property
    def headline(self) -> str:
        """Return the failure in the words of the tool that reported it."""
        if self.match is None:
            return str(self.failure) if self.failure else "no failure"
        if self.failure and self.failure.number == self.match.line.number:
            return str(self.failure)
        words = first_error.shorten_message(self.match.line.text)
        return f"{self.match.target}: {words}" if self.match.target else words

    @property
    def line_number(self) -> int:
        """Return the number of the line that shows the cause, counted from 1; 0 for none."""
        if self.match:
            return self.match.line.number
        return self.failure.number if self.failure else 0

    @property
    def exit_code(self) -> int:
        """Return the exit code of a command that diagnosed the log.

        It is 0 if the cause is known, 8 if only the failure is, or a tool's report of it, and 1 if
        the log shows no failure: it is sound, or says neither.
        """
        if self.match and self.match.cause.precedence != "report":
            return 0
        if self.match or self.failure:
            return BuildError.exit_code
        return TorchmillError.exit_code


def _no_clock() -> float:
    """Return the same time always: a search by this clock has no limit."""
    return 0.0


def diagnose(
    catalogue: Sequence[FailureCause],
    log: Iterable[str],
    release: str | None = None,
    clock: Callable[[], float] = _no_clock,
    *,
    rules: Facts | None = None,
    machine_facts: Iterable[Fact] = (),
    read_machine: ReadMachine | None = None,
) -> Diagnosis:
    """Return the first error in the lines of a log and the cause that explains it best.

    If a log has several runs of a build, the last one counts (`last_run`). `release` is the torch
    release that was built, if known: it rules causes out. Of the causes that lines show, what the
    machine lacks goes before all others, and a general cause after them. Then the earliest line
    wins, and on one line the earlier entry of the catalogue. A mere report counts only if the first
    error has it.

    A cause with candidates is judged by the facts of the log, the `machine_facts`, and
    what the `rules` say about them; without `rules`, only by the first two. `read_machine` returns
    the facts of this machine, if the paths and the facts of the log show that it wrote the log.

    `clock` returns the processor time in seconds, of which no more than some are spent; without it,
    the whole log is searched. Raises ConfigError for a pattern that is not a regular expression.
    """
    collector = RunFactCollector(ends_run)
    doubts = _DoubtWatch()
    end = LogEnd()
    named_paths = PathCollector()

    def observe(line: LogLine) -> None:
        collector.see(line)
        doubts.see(line)
        end.see(line)
        if read_machine is not None:
            named_paths.see(line)

    reading = last_run(log, observe)
    failure = first_error.first_failure(reading.lines)
    causes: list[FailureCause] = []
    reports: list[FailureCause] = []
    for cause in catalogue:
        if release is None or is_within(cause.release, release):
            (reports if cause.precedence == "report" else causes).append(cause)
    budget = _DiagnosisBudget(_SECONDS, clock)
    match = _match_cause(causes, reading.lines, budget)
    if match is None and failure is not None:
        first_lines = [line for line in reading.lines if line.number == failure.number]
        match = _match_cause(reports, first_lines, budget)
    run = FailingRun(reading.begins_behind, match.line.source if match else "")
    known_facts = [*collector.facts(run), *machine_facts]
    if read_machine is not None:
        known_facts += read_machine(named_paths.paths(), known_facts)
    situation = make_situation(known_facts)
    if match is not None:
        situation = _with_facts_of_the_line(situation, match)
    if rules is not None:
        situation = add_rule_facts(rules, situation, match.name if match else "")
    if match is not None:
        match = _choose_candidate(match, situation)
    unread = _describe_unread(reading, budget)
    end.judge()
    shown_at = max(failure.number if failure else 0, match.line.number if match else 0)
    return Diagnosis(
        failure,
        match,
        unread,
        situation,
        in_doubt=doubts.is_in_doubt or end.is_open,
        succeeds_at=end.success_after(shown_at) if shown_at else 0,
    )


class _DoubtWatch:
    """Watches the lines of a log for what leaves in doubt whether it is sound."""

    def __init__(self) -> None:
        self._has_doubt = False
        self._is_success_shown = False

    @property
    def is_in_doubt(self) -> bool:
        """Tell whether the log leaves a doubt, and shows no success."""
        return self._has_doubt and not self._is_success_shown

    def see(self, line: LogLine) -> None:
        """Look at a line of the log, until one shows success."""
        if self._is_success_shown or not line.text:
            return
        text = cut_text(line.text)
        lowered = text.lower()
        for literals, pattern in _SUCCESS:
            if may_match(literals, lowered) and pattern.search(text):
                self._is_success_shown = True
        if self._has_doubt:
            return
        if not text.isascii() and _FOREIGN_LETTER.search(text):
            self._has_doubt = True
        for literals, pattern in _DOUBT:
            if may_match(literals, lowered) and pattern.search(text):
                self._has_doubt = True


def _with_facts_of_the_line(situation: Situation, match: DiagnosedCause) -> Situation:
    """Return a situation in which what the line of the cause shows goes before other lines.

    A log may name several projects, and the one that fails stands in that line. The name that the
    pattern found is a fact as well.
    """
    collector = FactCollector()
    collector.see(match.line)
    for fact in collector.facts():
        if is_of_the_line(fact.name):
            situation = situation.with_fact(fact)
    if match.name:
        situation = situation.with_fact(Fact("name", match.name, "rules"))
    file = _FILE_OF_LINE.match(match.line.text)
    if file:
        situation = situation.with_fact(Fact("file", file["file"], "rules"))
    for name, pattern in _ANSWER_FACTS.items():
        answer_match = pattern.search(match.answer)
        if answer_match:
            situation = situation.with_fact(Fact(name, answer_match["value"], "rules"))
    return situation


def _choose_candidate(match: DiagnosedCause, situation: Situation) -> DiagnosedCause:
    """Return a cause with the sentences of the candidate that a situation supports, filled in."""
    values = situation.values()
    entry = match.entry
    ranking = judge(entry.candidates, values)
    chosen = ranking.answer.candidate if ranking.answer else entry
    cause = replace(
        entry,
        cause=fill_facts(chosen.cause, values),
        cure=write_cure(chosen.cure, values),
    )
    return replace(match, cause=cause, ranking=ranking)


class _DiagnosisBudget:
    """The processor time for a diagnosis, and the first line for which none was left."""

    def __init__(self, seconds: float, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seconds = seconds
        self._began = clock()
        self.stopped_at = 0  # number of a line, counted from 1; 0: there was time for all

    def allows(self, line: LogLine, share: float = 1.0) -> bool:
        """Tell whether there is time for another line, of which `share` may be spent so far."""
        if self._clock() - self._began < share * self._seconds:
            return True
        self.stopped_at = self.stopped_at or line.number
        return False


def _describe_unread(reading: LogReading, budget: _DiagnosisBudget) -> str:
    """Return a sentence on lines that were not read or compared; "" if all were."""
    clauses: list[str] = []
    if reading.skipped:
        clauses.append(reading.skipped)
    if budget.stopped_at:
        clauses.append(
            f"lines from {budget.stopped_at} on were not compared with the catalogue: that took "
            "too long"
        )
    return "; ".join(clauses)


class _NamedCause(NamedTuple):
    """A cause with the name in a line filled in, that name, and what is known of it; "" for none."""

    cause: FailureCause
    name: str = ""
    answer: str = ""


class _CauseInLine(NamedTuple):
    """A cause, the line that shows it, the name in that line, and what is known of the name."""

    cause: FailureCause
    line: LogLine
    name: str
    answer: str


class _Catalogue:
    """Causes in the order of their precedence, with an index of their patterns."""

    def __init__(self, causes: Sequence[FailureCause]) -> None:
        self._patterns: list[tuple[FailureCause, LinePattern]] = []
        for cause in sorted(causes, key=_rank):
            self._patterns.extend((cause, pattern) for pattern in _compile_patterns(cause))
        self._index = PatternIndex([pattern for _, pattern in self._patterns])

    def find_cause(self, text: str, below: int) -> _NamedCause | None:
        """Return the first cause that a text shows, if its rank is below a number; None else."""
        for number in self._index.candidates(text):
            cause, pattern = self._patterns[number]
            # Patterns are in the order of ranks: no later one is better.
            if _rank(cause) >= below:
                return None
            match = pattern.search(text)
            filled = _fill_name(cause, pattern, match) if match else None
            if filled:
                return filled
        return None


# A command diagnoses many logs with the same causes: without reports, and reports alone.
@lru_cache(maxsize=4)
def _index_catalogue(causes: tuple[FailureCause, ...]) -> _Catalogue:
    """Return the catalogue of some causes; it is made once, because that takes long."""
    return _Catalogue(causes)


def _match_cause(
    causes: Sequence[FailureCause], run: Sequence[LogLine], budget: _DiagnosisBudget
) -> DiagnosedCause | None:
    """Return the cause that the lines of a run show best; None if they show none of `causes`."""
    catalogue = _index_catalogue(tuple(causes))
    suspects = _suspect_lines(run)
    head = suspects[:_MOST_LINES]
    tail = suspects[_MOST_LINES:][-_MOST_LINES:]
    share = _SHARE_OF_HEAD if tail else 1.0
    best = _find_best(catalogue, head, len(_RANKS), budget, share)
    if best is None or _rank(best.cause) > _MACHINE_RANK:
        # A machine that runs out of something shows it at the end, so the last line goes first.
        lacks = _find_best(catalogue, reversed(tail), _MACHINE_RANK + 1, budget)
        best = lacks or best
    if best is None:
        return None
    target = first_error.target_of_line(run, run.index(best.line))
    return DiagnosedCause(best.cause, best.line, target, best.cause, best.name, best.answer)


def _suspect_lines(run: Sequence[LogLine]) -> list[LogLine]:
    """Return the lines with a word of trouble; of lines with the same text, the first.

    They are in the order of the last line with each text: what is repeated at the end of a log
    belongs to its end.
    """
    first_lines: dict[str, LogLine] = {}
    for line in reversed(run):
        if any(word in line.text for word in LOG_WORDS["trouble"]):
            first_lines[line.text] = line
    return list(reversed(first_lines.values()))


def _find_best(
    catalogue: _Catalogue,
    lines: Iterable[LogLine],
    below: int,
    budget: _DiagnosisBudget,
    share: float = 1.0,
) -> _CauseInLine | None:
    """Return the cause of the best rank below a number, and the first line that shows it.

    Of the budget's time, `share` may be spent. None if no line shows such a cause.
    """
    best: _CauseInLine | None = None
    for line in lines:
        if below == 0 or not budget.allows(line, share):
            break
        named = catalogue.find_cause(_in_gnu_words(line.text), below)
        if named:
            best = _CauseInLine(named.cause, line, named.name, named.answer)
            below = _rank(named.cause)
    return best


def _in_gnu_words(text: str) -> str:
    """Return a line with the quotes and the English words of GNU tools in place of others."""
    text = cut_text(text).translate(_QUOTES)
    for literals, pattern, words in _WORDINGS:
        if may_match(literals, text.lower()):
            text = pattern.sub(words, text)
    # Words may be longer than those that they replace.
    return cut_text(text)


def _fill_name(
    cause: FailureCause, pattern: LinePattern, match: re.Match[str]
) -> _NamedCause | None:
    """Return a cause with the name in the line, and the catalogue's answer to that name.

    None if the cause holds only for names that it knows, and this is not one of them.
    """
    if "name" not in pattern.names:
        return _NamedCause(cause)
    name = _unmangle(match["name"])
    answer = ""
    if cause.answers:
        answers = [text for names, text in _parse_answers(cause.answers) if names.fullmatch(name)]
        if not answers:
            return None
        answer = answers[0]

    def fill(text: str) -> str:
        return text.replace("{answer}", answer).replace("{name}", name)

    candidates = [
        replace(candidate, cause=fill(candidate.cause), cure=fill(candidate.cure))
        for candidate in cause.candidates
    ]
    filled = replace(
        cause, cause=fill(cause.cause), cure=fill(cause.cure), candidates=tuple(candidates)
    )
    return _NamedCause(filled, name, answer)


@cache
def _parse_answers(table: str) -> list[tuple[re.Pattern[str], str]]:
    """Return the names of each line "zlib1g-dev: zlib.h zconf.h", as a pattern, with its answer.

    Names may have the wildcards of file names: "nccl*.h".
    """
    answers: list[tuple[re.Pattern[str], str]] = []
    for line in table.splitlines():
        answer, _, names = line.rpartition(": ")
        pattern = "|".join(map(translate, names.split()))
        answers.append((re.compile(pattern), answer))
    return answers


def _unmangle(name: str) -> str:
    """Return a C++ name that linkers know, such as "_ZN3c105ErrorE", as "c10::Error".

    Other names are returned as they are. Arguments, which follow the name, are left out. In a
    mangled name, the length of each part stands before it.
    https://itanium-cxx-abi.github.io/cxx-abi/abi.html#mangling
    """
    if not name.startswith("_Z"):
        return name
    parts: list[str] = []
    rest = re.sub(r"_Z(?:T[VIS]|GV)?N?[rVKRO]*", "", name, count=1)
    while length := re.match(r"\d+", rest):
        start = length.end()
        end = start + int(length[0])
        parts.append(rest[start:end])
        rest = rest[end:]
    return "::".join(parts) or name


def _rank(cause: FailureCause) -> int:
    """Return a key that orders causes by precedence: the cause to name comes first."""
    return _RANKS.index(cause.precedence)


@cache
def _compile_patterns(cause: FailureCause) -> list[LinePattern]:
    """Return the patterns of a cause. Raises ConfigError for one that is not valid."""
    try:
        return [LinePattern(pattern) for pattern in cause.patterns]
    except re.error as error:
        raise ConfigError(
            f"causes.toml: {cause.name}: {error.pattern!r} is not a valid regular expression: "
            f"{error}",
            code="invalid-cause-pattern",
        ) from None
