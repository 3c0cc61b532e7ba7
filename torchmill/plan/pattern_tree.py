"""Regular expressions as trees: take one apart, and compile the parts.

The trees are those of the parser of `re`, and its compiler takes them. Both modules are private;
their interface is the same in every Python since 3.11.

A tree is a list of nodes. A node is an operation and its value, and the form of the value depends
on the operation:

    LITERAL      number of the character
    ANY, IN      one character of a set
    MAX_REPEAT   least number, most number, repeated tree (MIN_REPEAT: `*?`, `+?`)
    SUBPATTERN   number of the group, added flags, removed flags, tree
    BRANCH       None, trees of the alternatives
    ASSERT       direction, tree that stands ahead or behind (ASSERT_NOT: does not)
    AT           a place: the beginning of the text, a boundary of words
"""

import importlib
from collections.abc import Iterable
from typing import Any

parser: Any = importlib.import_module("re._parser")
ops: Any = importlib.import_module("re._constants")
_compiler: Any = importlib.import_module("re._compiler")

Node = tuple[Any, Any]
Nodes = list[Node]

CHARACTERS = (ops.LITERAL, ops.NOT_LITERAL, ops.ANY, ops.IN)  # match one character
REPEATS = (ops.MAX_REPEAT, ops.MIN_REPEAT)
LOOKAROUNDS = (ops.ASSERT, ops.ASSERT_NOT)
_MOST_ALTERNATIVES = 200
_LONGEST_EXPANSION = 4  # times that a node at an end of a piece is written out


def compile_nodes(state: Any, nodes: Iterable[Node]) -> Any:
    """Return a compiled pattern; `state` is that of the parsed pattern that has the nodes."""
    return _compiler.compile(parser.SubPattern(state, list(nodes)))


def is_anchored(nodes: Nodes) -> bool:
    """Tell whether nodes match at the beginning of a text only."""
    return bool(nodes) and nodes[0] == (ops.AT, ops.AT_BEGINNING)


def is_unbounded(node: Node) -> bool:
    """Tell whether a node is a repeat without a largest number: `*` or `+`."""
    operation, value = node
    return operation in REPEATS and value[1] == ops.MAXREPEAT


def repeats_character(value: Any) -> bool:
    """Tell whether a repeat, by its value, repeats a single character: `x+`, but not `(ab)+`."""
    body = value[2]
    return len(body) == 1 and body[0][0] in CHARACTERS


def _is_gap(node: Node) -> bool:
    """Tell whether a node is `.*`."""
    if not is_unbounded(node):
        return False
    least, _, body = node[1]
    return least == 0 and [operation for operation, _ in body] == [ops.ANY]


def _has_gap(nodes: Iterable[Node]) -> bool:
    """Tell whether nodes, or alternatives in them, have a `.*`."""
    for node in nodes:
        if _is_gap(node):
            return True
        operation, value = node
        if operation == ops.BRANCH and any(_has_gap(branch) for branch in value[1]):
            return True
    return False


def split_alternatives(nodes: Nodes) -> list[Nodes]:
    """Return the alternatives of a pattern: ["a", "b"] for "a|b".

    An alternative within a pattern is multiplied out if it has a `.*`: "(?:a.*b|c) d" becomes
    "a.*b d" and "c d". A pattern with too many stays whole.
    """
    for position, (operation, value) in enumerate(nodes):
        if operation != ops.BRANCH:
            continue
        if len(nodes) > 1 and not _has_gap([(operation, value)]):
            continue
        alternatives: list[Nodes] = []
        for branch in value[1]:
            alternative = [*nodes[:position], *branch, *nodes[position + 1 :]]
            alternatives.extend(split_alternatives(alternative))
        return alternatives if len(alternatives) <= _MOST_ALTERNATIVES else [nodes]
    return [nodes]


def split_at_gaps(nodes: Nodes) -> list[Nodes]:
    """Return the pieces of an alternative between its `.*`."""
    pieces: list[Nodes] = [[]]
    for node in nodes:
        if _is_gap(node):
            pieces.append([])
        else:
            pieces[-1].append(node)
    return [_trim_end(_trim_beginning(piece)) for piece in pieces if piece]


def _trim_beginning(nodes: Nodes) -> Nodes:
    """Return a piece whose first node repeats no more than it must."""
    least = _fewest_repeats(nodes[0]) if nodes else None
    return nodes if least is None else least + nodes[1:]


def _trim_end(nodes: Nodes) -> Nodes:
    """Return a piece whose last node repeats no more than it must."""
    least = _fewest_repeats(nodes[-1]) if nodes else None
    return nodes if least is None else nodes[:-1] + least


def _fewest_repeats(node: Node) -> Nodes | None:
    """Return a node at the end of a piece, repeated no more than it must; None if that is not easy.

    Beside a piece may be anything, so the piece matches with "a" exactly if it does with "a+".
    """
    operation, value = node
    if operation not in REPEATS or not repeats_character(value):
        return None
    least, _, body = value
    return [body[0]] * least if least <= _LONGEST_EXPANSION else None


def limit_repeats(nodes: Iterable[Node], longest: int) -> Nodes:
    """Return nodes whose unbounded repeats end at `longest`."""
    limited: Nodes = []
    for operation, value in nodes:
        limited.append((operation, _limited_value(operation, value, longest)))
    return limited


def _limited_value(operation: Any, value: Any, longest: int) -> Any:
    """Return the value of a node whose unbounded repeats end at `longest`."""
    if operation in REPEATS:
        least, most, body = value
        if most == ops.MAXREPEAT:
            most = max(least, longest)
        return least, most, _limited_tree(body, longest)
    if operation == ops.SUBPATTERN:
        group, added_flags, removed_flags, body = value
        return group, added_flags, removed_flags, _limited_tree(body, longest)
    if operation == ops.BRANCH:
        return value[0], [_limited_tree(branch, longest) for branch in value[1]]
    if operation in LOOKAROUNDS:
        return value[0], _limited_tree(value[1], longest)
    return value


def _limited_tree(tree: Any, longest: int) -> Any:
    """Return a parsed pattern whose unbounded repeats end at `longest`."""
    return parser.SubPattern(tree.state, limit_repeats(tree, longest))
