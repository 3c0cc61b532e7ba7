"""Draw a recording as a PNG (memory, running units, events), and as one page of HTML."""

import datetime as dt
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple
from zipfile import BadZipFile, ZipFile, ZipInfo

import numpy as np
from jinja2 import Environment, FileSystemLoader
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, MultipleLocator
from millguard.drawing import draw_records
from millguard.timeline import TimelineEvent, TimelineMoment, UnitRun
from millguard.units import unit_title

from torchmill.cell.progress_line import format_clock
from torchmill.commands.report.failure import FailureSection
from torchmill.commands.report.recording import (
    Recording,
    Totals,
    build_headline,
    describe_sums,
    sum_up,
)
from torchmill.core.package_data import read_table_beside
from torchmill.core.plain_text import as_plain_text
from torchmill.core.units import format_bytes, format_share
from torchmill.toolchain.compiler_cache import CacheHits
from torchmill.wheel.dist_files import companion_paths, read_manifest
from torchmill.wheel.statement import LOCAL_BUILDER

GIB = 2**30
STYLE = Path(__file__).with_name("picture.mplstyle")
# Sizes in inches.
WIDTH = 13.0
LEFT, RIGHT, TOP, BOTTOM, GAP = 0.62, 0.3, 1.2, 0.6, 0.44
MEMORY_HEIGHT, UNITS_HEIGHT, BAR_HEIGHT = 3.0, 1.7, 0.22
DPI = 140  # dots an inch
BARS = 20  # units whose time is shown, the longest
FEWEST_BARS = 4  # there is room for so many bars even if there are fewer units
FINE = 1400  # spans of the memory
COARSE = 360  # spans of the units, whose numbers change all the time
FAR = 4  # a limit of more than so many times the used memory is not drawn to scale
LONGEST_TITLE = 48  # characters
# Seconds between the ticks of time.
STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800, 86400)
TICKS = 12
MEMBERS = 15  # the largest of the wheel

_LOOK = read_table_beside(__file__, "picture.toml")
INK = _LOOK["ink"]
FAINT = _LOOK["faint"]
USED = _LOOK["used"]
ALLOWED = _LOOK["allowed"]
SHORT = _LOOK["short"]
UNITS = _LOOK["units"]
FAMILIES = _LOOK["families"]
CUT_SHORT = _LOOK["cut_short"]
MARKS = _LOOK["marks"]


def render_picture(recording: Recording) -> bytes:
    """Return the picture of a recording as a PNG."""
    file = BytesIO()
    with style.context(STYLE):
        draw_picture(recording).savefig(file, format="png", dpi=DPI)
    return file.getvalue()


def render_page(
    recording: Recording, wheel: Path | None, failure: FailureSection | None = None
) -> str:
    """Return the page of a recording.

    `wheel` is that of the build, None if it is not known; `failure` says why the build failed, None
    if it did not.
    """
    pages = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True)
    pages.filters |= {"bytes": format_bytes, "clock": format_clock, "unit": unit_title}
    sums = sum_up(recording)
    manifest = read_manifest(wheel) if wheel else {}
    cache = manifest.get("cache")
    files: list[Path] = []
    if wheel:
        files = [path for path in (wheel, *companion_paths(wheel)) if path.is_file()]
    # Names of files in a wheel, and a log, may have been written by an attacker: markup in them is
    # escaped, and `as_plain_text` removes characters that hide or reorder text, as for a terminal.
    page = pages.get_template("page.html").render(
        recording=recording,
        wall=max(recording.wall, 1.0),
        verdict=describe_wheel(wheel, manifest),
        failure=failure,
        timeline=draw_records(
            recording.name, (*recording.moments, *recording.runs, *recording.events)
        ),
        lines=[build_headline(sums), *describe_sums(sums)],
        spans=reduce_to_spans(recording.moments, FINE) if recording.moments else None,
        far=FAR,
        gib=GIB,
        runs=_longest_runs(recording),
        cache=CacheHits(**cache) if cache else cache,
        files=files,
        members=_largest_members(wheel) if wheel else [],
    )
    return as_plain_text(page)


