"""Regular expressions that are looked for in lines that others wrote, in a time that the line's length bounds.

`re` backtracks, so a pattern with several unbounded repeats takes cubic time and more on a hostile line. Looked at was
google-re2, which guarantees linear time: it has no lookarounds, which 120 patterns of the catalogue use, and no wheels
for musl, glibc before 2.26 and each new Python (https://pypi.org/project/google-re2/#files). So patterns are made
harmless here: a `.*` at the top of a pattern splits it into pieces that are looked for one after the other, and where
more than one repeat is left that can end in several places, repeats are bounded.
"""

import importlib
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from itertools import takewhile
from typing import Any, NamedTuple

# The parser of `re`: the trees that it returns are what its compiler takes. Private, and the same since Python 3.11.
_parser: Any = importlib.import_module("re._parser")
_compiler: Any = importlib.import_module("re._compiler")
_ops: Any = importlib.import_module("re._constants")

LONGEST_TEXT = 3000  # characters of a line that patterns are looked for in
_TAIL = LONGEST_TEXT // 4  # of them, from the line's end
# The exponent of a pattern's time -> the longest repeat in it: 3000 characters take less than 100 million steps.
_LONGEST_REPEAT = {3: 160, 4: 21, 5: 10}
MOST_DEGREE = max(_LONGEST_REPEAT)
_NESTED = re.compile(r"\)(?:[*+]|\{\d*,\})")  # a repeated group
_GRAM = 4  # characters of the pieces of literals by which patterns are found
_SHORTEST_LITERAL = 2
_MOST_ALTERNATIVES = 200
_TRIED = [
    *map(chr, range(9, 127)),
    "é",
    "文",
    "\N{RIGHT SINGLE QUOTATION MARK}",
]  # stand for all characters
_SINGLE = (_ops.LITERAL, _ops.NOT_LITERAL, _ops.ANY, _ops.IN)
_REPEATS = (_ops.MAX_REPEAT, _ops.MIN_REPEAT)
_LOOKS = (_ops.ASSERT, _ops.ASSERT_NOT)

Node = tuple[Any, Any]
Nodes = list[Node]


class Opening(NamedTuple):
    """How a sequence of nodes may begin."""

    characters: frozenset[str]
    empty: bool  # it may also match nothing


def cut_text(text: str) -> str:
    """Return a line of at most LONGEST_TEXT characters: of a longer one, its beginning and its end."""
    return (
        text
        if len(text) <= LONGEST_TEXT
        else f"{text[: LONGEST_TEXT - _TAIL - 3]} … {text[-_TAIL:]}"
    )


def bounded_pattern(source: str) -> re.Pattern[str]:
    """Return a pattern whose repeats are bounded if its time would be cubic or worse. Raises re.error."""
    tree = _parser.parse(source)
    return _compile(tree.state, _bound(tree.state, list(tree)))


def literals_of(source: str) -> tuple[str, ...]:
    """Return literals, in lower case, of which each match of a pattern has one at least; none if none is known."""
    return tuple(LinePattern(source).literals or ())


def may_match(literals: Sequence[str], lowered: str) -> bool:
    """Tell whether a text in lower case has one of a pattern's literals."""
    return not literals or any(one in lowered for one in literals)


class LinePattern:
    """A regular expression of which a line has a match, or none."""

    def __init__(self, source: str) -> None:
        """Take the pattern as it is written. Raises re.error, also for one that takes exponential time."""
        tree = _parser.parse(source)
        self.source = source
        self.names = tuple(tree.state.groupdict)
        self.literals = _needed_of_any(_alternatives(list(tree)))  # in lower case
        self._tree = tree
        if _NESTED.search(source):
            self.degrees()  # raises

    @cached_property
    def pieces(self) -> list[list[tuple[re.Pattern[str], bool]]]:
        """Return the alternatives as pieces that follow one another; the flag is for a piece at the line's start."""
        state, nodes = self._tree.state, list(self._tree)
        ways = [[nodes]] if self.names else [_split(one) for one in _alternatives(nodes)]
        return [
            [(_compile(state, _bound(state, piece)), _is_anchored(piece)) for piece in way]
            for way in ways
        ]

    def search(self, text: str) -> re.Match[str] | None:
        """Return a match in a text of at most LONGEST_TEXT characters; of several pieces, the last one's."""
        return next((match for way in self.pieces if (match := _search_pieces(way, text))), None)

    def degrees(self) -> list[int]:
        """Return the exponents of the time that the pieces take for a line, before they are bounded."""
        state, nodes = self._tree.state, list(self._tree)
        ways = [[nodes]] if self.names else [_split(one) for one in _alternatives(nodes)]
        return [_degree(state, piece) for way in ways for piece in way]


