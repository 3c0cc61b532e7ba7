"""From a name to a cell: looked up in the grid, never parsed."""

from difflib import get_close_matches

from torchwright.errors import ImpossibleBuildError, UnknownReleaseError
from torchwright.matrix import Cell, grid, releases_of
from torchwright.model import Facts, Release


def find(facts: Facts, identifier: str, native: str, selected: Release | None) -> Cell:
    """Return the possible cell that an identifier names.

    Raises UnknownReleaseError for a name that is no cell, ImpossibleBuildError for one that is
    impossible, with its reason and what is possible instead.
    """
    candidates = named(facts, identifier, native, selected)
    for cell in candidates:
        if cell.possible:
            return cell
    raise ImpossibleBuildError(explain(facts, identifier, native, selected))


def named(facts: Facts, identifier: str, native: str, selected: Release | None) -> tuple[Cell, ...]:
    """Return every cell with this name, possible or not: one for each release it could be of."""
    names: set[str] = set()
    found = []
    for release in releases_of(facts, selected):
        for cell in grid(facts, release):
            name = cell.build.identifier(native)
            names.add(name)
            if name == identifier:
                found.append(cell)
    if not found:
        near = get_close_matches(identifier, names, 3)
        hint = f"; did you mean {' or '.join(near)}?" if near else ""
        raise UnknownReleaseError(f"'{identifier}' names no build{hint} (`invoke matrix` prints them all)")
    return tuple(found)


def explain(facts: Facts, identifier: str, native: str, selected: Release | None) -> str:
    """Say whether a cell can be built, why not, and what can be built instead."""
    cells = named(facts, identifier, native, selected)
    good = next((cell for cell in cells if cell.possible), None)
    if good:
        return f"{identifier} is possible: {good.release.package} {good.release.version}"
    cell = cells[0]
    build = cell.build
    lines = [f"{identifier} is impossible: {cell.reason}"]
    same = [one for one in grid(facts, cell.release) if one.possible and one.build.arch == build.arch]
    neighbours = [
        one.build.identifier(native)
        for one in same
        if (one.build.python == build.python) != (one.build.variant == build.variant)
    ]
    if neighbours:
        lines.append(f"possible instead with {cell.release.tag}: {', '.join(neighbours)}")
    others = [
        other.tag
        for other in facts.releases[build.package]
        if any(one.build == build and one.possible for one in grid(facts, other))
    ]
    if others:
        lines.append(f"releases that can build it: {', '.join(others)}")
    return "\n".join(lines)
