"""How the time of a regular expression grows with the length of a line: linear, quadratic, cubic.

`re` backtracks: it tries every place where each repeat may end. The growth follows from how many
repeats of a pattern may end in several places, if what they pass overlaps.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Any, NamedTuple

from torchmill.plan.pattern_tree import (
    CHARACTERS,
    LOOKAROUNDS,
    REPEATS,
    Node,
    compile_nodes,
    is_anchored,
    is_unbounded,
    ops,
    repeats_character,
)

# Characters that stand for all others: ASCII, a letter of another alphabet of each kind, and a
# quotation mark as compilers write it.
_SAMPLE = [*map(chr, range(9, 127)), "é", "文", "\N{RIGHT SINGLE QUOTATION MARK}"]
_matched_characters: dict[str, frozenset[str]] = {}  # by the node and the pattern's flags


class _Opening(NamedTuple):
    """How a sequence of nodes may begin."""

    characters: frozenset[str]  # of the sample
    may_be_empty: bool  # it may also match nothing


class _PatternCost(NamedTuple):
    """Exponents of the line's length, for a sequence that is tried from one place."""

    endings: int  # of the number of places where it may end
    steps: int  # of the time until all of them are tried


_NOTHING = _Opening(frozenset(), may_be_empty=True)


def degree(state: Any, nodes: Sequence[Node]) -> int:
    """Return the exponent of the time that a pattern takes for a line, at least 1.

    Raises re.error for a pattern that takes exponential time.
    """
    steps = _cost(state, nodes).steps
    if is_anchored(list(nodes)):
        return max(1, steps)
    # Other patterns are tried from each place where their literal beginning stands. If every repeat
    # stops before some character of that literal, then what is passed from two places does not
    # overlap, and the places together take no longer than the line.
    literals = takewhile(lambda node: node[0] == ops.LITERAL, nodes)
    beginning = {chr(value) for _, value in literals}
    if not beginning:
        return 1 + steps
    for body in _unbounded_bodies(nodes):
        if beginning <= _characters(state, body):
            return 1 + steps
    return max(1, steps)


def _characters(state: Any, node: Node) -> frozenset[str]:
    """Return the characters of the sample that a node matches."""
    key = f"{node} {state.flags}"
    if key not in _matched_characters:
        pattern = compile_nodes(state, [node])
        _matched_characters[key] = frozenset(filter(pattern.fullmatch, _SAMPLE))
    return _matched_characters[key]


def _opening(state: Any, nodes: Iterable[Node]) -> _Opening:
    """Return how a sequence may begin."""
    characters: frozenset[str] = frozenset()
    for operation, value in nodes:
        if operation == ops.AT or operation in LOOKAROUNDS:
            continue
        if operation in CHARACTERS:
            characters |= _characters(state, (operation, value))
            return _Opening(characters, may_be_empty=False)
        if operation == ops.BRANCH:
            bodies = value[1]
        elif operation == ops.SUBPATTERN:
            bodies = [value[3]]
        else:
            bodies = [value[2]]
        may_be_empty = operation in REPEATS and value[0] == 0
        for body in bodies:
            opening = _opening(state, body)
            characters |= opening.characters
            may_be_empty = may_be_empty or opening.may_be_empty
        if not may_be_empty:
            return _Opening(characters, may_be_empty=False)
    return _Opening(characters, may_be_empty=True)


def _cost(
    state: Any,
    nodes: Sequence[Node],
    following: _Opening = _NOTHING,
    preceding: Sequence[Node] = (),
) -> _PatternCost:
    """Return the cost of a sequence, by the opening of its successor and the nodes before it."""
    endings = 0
    steps = 0
    for position in range(len(nodes)):
        opening = _opening(state, nodes[position + 1 :])
        if opening.may_be_empty:
            characters = opening.characters | following.characters
            opening = _Opening(characters, following.may_be_empty)
        before = [*preceding, *nodes[:position]]
        cost = _cost_of_node(state, nodes, position, opening, before)
        # The rest of the sequence is tried from each place where what stands before it may end.
        steps = max(steps, endings + cost.steps)
        endings += cost.endings
    return _PatternCost(endings, steps)


