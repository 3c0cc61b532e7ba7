"""Who has built a cell before: upstream, somebody whose report is recorded, or nobody known.

A trial is the evidence of that. Its witness is the party that built the cell, and its standing is
the word for the evidence in tables.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from torchmill.config.build import CPU
from torchmill.config.costs import MeasuredRun
from torchmill.config.facts import Facts
from torchmill.config.official_wheels import wheel_places, wheel_pythons
from torchmill.config.parsed import parsed_with
from torchmill.config.release import Release
from torchmill.config.versions import format_bounds, is_within
from torchmill.plan.cell import Cell
from torchmill.plan.matrix import UNTRIED, possible_cells

Standing = Literal["wheel", "tried", "untried", "impossible"]
Witness = Literal["this machine", "upstream", "others"]
STANDINGS: dict[Standing, str] = {
    "wheel": "can be built, and upstream has a wheel of it",
    "tried": "can be built: upstream did, or somebody whose report is recorded",
    "untried": "may build: no fact rules it out, but nobody is known to have built it",
    "impossible": "cannot be built, for a reason given above",
}
_UPSTREAM_ARCH = "x86_64"  # of the builds whose toolkits a release records as official


@dataclass(frozen=True, slots=True)
class Trial:
    """The evidence of earlier builds of a cell."""

    standing: Standing
    text: str  # a clause: who built it, why nobody can, or that nobody is known to have done so
    source: str  # of the text: a URL, or a file of build_configs/; "" if facts are absent
    witness: Witness | None = None  # None: nobody


def find_trial(facts: Facts, cell: Cell, own_runs: Iterable[MeasuredRun] = ()) -> Trial:
    """Return who is known to have built a cell; `own_runs` are builds that this machine has made.

    Toolkit and Python are looked up apart: a release that was built with CUDA 12.1, and also for
    Python 3.12, counts as tried with both together, although these may have been two wheels.
    """
    release = cell.release
    build = cell.build
    if not cell.is_possible:
        standing: Standing = "untried" if is_merely_untried(cell) else "impossible"
        return Trial(standing, "; ".join(cell.reasons), release.source)
    evidence = next(_find_evidence(facts, cell, own_runs), None)
    if evidence is None:
        return Trial("untried", _describe_untried_toolkit(facts, cell), "")
    pythons = wheel_pythons(facts, release, build.arch)
    # A release with a `wheel_tag` has one wheel for every Python.
    is_for_each_python = release.upstream.wheels and not release.wheel.tag
    if is_for_each_python and build.python not in pythons:
        return Trial("untried", _describe_untried_python(cell, pythons), "")
    if any(wheel_places(facts, release, build.variant, build.arch)):
        return replace(evidence, standing="wheel")
    return evidence


def is_merely_untried(cell: Cell) -> bool:
    """Tell whether the only reason against a cell is that nobody is known to have built it."""
    return bool(cell.reasons) and all(reason.endswith(UNTRIED) for reason in cell.reasons)


def nearest_tried(facts: Facts, cell: Cell, serves: Callable[[Cell], bool]) -> Cell | None:
    """Return the tried cell whose toolkit is nearest to that of an untried cell.

    It has the release, Python and arch of `cell`, and is one for which `serves` is true. Of older
    toolkits the newest is nearest. If there is none, it is the oldest of the newer ones. None for a
    cell without CUDA, and if no such cell was tried.
    """
    build = cell.build
    variants = [toolkit.variant for toolkit in facts.toolkits]  # oldest first
    if build.variant not in variants:
        return None
    position = variants.index(build.variant)
    older: Cell | None = None
    for other in possible_cells(facts, cell.release, build.arch):
        if other.build.python != build.python or not other.build.cuda:
            continue
        was_tried = find_trial(facts, other).standing in {"wheel", "tried"}
        if not was_tried or not serves(other):
            continue
        if variants.index(other.build.variant) >= position:
            return older or other
        older = other
    return older


def _find_evidence(facts: Facts, cell: Cell, own_runs: Iterable[MeasuredRun]) -> Iterator[Trial]:
    """Yield who has built the release of a cell with its toolkit, the nearest witness first."""
    build = cell.build
    release = cell.release
    built = f"{release} was built {_with_cuda(build.cuda)}{_against(facts, release)}"
    for run in own_runs:
        if _is_of_cell(run, cell):
            yield Trial("tried", f"{built} on this machine", run.source, "this machine")
    if _is_upstreams(facts, release, build.variant, build.cuda, build.arch):
        file = f"build_configs/releases/{release.torch_version}.toml"
        text = f"upstream built {release} {_with_cuda(build.cuda)} for {build.arch}"
        yield Trial("tried", text, file, "upstream")
    # Keys of `tried` are "cu118", and "cu118-aarch64" for any arch but the usual one.
    key = build.variant if build.arch == _UPSTREAM_ARCH else f"{build.variant}-{build.arch}"
    if key in release.tried:
        yield Trial("tried", f"{built} for {build.arch}", release.tried[key], "others")
    for run in facts.costs.runs:
        if _is_of_cell(run, cell):
            yield Trial("tried", f"{built} for {build.arch}", run.source, "others")


def _against(facts: Facts, release: Release) -> str:
    """Return the torch that a release of an extension is built against, for a sentence.

    "" for torch itself, and for packages that pair with one torch only, such as torchvision.
    """
    if facts.packages[release.package].editions:
        return f" against torch {release.torch}"
    return ""


def _with_cuda(cuda: str | None) -> str:
    """Return the toolkit of a build as words of a sentence."""
    return f"with CUDA {cuda}" if cuda else "without CUDA"


def _is_of_cell(run: MeasuredRun, cell: Cell) -> bool:
    """Tell whether a run is of a cell's release, torch, toolkit and arch; Pythons may differ."""
    return run.variant == cell.build.variant and is_of_release(run, cell.release, cell.build.arch)


