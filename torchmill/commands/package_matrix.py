"""`invoke matrix --package` for an extension: wheels and builds by torch and toolkit, as tables."""

from collections.abc import Iterator, Sequence
from typing import Any

from torchmill.commands.command import CommandOutput
from torchmill.config.facts import Facts
from torchmill.config.package import Package
from torchmill.config.versions import labelled_cuda, version_key
from torchmill.core.console import fold_text
from torchmill.plan.package_matrix import (
    NO_RELEASE,
    TorchCell,
    newest_pure_wheel,
    package_matrix,
)
from torchmill.plan.recorded_wheels import RecordedWheel
from torchmill.plan.trial import Standing

_MOST_COLUMNS = 8  # toolkits in one table; a torch with others begins a new one
_MOST_VERSIONS = 3  # that are named one by one
_COLUMN = 7  # characters
_BUILDS: dict[Standing, str] = {
    "wheel": "tried",
    "tried": "tried",
    "untried": "?",
    "impossible": "no",
}
# Signs behind a wheel for the words above.
_SIGNS = {"tried": "+", "?": "?", "no": ""}
_LEGEND = (
    ("wheel", "a wheel exists for one Python at least: they are listed below the tables"),
    ("said", "upstream's workflow makes such a wheel; nobody read whether it is there"),
    ("tried", "can be built: somebody whose report is recorded did"),
    ("?", "may build: no fact rules it out, but nobody is known to have built it"),
    ("no", "cannot be built, for a reason given above"),
    ("+ ?", "behind a wheel: it can be built as well, tried or untried"),
)


def show_package_matrix(facts: Facts, package: Package, arch: str) -> CommandOutput:
    """Return the tables of an extension on an arch, the newest torch first."""
    cells = list(package_matrix(facts, package, arch))
    if not cells:
        return CommandOutput(
            f"{package.name} on {arch}: nothing can be built, and no wheel is known"
        )
    pure = newest_pure_wheel(facts, package)
    paragraphs = [
        f"{package.name} on {arch}: torch, the release that goes with it, and toolkits",
        *_tables(cells),
        "\n".join(_wheel_lines(cells, pure)),
        "\n".join(_reason_lines(cells)),
        "\n".join(_place_lines(facts, package)),
        "\n".join(f"{mark:6} {meaning}" for mark, meaning in _LEGEND),
        _hint(package, cells),
    ]
    return CommandOutput("\n\n".join(filter(None, paragraphs)))


def _hint(package: Package, cells: Sequence[TorchCell]) -> str:
    """Return the commands that tell more, with the names of a cell."""
    tag = cells[0].torch.tag
    lines = [f"invoke matrix --package {package.name} --tag {tag}    # each Python and toolkit"]
    for cell in cells:
        pythons = [python for python in cell.wheels if not python.endswith("t")]
        if pythons:
            name = f"{package.session}-{pythons[-1]}-{cell.variant}"
            lines.insert(0, f"invoke explain {name} --tag {cell.torch.tag}    # how to install it")
            break
    return "\n".join(lines)


def wheels_as_data(facts: Facts, package: Package, arch: str) -> list[dict[str, Any]]:
    """Return an entry for each torch and toolkit, with the wheels and their install lines.

    They are those of one arch, or of all if it is "".
    """
    entries: list[dict[str, Any]] = []
    for machine in facts.arches:
        if arch in {"", machine}:
            cells = package_matrix(facts, package, machine)
            entries += [_cell_as_data(cell, machine) for cell in cells]
    return entries


def _cell_as_data(cell: TorchCell, arch: str) -> dict[str, Any]:
    """Return a cell as JSON-ready data."""
    return {
        "torch": cell.torch.version,
        "release": cell.release.version if cell.release else None,
        "variant": cell.variant,
        "arch": arch,
        "standing": cell.standing,
        "pythons": list(cell.pythons),
        "reason": cell.reason,
        "wheels": [_wheel_as_data(python, wheel) for python, wheel in cell.wheels.items()],
    }


def _wheel_as_data(python: str, wheel: RecordedWheel) -> dict[str, Any]:
    """Return a recorded wheel as JSON-ready data."""
    return {
        "python": python,
        "version": str(wheel.version),
        "file": wheel.file,
        "command": f"pip install {wheel.arguments}",
        "place": wheel.place.name,
        "evidence": wheel.place.evidence,
        "date": wheel.place.date,
        "source": wheel.place.source,
        "capabilities_said": wheel.group.capabilities,
        "note": wheel.group.note,
    }


def cell_mark(cell: TorchCell) -> str:
    """Return the mark of a cell in a table: "wheel?", "said+", "tried", "?", "no"."""
    build = _BUILDS[cell.standing]
    if cell.listed_pythons:
        return f"wheel{_SIGNS[build]}"
    if cell.wheels:
        return f"said{_SIGNS[build]}"
    return build


