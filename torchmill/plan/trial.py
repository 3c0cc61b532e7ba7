"""Who has built a cell before: upstream, somebody whose report is recorded, or nobody who is known."""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from torchmill.config.build import CPU
from torchmill.config.costs import MeasuredRun
from torchmill.config.facts import Facts
from torchmill.config.official_wheels import wheel_places, wheel_pythons
from torchmill.config.release import Release
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
_UPSTREAM_ARCH = "x86_64"  # for which the official toolkits of a release are recorded


@dataclass(frozen=True, slots=True)
class Trial:
    """What is known of earlier builds of a cell."""

    standing: Standing
    text: str  # who built it, why nobody can, or what is not known, as a clause
    source: str  # of that fact: an address, or a file of build_configs/; "" for an absence of facts
    witness: Witness | None = None  # None: nobody


def find_trial(facts: Facts, cell: Cell, own: Iterable[MeasuredRun] = ()) -> Trial:
    """Return who is known to have built a cell; `own` are builds that this machine has made.

    A toolkit and a Python count each for itself: a release that was built with CUDA 12.1 and for Python 3.12 counts as
    tried with both, although the two may have been two wheels.
    """
    if not cell.possible:
        standing: Standing = "untried" if is_merely_untried(cell) else "impossible"
        return Trial(standing, "; ".join(cell.reasons), cell.release.source)
    evidence = next(_evidence(facts, cell, own), None)
    if evidence is None:
        return Trial("untried", _unknown_toolkit(facts, cell), "")
    pythons = wheel_pythons(facts, cell.release, cell.build.arch)
    if cell.release.wheels and not cell.release.wheel_tag and cell.build.python not in pythons:
        return Trial("untried", _unknown_python(cell, pythons), "")
    if next(wheel_places(facts, cell.release, cell.build.variant, cell.build.arch), None):
        return replace(evidence, standing="wheel")
    return evidence


def is_merely_untried(cell: Cell) -> bool:
    """Tell whether a cell is ruled out for no other reason than that nobody is known to have built it."""
    return bool(cell.reasons) and all(reason.endswith(UNTRIED) for reason in cell.reasons)


def nearest_tried(facts: Facts, cell: Cell, serves: Callable[[Cell], bool]) -> Cell | None:
    """Return the cell that somebody has built and that differs from an untried one in the toolkit alone.

    Of several that serve it is the newest that is older, or else the oldest.
    """
    build = cell.build
    alike = [
        one
        for one in possible_cells(facts, cell.release, build.arch)
        if one.build.python == build.python
    ]
    order = [one.variant for one in facts.toolkits]
    if build.variant not in order:
        return None
    place = order.index(build.variant)
    known = [
        one
        for one in alike
        if one.build.cuda and find_trial(facts, one).standing in {"wheel", "tried"}
    ]
    tried = list(filter(serves, known))
    older = [one for one in tried if order.index(one.build.variant) < place]
    return next(iter([*older[-1:], *tried[:1]]), None)


def _evidence(facts: Facts, cell: Cell, own: Iterable[MeasuredRun]) -> Iterator[Trial]:
    """Yield who has built a release with the toolkit of a cell, the nearest witness first."""
    build, release = cell.build, cell.release
    with_cuda = f"with CUDA {build.cuda}" if build.cuda else "without CUDA"

    def is_of_cell(run: MeasuredRun) -> bool:
        return (run.package, run.release, run.variant, run.arch) == (
            release.package,
            release.version,
            build.variant,
            build.arch,
        )

    for run in filter(is_of_cell, own):
        yield Trial(
            "tried", f"{release} was built {with_cuda} on this machine", run.source, "this machine"
        )
    if _is_upstreams(facts, release, build.variant, build.cuda, build.arch):
        file = f"build_configs/releases/{release.torch_version}.toml"
        yield Trial(
            "tried", f"upstream built {release} {with_cuda} for {build.arch}", file, "upstream"
        )
    key = build.variant if build.arch == _UPSTREAM_ARCH else f"{build.variant}-{build.arch}"
    if key in release.tried:
        yield Trial(
            "tried",
            f"{release} was built {with_cuda} for {build.arch}",
            release.tried[key],
            "others",
        )
    for run in filter(is_of_cell, facts.runs):
        yield Trial(
            "tried", f"{release} was built {with_cuda} for {build.arch}", run.source, "others"
        )


def _is_upstreams(
    facts: Facts, release: Release, variant: str, cuda: str | None, arch: str
) -> bool:
    """Tell whether upstream itself is known to have built a release with a toolkit for a machine."""
    if facts.packages[release.package].editions:  # whose toolkits are those of torch
        return False
    if next(wheel_places(facts, release, variant, arch), None):
        return True
    if variant == CPU:
        made = bool(release.cuda_official) and not release.wheels and arch == _UPSTREAM_ARCH
        return made or bool(wheel_pythons(facts, release, arch))
    official = release.cuda_official.get(cuda or "")
    if official is None:
        return False
    of_base = (
        release.torch is None
    )  # what is said of other machines is said of torch, not of what is built on it
    return arch == _UPSTREAM_ARCH or (of_base and arch in official.capabilities)


def _unknown_toolkit(facts: Facts, cell: Cell) -> str:
    release, build = cell.release, cell.build
    if build.cuda is None:
        return f"nobody is known to have built {release} without CUDA for {build.arch}"
    text = f"nobody is known to have built {release} with CUDA {build.cuda} for {build.arch}"
    upstream = [
        one.version
        for one in facts.toolkits
        if _is_upstreams(facts, release, one.variant, one.version, build.arch)
    ]
    return f"{text}; upstream used CUDA {', '.join(upstream)}" if upstream else text


def _unknown_python(cell: Cell, pythons: Iterable[str]) -> str:
    build, listed = cell.build, ", ".join(pythons)
    text = f"nobody is known to have built {cell.release} for Python {build.python} on {build.arch}"
    return (
        f"{text}; upstream has wheels for {listed}"
        if listed
        else f"{text}; upstream has no wheels for it"
    )
