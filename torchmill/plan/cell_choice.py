"""Choose the cells to build, if names are patterns, or Python, toolkit or GPUs are left open."""

import re
import sys
from collections.abc import Collection, Iterator, Sequence
from fnmatch import fnmatchcase
from itertools import product
from typing import NamedTuple

from torchmill.config.facts import Facts
from torchmill.config.gpu import Capability
from torchmill.config.release import Release
from torchmill.config.release_lookup import base_package, base_release
from torchmill.config.versions import python_key
from torchmill.core.errors import ImpossibleBuildError, UnknownReleaseError
from torchmill.host.host import Host
from torchmill.plan import cell_lookup, matrix
from torchmill.plan.arch_toolkits import toolkits_with_target
from torchmill.plan.cell import Cell
from torchmill.plan.drivers import is_driven
from torchmill.plan.trial import find_trial


class BuildQuestion(NamedTuple):
    """A user's choice of wheels; fields that are empty are chosen here."""

    # Names of cells, or patterns of such names: "wheel-3.1[12]-cpu".
    names: Sequence[str] = ()
    # A text may have several Pythons or variants: "3.11,3.12", "cpu,12.1".
    pythons: Sequence[str] = ()
    variants: Sequence[str] = ()  # "cpu", "12.1", "cu121"
    gpus: Sequence[Capability] = ()  # that the wheels are for
    # Build also the torch that an extension is built against; False if that comes from elsewhere.
    with_base: bool = True


def choose_cells(
    facts: Facts, question: BuildQuestion, host: Host, release: Release | None
) -> list[Cell]:
    """Return the cells to build, each after the cells that it is built against.

    The cells are of `release`; if that is None, of the newest release that has them. Raises
    UnknownReleaseError for a name that no cell has, ImpossibleBuildError for an impossible cell.
    """
    names: list[tuple[str, Release | None]] = [(name, release) for name in question.names]
    if not names:
        question = question._replace(
            pythons=_split_texts(question.pythons), variants=_split_texts(question.variants)
        )
        names = list(_composed_names(facts, question, host, release))
    chosen: dict[str, Cell] = {}  # by identifier; the order is that of the builds
    for name, release_of_name in names:
        for cell in named_cells(facts, name, host.arch, release_of_name):
            for needed in _prerequisites(facts, cell, host, with_base=question.with_base):
                chosen.setdefault(needed.build.identifier(host.arch), needed)
            chosen[cell.build.identifier(host.arch)] = cell
    return list(chosen.values())


def _split_texts(texts: Sequence[str]) -> list[str]:
    """Return the words of texts, which may have several each: "3.11", "3.12,3.13"."""
    words: list[str] = []
    for text in texts:
        words.extend(word for word in re.split(r"[,\s]+", text) if word)
    return words


def _prerequisites(facts: Facts, cell: Cell, host: Host, *, with_base: bool) -> Iterator[Cell]:
    """Yield the cells that have to be built before a cell: torch, and imported packages."""
    package = facts.packages[cell.build.package]
    identifier = cell.build.identifier(host.arch)
    torch_release = base_release(facts, cell.release)
    names = [base_package(facts).name] if with_base else []
    for name in [*names, *package.imports]:
        session = facts.packages[name].session
        needed = identifier.replace(package.session, session, 1)
        yield cell_lookup.find_cell(facts, needed, host.arch, torch_release)


def is_pattern(name: str) -> bool:
    """Tell whether a name stands for all cells whose names match it."""
    return bool(set("*?[") & set(name))


def named_cells(facts: Facts, name: str, native: str, release: Release | None) -> list[Cell]:
    """Return the cells that a name or a pattern stands for. Raises as `choose_cells`."""
    if not is_pattern(name):
        return [cell_lookup.find_cell(facts, cell_lookup.usual_spelling(name), native, release)]
    matching = [
        cell
        for cell in matrix.buildable_cells(facts, release, native)
        if fnmatchcase(cell.build.identifier(native), name)
    ]
    if not matching:
        raise UnknownReleaseError(
            f"no build is called '{name}': `invoke matrix` prints them all", code="unknown-build"
        )
    return matching


