"""The timeline of a build: records of the guard for progress line, manifest and report.

The guard writes each record as one line of JSON, to the timeline's file and to the process that
started it. Records are about units, each of which is one compile or link, and about moments, at which
the guard has measured the memory.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields

from millguard.quantities import format_bytes
from millguard.strict_json import parse_object

SUFFIX = ".timeline.jsonl"  # in place of the log's
MOMENT_SECONDS = 0.25  # that a written moment stands for, at least
# In a file, a written moment stands for at least this share of the time since the start of the build:
# it is finer than the columns of any screen.
MOMENT_SHARE = 1 / 2000
EVENTS_KEPT = 5  # the latest events of a build that is watched
_MOST = 2**63  # above all seconds and bytes


@dataclass(frozen=True, slots=True)
class TimelineMoment:
    """The state of a build at one moment: seconds since its start, bytes, numbers of units."""

    at: float
    used: int  # by the units that run or are paused
    allowed: int  # for all units: their own use, and the available memory; 0: unknown
    running: int  # without the paused units
    waiting: int  # that have asked to start
    paused: int
    cores: float = 0.0  # processors that may be busy
    # Seconds so far in which units waited for memory although a processor was free.
    short: float = 0.0


@dataclass(frozen=True, slots=True)
class UnitRun:
    """One run of a unit: seconds since the start of the build, bytes."""

    key: str
    family: str  # "c", "c++", "cuda", "fortran", "rust", "link"
    begun: float
    ended: float
    peak: int
    expected: int
    outcome: str  # "done", "failed", "ended" (by the guard), "killed" (by the kernel)
    measured: bool = False  # `expected` is from an earlier run of this unit, not from its family

    @property
    def seconds(self) -> float:
        """Return how long it ran."""
        return self.ended - self.begun


@dataclass(frozen=True, slots=True)
class UnitStart:
    """The start of a unit's run: seconds since the start of the build, bytes."""

    at: float
    key: str
    expected: int


@dataclass(frozen=True, slots=True)
class TimelineEvent:
    """An event of a unit, or of a file that the guard writes."""

    at: float
    kind: str  # "pause", "resume", "rerun", "kill", "alone", "too large", "gave up"
    key: str  # "" for a file that cannot be written: "no timeline", "no history"
    text: str = ""  # for people: "needed 5.1 GiB, 4.0 GiB are allowed"


Record = TimelineMoment | UnitStart | UnitRun | TimelineEvent
_KINDS: Mapping[str, type[Record]] = {
    "moment": TimelineMoment,
    "began": UnitStart,
    "ran": UnitRun,
    "event": TimelineEvent,
}
_NAMES = {kind: name for name, kind in _KINDS.items()}
_FIELDS = {kind: tuple(field.name for field in fields(kind)) for kind in _NAMES}


def format_record(record: Record) -> str:
    """Return a record as one line of JSON, without a newline; times to the millisecond."""
    values: dict[str, object] = {"record": _NAMES[type(record)]}
    # Not dataclasses.asdict, which copies deeply: 18 microseconds in place of 1 for a moment, and
    # several records are written for each compile.
    for name in _FIELDS[type(record)]:
        value = getattr(record, name)
        values[name] = round(value, 3) if isinstance(value, float) else value
    return json.dumps(values, separators=(",", ":"))


def parse_record(line: str | bytes) -> Record:
    """Return the record in a line. Raises ValueError if it has none."""
    try:
        values = parse_object(line)
        kind = _KINDS[values.pop("record")]
        record = kind(**values)
    except (KeyError, TypeError) as error:
        raise ValueError(f"no record of a timeline: {error}") from None
    for record_field in fields(kind):
        value = getattr(record, record_field.name)
        # JSON has no difference between 1 and 1.0. A bool is an int for isinstance, but not here.
        types = {float, int} if record_field.type is float else {record_field.type}
        is_wrong = type(value) not in types
        if is_wrong or (not isinstance(value, str) and abs(value) >= _MOST):
            raise ValueError(f"no record of a timeline: {record_field.name} is {value!r}")
    return record


