"""Progress lines and estimates, against the words of the real tools."""

import shutil
import subprocess
from pathlib import Path
from textwrap import dedent

import pytest

from torchmill.core.ninja import (
    Edge,
    EdgePace,
    made_path,
    parse_edge,
    parse_failure,
    read_dependencies,
    strip_colours,
    unmade_outputs,
)


@pytest.mark.parametrize(
    ("line", "edge"),
    [
        (
            "[12/345] Building CXX object caffe2/a.cpp.o",
            Edge(12, 345, "Building CXX object caffe2/a.cpp.o"),
        ),
        ("[ 12%] Building CXX object a.cpp.o", Edge(12, 100, "Building CXX object a.cpp.o")),
        ("[100%] Built target torch", Edge(100, 100, "Built target torch")),
        (
            "[0/2] Re-checking globbed directories...",
            Edge(0, 2, "Re-checking globbed directories..."),
        ),
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
        strip_colours("\x1b[01m\x1b[Ka.c:1:\x1b[m\x1b[K \x1b[01;31m\x1b[Kerror: \x1b[m\x1b[Kx")
        == "a.c:1: error: x"
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
    result = subprocess.run(["ninja"], cwd=tmp_path, capture_output=True, text=True, check=True)
    edges = [parse_edge(line) for line in result.stdout.splitlines()]
    assert edges == [Edge(1, 3, "Touching a"), Edge(2, 3, "Touching b"), Edge(3, 3, "Touching c")]


def paced(times: list[float], total: int) -> EdgePace:
    """Return the pace of a run of `total` edges, of which one was done at each of these times."""
    pace = EdgePace()
    for done, at in enumerate(times, start=1):
        pace.record(Edge(done, total, ""), at)
    return pace


def test_nothing_is_estimated_from_a_handful_of_edges() -> None:
    assert EdgePace().seconds_left(0) is None
    assert paced([1, 2, 3, 4, 5], total=100).seconds_left(5) is None


def test_nothing_is_estimated_from_the_first_files_of_many() -> None:
    times = [float(n) for n in range(1, 21)]
    assert paced(times, total=81).seconds_left(20) is None
    assert paced(times, total=80).seconds_left(20) == pytest.approx(60)


def test_a_steady_pace_gives_the_exact_rest() -> None:
    pace = paced([2.0 * n for n in range(1, 51)], total=100)
    assert pace.seconds_left(100) == pytest.approx(100)
    assert pace.seconds_left(130) == pytest.approx(70)  # time passes between edges
    assert pace.seconds_left(10_000) == 0


def test_the_later_half_decides() -> None:
    cached = [0.01 * n for n in range(1, 21)]
    compiled = [cached[-1] + 10.0 * n for n in range(1, 31)]
    assert paced(cached + compiled, total=60).seconds_left(compiled[-1]) == pytest.approx(100)


def test_cached_edges_are_forgotten_as_soon_as_others_took_as_long() -> None:
    """If a header has changed, half of the work of the resumed build is in the compiler cache."""
    cached = [0.1 * n for n in range(1, 801)]
    compiled = [cached[-1] + 10.0 * n for n in range(1, 11)]
    assert paced(cached + compiled, total=1530).seconds_left(compiled[-1]) == pytest.approx(7200)


def test_a_single_slow_edge_is_not_the_pace() -> None:
    pace = paced([*(float(n) for n in range(1, 50)), 149.0], total=100)
    assert pace.seconds_left(149.0) == pytest.approx(50 * 104 / 5)


def test_a_second_run_starts_anew() -> None:
    pace = paced([float(n) for n in range(1, 101)], total=100)
    pace.record(Edge(1, 50, ""), 200)
    assert pace.seconds_left(200) is None
    for done in range(2, 21):
        pace.record(Edge(done, 50, ""), 200 + done)
    assert pace.seconds_left(220) == pytest.approx(30)


def test_a_repeated_count_is_no_edge() -> None:
    pace = paced([float(n) for n in range(1, 11)], total=20)
    pace.record(Edge(10, 20, "again"), 60)
    assert pace.seconds_left(10) == pytest.approx(10)


def weighed(costs: dict[str, float], done: dict[str, float], total: int) -> EdgePace:
    """Return the pace of a run that made these paths at these times."""
    pace = EdgePace(lambda path: costs.get(path, 5.0), lambda: costs)
    for number, (path, at) in enumerate(done.items(), start=1):
        pace.record(Edge(number, total, f"Building CXX object {path}"), at)
    return pace


def test_many_small_files_do_not_promise_a_quick_end() -> None:
    """The files of XNNPACK in torch are half of the edges, and take a twentieth of the time."""
    costs = {f"{number}.c.o": 0.5 for number in range(100)}
    costs |= {f"{number}.cpp.o": 9.5 for number in range(100)}
    small = {f"{number}.c.o": 0.25 * (number + 1) for number in range(100)}  # on two processors
    pace = weighed(costs, small, total=200)
    assert pace.share == pytest.approx(0.05)
    assert pace.seconds_left(25.0) == pytest.approx(475)
    first_twenty = dict(list(small.items())[:20])
    assert weighed(costs, first_twenty, total=200).seconds_left(5.0) == pytest.approx(495), "1 %"
    first_nineteen = dict(list(small.items())[:19])
    assert weighed(costs, first_nineteen, total=200).seconds_left(4.75) is None, "less than 1 %"


def test_edges_of_this_run_weigh_as_much_as_all_on_average() -> None:
    """A run may make only a share of the outputs, or find many of them made already."""
    costs = {f"{number}.o": 4.0 for number in range(1000)}
    pace = weighed(costs, {f"{number}.o": 2.0 * (number + 1) for number in range(10)}, total=100)
    assert pace.share == pytest.approx(0.1)
    assert pace.seconds_left(20.0) == pytest.approx(180)


@pytest.mark.parametrize(
    ("title", "path"),
    [
        ("Building CXX object caffe2/a.cpp.o", "caffe2/a.cpp.o"),
        ("Linking CXX shared library lib/libtorch.so", "lib/libtorch.so"),
        ("c++ -MMD -c /a/b.cpp -o /t/b.o -O2", "/t/b.o"),
        ("nvcc --output-file /t/b.o -c b.cu", "/t/b.o"),
        ("Generating ATen headers", ""),
    ],
)
def test_the_output_of_an_edge(title: str, path: str) -> None:
    assert made_path(title) == path


def test_outputs_that_the_log_does_not_name_are_unmade(tmp_path: Path) -> None:
    assert unmade_outputs(tmp_path) == []
    (tmp_path / "build.ninja").write_text(
        "rule touch\n  command = touch $out\n"
        "build a.o: touch\nbuild with$ space.o | c$:d.h: touch a.o\nbuild all: phony a.o\n"
        "build b.o: touch\ndefault all\n"
    )
    assert unmade_outputs(tmp_path) == ["a.o", "with space.o", "b.o"]
    if shutil.which("ninja"):
        subprocess.run(["ninja"], cwd=tmp_path, capture_output=True, check=True)
        assert unmade_outputs(tmp_path) == ["with space.o", "b.o"]


MANIFEST = """\
rule cc
  command = cc -MD -MF $out.d -c $in -o $out
  depfile = $out.d
  deps = gcc
build a.o: cc ../a.c
build b.o: cc ../b.c
"""


@pytest.fixture
def compiled(tmp_path: Path) -> Path:
    """Return a folder in which ninja compiled two files."""
    if not shutil.which("ninja") or not shutil.which("cc"):
        pytest.skip("needs ninja and a C compiler")
    for name, text in {
        "a.h": "",
        "a.c": '#include "a.h"\n',
        "b.c": "#include <stdint.h>\n",
    }.items():
        (tmp_path / name).write_text(text)
    build = tmp_path / "build"
    build.mkdir()
    (build / "build.ninja").write_text(MANIFEST)
    subprocess.run(["ninja"], cwd=build, capture_output=True, check=True)
    return build


def by_ninja(build: Path) -> dict[str, list[str]]:
    """Return the dependencies that ninja itself prints."""
    result = subprocess.run(
        ["ninja", "-t", "deps"], cwd=build, capture_output=True, text=True, check=True
    )
    dependencies = {}
    for block in result.stdout.strip().split("\n\n"):
        title, *lines = block.splitlines()
        output = title.partition(": #deps")[0]
        dependencies[output] = [line.strip() for line in lines]
    return dependencies


def test_dependencies_are_those_that_ninja_prints(compiled: Path) -> None:
    dependencies = read_dependencies(compiled / ".ninja_deps")
    assert dependencies == by_ninja(compiled)
    assert "../a.h" in dependencies["a.o"]
    assert any(path.endswith("/stdint.h") for path in dependencies["b.o"])


def test_the_last_record_of_an_output_counts(compiled: Path) -> None:
    (compiled.parent / "a.c").write_text("\n")
    subprocess.run(["ninja"], cwd=compiled, capture_output=True, check=True)
    assert "../a.h" not in read_dependencies(compiled / ".ninja_deps")["a.o"]
    assert read_dependencies(compiled / ".ninja_deps") == by_ninja(compiled)


def test_of_a_log_that_was_cut_off_the_complete_records_are_read(compiled: Path) -> None:
    log = compiled / ".ninja_deps"
    dependencies = read_dependencies(log)
    data = log.read_bytes()
    for length in range(16, len(data), 7):
        log.write_bytes(data[:length])
        assert read_dependencies(log).items() <= dependencies.items()


@pytest.mark.parametrize(
    "data",
    [b"", b"# ninjalog v5\n", b"# ninjadeps\n", b"# ninjadeps\n\x09\0\0\0", b"# ninjadeps\n\x04\0"],
)
def test_a_file_that_is_no_log_of_dependencies_is_refused(tmp_path: Path, data: bytes) -> None:
    log = tmp_path / ".ninja_deps"
    log.write_bytes(data)
    with pytest.raises(ValueError, match="cannot be read as ninja's log of dependencies"):
        read_dependencies(log)


def test_a_log_with_the_number_of_an_unknown_file_is_refused(tmp_path: Path) -> None:
    log = tmp_path / ".ninja_deps"
    log.write_bytes(
        b"# ninjadeps\n\x04\0\0\0" + b"\x10\0\0\x80" + b"\x07\0\0\0" + bytes(8) + b"\x09\0\0\0"
    )
    with pytest.raises(ValueError, match="names files that it does not list"):
        read_dependencies(log)


def test_failures_of_old_and_new_ninja_are_read() -> None:
    assert parse_failure("FAILED: csrc/a.o") == "csrc/a.o"
    assert parse_failure("\x1b[31mFAILED: \x1b[0m[code=1] csrc/a.o ") == "csrc/a.o"
    assert parse_failure("-- Performing Test HAS_AVX - Failed") is None
    assert parse_failure("tests FAILED: 3") is None