def describe_wheel(wheel: Path | None, manifest: Mapping[str, Any]) -> str:
    """Return what came of a build in one sentence: its wheel, and when and by whom it was verified.

    The builder is named unless it is the user's own machine.
    """
    if wheel is None:
        return "no wheel of this build is in dist/: it failed, goes on, or its wheel was removed"
    name = f"{manifest.get('package', '')} {manifest.get('version', '')}".strip() or wheel.name
    identifier = manifest.get("identifier")
    cell = f" ({manifest.get('tag', '')} {identifier})" if identifier else ""
    verified = dt.datetime.fromtimestamp(wheel.stat().st_mtime).astimezone()
    builder = manifest.get("builder")
    address = builder.get("id") if isinstance(builder, dict) else None
    by = f" by {address}" if isinstance(address, str) and address != LOCAL_BUILDER else ""
    platform_tag = wheel.stem.rpartition("-")[2]
    return f"{name}{cell}: built and verified {verified:%Y-%m-%d %H:%M %Z}{by}, for {platform_tag}"


def _largest_members(wheel: Path) -> list[ZipInfo]:
    """Return the largest files in a wheel; none if it cannot be read."""
    try:
        with ZipFile(wheel) as archive:
            members = archive.infolist()
    except (OSError, BadZipFile):
        return []
    return sorted(members, key=lambda member: -member.file_size)[:MEMBERS]


def _longest_runs(recording: Recording) -> list[UnitRun]:
    """Return the runs that a picture shows, the longest first."""
    return sorted(recording.runs, key=lambda run: -run.seconds)[:BARS]


def draw_picture(recording: Recording) -> Figure:
    """Return the picture as a figure of matplotlib."""
    sums = sum_up(recording)
    runs = sorted(_longest_runs(recording), key=lambda run: run.begun)
    # More bars make a taller picture.
    heights = (MEMORY_HEIGHT, UNITS_HEIGHT, BAR_HEIGHT * max(len(runs), FEWEST_BARS))
    height = TOP + sum(heights) + 2 * GAP + BOTTOM
    figure = Figure(figsize=(WIDTH, height), facecolor="white")
    # Matplotlib wants margins as shares of the figure, and the gap as a share of the average height
    # of the three parts.
    grid = {
        "height_ratios": heights,
        "hspace": 3 * GAP / sum(heights),
        "left": LEFT / WIDTH,
        "right": 1 - RIGHT / WIDTH,
        "top": 1 - TOP / height,
        "bottom": BOTTOM / height,
    }
    memory, units, bars = figure.subplots(3, 1, sharex=True, gridspec_kw=grid)
    _draw_title(figure, recording, sums)
    _draw_memory(memory, recording.moments, sums)
    _draw_events(memory, recording.events)
    _draw_units(units, recording.moments)
    _draw_bars(bars, runs, recording.wall)
    _scale_time(bars, recording.wall)
    for axes in (memory, units, bars):
        handles, _ = axes.get_legend_handles_labels()
        if handles:
            axes.legend(
                loc="lower right",
                bbox_to_anchor=(1.0, 1.0),
                ncols=10,
                borderaxespad=0.2,
                columnspacing=1.2,
                handlelength=1.3,
            )
    return figure


def _draw_title(figure: Figure, recording: Recording, sums: Totals) -> None:
    """Write the name of the build, its sums, and at the bottom its notes."""
    height = figure.get_figheight()
    margin = LEFT / WIDTH
    figure.text(margin, 1 - 0.46 / height, recording.name, fontsize=15, fontweight="bold")
    parts = [build_headline(sums)]
    if sums.peak is not None:
        parts.append(f"at most {format_share(sums.peak.used, sums.peak.allowed)}")
    if sums.short:
        parts.append(f"{format_clock(sums.short)} short of memory")
    figure.text(margin, 1 - 0.74 / height, "  ·  ".join(parts), fontsize=9.5, color=FAINT)
    if recording.notes:
        notes = "; ".join(recording.notes)
        figure.text(margin, 0.14 / height, notes, fontsize=8.5, color=CUT_SHORT["killed"])


