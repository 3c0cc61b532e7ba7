"""Which cells are built where names are patterns, or Python, toolkit or GPUs are left open."""

import re
import sys
from collections.abc import Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import product
from typing import NamedTuple

from torchmill.config import arch_list, cell_lookup, matrix
from torchmill.config.matrix import Cell
from torchmill.config.model import Capability, Facts, Host, Release
from torchmill.config.trial import find_trial
from torchmill.core.errors import ImpossibleBuildError, UnknownReleaseError
from torchmill.plan import published


class BuildQuestion(NamedTuple):
    """Which wheels are wanted; what is empty is chosen here."""

    names: Sequence[str] = ()  # of cells, also as patterns
    pythons: Sequence[str] = ()
    variants: Sequence[
        str
    ] = ()  # "cpu", "12.1", "cu121"; as of Pythons, one text may name several: "cpu,12.1"
    gpus: Sequence[Capability] = ()  # that the wheels are for
    with_base: bool = True  # also what they are built against; that may be somebody else's


def _listed(texts: Sequence[str]) -> list[str]:
    """Return what texts name, one or several each: "3.11", "3.12,3.13"."""
    return [name for text in texts for name in re.split(r"[,\s]+", text) if name]


def choose_cells(
    facts: Facts, question: BuildQuestion, host: Host, release: Release | None
) -> list[Cell]:
    """Return the cells that are wanted, of a release or of the newest that has them, each after what it is built on.

    Raises UnknownReleaseError for a name that no cell has, ImpossibleBuildError for a cell that is impossible.
    """
    pythons, variants = _listed(question.pythons), _listed(question.variants)
    question = question._replace(pythons=pythons, variants=variants)
    found: dict[str, Cell] = {}
    base = matrix.base_package(facts)
    asked = [(name, release) for name in question.names] or _composed_names(
        facts, question, host, release
    )
    for name, of_release in asked:
        for cell in named_cells(facts, name, host.arch, of_release):
            own, package = cell.build.identifier(host.arch), facts.packages[cell.build.package]
            goes_with = cell_lookup.base_release(facts, cell.release)
            for first in ([base.name] if question.with_base else []) + [*package.imports]:
                needed = own.replace(package.session, facts.packages[first].session, 1)
                found.setdefault(needed, cell_lookup.find_cell(facts, needed, host.arch, goes_with))
            found[own] = cell
    return list(found.values())


def is_pattern(name: str) -> bool:
    """Tell whether a name stands for all cells whose names match it."""
    return bool(set("*?[") & set(name))


def named_cells(facts: Facts, name: str, native: str, release: Release | None) -> list[Cell]:
    """Return the cells that a name or a pattern means; raises what `choose_cells` raises."""
    if not is_pattern(name):
        return [cell_lookup.find_cell(facts, cell_lookup.usual_spelling(name), native, release)]
    cells = matrix.buildable_cells(facts, release, native)
    if matching := [one for one in cells if fnmatchcase(one.build.identifier(native), name)]:
        return matching
    raise UnknownReleaseError(
        f"no build is called '{name}': `invoke matrix` prints them all", code="unknown-build"
    )


def _composed_names(
    facts: Facts, question: BuildQuestion, host: Host, release: Release | None
) -> Iterator[tuple[str, Release | None]]:
    """Yield the names of the cells of some Pythons and variants, each with its release; what is not said is chosen."""
    session, pythons, variants = (
        matrix.base_package(facts).session,
        question.pythons,
        question.variants,
    )
    chosen: Release | None = None
    if not (pythons and variants):
        cell = _chosen_cell(facts, question, host, release)
        pythons, variants, chosen = (
            pythons or [cell.build.python],
            variants or [cell.build.variant],
            cell.release,
        )
    for python, variant in product(pythons, variants):
        name = cell_lookup.usual_spelling(f"{session}-{python}-{variant}")
        yield name, release or _release_with(facts, name, host, chosen)


def _release_with(facts: Facts, name: str, host: Host, chosen: Release | None) -> Release | None:
    """Return the release that was chosen if it has a cell of that name, else None, for whichever has it."""
    if chosen is None:
        return None
    cells = matrix.possible_cells(facts, chosen, host.arch)
    return chosen if name in {cell.build.identifier(host.arch) for cell in cells} else None


def _chosen_cell(
    facts: Facts, question: BuildQuestion, host: Host, release: Release | None
) -> Cell:
    """Return the best cell for the GPUs in question, without CUDA where there are none; its Python is at hand."""
    releases = (
        [release] if release else [*reversed(facts.releases[matrix.base_package(facts).name])]
    )
    wanted = {gpu.name for gpu in question.gpus}
    own = f"{sys.version_info.major}.{sys.version_info.minor}"
    said = [
        cell_lookup.usual_spelling(f"wheel-{python}-cpu").split("-")[1]
        for python in question.pythons
    ]

    def rank(cell: Cell) -> tuple[object, ...]:
        build = cell.build
        at_hand = (
            build.python == own,
            build.python in host.interpreters,
            not build.python.endswith("t"),
        )
        official = build.cuda in cell.release.cuda_official
        return (
            official,
            matrix.python_key(build.cuda or "0"),
            *at_hand,
            matrix.python_key(build.python),
        )

    untried: list[Cell] = []  # those of the newest release that has any
    for one in (
        releases
    ):  # one that somebody built so goes before newer ones that nobody is known to have built so
        able = [
            cell
            for cell in matrix.possible_cells(facts, one, host.arch)
            if (not said or cell.build.python in said) and _serves(facts, cell, wanted, host)
        ]
        if tried := [cell for cell in able if find_trial(facts, cell).witness]:
            return max(tried, key=rank)
        untried = untried or able
    if untried:
        return max(untried, key=rank)
    if said and not wanted:
        session = matrix.base_package(facts).session
        cell_lookup.find_cell(
            facts, f"{session}-{said[0]}-cpu", host.arch, release
        )  # which says why there is none
    who = f"torch {release.version}" if release else "a release"
    pythons = f" for Python {' or '.join(said)}" if said else ""
    what = (
        f"has code for {', '.join(sorted(wanted))} (`invoke arch` says who has it)"
        if wanted
        else "is without CUDA"
    )
    raise ImpossibleBuildError(
        f"no build of {who}{pythons} on {host.arch} {what}", code="impossible-build"
    )


def _serves(facts: Facts, cell: Cell, wanted: set[str], host: Host) -> bool:
    toolkit = facts.toolkit(cell.build.cuda)
    if not wanted or toolkit is None:
        return not wanted and toolkit is None
    able = all(toolkit in arch_list.toolkits_with_target(facts, name) for name in wanted)
    return able and published.is_driven(toolkit, host)