def _tables(cells: Sequence[TorchCell]) -> Iterator[str]:
    """Yield tables with a row for each torch; each has the toolkits of its own rows as columns."""
    rows: dict[str, list[TorchCell]] = {}
    for cell in cells:
        rows.setdefault(cell.torch.version, []).append(cell)
    table: list[list[TorchCell]] = []
    for row in rows.values():
        if len(_variants([*table, row])) > _MOST_COLUMNS:
            yield _format_table(table)
            table = []
        table.append(row)
    if table:
        yield _format_table(table)


def _variants(rows: Sequence[Sequence[TorchCell]]) -> list[str]:
    """Return the variants of some rows: cpu, then toolkits, oldest first."""
    variants = {cell.variant for row in rows for cell in row}
    return sorted(variants, key=lambda variant: version_key(labelled_cuda(variant)))


def _format_table(rows: Sequence[Sequence[TorchCell]]) -> str:
    """Return a table as text."""
    variants = _variants(rows)
    lines = [_format_row("torch", "release", variants)]
    for row in rows:
        marks = {cell.variant: cell_mark(cell) for cell in row}
        release = row[0].release
        columns = [marks.get(variant, "") for variant in variants]
        lines.append(
            _format_row(row[0].torch.version, release.version if release else "-", columns)
        )
    return "\n".join(lines)


def _format_row(torch: str, release: str, columns: Sequence[str]) -> str:
    """Return a row of a table with columns of fixed width."""
    padded = "".join(f"{column:{_COLUMN}}" for column in columns)
    return f"  {torch:8}{release:12}{padded}".rstrip()


def _wheel_lines(cells: Sequence[TorchCell], pure: RecordedWheel | None) -> Iterator[str]:
    """Yield a line for the wheels of each version and place: for which torch, CUDA and Pythons."""
    groups: dict[tuple[str, str, str], list[TorchCell]] = {}
    for cell in cells:
        by_wheel: dict[tuple[str, str], list[str]] = {}
        for python, wheel in cell.wheels.items():
            key = (wheel.version.public, wheel.place.name)
            by_wheel.setdefault(key, []).append(python)
        for (version, place), pythons in by_wheel.items():
            groups.setdefault((version, place, ", ".join(pythons)), []).append(cell)
    for (version, place, python_list), group in groups.items():
        targets = [
            f"torch {', '.join(torches)} with {variants}"
            for variants, torches in _by_variants(group).items()
        ]
        line = f"  {version} on {place}: {'; '.join(targets)}; Python {python_list}"
        yield fold_text(line)
    if pure is not None:
        note = f"; {pure.group.note}" if pure.group.note else ""
        line = (
            f"  {pure.version} on {pure.place.name}, without compiled code, for any torch: "
            f"`pip install {pure.arguments}`{note}"
        )
        yield fold_text(line)


def _by_variants(cells: Sequence[TorchCell]) -> dict[str, list[str]]:
    """Return the releases of torch by the variants that each has among some cells: "cpu, cu118"."""
    variants_by_torch: dict[str, list[str]] = {}
    for cell in cells:
        variants_by_torch.setdefault(cell.torch.version, []).append(cell.variant)
    torches: dict[str, list[str]] = {}
    for torch, variants in variants_by_torch.items():
        torches.setdefault(", ".join(variants), []).append(torch)
    return torches


def _reason_lines(cells: Sequence[TorchCell]) -> Iterator[str]:
    """Yield each reason against builds once, with the cells that it rules out."""
    ruled_out: dict[str, list[TorchCell]] = {}
    for cell in cells:
        if cell.reason:
            ruled_out.setdefault(cell.reason, []).append(cell)
    for reason, group in ruled_out.items():
        if reason == NO_RELEASE:
            versions = list(dict.fromkeys(cell.torch.version for cell in group))
            yield fold_text(f"  no torch {_torch_span(versions)}: {reason}")
            continue
        spans = [
            f"{variants} with torch {_torch_span(torches)}"
            for variants, torches in _by_variants(group).items()
        ]
        yield fold_text(f"  no {'; '.join(spans)}: {reason}")


def _torch_span(versions: Sequence[str]) -> str:
    """Return versions, the newest first, as a span if there are many."""
    if len(versions) > _MOST_VERSIONS:
        return f"{versions[-1]} to {versions[0]}"
    return ", ".join(versions)


def _place_lines(facts: Facts, package: Package) -> Iterator[str]:
    """Yield a line for each place of wheels that was read, and when."""
    for place in facts.package_wheels.get(package.name, ()):
        what = "the list of files" if place.evidence == "listed" else "the workflow"
        none = "" if place.wheels else ": no wheels"
        yield f"  {place.name}: {what} was read on {place.date}{none}"
