"""Judge the candidates of a cause: which of its reasons the facts support, and which not."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet

from torchmill.config.facts import CauseCandidate
from torchmill.config.versions import is_version, is_within

Verdict = Literal["supported", "unknown", "refuted"]
UNKNOWN = "?"  # the word of a condition for "this fact is not known"
KNOWN = "*"  # the condition that a fact is known, whatever its value


@dataclass(frozen=True, slots=True)
class JudgedCandidate:
    """A candidate, and what the facts say about it."""

    candidate: CauseCandidate
    verdict: Verdict
    unknown: tuple[str, ...] = ()  # facts that would decide

    @property
    def lacks_a_fact(self) -> bool:
        """Tell whether a fact is not known that the candidate needs, whatever its value."""
        return any(self.candidate.when[fact] == KNOWN for fact in self.unknown)


@dataclass(frozen=True, slots=True)
class CandidateRanking:
    """The candidates of a cause, the best first, without those that are refuted."""

    candidates: tuple[JudgedCandidate, ...] = ()
    refuted: int = 0  # the number of those that are left out

    @property
    def answer(self) -> JudgedCandidate | None:
        """Return the candidate that the facts support, or the only one that they do not refute.

        None if several are left and none is supported: then nobody can tell. A cause's single
        candidate has to be supported, because the cause's own sentences may be right as well, and
        so has one that is filled with a fact.
        """
        if not self.candidates:
            return None
        best = self.candidates[0]
        is_left_over = len(self.candidates) == 1 and self.refuted > 0 and not best.lacks_a_fact
        if best.verdict == "supported" or is_left_over:
            return best
        return None

    @property
    def missing_fact(self) -> str:
        """Return the fact that would decide between most candidates; "" if none is missing."""
        counts: Counter[str] = Counter()
        for judged in self.candidates:
            counts.update(judged.unknown)
        return counts.most_common(1)[0][0] if counts else ""


def judge(candidates: Sequence[CauseCandidate], values: Mapping[str, str]) -> CandidateRanking:
    """Return the ranking of some candidates by the values of facts.

    Supported ones go first, those with more conditions before others: they say more.
    """
    judged = [_judge_candidate(candidate, values) for candidate in candidates]
    remaining = [candidate for candidate in judged if candidate.verdict != "refuted"]

    def rank(judged_candidate: JudgedCandidate) -> tuple[bool, int]:
        is_supported = judged_candidate.verdict == "supported"
        conditions = len(judged_candidate.candidate.when) if is_supported else 0
        return not is_supported, -conditions

    ordered = sorted(remaining, key=rank)  # stable: else in the given order
    return CandidateRanking(tuple(ordered), len(judged) - len(remaining))


def _judge_candidate(candidate: CauseCandidate, values: Mapping[str, str]) -> JudgedCandidate:
    """Return a candidate with its verdict: one condition that fails refutes it."""
    unknown: list[str] = []
    for fact, condition in candidate.when.items():
        value = values.get(fact)
        if value is None:
            # Whoever asks for a fact that is not known has got what he asked for.
            if UNKNOWN not in condition.split("|"):
                unknown.append(fact)
        elif not meets(condition, value):
            return JudgedCandidate(candidate, "refuted")
    if unknown or not candidate.when:
        return JudgedCandidate(candidate, "unknown", tuple(unknown))
    return JudgedCandidate(candidate, "supported")


def meets(condition: str, value: str) -> bool:
    """Tell whether the value of a fact meets a condition: bounds, "<8", or words, "no|none".

    A value that is no version is in no bounds. In words * stands for any characters, so that KNOWN
    is met by every value.
    """
    if condition[:1] in "<>=!~":
        return is_version(value) and is_within(SpecifierSet(condition), value)
    return any(_is_like(value, word) for word in condition.split("|"))


def _is_like(value: str, word: str) -> bool:
    """Tell whether a value is a word, in which * stands for any characters."""
    parts = [re.escape(part) for part in word.split("*")]
    return re.fullmatch(".*".join(parts), value) is not None


def condition_problem(condition: str) -> str:
    """Return what is wrong with a condition; "" if nothing is."""
    if not condition:
        return "is empty"
    if condition[:1] in "<>=!~":
        try:
            SpecifierSet(condition)
        except InvalidSpecifier:
            return f"'{condition}' is no bounds of versions"
    return ""