def is_of_release(run: MeasuredRun, release: Release, arch: str) -> bool:
    """Tell whether a run is of a release, of the torch that this goes with, on an arch."""
    return (
        run.package == release.package
        and run.release == release.version
        and run.torch in {None, release.torch}
        and run.arch == arch
    )


def _is_upstreams(
    facts: Facts, release: Release, variant: str, cuda: str | None, arch: str
) -> bool:
    """Tell whether upstream is known to have built a release with a toolkit for a machine."""
    # The toolkits of an edition are those of torch, and prove nothing about the package.
    if facts.packages[release.package].editions:
        return False
    if any(wheel_places(facts, release, variant, arch)):
        return True
    if variant == CPU:
        if wheel_pythons(facts, release, arch):
            return True
        # Of a release without recorded wheels, official toolkits prove that there were builds.
        return (
            bool(release.cuda.official) and not release.upstream.wheels and arch == _UPSTREAM_ARCH
        )
    official = release.cuda.official.get(cuda or "")
    if official is None:
        return False
    # Lists for other machines are those of torch, not of packages that are built on it.
    is_base = release.torch is None
    return arch == _UPSTREAM_ARCH or (is_base and arch in official.capabilities)


def _describe_untried_toolkit(facts: Facts, cell: Cell) -> str:
    """Return that nobody built a release with a toolkit, and the toolkits that upstream used."""
    release = cell.release
    build = cell.build
    text = (
        f"nobody is known to have built {release} {_with_cuda(build.cuda)} for {build.arch}"
        f"{_against(facts, release)}"
    )
    text += _beyond_bounds(facts, release)
    text += _describe_parse(facts, cell)
    if build.cuda is None:
        return text
    versions = [
        toolkit.version
        for toolkit in facts.toolkits
        if _is_upstreams(facts, release, toolkit.variant, toolkit.version, build.arch)
    ]
    if versions:
        text += f"; upstream used CUDA {', '.join(versions)}"
    return text


def _beyond_bounds(facts: Facts, release: Release) -> str:
    """Return that a package's facts end before the torch of a release, as a clause; "" if not."""
    for edition in facts.packages[release.package].editions:
        if edition.version == release.version and not is_within(edition.torch, release.torch):
            bounds = format_bounds(edition.torch)
            return f" (beyond the bounds of its facts, {bounds}: that torch is newer than they are)"
    return ""


def _describe_parse(facts: Facts, cell: Cell) -> str:
    """Return that the files of an extension parse against the headers of its torch; "" if unknown.

    That is no build: no code was made, and nothing was linked.
    """
    release = cell.release
    for source in parsed_with(facts.parsed, release):
        if source.variant == cell.build.variant and release.torch in source.accepted:
            compiler = source.compiler
            return f"; its C++ files parse against the headers of this torch ({compiler}), no more"
    return ""


def _describe_untried_python(cell: Cell, pythons: Iterable[str]) -> str:
    """Return that no build of a release for a Python is recorded, and the Pythons of PyPI's wheels."""
    build = cell.build
    text = f"no build of {cell.release} for Python {build.python} on {build.arch} is recorded"
    listed = ", ".join(pythons)
    if listed:
        return f"{text}; PyPI has wheels for {listed}"
    return f"{text}; PyPI has no wheels for it"