class TimelineWriter:
    """Write records as lines, moments ever more rarely, so that no timeline grows large.

    A written moment stands for MOMENT_SECONDS, or for a `share` of the elapsed time if that is
    longer. It is the moment of that time with the least memory left. Six hours fill about 9500
    lines, 1.2 MB.
    """

    def __init__(self, write_text: Callable[[str], object], share: float = 0.0) -> None:
        self._write_text = write_text
        self._share = share
        self._due = 0.0  # seconds since the start of the build
        self._tightest: TimelineMoment | None = None

    def write(self, record: Record) -> None:
        """Write a record: a moment if one is due, any other at once."""
        if not isinstance(record, TimelineMoment):
            self._write_text(f"{format_record(record)}\n")
            return
        tightest = self._tightest
        memory_left = record.allowed - record.used
        if tightest is None or memory_left < tightest.allowed - tightest.used:
            self._tightest = record
        if record.at >= self._due:
            self._due = record.at + max(MOMENT_SECONDS, record.at * self._share)
            self.finish()

    def finish(self) -> None:
        """Write the moment that is not written yet; the file stays open."""
        moment = self._tightest
        self._tightest = None  # also if writing fails
        if moment is not None:
            self._write_text(f"{format_record(moment)}\n")


@dataclass(slots=True)
class BuildAccount:
    """The work of the guard for one build so far, summed up from its records."""

    now: TimelineMoment = TimelineMoment(0.0, 0, 0, 0, 0, 0)
    peak: int = 0  # bytes, of all units together
    units: int = 0  # runs that ended by themselves
    counts: dict[str, int] = field(default_factory=dict)  # events by kind
    # Units that failed too often to be run again.
    gave_up: list[TimelineEvent] = field(default_factory=list)

    def add(self, record: Record) -> None:
        """Enter a record."""
        match record:
            case TimelineMoment():
                self.now = record
                self.peak = max(self.peak, record.used)
            case UnitRun():
                if record.outcome in {"done", "failed"}:
                    self.units += 1
                # A short unit may run between two moments.
                self.peak = max(self.peak, record.peak)
            case TimelineEvent():
                self.counts[record.kind] = self.counts.get(record.kind, 0) + 1
                if record.kind == "gave up":
                    self.gave_up.append(record)

    def summary(self) -> str:
        """Return the work of the guard in one line."""
        noun = "compile or link" if self.units == 1 else "compiles and links"
        parts = [
            f"the guard scheduled {self.units} {noun}",
            f"at most {format_bytes(self.peak)} of memory at a time",
        ]
        verbs = {
            "pause": "paused",
            "rerun": "ended to run again",
            "kill": "killed for want of memory",
        }
        for kind, verb in verbs.items():
            if kind in self.counts:
                parts.append(f"{self.counts[kind]} {verb}")
        return ", ".join(parts)


@dataclass(slots=True)
class LiveBuild:
    """The state of a build while it runs, by the records that were read so far."""

    account: BuildAccount = field(default_factory=BuildAccount)
    running: list[UnitStart] = field(default_factory=list)  # in the order of their starts
    paused: set[str] = field(default_factory=set)  # keys of units
    latest_events: list[TimelineEvent] = field(default_factory=list)
    failed: int = 0  # units

    def add(self, record: Record) -> None:
        """Enter a record."""
        self.account.add(record)
        match record:
            case UnitStart():
                self.running.append(record)
            case UnitRun():
                self._take_off(record)
                if record.outcome == "failed":
                    self.failed += 1
            case TimelineEvent(kind="pause"):
                self.paused.add(record.key)
            case TimelineEvent(kind="resume"):
                self.paused.discard(record.key)
        if isinstance(record, TimelineEvent):
            self.latest_events = [*self.latest_events, record][-EVENTS_KEPT:]

    def _take_off(self, run: UnitRun) -> None:
        """Take a unit that has ended off the running and the paused ones.

        Two units may have one key, such as two projects that compile the same source. The start that
        is nearest to the recorded one is taken off: times in records are rounded.
        """
        self.paused.discard(run.key)
        starts = [start for start in self.running if start.key == run.key]
        if starts:
            self.running.remove(min(starts, key=lambda start: abs(start.at - run.begun)))
