"""Expect the memory and time of a unit, by its history, by known costs, and by similar units.

A unit is one compile or link. Its family is the language that it compiles, or "link"; its kind is its
family, in its folder or anywhere.
"""

import contextlib
import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import translate
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from millguard.costs import KnownCost
from millguard.policy import CURVE_PARTS, FLAT_CURVE, MIB, Unit
from millguard.units import UnitDescription

_BUSY_TIMEOUT_SECONDS = 1.0  # for which another build's writing is waited for
_REMEMBERED_SHARE = 0.9  # of a larger peak, or level of a curve, that was measured before
_COLUMNS = "key TEXT PRIMARY KEY, peak INTEGER, seconds REAL, curve TEXT"
USUAL = 0.75  # share of the units of a kind that need no more than is expected of the next one
NEIGHBOURS = 2  # units in a folder, after which they tell more than the whole family does
RELATIVES = 4  # units of a family, after which this build tells more than the table below
COMPARED = 5  # units with known costs, after which this build corrects the other known costs
CORRECTION_QUANTILE = 0.9
MEDIAN = 0.5
MORE = 1.5  # factor on the memory of a unit when it was ended, to expect of its next run


@dataclass(frozen=True, slots=True)
class MeasuredNeed:
    """The memory and time of a unit that ran."""

    peak: int  # bytes
    seconds: float  # that it ran
    curve: tuple[float, ...] = FLAT_CURVE  # the most memory in equal parts of them (see `policy`)