def _composed_names(
    facts: Facts, question: BuildQuestion, host: Host, release: Release | None
) -> Iterator[tuple[str, Release | None]]:
    """Yield a name for each Python with each variant, and the release that it is looked up in."""
    session = base_package(facts).session
    pythons = question.pythons
    variants = question.variants
    chosen_release: Release | None = None
    if not pythons or not variants:
        best = _best_cell(facts, question, host, release)
        pythons = pythons or [best.build.python]
        variants = variants or [best.build.variant]
        chosen_release = best.release
    for python, variant in product(pythons, variants):
        name = cell_lookup.usual_spelling(f"{session}-{python}-{variant}")
        yield name, release or _release_with(facts, name, host, chosen_release)


def _release_with(facts: Facts, name: str, host: Host, release: Release | None) -> Release | None:
    """Return a release if it has a cell of that name; else None, so that any release will do."""
    if release is None:
        return None
    for cell in matrix.possible_cells(facts, release, host.arch):
        if cell.build.identifier(host.arch) == name:
            return release
    return None


def _best_cell(facts: Facts, question: BuildQuestion, host: Host, release: Release | None) -> Cell:
    """Return the best cell for the GPUs in question; without GPUs, the best one without CUDA.

    A cell that somebody is known to have built goes before cells of newer releases that nobody is
    known to have built.
    """
    # The numbers of Pythons, as identifiers have them: "python3.11" is "3.11".
    pythons = [
        cell_lookup.usual_spelling(f"wheel-{python}-cpu").split("-")[1]
        for python in question.pythons
    ]
    gpus = {gpu.name for gpu in question.gpus}
    releases = [release] if release else facts.releases[base_package(facts).name]
    untried: list[Cell] = []  # those of the newest release that has any
    for candidate in reversed(releases):
        cells = [
            cell
            for cell in matrix.possible_cells(facts, candidate, host.arch)
            if (not pythons or cell.build.python in pythons) and _serves(facts, cell, gpus, host)
        ]
        tried = [cell for cell in cells if find_trial(facts, cell).witness]
        if tried:
            return max(tried, key=lambda cell: _preference(cell, host))
        untried = untried or cells
    if untried:
        return max(untried, key=lambda cell: _preference(cell, host))
    if pythons and not gpus:
        # This raises an error that says why the Python has no cell, as the one below cannot.
        session = base_package(facts).session
        cell_lookup.find_cell(facts, f"{session}-{pythons[0]}-cpu", host.arch, release)
    raise _no_cell_error(pythons, gpus, host, release)


def _preference(cell: Cell, host: Host) -> tuple[object, ...]:
    """Return the key by which the best of some cells is the greatest.

    Toolkits of official builds go first, then newer toolkits; then come the Pythons: the one that
    runs this program, those that the host has, those with a GIL, and newer ones.
    """
    build = cell.build
    running_python = f"{sys.version_info.major}.{sys.version_info.minor}"
    return (
        build.cuda in cell.release.cuda_official,
        python_key(build.cuda or "0"),  # orders any version, not only Pythons
        build.python == running_python,
        build.python in host.interpreters.paths,
        not build.python.endswith("t"),
        python_key(build.python),
    )


def _serves(facts: Facts, cell: Cell, gpus: Collection[str], host: Host) -> bool:
    """Tell whether a cell serves GPUs of some capabilities; if there are none, it has no CUDA."""
    toolkit = facts.toolkit(cell.build.cuda)
    if not gpus:
        return toolkit is None
    if toolkit is None:
        return False
    if any(toolkit not in toolkits_with_target(facts, name) for name in gpus):
        return False
    return is_driven(toolkit, host)


def _no_cell_error(
    pythons: Sequence[str], gpus: Collection[str], host: Host, release: Release | None
) -> ImpossibleBuildError:
    """Return the error for a question that no cell answers."""
    subject = f"torch {release.version} has no build" if release else "no release has a build"
    if pythons:
        subject += f" for Python {' or '.join(pythons)}"
    lack = "without CUDA"
    if gpus:
        listed = ", ".join(sorted(gpus))
        lack = f"with code for {listed}: `invoke arch` lists the toolkits that make it"
    return ImpossibleBuildError(f"{subject} on {host.arch} {lack}", code="impossible-build")
