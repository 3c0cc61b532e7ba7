"""How much memory and time a unit is expected to need: its history, facts, and what similar units needed."""

import contextlib
import re
import sqlite3
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from fnmatch import translate
from pathlib import Path, PurePosixPath

from millguard.costs import KnownCost
from millguard.policy import MIB, Unit
from millguard.units import UnitDescription

_BUSY_TIMEOUT_SECONDS = 1.0  # seconds for which another build's writing is waited for
_KEPT_SHARE = 0.9  # of a larger peak that was measured before
_COLUMNS = "key TEXT PRIMARY KEY, peak INTEGER, seconds REAL, half REAL"
USUAL = 0.75  # of the units of a kind need no more than what is expected of the next one
NEIGHBOURS = 2  # in a folder, after which they tell more than the whole family does
RELATIVES = 4  # of a family, after which this build tells more than the table below
COMPARED = 5  # units of units.toml, after which this build corrects the others
MORE = 1.5  # of what a unit had when it was ended: what it is expected to need when it runs again


@dataclass(frozen=True, slots=True)
class MeasuredNeed:
    """What a unit needed."""

    peak: int  # bytes
    seconds: float  # that it ran
    half: float = 0.0  # share of them after which it had half of its peak; 0: not known


class NeedHistory:
    """The units that were measured, by key.

    A file that is broken is started anew; one that cannot be read or written costs what was learned, never the build.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._new: dict[str, MeasuredNeed] = {}
        try:
            with self._connect() as base:
                rows = base.execute("SELECT key, peak, seconds, half FROM needs")
                self._known = {key: MeasuredNeed(*need) for key, *need in rows}
        except (sqlite3.Error, OSError) as error:
            self._known = {}
            # it is no database, or one of another shape; one that is busy has its own error
            if type(error) is sqlite3.DatabaseError or "no such column" in str(error):
                with contextlib.suppress(OSError):
                    file.unlink()

    def find(self, key: str) -> MeasuredNeed | None:
        """Return what a unit needed; None where it never ran."""
        return self._known.get(key)

    def learn(self, key: str, need: MeasuredNeed) -> None:
        """Take note of what a unit needed just now.

        Of a peak that was larger before a tenth is forgotten: what happened once may happen again.
        """
        before = self._known.get(key)
        if before is not None:
            kept = int(_KEPT_SHARE * before.peak + (1 - _KEPT_SHARE) * need.peak)
            half = min(
                filter(None, (before.half, need.half)), default=0.0
            )  # the steeper of what was seen
            need = MeasuredNeed(max(need.peak, kept), (before.seconds + need.seconds) / 2, half)
        self._known[key] = self._new[key] = need

    def save(self) -> str | None:
        """Write what was learned since the last time.

        Return None, or why it could not be written: it is then kept for the next time.
        """
        if not self._new:
            return None
        rows = [(key, need.peak, need.seconds, need.half) for key, need in self._new.items()]
        try:
            with self._connect() as base:
                base.executemany("INSERT OR REPLACE INTO needs VALUES (?, ?, ?, ?)", rows)
        except (sqlite3.Error, OSError) as error:
            return str(error)
        self._new.clear()
        return None

    @contextlib.contextmanager
    def _connect(self) -> Iterator[sqlite3.Connection]:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with (
            contextlib.closing(sqlite3.connect(self._file, timeout=_BUSY_TIMEOUT_SECONDS)) as base,
            base,
        ):
            base.execute(f"CREATE TABLE IF NOT EXISTS needs ({_COLUMNS}) WITHOUT ROWID")
            yield base


# C and C++: of torch 1.13.1 with gcc 12, nine of ten compiles that units.toml does not name. CUDA: between
# what torch's ordinary kernels take and flash attention's. A link holds what it writes, and the symbols.
FAMILIES = {
    "c": MeasuredNeed(150 * MIB, 2.0),
    "c++": MeasuredNeed(650 * MIB, 7.0),
    "cuda": MeasuredNeed(2048 * MIB, 60.0),
    "link": MeasuredNeed(512 * MIB, 5.0),
}


class UnitExpectations:
    """What is expected of the units of one build; it grows with what they show."""

    def __init__(self, history: NeedHistory, known: Sequence[KnownCost]) -> None:
        self._history = history
        self._facts = [(re.compile(f".*/{translate(one.pattern)}"), one) for one in known]
        # what units of each kind needed in this build, for each processor that they kept busy
        self._shown: dict[tuple[str, str], list[MeasuredNeed]] = defaultdict(list)
        self._ratios: list[float] = []  # of what was needed to what units.toml says

    def expect(self, description: UnitDescription) -> Unit:
        """Return what a unit is expected to need."""
        key, weight = description.key, description.weight
        if (need := self._history.find(key)) is not None:
            return Unit(key, need.peak, need.seconds, weight, measured=True, half=need.half)
        need = self._guess(description)
        return Unit(key, int(need.peak * max(1.0, weight)), need.seconds, weight, half=need.half)

    def learn(
        self, description: UnitDescription, peak: int, seconds: float, half: float = 0.0
    ) -> None:
        """Take note of a unit that came to its end.

        `peak` in bytes, `seconds` that it was not paused; it had half of the peak after the share `half` of
        them, 0 where nobody saw.
        """
        self._history.learn(description.key, MeasuredNeed(peak, seconds, half))
        each = int(peak / max(1.0, description.weight))
        if (known := self._matching_fact(description)) is not None:
            self._ratios.append(each / known.peak)
            return
        for kind in _kinds(description):
            self._shown[kind].append(MeasuredNeed(each, seconds))

    def _guess(self, description: UnitDescription) -> MeasuredNeed:
        default = FAMILIES.get(description.family, FAMILIES["c++"])
        if (known := self._matching_fact(description)) is not None:
            seconds = default.seconds if known.seconds is None else known.seconds
            # by how much this compiler and its options differ from those that units.toml is of
            correction = _quantile(self._ratios, 0.9) if len(self._ratios) >= COMPARED else 1.0
            return MeasuredNeed(int(known.peak * correction), seconds)
        for kind, enough in zip(_kinds(description), (NEIGHBOURS, RELATIVES), strict=True):
            if len(shown := self._shown[kind]) >= enough:
                peak = _quantile([one.peak for one in shown], USUAL)
                return MeasuredNeed(int(peak), _quantile([one.seconds for one in shown], 0.5))
        return default

    def _matching_fact(self, description: UnitDescription) -> KnownCost | None:
        path = f"/{description.source}"
        return next((one for pattern, one in self._facts if pattern.match(path)), None)


def expect_again(unit: Unit, had: int) -> Unit:
    """Return what is expected of a unit that was ended when it had so many bytes."""
    return replace(unit, peak=max(unit.peak, int(MORE * had)))


def _kinds(description: UnitDescription) -> tuple[tuple[str, str], tuple[str, str]]:
    """Return of which kinds a unit is: of its family in its folder, and of its family."""
    return (description.family, str(PurePosixPath(description.source).parent)), (
        description.family,
        "",
    )


def _quantile(values: Sequence[float], share: float) -> float:
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]
