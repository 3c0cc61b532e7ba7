"""A recording in words: its sums, and the units that stand out."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torchmill.buildline import duration
from torchmill.console import table
from torchmill.guard.timeline import Event, Ran
from torchmill.guard.units import title
from torchmill.quantity import format_bytes, format_share
from torchmill.report.figures import Totals, largest, longest, misjudged, totals
from torchmill.report.recording import Recording

SHOWN = 10  # units of each list
DEEDS = {  # of the guard, by the kind of event
    "pause": "paused",
    "rerun": "ended and run again",
    "kill": "killed by the kernel and run again",
    "alone": "built alone",
    "too large": "larger than what is allowed",
    "gave up": "given up",
}


def summary(recording: Recording) -> str:
    """Return what a person wants to know of a build."""
    sums = totals(recording)
    lines = [f"{recording.name}: {headline(sums)}"]
    lines += [f"  {line}" for line in _sums(sums)]
    lines += [f"  {line}" for line in _told(recording.events)]
    lines += [f"  note: {note}" for note in recording.notes]
    for heading, runs in (
        ("the longest", longest(recording, SHOWN)),
        ("the largest", largest(recording, SHOWN)),
        ("farthest from what was expected", misjudged(recording, SHOWN)),
    ):
        if runs:
            lines += ["", heading, *(f"  {line}" for line in _listed(runs))]
    return "\n".join(lines)


def headline(sums: Totals) -> str:
    """Return how much was built in what time."""
    units = f"{sums.units} unit" if sums.units == 1 else f"{sums.units} units"
    failed = f", {sums.failed} failed" if sums.failed else ""
    return f"{units} in {duration(sums.wall)}{failed}, {sums.together:.1f} at a time on the average"


def _sums(sums: Totals) -> Iterator[str]:
    if sums.peak is not None:
        share = format_share(sums.peak.used, sums.peak.allowed)
        yield f"memory: at most {share}, at {duration(sums.peak.at)}"
    if sums.short:
        yield f"waiting for memory while a processor was free: {duration(sums.short)}"
    deeds = [f"{sums.events[kind]} {deed}" for kind, deed in DEEDS.items() if sums.events[kind]]
    yield f"units: {', '.join(deeds)}" if deeds else "no unit was paused, ended or killed"
    if sums.lost:
        yield f"work thrown away: {duration(sums.lost)}"


def _told(events: Sequence[Event]) -> list[str]:
    """Return what events say beyond that they happened, a few of them."""
    telling = [one for one in events if one.text]
    lines = [": ".join(filter(None, (one.kind, title(one.key), one.text))) for one in telling[:SHOWN]]
    more = len(telling) - len(lines)
    return [*lines, f"… and {more} more"] if more else lines


def _listed(runs: Sequence[Ran]) -> list[str]:
    headers = ("time", "memory", "expected", "by", "unit")
    rows = [
        (
            duration(one.seconds),
            format_bytes(one.peak),
            format_bytes(one.expected),
            "its last run" if one.measured else "its kind",
            title(one.key) if one.outcome == "done" else f"{title(one.key)} ({one.outcome})",
        )
        for one in runs
    ]
    return table(headers, rows).splitlines()
