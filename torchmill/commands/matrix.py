"""`invoke matrix` and `invoke explain`: every cell of a release, and why a cell cannot be built."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from torchmill.commands import outlook
from torchmill.commands.command import CommandOutput
from torchmill.commands.package_matrix import show_package_matrix, wheels_as_data
from torchmill.config import selection
from torchmill.config.build import CPU
from torchmill.config.facts import Facts
from torchmill.config.package import Package
from torchmill.config.release import Release
from torchmill.config.release_lookup import refuse_left_out, releases_of
from torchmill.core.console import fold_text
from torchmill.core.errors import ConfigError, ImpossibleBuildError, UnknownReleaseError
from torchmill.core.paths import Layout
from torchmill.deliver.products import product_cell
from torchmill.host.measurement import read_or_measure_host
from torchmill.host.native import native_arch
from torchmill.host.own_runs import read_own_runs
from torchmill.plan import cell_lookup, exposure
from torchmill.plan.arch_choice import official_arch_list
from torchmill.plan.build_options import NO_OPTIONS
from torchmill.plan.cell import Cell
from torchmill.plan.doctor.judgement import TRIED
from torchmill.plan.matrix import UNTRIED, release_grid
from torchmill.plan.package_request import named_packages
from torchmill.plan.published import find_published, target_host, unpublished_reason
from torchmill.plan.trial import STANDINGS, Standing, find_trial

MARKS: dict[Standing, str] = {
    "wheel": "wheel",
    "tried": "tried",
    "untried": "?",
    "impossible": "no",
}
_POSSIBILITY: dict[Standing, str] = {
    "wheel": "possible",
    "tried": "possible",
    "untried": "untried, and may build",
    "impossible": "impossible",
}
_MOST_VARIANTS = 3  # that are named one by one


def show_matrix(
    facts: Facts,
    layout: Layout,
    *,
    tag: str = "",
    arch: str = "",
    package: str = "",
    json: bool = False,
    all_: bool = False,
) -> CommandOutput:
    """Return the Pythons and toolkits of a release, and why no others.

    Without options, those of torch on this machine; with `json` or `all_`, those of all packages of
    the release on all machines. Of an extension, without `tag`, those of every torch. Raises
    ConfigError if no cell is left.
    """
    extension = _named_extension(facts, package)
    if extension is not None:
        package = extension.name
        machine = arch or native_arch()
        if machine in facts.arches and not (tag or json or all_):
            return show_package_matrix(facts, extension, machine)
    release = selection.selected_or_newest(facts, layout, tag)
    # Programs want the whole matrix, people what they can build here.
    if not (json or all_):
        arch = arch or native_arch()
        package = package or release.package
    cells = _cells_of_release(facts, release, package, arch)
    wheels: list[dict[str, Any]] = []
    if extension is not None and json:
        wheels = wheels_as_data(facts, extension, arch)
    if not cells and not wheels:
        refuse_left_out(facts, package)
        cell_lookup.require_machine(facts, native_arch())
        raise ConfigError(
            f"{release.tag} has no build with --arch '{arch or 'any'}' and "
            f"--package '{package or 'any'}': choose from {', '.join(facts.arches)}, and of "
            f"packages from {', '.join(facts.packages)}",
            code="empty-grid",
        )
    if json:
        data = {"cells": cells_as_data(facts, cells, native_arch()), "wheels": wheels}
        return CommandOutput("", data)
    paragraphs = [cells_as_text(facts, cells), selection.describe_selection(layout, tag)]
    return CommandOutput("\n\n".join(filter(None, paragraphs)))


def _cells_of_release(facts: Facts, torch: Release, package: str, arch: str) -> list[Cell]:
    """Return the cells of a torch and what goes with it, of a package and an arch or of all ("")."""
    cells: list[Cell] = []
    for partner in releases_of(facts, torch):
        if package in {"", partner.package, facts.packages[partner.package].session}:
            for cell in release_grid(facts, partner):
                if arch in {"", cell.build.arch}:
                    cells.append(cell)
    return cells


def _named_extension(facts: Facts, name: str) -> Package | None:
    """Return the extension that a name means, also in another spelling; None if it means no such.

    torchvision and torchaudio, of which each torch has a release of its own, are no extensions.
    """
    packages = {package.session: package for package in facts.packages.values()}
    packages |= named_packages(facts, [name])
    package = packages.get(name)
    return package if package is not None and package.editions else None


def explain_cell_name(
    facts: Facts, layout: Layout, identifier: str, tag: str = "", host: str = ""
) -> CommandOutput:
    """Return whether a build is possible, who tried it, and which official wheel is nearest.

    Raises ImpossibleBuildError or UnknownReleaseError, whose message names the nearest builds.
    """
    machine = read_or_measure_host(host, layout.root, identifier)
    release = selection.selected_release(facts, layout, tag)
    selected = selection.describe_selection(layout, tag)
    try:
        product, cell = product_cell(facts, identifier, machine.arch, release)
    except (ImpossibleBuildError, UnknownReleaseError) as error:
        # Of the same class, which decides on the exit code.
        message = f"{error}\n{selected}" if selected else str(error)
        raise type(error)(message, code=error.code) from None
    name = cell.build.identifier(machine.arch)
    native = cell_lookup.uncontained_arch(facts, [identifier], machine.arch)
    target = target_host(facts, machine, cell.build.arch)
    options = outlook.options_here(facts, cell, target, NO_OPTIONS, native)
    official = find_published(facts, cell, machine, official_arch_list(facts, cell))
    no_official = "" if official else unpublished_reason(facts, cell)
    own_runs = () if host else read_own_runs(facts, layout.dist)
    trial = find_trial(facts, cell, own_runs)
    # The judgement on who tried it is left out: `trial` is a line of its own.
    all_judgements = outlook.judge_cell(facts, cell, target, options)
    judgements = [judgement for judgement in all_judgements if judgement.subject != TRIED]
    lines = []
    if product:
        lines.append(f"{identifier} is made of the wheel of {name}")
    lines.append(f"{name} is {_POSSIBILITY[trial.standing]}: {cell.release}")
    lines.append(f"{trial.text} ({trial.source})" if trial.source else trial.text)
    lines += [str(judgement) for judgement in judgements]
    if official and official.recorded and not official.verdict.is_ruled_out:
        # Of an extension, a wheel that exists is what most people look for.
        lines.insert(0, str(official))
    else:
        lines.append(str(official or no_official))
    # Of the switches of upstream's builds, the wheel's toolkit tells this one alone.
    without_cuda = {} if official and official.toolkit else {"USE_CUDA": "0"}
    known = exposure.assess(facts, cell.build.package, cell.release.version, (), without_cuda)
    summary = exposure.summarize(known, facts.vulnerabilities.read)
    if official and summary:
        lines.append(f"the official wheel has {summary}")
    lines.append(selected)
    data = {
        "identifier": identifier,
        "release": str(cell.release),
        "standing": trial.standing,
        "because": trial.text,
        "source": trial.source,
        "judgements": [judgement.as_data() for judgement in judgements],
        "published": official and official.as_data(),
        "published_vulnerabilities": [found.as_data() for found in known] if official else [],
        "why": no_official,
    }
    return CommandOutput("\n".join(line for line in lines if line), data)


def cells_as_data(facts: Facts, cells: Iterable[Cell], native: str) -> list[dict[str, Any]]:
    """Return an entry for each cell: whether it can be built, who built it, and why it cannot be.

    `native` is the architecture that an identifier does not name.
    """
    entries = []
    for cell in cells:
        trial = find_trial(facts, cell)
        build = cell.build
        entry = {
            "identifier": build.identifier(native),
            "package": build.package,
            "python": build.python,
            "variant": build.variant,
            "arch": build.arch,
            "possible": cell.is_possible,
            "reason": cell.reason,
            "standing": trial.standing,
            "because": trial.text,
            "source": trial.source,
        }
        entries.append(entry)
    return entries


def cells_as_text(facts: Facts, cells: Sequence[Cell]) -> str:
    """Return a table for each package and machine, reasons for the gaps, and the legend."""
    groups: dict[tuple[str, str], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.release.package, cell.build.arch), []).append(cell)
    paragraphs = []
    for group in groups.values():
        lines = [*_table(facts, group), *_reasons(facts, group)]
        paragraphs.append("\n".join(lines))
    legend = [f"{MARKS[standing]:6} {meaning}" for standing, meaning in STANDINGS.items()]
    return "\n\n".join([*paragraphs, "\n".join(legend)])


def _table(facts: Facts, cells: Sequence[Cell]) -> Iterator[str]:
    """Yield the rows of the table of a package on a machine, with a mark for each cell.

    Columns are Pythons, rows are variants: those with which at least one cell can be built.
    """
    yield f"{cells[0].release} on {cells[0].build.arch}"
    builds = [cell.build for cell in cells if cell.is_possible]
    if not builds:
        yield "  nothing can be built"
        return
    pythons = list(dict.fromkeys(build.python for build in builds))
    variants = sorted(
        {build.variant for build in builds}, key=lambda variant: variant_key(facts, variant)
    )
    marks = {}
    for cell in cells:
        standing: Standing = "impossible"
        if cell.is_possible:
            standing = find_trial(facts, cell).standing
        marks[cell.build.python, cell.build.variant] = MARKS[standing]
    yield _format_row("Python", pythons)
    for variant in variants:
        yield _format_row(variant, [marks[python, variant] for python in pythons])


def _format_row(head: str, columns: Sequence[str]) -> str:
    """Return a row of a table with columns of fixed width."""
    padded = "".join(f"{column:6}" for column in columns)
    return f"  {head:8}{padded}".rstrip()


def variant_key(facts: Facts, variant: str) -> int:
    """Return the rank of a variant: cpu, then toolkits, oldest first."""
    for number, toolkit in enumerate(facts.toolkits, start=1):
        if toolkit.variant == variant:
            return number
    return 0


def _reasons(facts: Facts, cells: Sequence[Cell]) -> Iterator[str]:
    """Yield each reason once, with the cells that it rules out, folded for a terminal."""
    ruled_out: dict[str, list[Cell]] = {}
    for cell in cells:
        if cell.reason:
            # "CUDA 11.8 exists …" and "CUDA 12.1 exists …" are shown as one reason.
            reason = cell.reason.replace(f"CUDA {cell.build.cuda} exists", "it exists")
            ruled_out.setdefault(reason, []).append(cell)
    possible = {cell.build.variant for cell in cells if cell.is_possible}
    for reason, group in ruled_out.items():
        word = "untried" if reason.endswith(UNTRIED) else "no"
        yield fold_text(f"  {word} {_span(facts, group, possible)}: {reason}")


def _span(facts: Facts, cells: Sequence[Cell], possible: Collection[str]) -> str:
    """Return a name for a group of cells that one reason rules out, by Pythons or by variants.

    `possible` are the variants that can be built with other Pythons.
    """
    pythons = list(dict.fromkeys(cell.build.python for cell in cells))
    variants = list(dict.fromkeys(cell.build.variant for cell in cells))
    if len(variants) == 1 and variants[0] in possible:
        # The variant alone would say that it cannot be built at all.
        return f"{variants[0]} with Python {', '.join(pythons)}"
    if len(pythons) == 1:
        return f"Python {pythons[0]} ({len(variants)} variants)"
    if CPU in variants and len(variants) > 1:
        # A reason that holds for CUDA and for the CPU is one of the Pythons.
        return f"Python {', '.join(pythons)}"
    numbers = [variant_key(facts, variant) for variant in variants]
    is_range = numbers[-1] - numbers[0] == len(variants) - 1
    if len(variants) > _MOST_VARIANTS and is_range:
        return f"{variants[0]} to {variants[-1]}"
    return ", ".join(variants)
