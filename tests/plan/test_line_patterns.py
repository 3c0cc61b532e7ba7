"""Patterns for lines of others: they match what `re` says, and no line makes them slow."""

import re
import time
from collections.abc import Iterator

import pytest

from torchmill.config.facts import Facts
from torchmill.plan.line_patterns import (
    LONGEST_TEXT,
    LinePattern,
    PatternIndex,
    cut_text,
    literals_of,
    may_match,
)
from torchmill.plan.log_lines import LOG_WORDS

MOST_GROWTH = 40  # of the time for four times the characters: 16 is quadratic, 64 cubic
LEAST_SECONDS = 0.05  # of processor time: of less nothing is said
STARTS = ("compiler", "linker", "driver", "cmake", "other", "harmless", "prefixes")


def pieces_of(source: str) -> Iterator[str]:
    """Yield texts that a pattern's own words make, each to be repeated: with them hostile lines are made."""
    words = [
        re.sub(r"\\([^\w])", r"\1", word)
        for word in re.findall(r"(?:[\w .:/'\"-]|\\[^\w])+", source)
    ]
    words = [word for word in words if word.strip()]
    yield from (".so", "1:", "a ", "'a")
    yield from sorted(words, key=len)[-3:]
    yield "".join(words)


def hostile(source: str, length: int) -> list[str]:
    """Return lines of some length out of a pattern's pieces."""
    lines = []
    for piece in dict.fromkeys(pieces_of(source)):
        start = "".join(literals_of(source)[:1])
        lines += [(piece * length)[:length], (start + piece * length)[: length - 1] + "\x01"]
    return lines


def seconds_of(pattern: "re.Pattern[str] | LinePattern", source: str, length: int) -> float:
    lines = hostile(source, length)
    began = time.process_time()
    for line in lines:
        pattern.match(line) if isinstance(pattern, re.Pattern) else pattern.search(line)
    return time.process_time() - began


def test_no_pattern_of_the_catalogue_is_worse_than_cubic_before_it_is_bounded(
    shipped: Facts,
) -> None:
    patterns = [(cause.name, pattern) for cause in shipped.causes for pattern in cause.patterns]
    assert not [(name, one) for name, one in patterns if max(LinePattern(one).degrees()) > 3]


def test_hostile_lines_cost_no_pattern_of_the_catalogue_much(shipped: Facts) -> None:
    patterns = [LinePattern(one) for cause in shipped.causes for one in cause.patterns]
    slow = []
    for pattern in [one for one in patterns if max(one.degrees()) > 1] + patterns[::10]:
        _ = pattern.pieces  # compiled
        whole = seconds_of(pattern, pattern.source, 1200)
        if whole > LEAST_SECONDS and whole > MOST_GROWTH * seconds_of(pattern, pattern.source, 300):
            slow.append(pattern.source)
    assert not slow


@pytest.mark.parametrize("kind", STARTS)
def test_hostile_lines_cost_no_word_of_tools_much(kind: str) -> None:
    slow = []
    for source in LOG_WORDS[kind]:
        pattern = re.compile(r"\s*(?:" + source + ")")
        whole = seconds_of(pattern, source, 4000)
        if whole > LEAST_SECONDS and whole > MOST_GROWTH / 3 * seconds_of(pattern, source, 1000):
            slow.append(source)
    assert not slow


@pytest.mark.parametrize(
    ("pattern", "degree"),
    [
        ("Could not find", 1),
        (r"'[^']+' died due to signal 9", 1),  # what is between two quotes ends in one place
        (r"\w+_kernels? not installed", 1),  # one letter before the words is enough
        ("error: .*no such .*file", 1),  # pieces that follow one another
        (r"error: \S+\.so", 1),  # no space in what \S+ passes: no two places overlap
        (r"a\S+b", 2),
        (r"(?P<name>[^\s:'\"]+\.so[^\s:'\"]*): version '\S+' not found", 3),
        (r"a\S*b\S*c", 3),
        (r"a\S*b\S*c\S*d", 4),
    ],
)
def test_the_degree_of_a_pattern(pattern: str, degree: int) -> None:
    assert max(LinePattern(pattern).degrees()) == degree


@pytest.mark.parametrize("pattern", ["(?:a+)+b", "(?:a*)*b", r"(?:\w+ ?)*x", "(?:a|aa+)+b"])
def test_a_pattern_that_takes_exponential_time_is_refused(pattern: str) -> None:
    with pytest.raises(re.error, match="a repeat within a repeat"):
        LinePattern(pattern)


def test_a_pattern_of_a_stranger_is_bounded() -> None:
    evil = LinePattern(r"a\S*b\S*c\S*d\S*e")
    assert evil.search("abc" * 50) is None
    assert evil.search("abcde")


def test_every_example_matches_as_re_says(shipped: Facts) -> None:
    patterns = [LinePattern(one) for cause in shipped.causes for one in cause.patterns]
    index = PatternIndex(patterns)
    for cause in shipped.causes:
        own = [number for number, one in enumerate(patterns) if one.source in cause.patterns]
        for example in map(cut_text, cause.examples):
            matching = {number for number in own if re.search(patterns[number].source, example)}
            assert {number for number in own if patterns[number].search(example)} == matching
            assert matching <= set(index.candidates(example))


@pytest.mark.parametrize(
    ("pattern", "text", "matches"),
    [
        ("a.*b.*c", "xaxbxc", True),
        ("a.*b.*c", "b a c b", False),
        ("^a.*b$", "xab", False),
        ("^a.*b$", "a b", True),
        ("(?:one.*two|three) four", "one, two four", True),
        ("(?:one.*two|three) four", "one, two, four", False),
        (r"\bld\S*: .*\bx\b", "/usr/bin/ld.gold: no x", True),
        ("(?i)CMake.*not found", "cmake: NOT FOUND", True),
        (r".*\berror$", "an error", True),
        (r"a+.*", "bab", True),
    ],
)
def test_pieces_match_what_the_whole_does(pattern: str, text: str, matches: bool) -> None:
    assert bool(re.search(pattern, text)) is matches
    assert bool(LinePattern(pattern).search(text)) is matches
    assert bool(PatternIndex([LinePattern(pattern)]).candidates(text)) >= matches


def test_a_name_is_the_one_that_re_finds() -> None:
    pattern = r"error: .*'(?P<name>\w+)'"
    text = "error: 'first' and 'last'"
    assert LinePattern(pattern).search(text)["name"] == re.search(pattern, text)["name"] == "last"  # type: ignore[index]


def test_a_long_text_keeps_its_beginning_and_end() -> None:
    text = cut_text(f"begin{'x' * 10_000}end")
    assert (text[:6], text[-4:]) == ("beginx", "xend")
    assert len(text) == LONGEST_TEXT


def test_literals_are_compared_in_lower_case() -> None:
    assert literals_of("(?i)CMake Error") == ("cmake error",)
    assert may_match(("cmake error",), "a cmake error")
    assert not may_match(("cmake error",), "an error")
    assert may_match((), "anything")