class Spans(NamedTuple):
    """The moments of a build, reduced to spans of equal time.

    Each array has a value for each span, and one more for the end of the last span.
    """

    at: Any  # the beginning of the span, in seconds
    used: Any  # the most memory that was used, in GiB
    allowed: Any  # the least memory that was allowed, in GiB
    # The average numbers of units running, paused and waiting, and of processors: four columns.
    counts: Any
    short: Any  # the share of the time in which units waited for memory, from 0 to 1


def reduce_to_spans(moments: Sequence[TimelineMoment], width: int) -> Spans:
    """Return moments as at most `width` spans. There must be at least one moment."""
    at = np.array([moment.at for moment in moments])
    spans = np.linspace(0, at[-1], width, endpoint=False)
    # The first moment of each span; spans without a moment are left out.
    starts = np.unique(np.searchsorted(at, spans))
    ends = np.append(starts[1:], len(at))
    used = [moment.used / GIB for moment in moments]
    allowed = [moment.allowed / GIB for moment in moments]
    counts = np.array(
        [[moment.running, moment.paused, moment.waiting, moment.cores] for moment in moments],
        float,
    )
    averages = np.add.reduceat(counts, starts) / (ends - starts)[:, None]
    # A moment has the seconds without memory since the build's start: differences of the last
    # moments of spans are those in the span.
    short = np.array([moment.short for moment in moments])[ends - 1]
    seconds = np.diff(at[ends - 1], prepend=0.0)
    short_share = np.divide(
        np.diff(short, prepend=0.0), seconds, out=np.zeros_like(seconds), where=seconds > 0
    )
    arrays = [
        np.maximum.reduceat(used, starts),
        np.minimum.reduceat(allowed, starts),
        averages,
        short_share,
    ]
    # The last value is drawn up to the last moment.
    extended = [np.append(values, values[-1:], axis=0) for values in arrays]
    return Spans(np.append(at[starts], at[-1]), *extended)


def _draw_memory(axes: Axes, moments: Sequence[TimelineMoment], sums: Totals) -> None:
    """Draw the memory that was used and allowed, with a dot at the peak."""
    _name_part(axes, "memory, GiB")
    if sums.peak is None:
        return
    spans = reduce_to_spans(moments, FINE)
    at = spans.at
    used = spans.used
    axes.fill_between(at, used, step="post", color=USED, alpha=0.35, linewidth=0)
    axes.step(at, used, where="post", color=USED, linewidth=1.0, label="used")
    highest = max(*used, 0.1)
    least = min(spans.allowed)
    if least > FAR * highest:
        # To scale, the used memory would be a line at the bottom: the limit is in the legend alone.
        label = f"allowed: {least:.1f} GiB and more, far above"
        axes.plot([], [], color=ALLOWED, linewidth=1.1, label=label)
    else:
        axes.step(at, spans.allowed, where="post", color=ALLOWED, linewidth=1.1, label="allowed")
        highest = max(highest, *spans.allowed)
    axes.set_ylim(0, highest * 1.14)
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    peak = ([sums.peak.at], [sums.peak.used / GIB])
    axes.plot(*peak, "o", color=USED, markeredgecolor="white", markersize=6)


def _draw_events(axes: Axes, events: Sequence[TimelineEvent]) -> None:
    """Mark the times at which the guard did something, at the top of the part on memory."""
    for kind, (sign, colour, name) in MARKS.items():
        times = [event.at for event in events if event.kind == kind]
        if not times:
            continue
        is_line = sign == "|"
        axes.plot(
            times,
            [0.965] * len(times),
            sign,
            color=colour,
            markersize=8,
            markeredgecolor=colour if is_line else "white",
            markeredgewidth=1.4 if is_line else 0.6,
            label=f"{len(times)} {name}",
            transform=axes.get_xaxis_transform(),  # the height is a share of the axes'
        )


