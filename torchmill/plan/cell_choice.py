"""Choose the cells to build: by names or patterns, or by Pythons, toolkits and GPUs.

Whatever the user leaves open is chosen here. The name of a cell is the identifier of its build,
"wheel-3.10-cu118", whose last part is the variant.
"""

import re
import sys
from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from itertools import product
from typing import NamedTuple

from torchmill.config.distributions import find_jetson
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
from torchmill.plan.drivers import driver_runs
from torchmill.plan.trial import find_trial


class BuildQuestion(NamedTuple):
    """What a user says of the wheels to build: either names, or Pythons, variants and GPUs."""

    # Names of cells, or patterns of such names: "wheel-3.1[12]-cpu". With names, `choose_cells`
    # does not ask for Pythons, variants and GPUs.
    names: Sequence[str] = ()
    # A text may have several Pythons or variants: "3.11,3.12", "cpu,12.1".
    pythons: Sequence[str] = ()
    variants: Sequence[str] = ()  # "cpu", "12.1", "cu121"
    gpus: Sequence[Capability] = ()  # compute capabilities of the GPUs that the wheels are for
    # False: the torch that an extension is built against comes from elsewhere, and is not built.
    with_base: bool = True


def choose_cells(
    facts: Facts, question: BuildQuestion, host: Host, release: Release | None
) -> list[Cell]:
    """Return the cells to build, each after the cells that have to be built before it.

    `release` is the release of torch that the user selected. If it is None, each cell is of the
    newest release that can build it. Raises UnknownReleaseError for a name that no cell has,
    ImpossibleBuildError for an impossible cell.
    """
    names: list[tuple[str, Release | None]] = [(name, release) for name in question.names]
    if not names:
        question = question._replace(
            pythons=split_texts(question.pythons), variants=split_texts(question.variants)
        )
        names = list(_compose_names(facts, question, host, release))
    chosen: dict[str, Cell] = {}  # by identifier, in the order of the builds
    for name, release_of_name in names:
        for cell in named_cells(facts, name, host.arch, release_of_name):
            for needed in _prerequisites(facts, cell, host, with_base=question.with_base):
                chosen.setdefault(needed.build.identifier(host.arch), needed)
            chosen[cell.build.identifier(host.arch)] = cell
    return list(chosen.values())


def split_texts(texts: Sequence[str]) -> list[str]:
    """Return the words of texts, such as "3.11" and "3.12,3.13"."""
    words: list[str] = []
    for text in texts:
        words.extend(word for word in re.split(r"[,\s]+", text) if word)
    return words


def _prerequisites(facts: Facts, cell: Cell, host: Host, *, with_base: bool) -> Iterator[Cell]:
    """Yield the cells that have to be built before a cell: torch, then packages that it imports.

    Packages that those import are not among them. Raises the errors of `find_cell`.
    """
    package = facts.packages[cell.build.package]
    torch_release = base_release(facts, cell.release)
    needed_packages = list(package.checks.imports)
    if with_base and package.after is not None:
        needed_packages.insert(0, package.after)
    for name in needed_packages:
        needed_build = replace(cell.build, session=facts.packages[name].session)
        identifier = needed_build.identifier(host.arch)
        yield cell_lookup.find_cell(facts, identifier, host.arch, torch_release)


def is_pattern(name: str) -> bool:
    """Tell whether a name stands for all cells whose names match it."""
    return bool(set("*?[") & set(name))


def named_cells(facts: Facts, name: str, native: str, release: Release | None) -> list[Cell]:
    """Return the cells that a name or a pattern stands for.

    `native` is the arch of this machine, which names leave out. `release` is as for `choose_cells`,
    which raises the same errors: UnknownReleaseError also for a pattern that no name matches.
    """
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


def _compose_names(
    facts: Facts, question: BuildQuestion, host: Host, release: Release | None
) -> Iterator[tuple[str, Release | None]]:
    """Yield a name for each Python with each variant, and the release that it is looked up in.

    The release is None if any will do.
    """
    session = base_package(facts).session
    pythons = question.pythons
    variants = question.variants
    best_release: Release | None = None
    if not pythons or not variants:
        best = _best_cell(facts, question, host, release)
        pythons = pythons or [best.build.python]
        variants = variants or [best.build.variant]
        best_release = best.release
    for python, variant in product(pythons, variants):
        name = cell_lookup.usual_spelling(f"{session}-{python}-{variant}")
        name_release = release
        # All wheels are of the best cell's release, except those that only other releases have.
        if release is None and best_release and _has_cell(facts, best_release, name, host):
            name_release = best_release
        yield name, name_release


