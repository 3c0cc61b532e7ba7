"""Report on a recorded run: the slow units, the big ones, and the waits; text, picture or page.

A unit is one compile or link.
"""

import html
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from millguard import drawing
from millguard.atomic_files import fresh_path
from millguard.quantities import format_bytes, format_clock, printable
from millguard.recorded_runs import RecordedRun
from millguard.replay import allowed_memory, finished_units
from millguard.timeline import BuildAccount, TimelineEvent, TimelineMoment, UnitRun
from millguard.units import unit_title
from millguard.usage import UsageError

SUFFIXES = (".txt", ".html", ".svg")
LISTED = 12  # units, or waits, in each list
_PAGE = Path(__file__).with_name("page.html")
# The events of a timeline that a user should know of, as the end of a sentence about the unit.
_EVENTS = {
    "pause": "was paused, because memory ran short",
    "rerun": "was ended and ran again later, because memory ran short",
    "kill": "was killed by the kernel, and ran again alone",
    "too large": "took more than there was for all compilers",
    "gave up": "failed: it was killed even while it ran alone",
}


@dataclass(frozen=True, slots=True)
class Wait:
    """A time in which compilers waited for memory although a processor was free."""

    begun: float  # seconds since the start of the build
    ended: float
    waiting: int  # the most compilers that waited at a time
    used: int  # bytes of the compilers that ran
    allowed: int  # bytes that all compilers could have together


def check_target(target: Path) -> None:
    """Check that a report can be written before hours are spent. Raises UsageError."""
    if target.suffix not in SUFFIXES:
        raise UsageError(f"--report: {target} should end with {', '.join(SUFFIXES)}")
    folder = target.absolute().parent
    if not folder.is_dir() or not os.access(folder, os.W_OK):
        raise UsageError(f"--report: {folder} is not a folder that can be written")
    if target.is_dir():
        raise UsageError(f"--report: {target} is a folder")


def write_report(run: RecordedRun, target: Path) -> None:
    """Write the report on a run, of the kind that the name of `target` ends with. Raises OSError."""
    if target.suffix == ".html":
        text = render_page(run)
    elif target.suffix == ".svg":
        text = drawing.draw_run_alone(run)
    else:
        text = render_text(run)
    with fresh_path(target) as fresh:
        fresh.write_text(text, encoding="utf-8", errors="backslashreplace")
        fresh.replace(target)


def render_text(run: RecordedRun) -> str:
    """Return the report as plain text."""
    units = finished_units(run.records)
    lines = [*headlines(run), ""]
    if units:
        lines += ["The slowest:", *_table(slowest(units)), ""]
        lines += ["The biggest:", *_table(biggest(units)), ""]
    lines += ["What waited:", *(f"  {line}" for line in wait_lines(run)), ""]
    events = event_lines(run)
    if events:
        lines += ["What the guard did:", *(f"  {line}" for line in events), ""]
    return "\n".join(printable(line) for line in lines)


def render_page(run: RecordedRun) -> str:
    """Return the report as a page of HTML that needs nothing beside it."""
    units = finished_units(run.records)
    sections = [
        ("What waited", _items(wait_lines(run))),
        ("What the guard did", _items(event_lines(run) or ["Nothing had to be paused or ended."])),
        ("The slowest", _rows(slowest(units))),
        ("The biggest", _rows(biggest(units))),
    ]
    body = "".join(f"<section><h2>{title}</h2>{text}</section>" for title, text in sections)
    values = {
        "title": html.escape(printable(run.record.title)),
        "headlines": _items(headlines(run)),
        "picture": drawing.draw_run(run),
        "sections": body,
    }
    # All at once: a command may hold the text "@sections@" itself.
    template = _PAGE.read_text(encoding="utf-8")
    return re.sub(r"@(\w+)@", lambda match: values[match[1]], template)


