"""Draw a recorded run as SVG: the memory, and each unit as a bar with a title that browsers show.

A unit is one compile or link. Units that run at the same time lie in different lanes, one below the
other. Lengths are units of the picture's own coordinates, which a page scales to its width.
"""

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from millguard.quantities import format_bytes, format_clock, printable
from millguard.recorded_runs import RecordedRun
from millguard.replay import allowed_memory
from millguard.timeline import Record, TimelineEvent, TimelineMoment, UnitRun
from millguard.units import unit_title

WIDTH, MEMORY_HEIGHT, LANE_HEIGHT, MARGIN = 960, 220, 9, 54
MOST_LANES = 40
# A browser takes long for more elements: of a long build only the longest units are drawn.
MOST_BARS = 6000
_TOP = 24  # for the label above the memory
_GAP = 36  # between the memory and the lanes, for marks of events and a label
_BOTTOM = 30  # for the times below the lanes
_MOST_TICKS = 6  # times on the axis
_MOST_POINTS = 1200  # of the memory's outline: more than WIDTH has no effect
_COLOURS = {
    "c": "#7a9cc6",
    "c++": "#3b6ea5",
    "cuda": "#5a9e4b",
    "link": "#b07aa1",
    "rust": "#c47a3d",
}
_CUT_SHORT_COLOUR = "#d1495b"  # of a unit that the guard ended, or the kernel killed
_EVENT_COLOURS = {"pause": "#e09f3e", "rerun": _CUT_SHORT_COLOUR, "kill": "#9e2a2b"}
_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800)


@dataclass(frozen=True, slots=True)
class _Scale:
    """The places of seconds and bytes in the picture."""

    seconds: float
    highest: float  # bytes at the top

    def x(self, at: float) -> float:
        return round(MARGIN + (WIDTH - 2 * MARGIN) * min(1.0, max(0.0, at / self.seconds)), 1)

    def y(self, used: float) -> float:
        return round(_TOP + MEMORY_HEIGHT * (1 - min(1.0, max(0.0, used / self.highest))), 1)


def draw_run(run: RecordedRun) -> str:
    """Return the picture of a run as an SVG document."""
    return draw_records(run.record.title, run.records)


def draw_run_alone(run: RecordedRun) -> str:
    """Return the picture of a run for a file of its own, with dark text on white.

    Else text and background would be those of the page that shows the picture, which may be dark.
    """
    head, newline, rest = draw_run(run).partition("\n")
    background = '<rect width="100%" height="100%" fill="#fff"/>'
    return f'{head.removesuffix(">")} color="#222">{newline}{background}{newline}{rest}'


