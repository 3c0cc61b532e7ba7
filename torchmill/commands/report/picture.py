"""Draw a recording as a PNG (memory, running units, events), and as one page of HTML that needs nothing else."""

from collections.abc import Sequence
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any
from zipfile import BadZipFile, ZipFile

import numpy as np
from jinja2 import Environment, FileSystemLoader
from matplotlib import style
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator, MultipleLocator
from millguard.timeline import TimelineEvent, TimelineMoment, UnitRun
from millguard.units import unit_title

from torchmill.cell.progress_line import format_clock
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

GIB = 2**30
WIDTH, DPI = 13.0, 140  # inches, and dots in each
LEFT, RIGHT, TOP, BOTTOM, GAP = (
    0.62,
    0.3,
    1.2,
    0.6,
    0.44,
)  # inches around the parts, and between them
BARS = 20  # units whose time is shown
FINE, COARSE = 1400, 360  # columns of the memory, and of the units, which change all the time
FAR = 4  # times the memory used
LONGEST_TITLE = 48  # characters
STEPS = (
    1,
    2,
    5,
    10,
    15,
    30,
    60,
    120,
    300,
    600,
    900,
    1800,
    3600,
    7200,
    14400,
    28800,
    86400,
)  # seconds
TICKS = 12
MEMBERS = 15  # the largest of the wheel

_LOOK = read_table_beside(__file__, "picture.toml")
INK, FAINT, USED, ALLOWED, SHORT = (
    _LOOK[name] for name in ("ink", "faint", "used", "allowed", "short")
)
UNITS, FAMILIES, CUT_SHORT, MARKS = (
    _LOOK[name] for name in ("units", "families", "cut_short", "marks")
)
STYLE = Path(__file__).with_name("picture.mplstyle")


def render_picture(recording: Recording) -> bytes:
    """Return the picture of a recording as a PNG."""
    with style.context(STYLE):
        draw_picture(recording).savefig(file := BytesIO(), format="png", dpi=DPI)
    return file.getvalue()


def render_page(recording: Recording, wheel: Path | None) -> str:
    """Return the page of a recording; `wheel` is what its build made, None where that is not known."""
    pages = Environment(loader=FileSystemLoader(Path(__file__).parent), autoescape=True)
    pages.filters |= {"bytes": format_bytes, "clock": format_clock, "unit": unit_title}
    sums, cache, members = (
        sum_up(recording),
        read_manifest(wheel).get("cache") if wheel else None,
        [],
    )
    with suppress(OSError, BadZipFile), ZipFile(wheel or "") as archive:
        members = sorted(archive.infolist(), key=lambda one: -one.file_size)[:MEMBERS]
    # Names of files are others' text: markup in them is escaped, and the door takes out what hides
    # or reorders text, as in a terminal.
    page = pages.get_template("page.html").render(
        recording=recording,
        wall=max(recording.wall, 1.0),
        lines=[build_headline(sums), *describe_sums(sums)],
        columns=columns(recording.moments, FINE) if recording.moments else [],
        far=FAR,
        gib=GIB,
        runs=sorted(recording.runs, key=lambda one: -one.seconds)[:BARS],
        cache=cache and CacheHits(**cache),
        files=[one for one in (wheel, *companion_paths(wheel)) if one.is_file()] if wheel else [],
        members=members,
    )
    return as_plain_text(page)


