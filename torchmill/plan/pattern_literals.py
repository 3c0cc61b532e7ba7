"""Literals that every match of a regular expression contains, by which a line is ruled out fast.

Literals come in sets: a match contains at least one of a set. All are in lower case, because a
pattern may ignore case.
"""

from collections.abc import Iterable, Iterator

from torchmill.plan.pattern_tree import REPEATS, Node, ops

_SHORTEST_LITERAL = 2  # characters; a shorter one is in most lines


def literals_of_alternatives(alternatives: Iterable[Iterable[Node]]) -> frozenset[str] | None:
    """Return literals for a match of any alternative; None if an alternative has none."""
    literals: set[str] = set()
    for nodes in alternatives:
        required = _best_literals(nodes)
        if required is None:
            return None
        literals |= required
    return frozenset(literals) or None


def _best_literals(nodes: Iterable[Node]) -> frozenset[str] | None:
    """Return the set of literals of a sequence whose shortest is longest; None if it has none."""
    best: frozenset[str] | None = None
    for literals in _literal_sets(nodes):
        if best is None or _shortest(literals) > _shortest(best):
            best = literals
    if best is None or _shortest(best) < _SHORTEST_LITERAL:
        return None
    return best


def _shortest(literals: frozenset[str]) -> int:
    """Return the length of the shortest of some literals."""
    return min(map(len, literals))


def _literal_sets(nodes: Iterable[Node]) -> Iterator[frozenset[str]]:
    """Yield the sets of literals that the nodes of a sequence require."""
    run = ""
    for operation, value in nodes:
        if operation == ops.LITERAL:
            run += chr(value).lower()
            continue
        if run:
            yield frozenset({run})
            run = ""
        literals: frozenset[str] | None = None
        if operation == ops.BRANCH:
            literals = literals_of_alternatives(value[1])
        elif operation == ops.SUBPATTERN:
            literals = _best_literals(value[3])
        elif operation in REPEATS and value[0] > 0:
            literals = _best_literals(value[2])
        if literals:
            yield literals
    if run:
        yield frozenset({run})