def headlines(run: RecordedRun) -> list[str]:
    """Return the command, its end, the work of the guard and unguarded compilers, in lines."""
    record = run.record
    account = BuildAccount()
    for entry in run.records:
        account.add(entry)
    verdict = "succeeded" if record.exit_code == 0 else f"failed with exit code {record.exit_code}"
    allowed = allowed_memory(run.records)
    ending = f"{verdict} after {format_clock(record.seconds)}; began {record.began}"
    summary = account.summary() + (f" of {format_bytes(allowed)}" if allowed else "")
    lines = [record.title, f"{ending}, {record.cores} processors", summary]
    for starter, count in sorted(record.unguarded.items()):
        lines.append(f"at least {count} compilers started by {starter} were not guarded")
    return lines


def slowest(units: Sequence[UnitRun]) -> list[UnitRun]:
    """Return the units that took longest, at most LISTED of them."""
    return sorted(units, key=lambda unit: -unit.seconds)[:LISTED]


def biggest(units: Sequence[UnitRun]) -> list[UnitRun]:
    """Return the units that needed most memory, at most LISTED of them."""
    return sorted(units, key=lambda unit: -unit.peak)[:LISTED]


def find_waits(run: RecordedRun) -> list[Wait]:
    """Return the times in which compilers waited for memory, in their order.

    `short` of a moment counts the seconds of such waits up to it, so that they lie between two
    moments if it has grown. Times that follow each other are one wait.
    """
    waits: list[Wait] = []
    previous: TimelineMoment | None = None
    was_short = False
    for moment in run.records:
        if not isinstance(moment, TimelineMoment):
            continue
        is_short = previous is not None and moment.short > previous.short
        if is_short and previous is not None:
            waiting = max(moment.waiting, previous.waiting)
            if was_short:
                last = waits.pop()
                waiting = max(last.waiting, waiting)
                begun = last.begun
            else:
                begun = previous.at
            waits.append(Wait(begun, moment.at, waiting, previous.used, previous.allowed))
        was_short = is_short
        previous = moment
    return waits


def wait_lines(run: RecordedRun) -> list[str]:
    """Return a line on all waits together, and one for each of the longest, in their order."""
    waits = find_waits(run)
    if not waits:
        return ["No compiler waited for memory."]
    total = sum(wait.ended - wait.begun for wait in waits)
    lines = [f"For {format_clock(total)} in all, memory kept a processor idle."]
    longest = sorted(waits, key=lambda wait: wait.begun - wait.ended)[:LISTED]
    for wait in sorted(longest, key=lambda wait: wait.begun):
        compilers = "1 compiler" if wait.waiting == 1 else f"{wait.waiting} compilers"
        lines.append(
            f"{format_clock(wait.begun)} to {format_clock(wait.ended)}: {compilers} waited, since "
            f"those that ran had {format_bytes(wait.used)} of {format_bytes(wait.allowed)} and "
            "were expected to take more"
        )
    return lines


def event_lines(run: RecordedRun) -> list[str]:
    """Return a line for each time that the guard had to act."""
    lines = []
    for event in run.records:
        if isinstance(event, TimelineEvent) and event.kind in _EVENTS:
            detail = f" ({event.text})" if event.text else ""
            name = unit_title(event.key)
            lines.append(f"{format_clock(event.at)}: {name} {_EVENTS[event.kind]}{detail}")
    return lines


def _table(units: Sequence[UnitRun]) -> list[str]:
    lines = []
    for unit in units:
        seconds = f"{unit.seconds:.1f} s"
        lines.append(f"  {seconds:>10} {format_bytes(unit.peak):>10}  {unit_title(unit.key)}")
    return lines


def _rows(units: Sequence[UnitRun]) -> str:
    rows = []
    for unit in units:
        name = html.escape(printable(unit_title(unit.key)))
        rows.append(
            f"<tr><td>{unit.seconds:.1f} s</td><td>{format_bytes(unit.peak)}</td><td>{name}</td></tr>"
        )
    return f"<table><tr><th>time</th><th>memory</th><th>file</th></tr>{''.join(rows)}</table>"


def _items(lines: Sequence[str]) -> str:
    items = "".join(f"<li>{html.escape(printable(line))}</li>" for line in lines)
    return f"<ul>{items}</ul>"
