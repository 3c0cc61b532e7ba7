"""Read what the index has of every package, and hold it against the facts."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

import requests
from packaging.utils import canonicalize_name

from torchmill.bars import Bars
from torchmill.model import Facts
from torchmill.upstream import archives, compare, gpucode, index
from torchmill.upstream.wheels import Wheel, read


@dataclass(frozen=True, slots=True)
class Report:
    """What a check looked at and found."""

    wheels: dict[str, int]  # package -> wheels that were read
    releases: dict[str, int]  # package -> releases that they belong to
    differences: tuple[compare.Difference, ...]

    @property
    def unexplained(self) -> tuple[compare.Difference, ...]:
        """Return what the facts give no reason for."""
        return tuple(one for one in self.differences if one.reason is None)

    def lines(self) -> list[str]:
        """Return it for people: each difference, what explains it, and the numbers."""
        found = []
        for one in self.differences:
            found.append(
                f"{'explained' if one.reason else 'DIFFERENT'}  {one.package} {one.version}: {one.text}"
            )
            found.append(f"           {one.name}: {one.reason or 'not explained'}")
        for package, number in self.wheels.items():
            found.append(f"{package}: {number} wheels of {self.releases[package]} releases read")
        explained = len(self.differences) - len(self.unexplained)
        found.append(f"{len(self.unexplained)} unexplained differences, {explained} explained")
        return found


def observe(
    facts: Facts, chosen: Collection[str], where: str, cache: Path, bars: Bars
) -> dict[str, tuple[Wheel, ...]]:
    """Read the wheels of every package: of the chosen versions of torch and what pairs with them, or all.

    Raises NetworkError.
    """
    found = {}
    for package in _of_wheels(facts):
        with requests.Session() as session:
            files = index.files(session, where, package)
        if chosen:
            mine = [one for one in facts.releases[package] if (one.torch or one.version) in chosen]
            versions = {one.version for one in mine} | set(chosen)
            files = tuple(file for file in files if file.name.split("-")[1] in versions)
        bar = bars.task(package, len(files))
        try:
            found[package] = gpucode.added(read(files, cache, bar), files, cache, bar)
        finally:
            bar.close()
    return found


def check(facts: Facts, chosen: Collection[str], where: str, cache: Path, bars: Bars) -> Report:
    """Compare the facts with the index; raises NetworkError."""
    observed = observe(facts, chosen, where, cache, bars)
    return Report(
        wheels={package: len(wheels) for package, wheels in observed.items()},
        releases={package: len({one.version for one in wheels}) for package, wheels in observed.items()},
        differences=(*compare.differences(facts, observed, chosen), *_declared(facts, where)),
    )


def _of_wheels(facts: Facts) -> list[str]:
    """Return the packages of whose releases PyPI has wheels, not archives alone."""
    return [package.name for package in facts.packages.values() if not package.editions]


def _declared(facts: Facts, where: str) -> Iterator[compare.Difference]:
    """Yield what the index says otherwise of releases that packages declare themselves."""
    for package in facts.packages.values():
        if package.editions and package.pypi:
            with requests.Session() as session:
                files = index.files(session, where, canonicalize_name(package.pypi))
            yield from archives.differences(package, files)