class NeedHistory:
    """The needs of measured units, by key, in one file.

    A broken file is started anew. A file that cannot be read or written costs the experience, never
    the build.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._new: dict[str, MeasuredNeed] = {}
        try:
            with self._connect() as database:
                rows = database.execute("SELECT key, peak, seconds, curve FROM needs")
                self._known = {
                    key: MeasuredNeed(peak, seconds, read_curve(curve.split()))
                    for key, peak, seconds, curve in rows
                }
        except (sqlite3.Error, OSError, ValueError) as error:
            self._known = {}
            # The file is no database, or has other columns or values. A busy one raises a subclass of
            # the error, and must stay.
            is_broken = type(error) in {sqlite3.DatabaseError, ValueError}
            if is_broken or "no such column" in str(error):
                with contextlib.suppress(OSError):
                    file.unlink()

    def find(self, key: str) -> MeasuredNeed | None:
        """Return the need of a unit; None if it never ran."""
        return self._known.get(key)

    def items(self) -> list[tuple[str, MeasuredNeed]]:
        """Return the needs of all units, with their keys."""
        return list(self._known.items())

    def learn(self, key: str, need: MeasuredNeed) -> None:
        """Take note of the need of a unit that ran just now; `save` writes it.

        A larger peak of an earlier run is forgotten by a tenth at a time, because it may come again.
        The time becomes the mean of this run's and that which was known.
        """
        before = self._known.get(key)
        if before is not None:
            need = MeasuredNeed(
                peak=int(_remember(before.peak, need.peak)),
                seconds=(before.seconds + need.seconds) / 2,
                curve=_remember_curve(before.curve, need.curve),
            )
        self._known[key] = self._new[key] = need

    def save(self) -> str | None:
        """Write the needs that were learned since the last time.

        Returns None, or why they could not be written: then they are kept for the next time.
        """
        if not self._new:
            return None
        rows = []
        for key, need in self._new.items():
            curve = " ".join(map(str, need.curve))
            rows.append((key, need.peak, need.seconds, curve))
        try:
            with self._connect() as database:
                database.executemany("INSERT OR REPLACE INTO needs VALUES (?, ?, ?, ?)", rows)
        except (sqlite3.Error, OSError) as error:
            return str(error)
        self._new.clear()
        return None

    @contextlib.contextmanager
    def _connect(self) -> Iterator[sqlite3.Connection]:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        database = sqlite3.connect(self._file, timeout=_BUSY_TIMEOUT_SECONDS)
        with contextlib.closing(database), database:  # the latter commits
            database.execute(f"CREATE TABLE IF NOT EXISTS needs ({_COLUMNS}) WITHOUT ROWID")
            yield database


def read_curve(shares: Sequence[str | float]) -> tuple[float, ...]:
    """Return a curve from its shares, or their text. Raises ValueError if they are not a curve."""
    curve = tuple(float(share) for share in shares)
    if curve != FLAT_CURVE and len(curve) != CURVE_PARTS:
        raise ValueError("a curve has another number of parts")
    if not all(0 <= share <= 1 for share in curve) or not any(curve):
        raise ValueError("a curve has values that are not shares")
    return curve


def _remember(before: float, now: float) -> float:
    """Return the larger of two measurements; an earlier one is forgotten by a tenth."""
    return max(now, _REMEMBERED_SHARE * before + (1 - _REMEMBERED_SHARE) * now)


def _remember_curve(before: tuple[float, ...], now: tuple[float, ...]) -> tuple[float, ...]:
    """Return the higher of two curves in each part. A flat one was not seen, and says nothing."""
    if before == FLAT_CURVE:
        return now
    if now == FLAT_CURVE:
        return before
    return tuple(map(_remember, before, now))


class UnitKind(NamedTuple):
    """Units that are thought to need about the same."""

    family: str
    folder: str  # of their sources; "" for any


# C and C++: of torch 1.13.1 with gcc 12, nine of ten compiles that no known cost names.
# CUDA: between torch's ordinary kernels and those of flash attention. A link holds its product, and
# the symbols.
FAMILIES = {
    "c": MeasuredNeed(150 * MIB, 2.0),
    "c++": MeasuredNeed(650 * MIB, 7.0),
    "cuda": MeasuredNeed(2048 * MIB, 60.0),
    "link": MeasuredNeed(512 * MIB, 5.0),
    "fortran": MeasuredNeed(150 * MIB, 2.0),  # not measured: as C
    "rust": MeasuredNeed(650 * MIB, 7.0),  # not measured: as C++; a crate is one unit
}


class UnitExpectations:
    """The expectations of the units of one build; they improve with each unit that ends."""

    def __init__(self, history: NeedHistory, known: Sequence[KnownCost]) -> None:
        self._history = history
        self._known = [(re.compile(f".*/{translate(cost.pattern)}"), cost) for cost in known]
        # needs of this build's units by kind, for each processor that they kept busy
        self._needs: dict[UnitKind, list[MeasuredNeed]] = defaultdict(list)
        self._ratios: list[float] = []  # of measured peaks to known ones

    def expect(self, description: UnitDescription) -> Unit:
        """Return a unit with its expected memory and time."""
        key = description.key
        weight = description.weight
        need = self._history.find(key)
        if need is not None:
            return Unit(key, need.peak, need.seconds, weight, measured=True, curve=need.curve)
        need = self._guess(description)
        peak = int(need.peak * max(1.0, weight))
        return Unit(key, peak, need.seconds, weight)

    def learn(
        self,
        description: UnitDescription,
        peak: int,
        seconds: float,
        curve: tuple[float, ...] = FLAT_CURVE,
    ) -> None:
        """Take note of a unit that ended well.

        `peak` is in bytes, `seconds` are without its pauses, and `curve` has the most memory in equal
        parts of them, FLAT_CURVE if nobody saw it.
        """
        self._history.learn(description.key, MeasuredNeed(peak, seconds, curve))
        # nvcc's threads each have memory of their own, so a unit is compared by its share for one.
        peak_of_processor = int(peak / max(1.0, description.weight))
        known = self._find_known_cost(description)
        if known is not None:
            self._ratios.append(peak_of_processor / known.peak)
            return
        for kind in _kinds(description):
            self._needs[kind].append(MeasuredNeed(peak_of_processor, seconds))

    def _guess(self, description: UnitDescription) -> MeasuredNeed:
        usual = FAMILIES.get(description.family, FAMILIES["c++"])
        known = self._find_known_cost(description)
        if known is not None:
            seconds = usual.seconds if known.seconds is None else known.seconds
            # This compiler and its options may differ from those that the costs are known of.
            correction = 1.0
            if len(self._ratios) >= COMPARED:
                correction = _quantile(self._ratios, CORRECTION_QUANTILE)
            return MeasuredNeed(int(known.peak * correction), seconds)
        in_folder, in_family = _kinds(description)
        for kind, enough in ((in_folder, NEIGHBOURS), (in_family, RELATIVES)):
            needs = self._needs[kind]
            if len(needs) >= enough:
                peak = _quantile([need.peak for need in needs], USUAL)
                seconds = _quantile([need.seconds for need in needs], MEDIAN)
                return MeasuredNeed(int(peak), seconds)
        return usual

    def _find_known_cost(self, description: UnitDescription) -> KnownCost | None:
        path = f"/{description.source}"
        for pattern, cost in self._known:
            if pattern.match(path):
                return cost
        return None


def expect_again(unit: Unit, had: int) -> Unit:
    """Return the expectations of the next run of a unit that was ended when it had `had` bytes."""
    return replace(unit, peak=max(unit.peak, int(MORE * had)))


def _kinds(description: UnitDescription) -> tuple[UnitKind, UnitKind]:
    """Return the two kinds of a unit: its family in its folder, and its family anywhere."""
    folder = str(PurePosixPath(description.source).parent)
    return UnitKind(description.family, folder), UnitKind(description.family, "")


def _quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]
