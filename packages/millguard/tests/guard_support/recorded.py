"""Timelines of builds that never ran."""

from collections.abc import Iterable
from pathlib import Path

from millguard.timeline import (
    MOMENT_SHARE,
    Record,
    TimelineEvent,
    TimelineMoment,
    TimelineWriter,
    UnitRun,
)

GIB = 2**30


def ran(  # noqa: PLR0917 - what tests differ in
    name: str,
    begun: float,
    ended: float,
    peak: int = GIB,
    expected: int = GIB,
    outcome: str = "done",
    family: str = "c++",
) -> UnitRun:
    """Return one run of a unit."""
    return UnitRun(f"g++|{name}|-O2", family, begun, ended, peak, expected, outcome)


def moment(at: float, used: float = 1, allowed: float = 4, **more: float) -> TimelineMoment:
    """Return a look at a build; memory in GiB."""
    fields = {"running": 2, "waiting": 3, "paused": 0, "cores": 2.0, "short": 0.0} | more
    return TimelineMoment(at, int(used * GIB), int(allowed * GIB), **fields)  # type: ignore[arg-type]


def small() -> list[Record]:
    """Return what a guard says of a build of three units in 20 s."""
    return [
        moment(0, used=0.5),
        TimelineEvent(4.0, "pause", "g++|b.cpp|-O2"),
        moment(4, used=3.9, running=1, paused=1, short=1.0),
        TimelineEvent(6.0, "resume", "g++|b.cpp|-O2"),
        ran("a.cpp", 0.0, 8.0, peak=2 * GIB),
        TimelineEvent(9.0, "rerun", "g++|b.cpp|-O2"),
        ran("b.cpp", 1.0, 9.0, outcome="ended"),
        moment(9, used=2, running=0, waiting=1, short=2.5),
        ran("b.cpp", 9.5, 18.5, peak=3 * GIB),
        ran("lib.so", 18.5, 20.0, outcome="failed", family="link"),
        moment(20, used=0, running=0, waiting=0, short=2.5),
    ]


def write(path: Path, records: Iterable[Record]) -> Path:
    """Write a timeline as the guard does."""
    with path.open("w", encoding="utf-8") as file:
        pen = TimelineWriter(file.write, MOMENT_SHARE)
        for record in records:
            pen.write(record)
        pen.finish()
    return path
