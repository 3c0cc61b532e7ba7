"""Progress lines and estimates, against the words of the real tools."""

import shutil
import subprocess
from pathlib import Path
from textwrap import dedent

import pytest

from torchwright.ninja import Edge, Pace, parse_edge, plain


@pytest.mark.parametrize(
    ("line", "edge"),
    [
        (
            "[12/345] Building CXX object caffe2/a.cpp.o",
            Edge(12, 345, "Building CXX object caffe2/a.cpp.o"),
        ),
        ("[ 12%] Building CXX object a.cpp.o", Edge(12, 100, "Building CXX object a.cpp.o")),
        ("[100%] Built target torch", Edge(100, 100, "Built target torch")),
        ("[0/2] Re-checking globbed directories...", Edge(0, 2, "Re-checking globbed directories...")),
        ("[1/2] \x1b[32m\x1b[1mLinking a\x1b[0m", Edge(1, 2, "Linking a")),
        ("  [3/9] c++ -c a.cpp  \n", Edge(3, 9, "c++ -c a.cpp")),
    ],
)
def test_edges_are_read(line: str, edge: Edge) -> None:
    assert parse_edge(line) == edge


@pytest.mark.parametrize(
    "line",
    [
        "",
        "-- Found OpenMP",
        "ninja: build stopped: subcommand failed.",
        "[9/3] no",
        "[0/0] no",
        "x [1/2] y",
        "[1/2]",
    ],
)
def test_other_lines_are_not_taken_for_edges(line: str) -> None:
    assert parse_edge(line) is None


def test_colours_of_gcc_are_removed() -> None:
    assert (
        plain("\x1b[01m\x1b[Ka.c:1:\x1b[m\x1b[K \x1b[01;31m\x1b[Kerror: \x1b[m\x1b[Kx") == "a.c:1: error: x"
    )


@pytest.mark.skipif(not shutil.which("ninja"), reason="ninja is not installed")
def test_every_edge_of_a_real_ninja_is_seen(tmp_path: Path) -> None:
    (tmp_path / "build.ninja").write_text(
        dedent("""\
        rule touch
          command = touch $out
          description = Touching $out
        build a: touch
        build b: touch a
        build c: touch b
        """)
    )
    said = subprocess.run(["ninja"], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    edges = [edge for line in said.splitlines() if (edge := parse_edge(line))]
    assert edges == [Edge(1, 3, "Touching a"), Edge(2, 3, "Touching b"), Edge(3, 3, "Touching c")]


def paced(times: list[float], total: int) -> Pace:
    pace = Pace()
    for done, at in enumerate(times, start=1):
        pace.see(Edge(done, total, ""), at)
    return pace


def test_nothing_is_estimated_from_a_handful_of_edges() -> None:
    assert Pace().left(0) is None
    assert paced([1, 2, 3, 4, 5], total=100).left(5) is None


def test_a_steady_pace_gives_the_exact_rest() -> None:
    pace = paced([2.0 * n for n in range(1, 51)], total=100)
    assert pace.left(100) == pytest.approx(100)
    assert pace.left(130) == pytest.approx(70)  # time passes between edges
    assert pace.left(10_000) == 0


def test_the_later_half_decides() -> None:
    cached = [0.01 * n for n in range(1, 21)]
    compiled = [cached[-1] + 10.0 * n for n in range(1, 31)]
    assert paced(cached + compiled, total=60).left(compiled[-1]) == pytest.approx(100)


def test_a_second_run_starts_anew() -> None:
    pace = paced([float(n) for n in range(1, 101)], total=100)
    pace.see(Edge(1, 50, ""), 200)
    assert pace.left(200) is None
    for done in range(2, 11):
        pace.see(Edge(done, 50, ""), 200 + done)
    assert pace.left(210) == pytest.approx(40)


def test_a_repeated_count_is_no_edge() -> None:
    pace = paced([float(n) for n in range(1, 11)], total=20)
    pace.see(Edge(10, 20, "again"), 60)
    assert pace.left(10) == pytest.approx(10)
