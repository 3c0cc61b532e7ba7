"""The matrix of an extension: by torch and toolkit, which wheels exist and which can be built."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from torchmill.config.build import CPU, Build
from torchmill.config.facts import Facts
from torchmill.config.package import Package
from torchmill.config.release import Release
from torchmill.config.release_lookup import base_package, paired_release
from torchmill.config.toolkit import Toolkit
from torchmill.plan.cell import Cell
from torchmill.plan.matrix import ReleaseTerms
from torchmill.plan.recorded_wheels import (
    RecordedWheel,
    best_wheel,
    recorded_wheels,
    wheels_for_torch,
)
from torchmill.plan.trial import Standing, find_trial, is_of_release

NO_RELEASE = "no release is known to go with that torch, and only the wheels above do"
# The standings of several Pythons together are that of the first word here which one of them has.
_BEST_FIRST: tuple[Standing, ...] = ("wheel", "tried", "untried", "impossible")


@dataclass(frozen=True, slots=True)
class TorchCell:
    """An extension with one torch and one toolkit, for all Pythons."""

    torch: Release
    release: Release | None  # of the extension; None: none is known to go with that torch
    variant: str  # "cu130"
    standing: Standing  # the best of its Pythons
    pythons: tuple[str, ...]  # for which it may be built
    reason: str  # why it cannot be built; "" if it may
    wheels: Mapping[str, RecordedWheel]  # that exist, or that a workflow makes, by Python

    @property
    def listed_pythons(self) -> tuple[str, ...]:
        """Return the Pythons for which somebody has seen a wheel in a list."""
        return tuple(python for python, wheel in self.wheels.items() if wheel.is_listed)


def package_matrix(facts: Facts, package: Package, arch: str) -> Iterator[TorchCell]:
    """Yield the cells of an extension on an arch: the newest torch first, then the oldest toolkit.

    Of each torch, these are no CUDA, the toolkits of its official wheels, and those with which the
    extension was built. A torch with which neither a release nor a wheel goes is left out.
    """
    for torch in reversed(facts.releases[base_package(facts).name]):
        if arch not in torch.arches:
            continue
        release = paired_release(facts, package.name, torch)
        wheels = [
            wheel
            for wheel in wheels_for_torch(facts, package.name, torch.version, arch)
            if wheel.says_its_torch and not wheel.is_pure
        ]
        if release is None and not wheels:
            continue
        version = release.version if release else ""
        for toolkit in _toolkits(facts, torch, release, arch):
            by_python: dict[str, RecordedWheel] = {}
            for python in torch.pythons:
                wheel = best_wheel(wheels, python, toolkit, version)
                if wheel is not None:
                    by_python[python] = wheel
            cells = list(_cells(facts, release, package, arch, torch, toolkit)) if release else []
            yield _torch_cell(facts, torch, toolkit, cells, by_python)


def _toolkits(
    facts: Facts, torch: Release, release: Release | None, arch: str
) -> Iterator[Toolkit | None]:
    """Yield None for no CUDA, then the toolkits of a torch's official wheels, and measured ones."""
    yield None
    measured = {
        run.variant
        for run in facts.costs.runs
        if release is not None and is_of_release(run, release, arch)
    }
    for toolkit in facts.toolkits:
        if toolkit.version in torch.cuda.official or toolkit.variant in measured:
            yield toolkit


def _cells(  # noqa: PLR0917 - the parts of a build
    facts: Facts,
    release: Release,
    package: Package,
    arch: str,
    torch: Release,
    toolkit: Toolkit | None,
) -> Iterator[Cell]:
    """Yield the cell of an extension's release for each Python of a torch, possible or not."""
    terms = ReleaseTerms.for_release(facts, release)
    variant = toolkit.variant if toolkit else CPU
    cuda = toolkit.version if toolkit else None
    for python in torch.pythons:
        build = Build(package.name, package.session, python, variant, arch, cuda)
        yield Cell(build, release, terms.reasons(build))


def _torch_cell(
    facts: Facts,
    torch: Release,
    toolkit: Toolkit | None,
    cells: Sequence[Cell],
    wheels: Mapping[str, RecordedWheel],
) -> TorchCell:
    """Return one cell for all Pythons; `cells` has one for each, or none without a release."""
    standings: set[Standing] = {"impossible"}
    for cell in cells:
        standings.add(find_trial(facts, cell).standing)
    standing = next(word for word in _BEST_FIRST if word in standings)
    pythons = tuple(cell.build.python for cell in cells if cell.is_possible)
    reason = ""
    if not cells:
        reason = NO_RELEASE
    elif not pythons:
        # Reasons of single Pythons, such as an old one, are less than that of most.
        counts = Counter(cell.reason or "" for cell in cells)
        ((reason, _),) = counts.most_common(1)
    return TorchCell(
        torch=torch,
        release=cells[0].release if cells else None,
        variant=toolkit.variant if toolkit else CPU,
        standing=standing,
        pythons=pythons,
        reason=reason,
        wheels=wheels,
    )


def newest_pure_wheel(facts: Facts, package: Package) -> RecordedWheel | None:
    """Return the newest recorded wheel without compiled code, which is for any torch; None if none."""
    wheels = [wheel for wheel in recorded_wheels(facts, package.name) if wheel.is_pure]
    return max(wheels, key=lambda wheel: wheel.version, default=None)
