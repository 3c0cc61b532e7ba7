"""The recorded costs of compiling a release's sources, as the memory guard takes them."""

from collections.abc import Iterable

from millguard.costs import KnownCost
from millguard.known_costs import load_known_costs

from torchmill.config.costs import KnownUnit


def release_costs(units: Iterable[KnownUnit], package: str, release: str) -> tuple[KnownCost, ...]:
    """Return the recorded costs that hold for a release of a package.

    They stay in the order of the facts, because the guard takes the first whose pattern fits a
    source. Those that millguard itself knows, which hold for any project, come last.
    """
    costs: list[KnownCost] = []
    for unit in units:
        for_package = unit.package in {"", package}
        for_release = unit.release is None or unit.release.contains(release, prereleases=True)
        if for_package and for_release:
            costs.append(KnownCost(unit.pattern, unit.peak, unit.seconds))
    return (*costs, *load_known_costs())