def draw_picture(recording: Recording) -> Figure:
    """Return the picture, not yet drawn to a file."""
    sums, longest = sum_up(recording), sorted(recording.runs, key=lambda one: -one.seconds)[:BARS]
    shown = sorted(longest, key=lambda one: one.begun)
    heights = (3.0, 1.7, 0.22 * max(len(shown), 4))  # inches: more bars make a taller picture
    tall = TOP + sum(heights) + 2 * GAP + BOTTOM
    figure = Figure(figsize=(WIDTH, tall), facecolor="white")
    margins = {
        "left": LEFT / WIDTH,
        "right": 1 - RIGHT / WIDTH,
        "top": 1 - TOP / tall,
        "bottom": BOTTOM / tall,
    }
    grid = {"height_ratios": heights, "hspace": 3 * GAP / sum(heights), **margins}
    memory, units, bars = figure.subplots(3, 1, sharex=True, gridspec_kw=grid)
    _title(figure, recording, sums)
    _memory(memory, recording.moments, sums)
    _events(memory, recording.events)
    _units(units, recording.moments)
    _bars(bars, shown, recording.wall)
    _time(bars, recording.wall)
    for one in (memory, units, bars):
        if one.get_legend_handles_labels()[0]:
            one.legend(
                loc="lower right", bbox_to_anchor=(1.0, 1.0), ncols=10, borderaxespad=0.2, columnspacing=1.2,
                handlelength=1.3,
            )  # fmt: skip
    return figure


def _title(figure: Figure, recording: Recording, sums: Totals) -> None:
    tall = figure.get_figheight()
    left = LEFT / WIDTH
    figure.text(left, 1 - 0.46 / tall, recording.name, fontsize=15, fontweight="bold")
    said = [build_headline(sums)]
    if sums.peak is not None:
        said.append(f"at most {format_share(sums.peak.used, sums.peak.allowed)}")
    if sums.short:
        said.append(f"{format_clock(sums.short)} short of memory")
    figure.text(left, 1 - 0.74 / tall, "  ·  ".join(said), fontsize=9.5, color=FAINT)
    if recording.notes:
        figure.text(
            left, 0.14 / tall, "; ".join(recording.notes), fontsize=8.5, color=CUT_SHORT["killed"]
        )


def columns(moments: Sequence[TimelineMoment], width: int) -> list[Any]:
    """Return arrays with a number for each of at most `width` equal spans of time, and one more to end the last.

    They are: its beginning; the most memory used, and the least allowed; of units running, paused, waiting, and
    of processors the averages; the share of the time in which memory kept units waiting.
    """
    at = np.array([one.at for one in moments])
    starts = np.unique(np.searchsorted(at, np.linspace(0, at[-1], width, endpoint=False)))
    ends = np.append(starts[1:], len(at))
    counts = np.array([[one.running, one.paused, one.waiting, one.cores] for one in moments], float)
    so_far = np.array([one.short for one in moments])[ends - 1]
    passed = np.diff(at[ends - 1], prepend=0.0)
    columns = [
        np.maximum.reduceat([one.used / GIB for one in moments], starts),
        np.minimum.reduceat([one.allowed / GIB for one in moments], starts),
        np.add.reduceat(counts, starts) / (ends - starts)[:, None],
        np.divide(
            np.diff(so_far, prepend=0.0), passed, out=np.zeros_like(passed), where=passed > 0
        ),
    ]
    return [
        np.append(at[starts], at[-1]),
        *(np.append(values, values[-1:], axis=0) for values in columns),
    ]


def _memory(axes: Axes, moments: Sequence[TimelineMoment], sums: Totals) -> None:
    _label(axes, "memory, GiB")
    if sums.peak is None:
        return
    at, used, allowed, *_ = columns(moments, FINE)
    axes.fill_between(at, used, step="post", color=USED, alpha=0.35, linewidth=0)
    axes.step(at, used, where="post", color=USED, linewidth=1.0, label="used")
    highest, least = max(*used, 0.1), min(allowed)
    if least > FAR * highest:  # to scale, what is used would be a line at the bottom
        axes.plot(
            [],
            [],
            color=ALLOWED,
            linewidth=1.1,
            label=f"allowed: {least:.1f} GiB and more, far above",
        )
    else:
        axes.step(at, allowed, where="post", color=ALLOWED, linewidth=1.1, label="allowed")
        highest = max(highest, *allowed)
    axes.set_ylim(0, highest * 1.14)
    axes.yaxis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
    axes.plot(
        [sums.peak.at],
        [sums.peak.used / GIB],
        "o",
        color=USED,
        markeredgecolor="white",
        markersize=6,
    )