class PatternIndex:
    """Which of many patterns may match a line, by the literals that a match contains."""

    def __init__(self, patterns: Sequence[LinePattern]) -> None:
        self._always: list[int] = []
        self._short: list[tuple[str, int]] = []
        self._by_gram: dict[str, list[tuple[str, int]]] = {}
        common = Counter(
            gram for one in patterns for literal in one.literals or () for gram in _grams(literal)
        )
        for number, pattern in enumerate(patterns):
            if pattern.literals is None:
                self._always.append(number)
            for literal in pattern.literals or ():
                if len(literal) < _GRAM:
                    self._short.append((literal, number))
                else:
                    rarest = min(_grams(literal), key=common.__getitem__)
                    self._by_gram.setdefault(rarest, []).append((literal, number))

    def candidates(self, text: str) -> list[int]:
        """Return the numbers of the patterns that may match, in their order."""
        text = text.lower()
        found = set(self._always)
        found.update(number for literal, number in self._short if literal in text)
        for gram in self._by_gram.keys() & _grams(text):
            found.update(number for literal, number in self._by_gram[gram] if literal in text)
        return sorted(found)


def _grams(text: str) -> set[str]:
    return {text[at : at + _GRAM] for at in range(len(text) - _GRAM + 1)}


def _search_pieces(
    pieces: Iterable[tuple[re.Pattern[str], bool]], text: str
) -> re.Match[str] | None:
    """Look for pieces one behind the other: if one is not behind the first match of another, it is behind none."""
    match: re.Match[str] | None = None
    for pattern, at_start in pieces:
        begin = match.end() if match else 0
        match = pattern.match(text, begin) if at_start else pattern.search(text, begin)
        if match is None:
            return None
    return match


def _compile(state: Any, nodes: Nodes) -> re.Pattern[str]:
    compiled: re.Pattern[str] = _compiler.compile(_parser.SubPattern(state, list(nodes)))
    return compiled


def _is_anchored(nodes: Nodes) -> bool:
    return bool(nodes) and nodes[0] == (_ops.AT, _ops.AT_BEGINNING)


def _is_unbounded(node: Node) -> bool:
    return node[0] in _REPEATS and node[1][1] == _ops.MAXREPEAT


def _is_gap(node: Node) -> bool:
    """Tell whether a node is `.*`."""
    return _is_unbounded(node) and node[1][0] == 0 and [op for op, _ in node[1][2]] == [_ops.ANY]


def _has_gap(nodes: Iterable[Node]) -> bool:
    return any(
        _is_gap(node) or (node[0] == _ops.BRANCH and any(_has_gap(one) for one in node[1][1]))
        for node in nodes
    )


def _alternatives(nodes: Nodes) -> list[Nodes]:
    """Return the alternatives of a pattern, those within it if one has a `.*`."""
    for at, (op, value) in enumerate(nodes):
        if op == _ops.BRANCH and (len(nodes) == 1 or _has_gap([(op, value)])):
            ways = [[*nodes[:at], *one, *nodes[at + 1 :]] for one in value[1]]
            found = [alternative for way in ways for alternative in _alternatives(way)]
            return found if len(found) <= _MOST_ALTERNATIVES else [nodes]
    return [nodes]


def _split(nodes: Nodes) -> list[Nodes]:
    """Return the pieces of an alternative between its `.*`, without repeats at their ends that change nothing."""
    pieces: list[Nodes] = [[]]
    for node in nodes:
        if _is_gap(node):
            pieces.append([])
        else:
            pieces[-1].append(node)
    return [_least(_least(piece, 0), -1) for piece in pieces if piece]


def _least(nodes: Nodes, at: int) -> Nodes:
    """Return a piece whose first or last node is repeated no more than it must: what is beside it may be anything."""
    if not nodes:
        return nodes
    op, value = nodes[at]
    if (
        op not in _REPEATS
        or len(value[2]) != 1
        or value[2][0][0] not in _SINGLE
        or value[0] > _GRAM
    ):
        return nodes
    least = [value[2][0]] * value[0]
    if len(nodes) == 1:
        return least
    return [*least, *nodes[1:]] if at == 0 else [*nodes[:-1], *least]