def _draw_units(axes: Axes, moments: Sequence[TimelineMoment]) -> None:
    """Draw how many units ran, were paused and waited, and when memory was short."""
    _name_part(axes, "units")
    if not moments:
        return
    spans = reduce_to_spans(moments, COARSE)
    at = spans.at
    *stacks, cores = spans.counts.T
    labels = []
    for name, stack in zip(UNITS, stacks, strict=True):
        # A label that begins with "_" is not in the legend.
        labels.append(name if any(stack) else f"_{name}")
    axes.stackplot(at, *stacks, labels=labels, colors=UNITS.values(), step="post", linewidth=0)
    if any(cores):
        axes.step(
            at, cores, where="post", color=INK, linewidth=1.0, linestyle="--", label="processors"
        )
    axes.set_ylim(0, max(*sum(stacks), *cores, 1) * 1.12)
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10], integer=True))
    mostly_short = spans.short > 0.5  # noqa: PLR2004 - most of the time
    if any(mostly_short):
        axes.fill_between(
            at,
            0,
            0.03,
            where=mostly_short,
            step="post",
            color=SHORT,
            linewidth=0,
            label="short of memory",
            transform=axes.get_xaxis_transform(),  # a strip at the bottom, 3 % of the height
        )


def _draw_bars(axes: Axes, runs: Sequence[UnitRun], wall: float) -> None:
    """Draw when the longest units ran."""
    _name_part(axes, f"the {len(runs)} longest units" if runs else "no unit ended")
    axes.set_yticks([])
    axes.set_ylim(max(len(runs), FEWEST_BARS) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    for row, run in enumerate(runs):
        colour = FAMILIES.get(run.family, FAINT)
        axes.barh(
            row,
            run.seconds,
            left=run.begun,
            height=0.72,
            color=colour,
            edgecolor=colour,
            linewidth=0.8,
        )
        if run.outcome in CUT_SHORT:
            colour = CUT_SHORT[run.outcome]
            axes.plot([run.ended], [row], "X", color=colour, markeredgecolor="white")
        _draw_bar_title(axes, row, run, wall)
    # The legend has only the colours of this picture.
    families = {run.family for run in runs}
    outcomes = {run.outcome for run in runs}
    for name, colour in FAMILIES.items():
        if name in families:
            axes.barh(0, 0, color=colour, label=name)
    for name, colour in CUT_SHORT.items():
        if name in outcomes:
            axes.plot([], [], "X", color=colour, markeredgecolor="white", label=name)


def _draw_bar_title(axes: Axes, row: int, run: UnitRun, wall: float) -> None:
    """Write the title of a run to the right or left of its bar, or into it if that has more room.

    `row` is the row of the bar, from the top; `wall` is the width of the picture in seconds.
    """
    room_before = run.begun
    room_after = wall - run.ended
    place = run.begun
    alignment = "left"
    offset = 6  # points
    colour = INK
    if max(room_before, room_after) < min(run.seconds, wall / 3):
        colour = "white"  # in the bar
    elif room_after > room_before:
        place = run.ended
    else:
        alignment = "right"
        offset = -5
    title = unit_title(run.key)
    if len(title) > LONGEST_TITLE:
        title = f"…{title[1 - LONGEST_TITLE :]}"
    axes.annotate(
        f"{title}   {format_clock(run.seconds)}   {format_bytes(run.peak)}",
        (place, row),
        xytext=(offset, -0.5),
        textcoords="offset points",
        ha=alignment,
        va="center",
        fontsize=8,
        color=colour,
    )


def _scale_time(axes: Axes, wall: float) -> None:
    """Scale the axis of time to the build."""
    axes.set_xlim(0, max(wall, 1.0))
    # A build of weeks has ticks every few days.
    longest = STEPS[-1] * max(1, wall // STEPS[-1] // TICKS)
    step = next((seconds for seconds in STEPS if wall / seconds <= TICKS), longest)
    axes.xaxis.set_major_locator(MultipleLocator(step))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: format_clock(seconds)))


def _name_part(axes: Axes, text: str) -> None:
    """Write the title of a part of the picture."""
    axes.set_title(text, loc="left", fontsize=9.5, fontweight="bold", color=INK, pad=6)
