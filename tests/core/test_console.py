"""Progress bars, the line of a build, tables and folded text, on a real terminal and in a pipe."""

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from torchmill.core import console

ROOT = Path(__file__).parents[2]
SHOW = """
from types import SimpleNamespace
from torchmill.cell.progress_line import show_build_progress
from torchmill.core.console import show_progress
from millguard.timeline import TimelineMoment
with show_progress() as bars:
    bar = bars.start_bar("torch", 3)
    bar.update(2, 3, "receiving")
    bar.close()
with show_build_progress() as line:
    line.note("configuring")
    now = TimelineMoment(0.0, 2**30, 2**31, 0, 0, 0)
    line.read("[3/4] Building CXX object x/a.cpp.o", SimpleNamespace(now=now))
print("{}")
"""


def test_a_pipe_gets_plain_lines_and_results_stay_alone_on_stdout() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SHOW],
        cwd=ROOT,
        env=os.environ | {"FORCE_COLOR": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "{}\n"
    assert done.stderr.splitlines() == ["torch", "torch: 2/3, receiving", "configuring"]


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
def test_a_terminal_gets_moving_lines() -> None:
    output = on_terminal({"TERM": "xterm", "COLUMNS": "120"})
    assert "torch" in output
    assert "\x1b[" in output
    assert "3/4 (75 %)" in output
    assert "1.0 of 2.0 GiB: " in output
    assert "a.cpp.o" in output


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
def test_a_dumb_terminal_gets_plain_lines() -> None:
    assert "\x1b" not in on_terminal({"TERM": "dumb"})


def on_terminal(variables: dict[str, str]) -> str:
    """Run SHOW with standard error on a pseudo-terminal; return its output there."""
    master, terminal = os.openpty()
    with subprocess.Popen(
        [sys.executable, "-c", SHOW],
        cwd=ROOT,
        env=os.environ | variables,
        stdout=subprocess.DEVNULL,
        stderr=terminal,
    ) as process:
        os.close(terminal)
        output = b""
        try:
            while part := os.read(master, 4096):
                output += part
        except OSError:  # Linux raises it when the other side is closed
            pass
        os.close(master)
    assert process.returncode == 0, output
    return output.decode()


def test_a_table_is_aligned_and_never_wrapped() -> None:
    rows = [["wheel-3.10-cpu", ""], ["x", "y" * 300]]
    assert console.format_table(["identifier", "why"], rows).splitlines() == [
        "identifier      why",
        "wheel-3.10-cpu",
        "x               " + "y" * 300,
    ]


def test_a_table_without_rows_has_its_headers() -> None:
    assert console.format_table(["a", "b"], []) == "a  b"


def test_progress_can_be_written_to_any_file() -> None:
    file = io.StringIO()
    with console.show_progress(file) as bars:
        bars.start_bar("torch").close()
    assert file.getvalue() == "torch\n"


@pytest.mark.parametrize(
    ("line", "folded"),
    [
        ("glibc: it is as new as that", ["glibc: it is as new", "  as that"]),
        ("    build it where glibc is old", ["    build it where", "      glibc is old"]),
        (
            "  GPUs    K80, K40, GTX 960, P100",
            ["  GPUs    K80, K40,", "          GTX 960,", "          P100"],
        ),
        ("see `nox -s wheel-3.10-cpu` for it", ["see", "  `nox -s wheel-3.10-cpu`", "  for it"]),
        ("    `nox -s wheel-3.10-cpu -- --jobs 1`", ["    `nox -s wheel-3.10-cpu -- --jobs 1`"]),
        ("    sudo apt-get install --yes git", ["    sudo apt-get install --yes git"]),
        ("install:  pip install torch-2.0.whl", ["install:  pip install torch-2.0.whl"]),
        ("error: invoke toolkit: name one of", ["error: invoke", "  toolkit: name one", "  of"]),
        ("  CFLAGS=-O3 -DNDEBUG -fno-plt -g", ["  CFLAGS=-O3 -DNDEBUG -fno-plt -g"]),
        ("short", ["short"]),
        ("", [""]),
    ],
)
def test_long_lines_are_folded_below_their_beginning_and_commands_are_not(
    line: str, folded: list[str]
) -> None:
    assert console.fold_text(f"{line}\nend", 20).split("\n") == [*folded, "end"]
    assert console.fold_text(line, 80) == line


def test_text_for_a_file_is_not_folded() -> None:
    assert console.format_for_user("a " * 100, io.StringIO()) == "a " * 100


@pytest.mark.parametrize("columns", [-1, 0, 1, 2])
def test_a_terminal_without_room_gets_a_word_a_line(columns: int) -> None:
    assert console.fold_text("  one two", columns).split() == ["one", "two"]