_CHARACTERS: dict[str, frozenset[str]] = {}  # by the node and the pattern's flags


def _characters(state: Any, node: Node) -> frozenset[str]:
    """Return those of _TRIED that a node takes."""
    key = f"{node} {state.flags}"
    if key not in _CHARACTERS:
        pattern = _compile(state, [node])
        _CHARACTERS[key] = frozenset(one for one in _TRIED if pattern.fullmatch(one))
    return _CHARACTERS[key]


def _opening(state: Any, nodes: Iterable[Node]) -> Opening:
    """Return how a sequence may begin."""
    found: frozenset[str] = frozenset()
    for op, value in nodes:
        if op == _ops.AT or op in _LOOKS:
            continue
        if op in _SINGLE:
            return Opening(found | _characters(state, (op, value)), empty=False)
        parts = value[1] if op == _ops.BRANCH else [value[3] if op == _ops.SUBPATTERN else value[2]]
        ways = [_opening(state, part) for part in parts]
        found = found.union(*(way.characters for way in ways))
        if not (any(way.empty for way in ways) or (op in _REPEATS and value[0] == 0)):
            return Opening(found, empty=False)
    return Opening(found, empty=True)


_NOTHING = Opening(frozenset(), empty=True)


class PatternCost(NamedTuple):
    """Exponents of the line's length, for a sequence that is tried from one place."""

    endings: int  # of the number of places where it may end
    steps: int  # of the time until all of them were tried


def _cost(
    state: Any, nodes: Sequence[Node], behind: Opening = _NOTHING, before: Sequence[Node] = ()
) -> PatternCost:
    """Return what a sequence costs; `behind` is what follows it, `before` the nodes that precede it."""
    endings = steps = 0
    for at in range(len(nodes)):
        follows = _opening(state, nodes[at + 1 :])
        if follows.empty:
            follows = Opening(follows.characters | behind.characters, behind.empty)
        cost = _cost_of_node(state, nodes, at, follows, [*before, *nodes[:at]])
        steps = max(steps, endings + cost.steps)
        endings += cost.endings
    return PatternCost(endings, steps)


def _cost_of_node(
    state: Any, nodes: Sequence[Node], at: int, follows: Opening, before: Sequence[Node]
) -> PatternCost:
    op, value = nodes[at]
    if op in _REPEATS:
        return _cost_of_repeat(state, nodes, at, follows, before)
    if op == _ops.SUBPATTERN:
        return _cost(state, value[3], follows, before)
    if op == _ops.BRANCH:
        ways = [_cost(state, one, follows, before) for one in value[1]]
        return PatternCost(max(way.endings for way in ways), max(way.steps for way in ways))
    return PatternCost(0, _cost(state, value[1]).steps) if op in _LOOKS else PatternCost(0, 0)


def _certain(state: Any, nodes: Sequence[Node]) -> Iterator[frozenset[str]]:
    """Yield the characters that a sequence begins with for certain, up to the first that may be left out."""
    for op, value in nodes:
        if op in _SINGLE:
            yield _characters(state, (op, value))
        elif op in _REPEATS and value[0] > 0 and len(value[2]) == 1 and value[2][0][0] in _SINGLE:
            yield _characters(state, value[2][0])
            return
        elif op == _ops.SUBPATTERN:
            yield from _certain(state, list(value[3]))
            return
        elif op == _ops.BRANCH:
            firsts = [next(_certain(state, list(one)), None) for one in value[1]]
            if all(firsts):
                yield frozenset().union(*(one for one in firsts if one))
            return
        elif op != _ops.AT and op not in _LOOKS:
            return


def _cost_of_repeat(
    state: Any, nodes: Sequence[Node], at: int, follows: Opening, before: Sequence[Node]
) -> PatternCost:
    """Return what a repeat costs.

    It ends in one place alone if what follows it for certain has a character that it cannot pass. It then takes no
    time of its own if nothing follows, or it cannot pass a character before it: what is passed never overlaps.
    """
    body = nodes[at][1][2]
    unbounded = int(_is_unbounded(nodes[at]))
    if len(body) != 1 or body[0][0] not in _SINGLE:
        again = Opening(_opening(state, body).characters | follows.characters, follows.empty)
        inner = _cost(state, body, again)
        if unbounded and inner.endings:
            raise re.error(
                "a repeat within a repeat, between which nothing decides, takes exponential time"
            )
        return PatternCost(unbounded + inner.endings, unbounded + inner.steps)
    passed = _characters(state, body[0])
    if passed & follows.characters and all(
        passed & one for one in _certain(state, nodes[at + 1 :])
    ):
        return PatternCost(unbounded, unbounded)
    return PatternCost(
        0, unbounded * int(bool(follows.characters) and not _is_stopped(state, passed, before))
    )


