"""Search lines of build logs for many regular expressions, in a time that the line's length bounds.

`re` backtracks, so a pattern with several unbounded repeats takes cubic time and more on a hostile
line. google-re2 guarantees linear time, but it has no lookarounds, which 120 patterns of the
catalogue use, and no wheels for musl, for glibc before 2.26 and for each new Python
(https://pypi.org/project/google-re2/#files). So patterns are made harmless here. A `.*` at the top
of a pattern splits it into pieces that are searched one after the other. If a piece would still
take cubic time or worse, its repeats are bounded.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any, NamedTuple

from torchmill.plan import pattern_cost
from torchmill.plan.pattern_literals import literals_of_alternatives
from torchmill.plan.pattern_tree import (
    Nodes,
    compile_nodes,
    is_anchored,
    limit_repeats,
    parser,
    split_alternatives,
    split_at_gaps,
)

LONGEST_TEXT = 3000  # characters of a line in which patterns are searched
_TAIL = LONGEST_TEXT // 4  # of these, characters from the line's end
_QUADRATIC = 2
# The exponent of a pattern's time -> the longest repeat that it may have. With it, 3000 characters
# take less than 100 million steps.
_LONGEST_REPEAT = {3: 160, 4: 21, 5: 10}
_MOST_DEGREE = max(_LONGEST_REPEAT)
_REPEATED_GROUP = re.compile(r"\)(?:[*+]|\{\d*,\})")
_GRAM = 4  # characters of the pieces of literals by which an index finds patterns


def cut_text(text: str) -> str:
    """Return a line of at most LONGEST_TEXT characters: of a longer one, its beginning and end."""
    if len(text) <= LONGEST_TEXT:
        return text
    return f"{text[: LONGEST_TEXT - _TAIL - 3]} … {text[-_TAIL:]}"


def bounded_pattern(source: str) -> re.Pattern[str]:
    """Return a pattern whose repeats are bounded if its time would be cubic or worse.

    Raises re.error.
    """
    tree = parser.parse(source)
    return _compile_bounded(tree.state, list(tree))


def literals_of(source: str) -> tuple[str, ...]:
    """Return literals in lower case, one of which is in each match of a pattern; () if unknown."""
    return tuple(LinePattern(source).literals or ())


def may_match(literals: Sequence[str], lowered: str) -> bool:
    """Tell whether a text in lower case has one of a pattern's literals."""
    return not literals or any(literal in lowered for literal in literals)


class Piece(NamedTuple):
    """A part of a pattern between two `.*`."""

    pattern: re.Pattern[str]
    is_anchored: bool  # it must stand at the beginning of the text


class LinePattern:
    """A regular expression that a line matches or not."""

    def __init__(self, source: str) -> None:
        """Take the pattern as it is written.

        Raises re.error for one that is not valid, or that takes exponential time.
        """
        self._tree: Any = parser.parse(source)
        self.source = source
        self.names = tuple(self._tree.state.groupdict)
        # In lower case, one of which is in each match; None if not known.
        self.literals = literals_of_alternatives(split_alternatives(list(self._tree)))
        # Only a repeated group can take exponential time. Of other patterns the costs are computed
        # once they are used, because that takes most of the time until the catalogue is ready.
        if _REPEATED_GROUP.search(source):
            self.degrees()

    @cached_property
    def pieces(self) -> list[list[Piece]]:
        """Return the alternatives, each as the pieces that follow one another in a match."""
        alternatives: list[list[Piece]] = []
        for nodes_of_pieces in self._split():
            pieces: list[Piece] = []
            for nodes in nodes_of_pieces:
                pattern = _compile_bounded(self._tree.state, nodes)
                pieces.append(Piece(pattern, is_anchored(nodes)))
            alternatives.append(pieces)
        return alternatives

    def search(self, text: str) -> re.Match[str] | None:
        """Return a match in a text of at most LONGEST_TEXT characters; None if there is none.

        For a pattern of several pieces it is that of the last.
        """
        for pieces in self.pieces:
            match = _search_pieces(pieces, text)
            if match:
                return match
        return None

    def degrees(self) -> list[int]:
        """Return the exponents of the time that the pieces take for a line if none is bounded."""
        degrees: list[int] = []
        for nodes_of_pieces in self._split():
            degrees += [pattern_cost.degree(self._tree.state, nodes) for nodes in nodes_of_pieces]
        return degrees

    def _split(self) -> list[list[Nodes]]:
        """Return the nodes of each piece of each alternative.

        A pattern with names is one piece: which text a name matches depends on the whole.
        """
        nodes = list(self._tree)
        if self.names:
            return [[nodes]]
        return [split_at_gaps(alternative) for alternative in split_alternatives(nodes)]


class PatternIndex:
    """Tells which of many patterns may match a line, by the literals that a match contains."""

    def __init__(self, patterns: Sequence[LinePattern]) -> None:
        self._always: list[int] = []  # numbers of patterns without literals
        self._short: list[tuple[str, int]] = []  # literals shorter than a gram
        self._by_gram: dict[str, list[tuple[str, int]]] = {}
        frequency: Counter[str] = Counter()
        for pattern in patterns:
            for literal in pattern.literals or ():
                frequency.update(_grams(literal))
        for number, pattern in enumerate(patterns):
            if pattern.literals is None:
                self._always.append(number)
                continue
            for literal in pattern.literals:
                if len(literal) < _GRAM:
                    self._short.append((literal, number))
                else:
                    rarest = min(_grams(literal), key=frequency.__getitem__)
                    self._by_gram.setdefault(rarest, []).append((literal, number))

    def candidates(self, text: str) -> list[int]:
        """Return the numbers of the patterns that may match a text, in their order."""
        text = text.lower()
        numbers = set(self._always)
        for literal, number in self._short:
            if literal in text:
                numbers.add(number)
        for gram in self._by_gram.keys() & _grams(text):
            for literal, number in self._by_gram[gram]:
                if literal in text:
                    numbers.add(number)
        return sorted(numbers)


def _grams(text: str) -> set[str]:
    """Return all pieces of a text that are _GRAM characters long."""
    return {text[start : start + _GRAM] for start in range(len(text) - _GRAM + 1)}


def _search_pieces(pieces: Iterable[Piece], text: str) -> re.Match[str] | None:
    """Return the match of the last of some pieces that follow one another; None without.

    It is enough to search after the first match of each: a piece that does not follow the first
    match follows no later one.
    """
    match: re.Match[str] | None = None
    start = 0
    for pattern, is_anchored_piece in pieces:
        match = pattern.match(text, start) if is_anchored_piece else pattern.search(text, start)
        if match is None:
            return None
        start = match.end()
    return match


def _compile_bounded(state: Any, nodes: Nodes) -> re.Pattern[str]:
    """Return a pattern whose repeats are bounded if its time is worse than quadratic."""
    degree = pattern_cost.degree(state, nodes)
    if degree > _QUADRATIC:
        nodes = limit_repeats(nodes, _LONGEST_REPEAT[min(degree, _MOST_DEGREE)])
    pattern: re.Pattern[str] = compile_nodes(state, nodes)
    return pattern
