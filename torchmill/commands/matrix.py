"""`invoke matrix` and `invoke explain`: every cell of a release, and why a cell cannot be built."""

import json as json_
from collections.abc import Iterable, Sequence
from typing import Any

from torchmill.commands.command import TaskCommand
from torchmill.config import cell_lookup, selection
from torchmill.config.matrix import Cell, release_grid, releases_of
from torchmill.config.model import Facts, Release, Source
from torchmill.core.errors import ConfigError
from torchmill.core.paths import Layout
from torchmill.host.native import native_arch


def show_matrix(  # noqa: PLR0917 - every one is an option
    facts: Facts, layout: Layout, tag: str = "", arch: str = "", package: str = "", json: bool = False
) -> str:
    """Print the whole grid; impossible cells with their reason."""
    found = grid_cells(facts, selection.selected_or_newest(facts, layout, tag), arch, package)
    return json_.dumps(cells_as_data(found, native_arch()), indent=1) if json else cells_as_text(found)


def explain_cell_name(facts: Facts, layout: Layout, identifier: str, tag: str = "") -> str:
    """Say whether a cell can be built, why not, and what can be built instead."""
    release = selection.selected_release(facts, layout, tag)
    native = native_arch()
    cell_lookup.find_cell(facts, identifier, native, release)
    return cell_lookup.explain_cell(facts, identifier, native, release)


def grid_cells(facts: Facts, release: Release, arch: str, package: str) -> tuple[Cell, ...]:
    """Return the grid of a release and its partners: of one machine and one package where they are named.

    Raises ConfigError where nothing is left.
    """
    found = tuple(
        cell
        for one in releases_of(facts, release)
        if package in {"", one.package, facts.packages[one.package].session}
        for cell in release_grid(facts, one)
        if arch in {"", cell.build.arch}
    )
    if not found:
        raise ConfigError(
            f"{release.tag} has no build with --arch '{arch or 'any'}' and --package '{package or 'any'}'; "
            f"there is {', '.join(facts.arches)}, and of packages {', '.join(facts.packages)}"
        )
    return found


def cells_as_data(cells: Iterable[Cell], native: str) -> list[dict[str, Any]]:
    """Return one JSON-ready entry per cell."""
    return [
        {
            "identifier": cell.build.identifier(native),
            "package": cell.build.package,
            "python": cell.build.python,
            "variant": cell.build.variant,
            "arch": cell.build.arch,
            "possible": cell.possible,
            "reason": cell.reason,
        }
        for cell in cells
    ]


def cells_as_text(cells: Sequence[Cell]) -> str:
    """Return a table per package and machine, and under it the reasons for the gaps."""
    groups: dict[tuple[str, str, str], list[Cell]] = {}
    for cell in cells:
        key = (cell.release.package, cell.release.version, cell.build.arch)
        groups.setdefault(key, []).append(cell)
    return "\n\n".join(
        "\n".join((f"{package} {version} on {arch}", *_table(group), *_reasons(group)))
        for (package, version, arch), group in groups.items()
    )


def _table(cells: Sequence[Cell]) -> list[str]:
    """Return the rows of one table: an x for each possible cell."""
    possible = {(cell.build.python, cell.build.variant) for cell in cells if cell.possible}
    pythons = dict.fromkeys(cell.build.python for cell in cells if cell.possible)
    variants = dict.fromkeys(cell.build.variant for cell in cells if cell.possible)
    if not possible:
        return ["  nothing can be built"]
    rows = ["  python  " + "  ".join(f"{variant:5}" for variant in variants)]
    for python in pythons:
        marks = ("x" if (python, variant) in possible else "." for variant in variants)
        rows.append(f"  {python:6}  " + "  ".join(f"{mark:5}" for mark in marks))
    return [row.rstrip() for row in rows]


def _reasons(cells: Sequence[Cell]) -> list[str]:
    """Return each reason once, with the cells that it forbids."""
    forbidden: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell.reason:
            forbidden.setdefault(cell.reason, []).append(cell)
    return [f"  not {_span(group)}: {reason}" for reason, group in forbidden.items()]


def _span(cells: Sequence[Cell]) -> str:
    """Name a group of cells by the axis they share."""
    pythons = tuple(dict.fromkeys(cell.build.python for cell in cells))
    variants = tuple(dict.fromkeys(cell.build.variant for cell in cells))
    if len(variants) == 1:
        return f"{variants[0]} with Python {', '.join(pythons)}"
    if len(pythons) == 1:
        return f"Python {pythons[0]} ({len(variants)} variants)"
    if "cpu" not in variants:
        return f"{', '.join(variants)}"
    return f"Python {', '.join(pythons)}"


def describe_source(source: Source) -> str:
    """Return two lines on a fetched source: what it is, and how far it can be trusted."""
    commit = source.commit or "commit unknown"
    trust = "the recorded commit" if source.verified else "not checked against a recorded commit"
    submodules = f", {len(source.submodules)} submodules" if source.submodules else ""
    name = f"{source.package} {source.tag}"
    return f"{name}: {commit} ({trust}){submodules}\n  from {source.origin} in {source.path}"


MATRIX = TaskCommand(
    show_matrix,
    {
        "tag": "the release; default: the selected one",
        "arch": "only this machine: x86_64, aarch64, arm64 (macOS), amd64 (Windows)",
        "package": "only this package: torch, torchvision, torchaudio (or vision, audio)",
        "json": "print a JSON list instead of tables",
    },
)


EXPLAIN = TaskCommand(
    explain_cell_name,
    {"identifier": "such as wheel-3.12-cpu", "tag": "the release"},
    argument="identifier",
    required=True,
)
