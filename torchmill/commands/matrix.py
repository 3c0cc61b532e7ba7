"""`invoke matrix` and `invoke explain`: every cell of a release, and why a cell cannot be built."""

from collections.abc import Iterable, Sequence
from json import dumps
from pathlib import Path
from typing import Any

from torchmill.commands.command import CommandAnswer, TaskCommand
from torchmill.config import cell_lookup, selection
from torchmill.config.arch_list_check import official_arch_list
from torchmill.config.matrix import Cell, release_grid, releases_of
from torchmill.config.model import Facts
from torchmill.core.errors import ConfigError
from torchmill.core.paths import Layout
from torchmill.host.description import load_host
from torchmill.host.measurement import measure_host
from torchmill.host.native import native_arch
from torchmill.plan.published import find_published, why_unpublished


def show_matrix(  # noqa: PLR0917 - every one is an option
    facts: Facts, layout: Layout, tag: str = "", arch: str = "", package: str = "", json: bool = False
) -> str:
    """Print the whole grid; impossible cells with their reason."""
    release = selection.selected_or_newest(facts, layout, tag)
    cells = [
        cell
        for one in releases_of(facts, release)
        if package in {"", one.package, facts.packages[one.package].session}
        for cell in release_grid(facts, one)
        if arch in {"", cell.build.arch}
    ]
    if not cells:
        raise ConfigError(
            f"{release.tag} has no build with --arch '{arch or 'any'}' and --package '{package or 'any'}': "
            f"choose from {', '.join(facts.arches)}, and of packages from {', '.join(facts.packages)}",
            code="empty-grid",
        )
    return dumps(cells_as_data(cells, native_arch()), indent=1) if json else cells_as_text(cells)


def explain_cell_name(  # noqa: PLR0917 - every one is an option
    facts: Facts, layout: Layout, identifier: str, tag: str = "", host: str = "", json: bool = False
) -> str:
    """Say whether a cell can be built, why not, and what can be built instead."""
    machine = load_host(Path(host)) if host else measure_host(layout.root)
    release = selection.selected_release(facts, layout, tag)
    cell = cell_lookup.find_cell(facts, identifier, machine.arch, release)
    wheel = find_published(facts, cell, machine, official_arch_list(facts, cell))
    why = "" if wheel else why_unpublished(facts, cell)
    text = f"{cell_lookup.explain_cell(facts, identifier, machine.arch, release)}\n{wheel or why}"
    data = {"identifier": identifier, "release": str(cell.release), "published": wheel and wheel.as_data(), "why": why}
    return CommandAnswer(text, data).as_json_or_text(json)


def cells_as_data(cells: Iterable[Cell], native: str) -> list[dict[str, Any]]:
    """Return one JSON-ready entry per cell."""
    fields = ("package", "python", "variant", "arch")
    return [
        {"identifier": cell.build.identifier(native)}
        | {field: getattr(cell.build, field) for field in fields}
        | {"possible": cell.possible, "reason": cell.reason}
        for cell in cells
    ]


def cells_as_text(cells: Sequence[Cell]) -> str:
    """Return a table per package and machine, and under it the reasons for the gaps."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        title = f"{cell.release.package} {cell.release.version} on {cell.build.arch}"
        groups.setdefault(title, []).append(cell)
    return "\n\n".join("\n".join((title, *_table(group), *_reasons(group))) for title, group in groups.items())


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
    {
        "identifier": "such as wheel-3.12-cpu",
        "tag": "the release",
        "host": "a TOML file that describes another machine",
        "json": "print JSON",
    },
    argument="identifier",
    required=True,
)
