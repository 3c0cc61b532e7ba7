"""Progress bars as lines, with a clock that the test sets, and moving ones."""

import io
import time

import pytest
from rich.console import Console
from rich.progress import Progress

from torchmill.core import console
from torchmill.core.console import INTERVAL_SECONDS, ProgressDisplay


def test_lines_come_at_the_start_now_and_then_and_at_the_end() -> None:
    file = io.StringIO()
    now = [0.0]
    bar = ProgressDisplay(file, lambda: now[0]).start_bar("torch", 100)
    for done in range(1, 61):
        now[0] += 1.0
        bar.update(done, note="Receiving objects")
    bar.update(100)
    bar.close()
    assert INTERVAL_SECONDS == 30
    assert file.getvalue().splitlines() == [
        "torch",
        "torch: 30/100, Receiving objects",
        "torch: 60/100, Receiving objects",
        "torch: 100/100",
    ]


def test_a_total_may_come_late_or_never() -> None:
    file = io.StringIO()
    now = [0.0]
    bar = ProgressDisplay(file, lambda: now[0]).start_bar("torch")
    for done, total in ((5, None), (6, 12), (7, None)):
        now[0] += INTERVAL_SECONDS
        bar.update(done, total)
    assert file.getvalue().splitlines() == ["torch", "torch: 5", "torch: 6/12", "torch: 7/12"]


def test_a_moving_bar_leaves_a_line_with_its_last_progress() -> None:
    file = io.StringIO()
    with Progress(console=Console(file=file, width=100), transient=True) as progress:
        bars = ProgressDisplay(file, live=progress)
        bar = bars.start_bar("[torch]")  # the brackets are no markup
        bar.update(3, 4, "Resolving deltas")
        assert [(task.completed, task.total) for task in progress.tasks] == [(3, 4)]
        bar.close()
        assert progress.tasks == []
    assert "[torch]: 3/4, Resolving deltas\n" in file.getvalue()


class Screen(io.StringIO):
    """A file that is a terminal."""

    def isatty(self) -> bool:
        return True


def test_brackets_of_a_path_are_no_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    screen = Screen()
    with console.show_progress(screen) as bars:
        bar = bars.start_bar("a[/b]/c [red]")
        bar.update(1, 2, "x[/y]")
        time.sleep(0.2)
        bar.close()
    assert "[/b]" in screen.getvalue()
    assert "[red]" in screen.getvalue()