def _cost_of_node(
    state: Any,
    nodes: Sequence[Node],
    position: int,
    following: _Opening,
    preceding: Sequence[Node],
) -> _PatternCost:
    """Return the cost of the node at a position, as `_cost` does for a sequence."""
    operation, value = nodes[position]
    if operation in REPEATS:
        if repeats_character(value):
            return _cost_of_character_repeat(state, nodes, position, following, preceding)
        return _cost_of_group_repeat(state, nodes[position], following)
    if operation == ops.SUBPATTERN:
        return _cost(state, value[3], following, preceding)
    if operation == ops.BRANCH:
        costs = [_cost(state, branch, following, preceding) for branch in value[1]]
        endings = max(cost.endings for cost in costs)
        return _PatternCost(endings, max(cost.steps for cost in costs))
    if operation in LOOKAROUNDS:
        # It takes time, but the match goes on from where it began.
        return _PatternCost(0, _cost(state, value[1]).steps)
    return _PatternCost(0, 0)


def _cost_of_group_repeat(state: Any, node: Node, following: _Opening) -> _PatternCost:
    """Return the cost of a repeated group; raise re.error if its time is exponential."""
    body = node[1][2]
    # Behind one turn comes either another one or what follows the repeat.
    characters = _opening(state, body).characters | following.characters
    turn = _cost(state, body, _Opening(characters, following.may_be_empty))
    if not is_unbounded(node):
        return turn
    if turn.endings:
        raise re.error(
            "a repeat within a repeat, between which nothing decides, takes exponential time"
        )
    return _PatternCost(1 + turn.endings, 1 + turn.steps)


def _cost_of_character_repeat(
    state: Any,
    nodes: Sequence[Node],
    position: int,
    following: _Opening,
    preceding: Sequence[Node],
) -> _PatternCost:
    """Return the cost of a repeated character.

    It ends in one place alone if something that follows for certain has characters that it cannot
    pass. It then takes no time of its own if nothing follows it, or if a character right before it
    stops it: what is passed from two places never overlaps.
    """
    unbounded = int(is_unbounded(nodes[position]))
    passed = _characters(state, nodes[position][1][2][0])
    certain = _certain_characters(state, nodes[position + 1 :])
    if passed & following.characters and all(passed & characters for characters in certain):
        return _PatternCost(unbounded, unbounded)
    if not following.characters or _is_stopped(state, passed, preceding):
        return _PatternCost(0, 0)
    return _PatternCost(0, unbounded)


def _certain_characters(state: Any, nodes: Sequence[Node]) -> Iterator[frozenset[str]]:
    """Yield the characters that a sequence begins with for certain.

    They come one after another, up to the first node that may be left out.
    """
    for operation, value in nodes:
        if operation in CHARACTERS:
            yield _characters(state, (operation, value))
        elif operation in REPEATS and value[0] > 0 and repeats_character(value):
            yield _characters(state, value[2][0])
            return
        elif operation == ops.SUBPATTERN:
            yield from _certain_characters(state, list(value[3]))
            return
        elif operation == ops.BRANCH:
            yield from _certain_of_branches(state, value[1])
            return
        elif operation != ops.AT and operation not in LOOKAROUNDS:
            return


def _certain_of_branches(state: Any, branches: Iterable[Any]) -> Iterator[frozenset[str]]:
    """Yield the first characters of all alternatives together, if each has some for certain."""
    characters: frozenset[str] = frozenset()
    for branch in branches:
        first = next(_certain_characters(state, list(branch)), None)
        if not first:
            return
        characters |= first
    yield characters


def _is_stopped(state: Any, passed: frozenset[str], preceding: Sequence[Node]) -> bool:
    """Tell whether one of the characters right before a repeat is none that it passes."""
    for node in reversed(preceding):
        if node[0] not in CHARACTERS:
            return False
        if not _characters(state, node) & passed:
            return True
    return False


def _unbounded_bodies(nodes: Iterable[Node]) -> Iterator[Node]:
    """Yield the characters that are repeated without a bound; for a repeated group, any."""
    for operation, value in nodes:
        if operation in REPEATS:
            single = repeats_character(value)
            if is_unbounded((operation, value)):
                yield value[2][0] if single else (ops.ANY, None)
            elif not single:
                yield from _unbounded_bodies(value[2])
        elif operation == ops.SUBPATTERN:
            yield from _unbounded_bodies(value[3])
        elif operation in LOOKAROUNDS:
            yield from _unbounded_bodies(value[1])
        elif operation == ops.BRANCH:
            for branch in value[1]:
                yield from _unbounded_bodies(branch)
