"""Patterns for lines of build logs: they match what `re` does, and no line makes them slow."""

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

# How much longer four times the characters may take: 16 times is quadratic, 64 times cubic.
MOST_GROWTH = 40
LEAST_SECONDS = 0.05  # of processor time; what takes less is not judged
KINDS = ("compiler", "linker", "driver", "cmake", "other", "harmless", "prefixes")


def words_of(source: str) -> list[str]:
    """Return the texts in a pattern that stand for themselves, the longest last."""
    words = []
    for word in re.findall(r"(?:[\w .:/'\"-]|\\[^\w])+", source):
        text = re.sub(r"\\([^\w])", r"\1", word)
        if text.strip():
            words.append(text)
    return sorted(words, key=len)


def hostile_lines(source: str, length: int) -> Iterator[str]:
    """Yield lines of some length that make a pattern try many places: pieces of it, repeated."""
    words = words_of(source)
    start = "".join(literals_of(source)[:1])
    pieces = (".so", "1:", "a ", "'a", *words[-3:], "".join(words))
    for piece in dict.fromkeys(pieces):
        yield (piece * length)[:length]
        # The last character is one that no pattern matches.
        yield (start + piece * length)[: length - 1] + "\x01"


def seconds_of(pattern: "re.Pattern[str] | LinePattern", source: str, length: int) -> float:
    """Return the processor time that a pattern takes for hostile lines."""
    lines = list(hostile_lines(source, length))
    match = pattern.match if isinstance(pattern, re.Pattern) else pattern.search
    started = time.process_time()
    for line in lines:
        match(line)
    return time.process_time() - started


def catalogue_patterns(shipped: Facts) -> list[LinePattern]:
    return [LinePattern(source) for cause in shipped.causes for source in cause.patterns]


def test_no_pattern_of_the_catalogue_is_worse_than_cubic_before_it_is_bounded(
    shipped: Facts,
) -> None:
    patterns = catalogue_patterns(shipped)
    assert [pattern.source for pattern in patterns if max(pattern.degrees()) > 3] == []


def test_hostile_lines_cost_no_pattern_of_the_catalogue_much(shipped: Facts) -> None:
    patterns = catalogue_patterns(shipped)
    risky = [pattern for pattern in patterns if max(pattern.degrees()) > 1]
    slow = []
    for pattern in risky + patterns[::10]:
        _ = pattern.pieces  # compiled outside of the measured time
        seconds = seconds_of(pattern, pattern.source, 1200)
        if seconds > LEAST_SECONDS:
            growth = seconds / seconds_of(pattern, pattern.source, 300)
            if growth > MOST_GROWTH:
                slow.append(pattern.source)
    assert slow == []


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_lines_cost_no_word_of_tools_much(kind: str) -> None:
    slow = []
    for source in LOG_WORDS[kind]:
        pattern = re.compile(r"\s*(?:" + source + ")")
        seconds = seconds_of(pattern, source, 4000)
        if seconds > LEAST_SECONDS:
            growth = seconds / seconds_of(pattern, source, 1000)
            if growth > MOST_GROWTH / 3:
                slow.append(source)
    assert slow == []


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
    pattern = LinePattern(r"a\S*b\S*c\S*d\S*e")
    assert pattern.search("abc" * 50) is None
    assert pattern.search("abcde")


def test_every_example_matches_as_re_does(shipped: Facts) -> None:
    patterns = catalogue_patterns(shipped)
    index = PatternIndex(patterns)
    numbers: dict[str, int] = {}
    for number, pattern in enumerate(patterns):
        numbers.setdefault(pattern.source, number)
    for cause in shipped.causes:
        for example in map(cut_text, cause.examples):
            candidates = set(index.candidates(example))
            for source in cause.patterns:
                number = numbers[source]
                matches = re.search(source, example) is not None
                assert (patterns[number].search(example) is not None) is matches, source
                assert number in candidates or not matches, source


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
    if matches:
        assert PatternIndex([LinePattern(pattern)]).candidates(text) == [0]


def test_a_name_matches_the_text_that_re_finds() -> None:
    pattern = r"error: .*'(?P<name>\w+)'"
    match = LinePattern(pattern).search("error: 'first' and 'last'")
    assert match is not None
    assert match["name"] == "last"


def test_a_long_text_keeps_its_beginning_and_end() -> None:
    text = cut_text(f"begin{'x' * 10_000}end")
    assert text.startswith("beginx")
    assert text.endswith("xend")
    assert len(text) == LONGEST_TEXT


def test_literals_are_compared_in_lower_case() -> None:
    assert literals_of("(?i)CMake Error") == ("cmake error",)
    assert may_match(("cmake error",), "a cmake error")
    assert not may_match(("cmake error",), "an error")
    assert may_match((), "anything")
