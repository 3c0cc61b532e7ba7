"""`invoke report`, as a user runs it."""

import json
import sys
from pathlib import Path

import pytest

from tests.support.commands import run
from tests.support.recorded import small, write
from torchmill.commands import report
from torchmill.commands.report.command import write_report
from torchmill.core.errors import HostError
from torchmill.core.paths import Layout

NAME = "v1.13.1-wheel-3.10-cpu"


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    found = Layout(tmp_path, tmp_path / "cache")
    found.logs.mkdir(parents=True)
    write(found.logs / f"{NAME}.timeline.jsonl", small())
    return found


def test_the_task_draws_the_newest(layout: Layout, tmp_path: Path) -> None:
    out = tmp_path / "a folder" / "and one in it"
    done = run("invoke", "report", "--out", str(out), home=layout.root)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.startswith(f"{NAME}: 3 units in 0:20")
    assert done.stdout.rstrip().endswith("(open it in ui.perfetto.dev)")
    assert sorted(path.name for path in out.iterdir()) == [f"{NAME}.png", f"{NAME}.trace.json"]
    assert (out / f"{NAME}.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((out / f"{NAME}.trace.json").read_text(encoding="utf-8"))["traceEvents"]


def test_the_task_refuses_in_one_sentence(layout: Layout) -> None:
    done = run("invoke", "report", "nonsense.whl", home=layout.root)
    assert done.returncode == 2
    assert done.stderr == (
        f"error: nonsense.whl is not there: name a wheel, a build's log or its timeline; there is {NAME}\n"
    )


def test_a_place_that_cannot_be_written_leaves_nothing(layout: Layout, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(HostError, match=r"cannot be written \(.+\): name another folder with --out"):
        write_report(NAME, layout, tmp_path / "file")


def test_without_matplotlib_the_cure_is_named(
    layout: Layout, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.delitem(sys.modules, "torchmill.commands.report.picture", raising=False)
    monkeypatch.delattr(report, "picture", raising=False)
    with pytest.raises(
        HostError, match=r"is not installed, and the picture needs it: `python -m pip install"
    ):
        write_report(NAME, layout, tmp_path)
    assert not list(tmp_path.glob(".*.new"))
