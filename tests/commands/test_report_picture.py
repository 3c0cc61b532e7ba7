"""What stands in the picture: what can be told without looking at it."""

import struct
from pathlib import Path

import numpy as np
import pytest
from guard_support.recorded import moment, ran, small
from guard_support.recorded import write as timeline
from matplotlib.figure import Figure
from millguard.timeline import Record, TimelineEvent

from tests.support.recordings import recording
from torchmill.commands.report.picture import BARS, FINE, draw_picture, render_picture
from torchmill.commands.report.recording import read_timeline


def texts(figure: Figure) -> list[str]:
    """Return every text of a picture, in no order."""
    drawn_texts = [text.get_text() for text in figure.texts]
    for axes in figure.axes:
        drawn_texts += [axes.get_title(loc="left"), *(text.get_text() for text in axes.texts)]
        legend = axes.get_legend()
        drawn_texts += [text.get_text() for text in legend.get_texts()] if legend else []
    return drawn_texts


def size(path: Path) -> tuple[int, int]:
    content = path.read_bytes()
    assert content[:8] == b"\x89PNG\r\n\x1a\n"
    width, height = struct.unpack(">II", content[16:24])
    return width, height


def test_the_picture_says_what_happened(tmp_path: Path) -> None:
    drawn_texts = texts(draw_picture(recording(tmp_path)))
    assert "wheel-3.10-cpu" in drawn_texts
    head = "3 units in 0:20, 1 failed, 1.3 at a time on average"
    assert f"{head}  ·  at most 3.9 of 4.0 GiB  ·  0:02 short of memory" in drawn_texts
    assert {"used", "allowed", "1 paused", "1 run again"} <= set(drawn_texts)
    assert {"running", "paused", "waiting", "processors"} <= set(drawn_texts)
    assert {"the 4 longest units", "c++", "link", "failed", "ended"} <= set(drawn_texts)
    assert "b.cpp   0:09   3.0 GiB" in drawn_texts
    assert "1 killed" not in drawn_texts


def test_plenty_of_memory_leaves_the_used_in_sight(tmp_path: Path) -> None:
    figure = draw_picture(
        recording(tmp_path, [moment(0, used=0.5, allowed=30), moment(9, used=1, allowed=22)])
    )
    assert figure.axes[0].get_ylim()[1] == pytest.approx(1.14)
    assert "allowed: 22.0 GiB and more, far above" in texts(figure)
    assert "at most 1.0 of 22.0 GiB" in texts(figure)[1]


def test_what_is_missing_is_said(tmp_path: Path) -> None:
    path = timeline(tmp_path / "x.timeline.jsonl", small())
    path.write_bytes(path.read_bytes()[:-5])
    assert "its last line is cut off: the build was stopped there, or goes on" in texts(
        draw_picture(read_timeline(path))
    )


@pytest.mark.parametrize(
    "records",
    [
        [moment(0)],
        [moment(0, allowed=0, used=0)],
        [ran("a$b_c^d.cpp", 0, 0)],
        [TimelineEvent(3.0, "kill", "g++|a.cpp|-O2")],
        [ran("x" * 300, 0, 86_400 * 9), moment(86_400 * 9)],
        [ran("a", 0, 50, family="fortran", outcome="eaten")],
        [moment(5, allowed=-1)],
    ],
    ids=["one", "zeros", "formula", "an event alone", "long", "unknown words", "less than nothing"],
)
def test_odd_recordings_are_drawn(tmp_path: Path, records: list[Record]) -> None:
    path = tmp_path / "x.png"
    path.write_bytes(render_picture(recording(tmp_path, records)))
    assert size(path)[0] == 1820


def test_large_recordings_are_thinned(tmp_path: Path) -> None:
    runs = [ran(f"{number}.cpp", number, number + 30 + number % 7) for number in range(10_000)]
    looks = [moment(number / 4, used=number % 3) for number in range(40_000)]
    figure = draw_picture(recording(tmp_path, [*small(), *runs, *looks]))
    lines = [line for axes in figure.axes for line in axes.get_lines()]
    points = [len(np.asarray(line.get_xdata())) for line in lines]
    assert max(points) <= FINE + 1
    assert f"the {BARS} longest units" in texts(figure)