def _is_stopped(state: Any, passed: frozenset[str], before: Sequence[Node]) -> bool:
    """Tell whether the characters right before a repeat have one that it cannot pass."""
    for node in reversed(before):
        if node[0] not in _SINGLE:
            return False
        if not _characters(state, node) & passed:
            return True
    return False


def _degree(state: Any, nodes: Sequence[Node]) -> int:
    """Return the exponent of the time that a piece takes for a line, at least 1.

    A piece is tried from each place where it may begin, unless it is tied to the line's start, or no repeat passes
    some character of the literal at its beginning: then what is looked at from two places never overlaps.
    """
    steps = _cost(state, nodes).steps
    if _is_anchored(list(nodes)):
        return max(1, steps)
    literal = {chr(value) for _, value in takewhile(lambda node: node[0] == _ops.LITERAL, nodes)}
    passed = [_characters(state, body[0]) for body in _repeated(nodes)]
    return max(1, steps if literal and all(literal - one for one in passed) else 1 + steps)


def _repeated(nodes: Iterable[Node]) -> Iterator[Sequence[Node]]:
    """Yield single nodes that are repeated without a bound; of longer repeats, any character."""
    for op, value in nodes:
        if op in _REPEATS:
            single = len(value[2]) == 1 and value[2][0][0] in _SINGLE
            if _is_unbounded((op, value)):
                yield list(value[2]) if single else [(_ops.ANY, None)]
            elif not single:
                yield from _repeated(value[2])
        elif op in {_ops.SUBPATTERN, *_LOOKS}:
            yield from _repeated(value[3] if op == _ops.SUBPATTERN else value[1])
        elif op == _ops.BRANCH:
            for one in value[1]:
                yield from _repeated(one)


def _bound(state: Any, nodes: Nodes) -> Nodes:
    """Return a piece whose repeats are bounded if its time is worse than quadratic."""
    degree = _degree(state, nodes)
    return _with_longest(nodes, _LONGEST_REPEAT[min(degree, MOST_DEGREE)]) if degree > 2 else nodes  # noqa: PLR2004


def _with_longest(nodes: Iterable[Node], longest: int) -> Nodes:
    """Return nodes in which nothing is repeated more often."""
    return [(op, _bounded_value(op, value, longest)) for op, value in nodes]


def _bounded_value(op: Any, value: Any, longest: int) -> Any:
    if op in _REPEATS:
        least, most, body = value
        most = max(least, longest) if most == _ops.MAXREPEAT else most
        return least, most, _sub(body, longest)
    if op == _ops.SUBPATTERN:
        return (*value[:3], _sub(value[3], longest))
    if op == _ops.BRANCH:
        return value[0], [_sub(one, longest) for one in value[1]]
    return (value[0], _sub(value[1], longest)) if op in _LOOKS else value


def _sub(nodes: Any, longest: int) -> Any:
    return _parser.SubPattern(nodes.state, _with_longest(nodes, longest))


def _needed_of_any(alternatives: Iterable[Iterable[Node]]) -> frozenset[str] | None:
    """Return literals of which each match has one at least; None if none is known."""
    needed = [_needed(one) for one in alternatives]
    known = [one for one in needed if one]
    return frozenset().union(*known) if known and len(known) == len(needed) else None


def _needed(nodes: Iterable[Node]) -> frozenset[str] | None:
    """Return literals of which what matches a sequence has one at least: those whose shortest is longest."""
    best = max(_needs(nodes), key=lambda one: min(map(len, one)), default=None)
    return best if best and min(map(len, best)) >= _SHORTEST_LITERAL else None


def _needs(nodes: Iterable[Node]) -> Iterator[frozenset[str]]:
    run = ""
    for op, value in nodes:
        if op == _ops.LITERAL:
            run += chr(value).lower()
            continue
        if run:
            yield frozenset({run})
            run = ""
        inner: frozenset[str] | None = None
        if op == _ops.BRANCH:
            inner = _needed_of_any(value[1])
        elif op == _ops.SUBPATTERN:
            inner = _needed(value[3])
        elif op in _REPEATS and value[0] > 0:
            inner = _needed(value[2])
        if inner:
            yield inner
    if run:
        yield frozenset({run})
