"""`invoke matrix` and `invoke explain`: every cell of a release, and why a cell cannot be built."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from json import dumps
from typing import Any

from torchmill.commands import outlook
from torchmill.commands.command import CommandOutput
from torchmill.config import selection
from torchmill.config.build import CPU
from torchmill.config.facts import Facts
from torchmill.config.release_lookup import refuse_left_out, releases_of
from torchmill.core.console import fold_text
from torchmill.core.errors import ConfigError, ImpossibleBuildError, UnknownReleaseError
from torchmill.core.paths import Layout
from torchmill.deliver.products import product_cell
from torchmill.host.measurement import read_or_measure_host
from torchmill.host.native import native_arch
from torchmill.plan import cell_lookup
from torchmill.plan.arch_choice import official_arch_list
from torchmill.plan.build_options import NO_OPTIONS
from torchmill.plan.cell import Cell
from torchmill.plan.doctor.judgement import TRIED
from torchmill.plan.estimate import read_own_runs
from torchmill.plan.matrix import UNTRIED, release_grid
from torchmill.plan.published import find_published, target_host, unpublished_reason
from torchmill.plan.trial import STANDINGS, Standing, find_trial

FEW = 3  # variants are named one by one
_POSSIBILITY: dict[Standing, str] = {
    "wheel": "possible",
    "tried": "possible",
    "untried": "untried, and may build",
    "impossible": "impossible",
}
MARKS: dict[Standing, str] = {
    "wheel": "wheel",
    "tried": "tried",
    "untried": "?",
    "impossible": "no",
}


def show_matrix(  # noqa: PLR0917 - every one is an option
    facts: Facts,
    layout: Layout,
    tag: str = "",
    arch: str = "",
    package: str = "",
    json: bool = False,
    all_: bool = False,
) -> str:
    """Print the Pythons and toolkits of a release, and why no others."""
    release = selection.selected_or_newest(facts, layout, tag)
    if not (json or all_):
        arch, package = arch or native_arch(), package or release.package
    cells = [
        cell
        for one in releases_of(facts, release)
        if package in {"", one.package, facts.packages[one.package].session}
        for cell in release_grid(facts, one)
        if arch in {"", cell.build.arch}
    ]
    if not cells:
        refuse_left_out(facts, package)
        cell_lookup.require_machine(facts, native_arch())
        raise ConfigError(
            f"{release.tag} has no build with --arch '{arch or 'any'}' and --package '{package or 'any'}': "
            f"choose from {', '.join(facts.arches)}, and of packages from {', '.join(facts.packages)}",
            code="empty-grid",
        )
    if json:
        return dumps(cells_as_data(facts, cells, native_arch()), indent=1)
    return "\n\n".join(
        filter(None, (cells_as_text(facts, cells), selection.describe_selection(layout, tag)))
    )


def explain_cell_name(
    facts: Facts, layout: Layout, identifier: str, tag: str = "", host: str = ""
) -> CommandOutput:
    """Say if a build is possible, and who tried it; if not, what is."""
    machine = read_or_measure_host(host, layout.root, identifier)
    release = selection.selected_release(facts, layout, tag)
    selected = selection.describe_selection(layout, tag)
    try:
        product, cell = product_cell(facts, identifier, machine.arch, release)
    except (ImpossibleBuildError, UnknownReleaseError) as error:
        raise type(error)(
            "\n".join(filter(None, (str(error), selected))), code=error.code
        ) from None
    name = cell.build.identifier(machine.arch)
    native = cell_lookup.uncontained_arch(facts, [identifier], machine.arch)
    where = target_host(facts, machine, cell.build.arch)
    options = outlook.options_here(facts, cell, where, NO_OPTIONS, native)
    wheel = find_published(facts, cell, machine, official_arch_list(facts, cell))
    why = "" if wheel else unpublished_reason(facts, cell)
    trial = find_trial(facts, cell, () if host else read_own_runs(facts, layout.dist))
    judgements = [
        one for one in outlook.judge_cell(facts, cell, where, options) if one.subject != TRIED
    ]
    lines = [
        f"{identifier} is made of the wheel of {name}" if product else "",
        f"{name} is {_POSSIBILITY[trial.standing]}: {cell.release}",
        f"{trial.text}{f' ({trial.source})' if trial.source else ''}",
        *map(str, judgements),
        str(wheel or why),
        selected,
    ]
    data = {
        "identifier": identifier,
        "release": str(cell.release),
        "standing": trial.standing,
        "because": trial.text,
        "source": trial.source,
        "judgements": [one.as_data() for one in judgements],
        "published": wheel and wheel.as_data(),
        "why": why,
    }
    return CommandOutput("\n".join(filter(None, lines)), data)


def cells_as_data(facts: Facts, cells: Iterable[Cell], native: str) -> list[dict[str, Any]]:
    """Return one JSON-ready entry per cell: whether it can be built, who has built it, and why it cannot be."""
    fields = ("package", "python", "variant", "arch")
    entries = []
    for cell in cells:
        trial = find_trial(facts, cell)
        named = {field: getattr(cell.build, field) for field in fields}
        known = {"standing": trial.standing, "because": trial.text, "source": trial.source}
        entries.append(
            {"identifier": cell.build.identifier(native)}
            | named
            | {"possible": cell.possible, "reason": cell.reason}
            | known
        )
    return entries


def cells_as_text(facts: Facts, cells: Sequence[Cell]) -> str:
    """Return a table per package and machine, under it the reasons for the gaps, and what the marks mean."""
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.release.package, cell.build.arch), []).append(cell)
    tables = (
        "\n".join([*_table(facts, group), *_reasons(facts, group)]) for group in groups.values()
    )
    legend = "\n".join(f"{MARKS[standing]:6} {meaning}" for standing, meaning in STANDINGS.items())
    return "\n\n".join([*tables, legend])


def _table(facts: Facts, cells: Sequence[Cell]) -> Iterator[str]:
    """Yield the rows of one table: a mark for each cell of a Python and a variant with which anything can be built."""
    release, arch = cells[0].release, cells[0].build.arch
    possible = [cell.build for cell in cells if cell.possible]
    pythons = dict.fromkeys(build.python for build in possible)
    variants = sorted(
        {build.variant for build in possible}, key=lambda one: variant_key(facts, one)
    )
    marks = {(cell.build.python, cell.build.variant): _mark(facts, cell) for cell in cells}
    yield f"{release} on {arch}"
    if not possible:
        yield "  nothing can be built"
        return
    rows = {"Python": [*pythons]} | {
        variant: [marks[python, variant] for python in pythons] for variant in variants
    }
    for name, row in rows.items():
        yield f"  {name:8}{''.join(f'{text:6}' for text in row)}".rstrip()


def _mark(facts: Facts, cell: Cell) -> str:
    return MARKS[find_trial(facts, cell).standing if cell.possible else "impossible"]


def variant_key(facts: Facts, variant: str) -> int:
    """Return what orders variants: cpu, then toolkits, oldest first."""
    return next(
        (number for number, one in enumerate(facts.toolkits, 1) if one.variant == variant), 0
    )


def _reasons(facts: Facts, cells: Sequence[Cell]) -> Iterator[str]:
    """Yield each reason once, with the cells that it rules out, folded for a terminal."""
    ruled_out: dict[str, list[Cell]] = {}
    shown = {cell.build.variant for cell in cells if cell.possible}
    for cell in cells:
        if cell.reason:  # those that differ in the toolkit alone are one
            reason = cell.reason.replace(f"CUDA {cell.build.cuda} exists", "it exists")
            ruled_out.setdefault(reason, []).append(cell)
    for reason, group in ruled_out.items():
        word = "untried" if reason.endswith(UNTRIED) else "no"
        yield fold_text(f"  {word} {_span(facts, group, shown)}: {reason}")


def _span(facts: Facts, cells: Sequence[Cell], shown: Collection[str]) -> str:
    """Name a group of cells by the axis they share; of a variant that other Pythons have, also the Pythons."""
    pythons = tuple(dict.fromkeys(cell.build.python for cell in cells))
    variants = tuple(dict.fromkeys(cell.build.variant for cell in cells))
    if len(variants) == 1 and variants[0] in shown:
        return f"{variants[0]} with Python {', '.join(pythons)}"
    if len(pythons) == 1:
        return f"Python {pythons[0]} ({len(variants)} variants)"
    if CPU in variants and variants[1:]:
        return f"Python {', '.join(pythons)}"
    numbers = [variant_key(facts, one) for one in variants]
    if len(variants) > FEW and numbers[-1] - numbers[0] == len(variants) - 1:
        return f"{variants[0]} to {variants[-1]}"
    return ", ".join(variants)
