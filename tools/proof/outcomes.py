"""The outcomes of upstream's tests on two wheels, their comparison, and its report for people."""

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

PASSED = "passed"
SKIPPED = "skipped"
# Keys of a comparison, which are also the titles in its report.
BOTH = "fail on both"
THEIRS = "fail on the published wheel alone"
FLAKY = "passed when run again"
_MOST_ALIKE = 5  # tests that the report names of those that fail for one reason


class Outcome(NamedTuple):
    """The outcome of one test."""

    result: str  # "passed", "skipped", "failed", "not collected", "ended"
    # the error, or the reason of a skip; of a test that passed, the error of its first run
    why: str = ""

    @property
    def bad(self) -> bool:
        """Tell whether the test says that something is wrong."""
        return self.result not in {PASSED, SKIPPED}


Outcomes = Mapping[str, Outcome]  # by the names of tests


def find_differences(ours: Outcomes, theirs: Outcomes) -> dict[str, str]:
    """Return the tests that our wheel does worse than the published one, with the reasons.

    Such a test fails on ours alone, is skipped on ours alone, or is missing there.
    """
    differences = {}
    for test, outcome in ours.items():
        published = theirs.get(test)
        if outcome.bad and not (published and published.bad):
            differences[test] = f"{outcome.result}: {outcome.why}"
        elif outcome.result == SKIPPED and published and published.result == PASSED:
            differences[test] = f"skipped, and passes on the published wheel: {outcome.why}"
    for test, published in theirs.items():
        if published.result == PASSED and test not in ours:
            differences[test] = "not there, and passes on the published wheel"
    return differences


def compare(ours: Outcomes, theirs: Outcomes, explained: Mapping[str, str]) -> dict[str, Any]:
    """Return the comparison of outcomes as the manifest has it.

    `explained` has parts of the names of tests, with the reasons why those may fail on our wheel.
    """
    fail_on_both = []
    fail_on_published = []  # they pass on our wheel, or are skipped or missing there
    for test in sorted(test for test, outcome in theirs.items() if outcome.bad):
        if test in ours and ours[test].bad:
            fail_on_both.append(test)
        else:
            fail_on_published.append(test)
    passed_again = sorted(
        test for test, outcome in ours.items() if outcome.result == PASSED and outcome.why
    )
    alone = {}
    for test, reason in find_differences(ours, theirs).items():
        alone[test] = {"why": reason, "explained": _explanation(test, explained)}
    return {
        "results": dict(Counter(outcome.result for outcome in ours.values())),
        "published": dict(Counter(outcome.result for outcome in theirs.values())),
        BOTH: fail_on_both,
        THEIRS: fail_on_published,
        FLAKY: passed_again,
        "alone": alone,
    }


def _explanation(test: str, explained: Mapping[str, str]) -> str:
    """Return the first reason whose key is a part of a test's name; "" without one."""
    for part, reason in explained.items():
        if part in test:
            return reason
    return ""


def describe(comparison: Mapping[str, Any]) -> Iterator[str]:
    """Yield the lines of the report on a comparison.

    To the keys of `compare` it has "wheel" and "against", the titles of the wheels, and "unlike",
    sentences about known differences between them. "against" is "" if ours was tried alone.
    """
    yield _count_line(comparison["wheel"], comparison["results"])
    is_compared = bool(comparison["against"])
    if is_compared:
        yield _count_line(comparison["against"], comparison["published"])
    for sentence in comparison["unlike"]:
        yield f"  {sentence}"
    for title in (BOTH, THEIRS, FLAKY) if is_compared else (FLAKY,):
        tests = comparison[title]
        example = f": {tests[0]}" if tests else ""
        yield f"{title}: {len(tests)}{example}"
    alone = comparison["alone"]
    explained = sum(bool(difference["explained"]) for difference in alone.values())
    difference = "not as on the published wheel" if is_compared else "fail"
    yield f"{difference}: {len(alone)}, of which {explained} are explained"
    alike: dict[tuple[str, str], list[str]] = {}  # explanation and reason -> tests
    for test, difference in sorted(alone.items()):
        key = (difference["explained"], difference["why"])
        alike.setdefault(key, []).append(test)
    # In this order the unexplained tests come first.
    for (explanation, reason), tests in sorted(alike.items()):
        note = f" (explained: {explanation})" if explanation else ""
        for test in tests[:_MOST_ALIKE]:
            yield f"  {test}: {reason}{note}"
        if len(tests) > _MOST_ALIKE:
            yield f"  and {len(tests) - _MOST_ALIKE} more, for the same reason"


def _count_line(title: str, results: Mapping[str, int]) -> str:
    counts = ", ".join(f"{number} {result}" for result, number in sorted(results.items()))
    return f"{title}: {sum(results.values())} tests, {counts or 'none'}"