def draw_records(title: str, records: Sequence[Record]) -> str:
    """Return the picture of a build's records as an SVG document with a title."""
    moments = [record for record in records if isinstance(record, TimelineMoment)]
    units = [record for record in records if isinstance(record, UnitRun)]
    events = [record for record in records if isinstance(record, TimelineEvent)]
    ends = [*(moment.at for moment in moments), *(unit.ended for unit in units), 1.0]
    peak = max((moment.used for moment in moments), default=0)
    allowed = allowed_memory(records)
    # A limit far above what was used would press the curve flat. Units may have used more than the
    # limit, if others took the machine's memory meanwhile.
    highest = max(allowed, peak) if 0 < allowed < 4 * peak else max(peak, 1) * 1.25
    scale = _Scale(max(ends), highest)
    lanes = _assign_lanes(units)
    lane_count = max(lanes.values(), default=0) + 1
    height = _TOP + MEMORY_HEIGHT + _GAP + LANE_HEIGHT * lane_count + _BOTTOM
    parts = [
        (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" '
            'font-family="sans-serif" font-size="11" role="img">'
        ),
        f"<title>{_escape(title)}</title>",
        *_memory_area(moments, scale, allowed),
        *_event_marks(events, scale),
        *_unit_bars(units, lanes, scale),
        *_time_axis(scale, height),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _memory_area(moments: Sequence[TimelineMoment], scale: _Scale, allowed: int) -> Iterator[str]:
    """Yield the picture of the memory; `allowed` is the most that all units could have at any time."""
    for share in (0.0, 0.5, 1.0):
        y = scale.y(share * scale.highest)
        yield f'<line x1="{MARGIN}" x2="{WIDTH - MARGIN}" y1="{y}" y2="{y}" stroke="#8883"/>'
        label = format_bytes(share * scale.highest)
        yield f'<text x="{MARGIN - 4}" y="{y + 4}" text-anchor="end" fill="currentColor">{label}</text>'
    points = [f"{scale.x(moment.at)},{scale.y(moment.used)}" for moment in _thinned(moments, scale)]
    if points:
        floor = scale.y(0)
        first, last = points[0].split(",")[0], points[-1].split(",")[0]
        outline = f"{first},{floor} {' '.join(points)} {last},{floor}"
        yield f'<polygon points="{outline}" fill="#3b6ea566" stroke="#3b6ea5"/>'
    label = "memory of all compilers"
    if 0 < allowed <= scale.highest:
        # Every fifth moment is enough: the limit changes slowly.
        sampled = [*moments[:-1:5], *moments[-1:]]
        limits = [f"{scale.x(moment.at)},{scale.y(moment.allowed)}" for moment in sampled]
        yield f'<polyline points="{" ".join(limits)}" fill="none" stroke="#d1495b"/>'
        label += ", and what they could have (red)"
    yield f'<text x="{MARGIN}" y="14" fill="currentColor">{label}</text>'


def _thinned(moments: Sequence[TimelineMoment], scale: _Scale) -> list[TimelineMoment]:
    """Return, for each column of the outline, the moment at which most memory was used."""
    columns: dict[int, TimelineMoment] = {}
    for moment in moments:
        column = int(_MOST_POINTS * moment.at / scale.seconds)
        if column not in columns or moment.used > columns[column].used:
            columns[column] = moment
    return list(columns.values())


def _event_marks(events: Sequence[TimelineEvent], scale: _Scale) -> Iterator[str]:
    """Yield a mark for each event of a kind in _EVENT_COLOURS; the others have none."""
    for event in events:
        colour = _EVENT_COLOURS.get(event.kind)
        if colour is not None:
            x = scale.x(event.at)
            words = _escape(f"{format_clock(event.at)} {event.kind}: {unit_title(event.key)}")
            yield (
                f'<circle cx="{x}" cy="{scale.y(0) + 8}" r="4" fill="{colour}">'
                f"<title>{words}</title></circle>"
            )


def _unit_bars(units: Sequence[UnitRun], lanes: dict[int, int], scale: _Scale) -> Iterator[str]:
    """Yield a bar for each unit that has a lane."""
    top = _TOP + MEMORY_HEIGHT + _GAP
    yield f'<text x="{MARGIN}" y="{top - 6}" fill="currentColor">compiles and links</text>'
    for number, lane in lanes.items():
        unit = units[number]
        is_cut_short = unit.outcome in {"ended", "killed"}
        colour = _CUT_SHORT_COLOUR if is_cut_short else _COLOURS.get(unit.family, "#888")
        x = scale.x(unit.begun)
        width = max(0.6, round(scale.x(unit.ended) - x, 1))
        words = _escape(
            f"{unit_title(unit.key)}: {unit.seconds:.1f} s, {format_bytes(unit.peak)}, {unit.outcome}"
        )
        yield (
            f'<rect x="{x}" y="{top + lane * LANE_HEIGHT}" width="{width}" '
            f'height="{LANE_HEIGHT - 2}" fill="{colour}"><title>{words}</title></rect>'
        )


def _assign_lanes(units: Sequence[UnitRun]) -> dict[int, int]:
    """Return the lane of each unit that is drawn, by its position in `units`.

    It is the first lane in which no other unit runs at that time. Left out are all but the longest
    MOST_BARS units, and units for which all MOST_LANES are taken.
    """
    by_length = sorted(range(len(units)), key=lambda number: -units[number].seconds)
    drawn = sorted(by_length[:MOST_BARS], key=lambda number: units[number].begun)
    ends: list[float] = []
    lanes = {}
    for number in drawn:
        unit = units[number]
        lane = next((lane for lane, end in enumerate(ends) if end <= unit.begun), len(ends))
        if lane >= MOST_LANES:
            continue
        if lane == len(ends):
            ends.append(unit.ended)
        else:
            ends[lane] = unit.ended
        lanes[number] = lane
    return lanes


def _time_axis(scale: _Scale, height: float) -> Iterator[str]:
    longest_step = max(_STEPS[-1], scale.seconds / _MOST_TICKS)
    step = next((step for step in _STEPS if scale.seconds / step <= _MOST_TICKS), longest_step)
    at = 0.0
    while at <= scale.seconds:
        x = scale.x(at)
        yield (
            f'<text x="{x}" y="{height - 8}" text-anchor="middle" fill="currentColor">'
            f"{format_clock(at)}</text>"
        )
        at += step


def _escape(text: str) -> str:
    return html.escape(printable(text))