def _has_cell(facts: Facts, release: Release, name: str, host: Host) -> bool:
    """Tell whether a cell of a release has a name, and can be built."""
    cells = matrix.possible_cells(facts, release, host.arch)
    return any(cell.build.identifier(host.arch) == name for cell in cells)


def _best_cell(facts: Facts, question: BuildQuestion, host: Host, release: Release | None) -> Cell:
    """Return the best cell of torch for the question's GPUs; without GPUs, the best without CUDA.

    A cell that somebody is known to have built goes before cells of newer releases that nobody is
    known to have built. Raises ImpossibleBuildError if no cell serves.
    """
    pythons = [_python_number(python) for python in question.pythons]
    capabilities = {capability.name for capability in question.gpus}
    releases = [release] if release else facts.releases[base_package(facts).name]
    untried: list[Cell] = []  # cells of the newest release that has any
    for candidate in reversed(releases):
        serving: list[Cell] = []
        for cell in matrix.possible_cells(facts, candidate, host.arch):
            has_python = not pythons or cell.build.python in pythons
            if has_python and _serves(facts, cell, capabilities, host):
                serving.append(cell)
        tried = [cell for cell in serving if find_trial(facts, cell).witness]
        if tried:
            return max(tried, key=lambda cell: _preference(cell, host))
        untried = untried or serving
    if untried:
        return max(untried, key=lambda cell: _preference(cell, host))
    if pythons and not capabilities:
        # This raises a better error than the last line: it says why the Python has no cell.
        session = base_package(facts).session
        cell_lookup.find_cell(facts, f"{session}-{pythons[0]}-cpu", host.arch, release)
    raise _no_cell_error(pythons, capabilities, host, release)


def _python_number(python: str) -> str:
    """Return a Python as identifiers have it: "3.11" of "python3.11" or "311"."""
    # The spelling of a Python is recognized only inside a name.
    name = cell_lookup.usual_spelling(f"wheel-{python}-cpu")
    return name.split("-")[1]


def running_python() -> str:
    """Return the Python that runs this program: "3.11", and "3.13" also for a "3.13t"."""
    return f"{sys.version_info.major}.{sys.version_info.minor}"


def usual_python(host: Host) -> str:
    """Return the Python to build for on a host if the user names none: one that it has.

    That is the Python that runs this program, or else, on a host without it, the newest.
    """
    running = running_python()
    with_gil = [python for python in host.interpreters.paths if not python.endswith("t")]
    if running in with_gil or not with_gil:
        return running
    return max(with_gil, key=python_key)


def _preference(cell: Cell, host: Host) -> tuple[object, ...]:
    """Return the key that `max` chooses the best cell by.

    Toolkits of official builds are preferred, then newer toolkits. Among cells with one toolkit,
    Pythons that the host has are preferred, then that which runs this program, Pythons with a GIL,
    and newer Pythons. On a Jetson, the CUDA and the Python of its JetPack go
    before all others.
    """
    build = cell.build
    jetson = find_jetson(host.platform.distribution)
    return (
        jetson is not None and build.cuda == jetson.cuda,
        build.cuda in cell.release.cuda.official,
        python_key(build.cuda or "0"),  # this key orders versions of toolkits as well as Pythons
        jetson is not None and build.python == jetson.python,
        build.python in host.interpreters.paths,
        build.python == running_python(),
        not build.python.endswith("t"),
        python_key(build.python),
    )


def _serves(facts: Facts, cell: Cell, capabilities: Collection[str], host: Host) -> bool:
    """Tell whether a cell's toolkit makes code for all capabilities, and the host's driver runs it.

    Without capabilities, the cells that serve are those without CUDA.
    """
    toolkit = facts.toolkit(cell.build.cuda)
    if not capabilities:
        return toolkit is None
    if toolkit is None:
        return False
    if any(toolkit not in toolkits_with_target(facts, name) for name in capabilities):
        return False
    return driver_runs(toolkit, host)


def _no_cell_error(
    pythons: Sequence[str], capabilities: Collection[str], host: Host, release: Release | None
) -> ImpossibleBuildError:
    """Return the error for a question that no cell answers."""
    subject = f"torch {release.version} has no build" if release else "no release has a build"
    if pythons:
        subject += f" for Python {' or '.join(pythons)}"
    kind = "without CUDA"
    if capabilities:
        listed = ", ".join(sorted(capabilities))
        kind = f"with code for {listed}: `invoke arch` lists the toolkits that make it"
    return ImpossibleBuildError(f"{subject} on {host.arch} {kind}", code="impossible-build")
