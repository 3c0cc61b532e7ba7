"""The timeline of a build: records written by the guard, read by progress line, manifest and report.

The guard's process writes each record as one line of JSON, to the timeline's file and to whoever started it.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields

from millguard.quantities import format_bytes
from millguard.strict_json import parse_object

SUFFIX = ".timeline.jsonl"  # in place of the log's
MOMENT_SECONDS = 0.25  # seconds that a written moment stands for, at least
_MOST = 2**63  # above all seconds and bytes
MOMENT_SHARE = 1 / 2000  # of the time so far that it stands for in a file: finer than any screen


@dataclass(frozen=True, slots=True)
class TimelineMoment:
    """One look at a build: seconds since its start, bytes, numbers of units."""

    at: float
    used: int  # by the units that run or are paused
    allowed: int  # that all units together may have: what they use, and what is still available; 0: not known
    running: int  # without the paused
    waiting: int
    paused: int
    cores: float = 0.0  # processors that may be busy
    short: float = (
        0.0  # seconds so far in which memory kept units waiting, and a processor was free
    )


@dataclass(frozen=True, slots=True)
class UnitRun:
    """One run of a unit: seconds since the start of the build, bytes."""

    key: str
    family: str  # "c", "c++", "cuda", "link"
    begun: float
    ended: float
    peak: int
    expected: int
    outcome: str  # "done", "failed", "ended" (by the guard), "killed" (by the kernel)
    measured: bool = (
        False  # what was expected is what the unit took before; else what its kind is known for
    )

    @property
    def seconds(self) -> float:
        """Return how long it ran."""
        return self.ended - self.begun


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """Something that happened to a unit, or to what the guard writes."""

    at: float
    kind: str  # "pause", "resume", "rerun", "kill", "alone", "too large", "gave up"
    key: str  # "" where it is a file that cannot be written: "no timeline", "no history"
    text: str = ""  # for people: "needed 5.1 GiB, 4.0 GiB are allowed"


Record = TimelineMoment | UnitRun | TimelineEvent
_KINDS: Mapping[str, type[Record]] = {
    "moment": TimelineMoment,
    "ran": UnitRun,
    "event": TimelineEvent,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}


def format_record(record: Record) -> str:
    """Return a record as one line of JSON; times to the millisecond."""
    values = {
        name: round(value, 3) if isinstance(value, float) else value
        for name, value in asdict(record).items()
    }
    return json.dumps({"record": _NAMES[type(record)], **values}, separators=(",", ":"))


def parse_record(line: str | bytes) -> Record:
    """Return the record in a line. Raises ValueError where it holds none."""
    try:
        values = parse_object(line)
        kind = _KINDS[values.pop("record")]
        record = kind(**values)
    except (KeyError, TypeError) as error:
        raise ValueError(f"no record of a timeline: {error}") from None
    for one in fields(kind):
        value = getattr(record, one.name)
        fits = {float, int} if one.type is float else {one.type}
        if type(value) not in fits or (not isinstance(value, str) and abs(value) >= _MOST):
            raise ValueError(f"no record of a timeline: {one.name} is {value!r}")
    return record


class TimelineWriter:
    """Write records as lines, of all moments ever fewer, so that no build's timeline grows large.

    A moment that is written stands for MOMENT_SECONDS, or for a `share` of the time so far where that is
    longer, and is the one of them with the least memory left. Six hours fill about 9500 lines, 1.2 MB.
    """

    def __init__(self, put: Callable[[str], object], share: float = 0.0) -> None:
        self._put, self._share = put, share
        self._due = 0.0
        self._tightest: TimelineMoment | None = None

    def write(self, record: Record) -> None:
        """Write a record, at once; a moment, if it is time for one."""
        if not isinstance(record, TimelineMoment):
            self._put(f"{format_record(record)}\n")
            return
        held = self._tightest
        if held is None or record.allowed - record.used < held.allowed - held.used:
            self._tightest = record
        if record.at >= self._due:
            self._due = record.at + max(MOMENT_SECONDS, record.at * self._share)
            self.finish()

    def finish(self) -> None:
        """Write the moment that is held back; the file stays open."""
        held, self._tightest = self._tightest, None
        if held is not None:
            self._put(f"{format_record(held)}\n")


@dataclass(slots=True)
class BuildAccount:
    """What the guard has done so far for one build."""

    now: TimelineMoment = TimelineMoment(0.0, 0, 0, 0, 0, 0)
    peak: int = 0  # bytes, of all units together
    units: int = 0  # runs that came to their own end
    counts: dict[str, int] = field(default_factory=dict)  # events by kind
    gave_up: list[TimelineEvent] = field(
        default_factory=list
    )  # units whose failure was believed at last

    def add(self, record: Record) -> None:
        """Enter a record."""
        match record:
            case TimelineMoment():
                self.now = record
                self.peak = max(self.peak, record.used)
            case UnitRun():
                self.units += record.outcome in {"done", "failed"}
                self.peak = max(self.peak, record.peak)  # one that came and went between two looks
            case TimelineEvent():
                self.counts[record.kind] = self.counts.get(record.kind, 0) + 1
                if record.kind == "gave up":
                    self.gave_up.append(record)

    def summary(self) -> str:
        """Return what the guard saw and did, in one line."""
        words = {
            "pause": "paused",
            "rerun": "ended to run again",
            "kill": "killed for want of memory",
        }
        did = [f"{self.counts[kind]} {word}" for kind, word in words.items() if kind in self.counts]
        used = f"at most {format_bytes(self.peak)} of memory at a time"
        what = "compile or link" if self.units == 1 else "compiles and links"
        return ", ".join([f"the guard scheduled {self.units} {what}", used, *did])