def _events(axes: Axes, events: tuple[TimelineEvent, ...]) -> None:
    """Mark what the guard did, above the memory that it did it for."""
    for kind, (sign, colour, name) in MARKS.items():
        times = [one.at for one in events if one.kind == kind]
        if times:
            edge = colour if sign == "|" else "white"
            axes.plot(
                times, [0.965] * len(times), sign, color=colour, markersize=8, markeredgecolor=edge,
                markeredgewidth=1.4 if sign == "|" else 0.6, label=f"{len(times)} {name}",
                transform=axes.get_xaxis_transform(),
            )  # fmt: skip


def _units(axes: Axes, moments: Sequence[TimelineMoment]) -> None:
    _label(axes, "units")
    if not moments:
        return
    at, _, _, counts, short = columns(moments, COARSE)
    *stacks, cores = counts.T
    names = [name if any(stack) else f"_{name}" for name, stack in zip(UNITS, stacks, strict=True)]
    axes.stackplot(at, *stacks, labels=names, colors=UNITS.values(), step="post", linewidth=0)
    if any(cores):
        axes.step(
            at, cores, where="post", color=INK, linewidth=1.0, linestyle="--", label="processors"
        )
    axes.set_ylim(0, max(*sum(stacks), *cores, 1) * 1.12)
    axes.yaxis.set_major_locator(MaxNLocator(5, steps=[1, 2, 5, 10], integer=True))
    mostly = short > 0.5  # noqa: PLR2004 - most of the time
    if any(mostly):
        axes.fill_between(
            at, 0, 0.03, where=mostly, step="post", color=SHORT, linewidth=0, label="short of memory",
            transform=axes.get_xaxis_transform(),
        )  # fmt: skip


def _bars(axes: Axes, shown: list[UnitRun], wall: float) -> None:
    """Draw when the longest units ran."""
    _label(axes, f"the {len(shown)} longest units" if shown else "no unit ended")
    axes.set_yticks([])
    axes.set_ylim(max(len(shown), 4) - 0.4, -0.6)
    axes.grid(visible=False, axis="y")
    for row, run in enumerate(shown):
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
            axes.plot(
                [run.ended], [row], "X", color=CUT_SHORT[run.outcome], markeredgecolor="white"
            )
        _beside(axes, row, run, wall)
    for name, colour in FAMILIES.items():
        if any(one.family == name for one in shown):
            axes.barh(0, 0, color=colour, label=name)
    for name, colour in CUT_SHORT.items():
        if any(one.outcome == name for one in shown):
            axes.plot([], [], "X", color=colour, markeredgecolor="white", label=name)


def _beside(axes: Axes, row: int, run: UnitRun, wall: float) -> None:
    """Write what a bar is to its right or left, or into it if that is roomier."""
    before, after = run.begun, wall - run.ended
    inside = max(before, after) < min(run.seconds, wall / 3)
    right = inside or after > before
    name = unit_title(run.key)
    short = name if len(name) <= LONGEST_TITLE else f"…{name[1 - LONGEST_TITLE :]}"
    axes.annotate(
        f"{short}   {format_clock(run.seconds)}   {format_bytes(run.peak)}",
        (run.begun if inside or not right else run.ended, row), xytext=(6 if right else -5, -0.5),
        textcoords="offset points", ha="left" if right else "right", va="center", fontsize=8,
        color="white" if inside else INK,
    )  # fmt: skip


def _time(axes: Axes, wall: float) -> None:
    axes.set_xlim(0, max(wall, 1.0))
    step = next(
        (one for one in STEPS if wall / one <= TICKS),
        STEPS[-1] * max(1, wall // STEPS[-1] // TICKS),
    )
    axes.xaxis.set_major_locator(MultipleLocator(step))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda seconds, _: format_clock(seconds)))


def _label(axes: Axes, text: str) -> None:
    axes.set_title(text, loc="left", fontsize=9.5, fontweight="bold", color=INK, pad=6)
