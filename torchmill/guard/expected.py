"""What a unit is expected to need: what it needed before, what is known of it, what its neighbours needed."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import translate
from pathlib import PurePosixPath

from torchmill.guard.history import History, Need
from torchmill.guard.units import Described
from torchmill.guard.view import MIB, Unit
from torchmill.model import KnownUnit

USUAL = 0.75  # of the units of a kind need no more than what is expected of the next one
NEIGHBOURS = 2  # in a folder, after which they tell more than the whole family does
RELATIVES = 4  # of a family, after which this build tells more than the table below
COMPARED = 5  # units of units.toml, after which this build corrects the others
MORE = 1.5  # of what a unit had when it was ended: what it is expected to need when it runs again

# C and C++: of torch 1.13.1 with gcc 12, nine of ten compiles that units.toml does not name. CUDA: between
# what torch's ordinary kernels take and flash attention's. A link holds what it writes, and the symbols.
FAMILIES = {
    "c": Need(150 * MIB, 2.0),
    "c++": Need(650 * MIB, 7.0),
    "cuda": Need(2048 * MIB, 60.0),
    "link": Need(512 * MIB, 5.0),
}


@dataclass(slots=True)
class _Shown:
    """What units of one kind needed in this build, for each processor that they kept busy."""

    peaks: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)

    def usual(self) -> Need:
        return Need(int(_quantile(self.peaks, USUAL)), _quantile(self.seconds, 0.5))


class Expectations:
    """What is expected of the units of one build; it grows with what they show."""

    def __init__(self, history: History, known: Sequence[KnownUnit]) -> None:
        self._history = history
        self._known = [(_ends_like(one.pattern), one) for one in known]
        self._folders: dict[tuple[str, str], _Shown] = defaultdict(_Shown)
        self._families: dict[str, _Shown] = defaultdict(_Shown)
        self._ratios: list[float] = []  # of what was needed to what units.toml says

    def of(self, described: Described) -> Unit:
        """Return what a unit is expected to need."""
        measured = self._history.find(described.key)
        if measured is not None:
            return _unit(described, measured, measured=True)
        need = self._guess(described)
        return _unit(described, replace(need, peak=int(need.peak * max(1.0, described.weight))))

    def learn(self, described: Described, peak: int, seconds: float, half: float = 0.0) -> None:
        """Take note of a unit that came to its end.

        `peak` in bytes, `seconds` that it was not paused; it had half of the peak after the share `half` of
        them, 0 where nobody saw.
        """
        self._history.learn(described.key, Need(peak, seconds, half))
        each = int(peak / max(1.0, described.weight))
        if (known := self._fact(described)) is not None:
            self._ratios.append(each / known.peak)
            return
        for shown in (self._families[described.family], self._folders[_folder(described)]):
            shown.peaks.append(each)
            shown.seconds.append(seconds)

    def _guess(self, described: Described) -> Need:
        default = FAMILIES.get(described.family, FAMILIES["c++"])
        if (known := self._fact(described)) is not None:
            seconds = default.seconds if known.seconds is None else known.seconds
            return Need(int(known.peak * self._correction()), seconds)
        near, all_ = self._folders.get(_folder(described)), self._families.get(described.family)
        if near is not None and len(near.peaks) >= NEIGHBOURS:
            return near.usual()
        if all_ is not None and len(all_.peaks) >= RELATIVES:
            return all_.usual()
        return default

    def _correction(self) -> float:
        """Return by how much this compiler and its options differ from those that units.toml is of."""
        return _quantile(self._ratios, 0.9) if len(self._ratios) >= COMPARED else 1.0

    def _fact(self, described: Described) -> KnownUnit | None:
        path = f"/{described.source}"
        return next((one for pattern, one in self._known if pattern.match(path)), None)


def again(unit: Unit, had: int) -> Unit:
    """Return what is expected of a unit that was ended when it had so many bytes."""
    return replace(unit, peak=max(unit.peak, int(MORE * had)))


def relevant(known: Iterable[KnownUnit], package: str, release: str) -> tuple[KnownUnit, ...]:
    """Return what is known of the units of one release, as the guard's orders carry it."""
    return tuple(
        KnownUnit(one.pattern, one.peak, one.seconds)
        for one in known
        if one.package in {"", package}
        and (one.release is None or one.release.contains(release, prereleases=True))
    )


def _unit(described: Described, need: Need, *, measured: bool = False) -> Unit:
    return Unit(described.key, need.peak, need.seconds, described.weight, measured, need.half)


def _ends_like(pattern: str) -> re.Pattern[str]:
    return re.compile(f".*/{translate(pattern)}")


def _folder(described: Described) -> tuple[str, str]:
    return described.family, str(PurePosixPath(described.source).parent)


def _quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]
