"""What the figures of benchmarks rest on: comparing wheels, the cost of a command, and recorded runs."""

import json
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from guard_intruder import Intruder

from tests.support.commands import ROOT

BENCHMARKS = ROOT / "benchmarks"
DAY = (2026, 1, 1, 0, 0, 0)
# A server: it loses its parent, and works on for a while.
SERVER = "import time\nwhile time.process_time() < 0.5: pass"
MEASURE = """
import json, os, sys
from pathlib import Path
from command_cost import CountingCompilers, measure_command
folder = Path(sys.argv[1])
compilers = CountingCompilers(folder / "counting")
command = "$CXX -E a.cpp >a.ii && $CXX -c a.cpp -o a.o && $CXX a.o -shared -o a.so && "
command += f"({sys.executable} server.py & exit 3)"
environment = {**os.environ, **compilers.variables()}
cost = measure_command(["sh", "-c", command], folder, environment, compilers, folder / "log")
print(json.dumps(cost.as_row()))
"""


def compare(first: Path, second: Path) -> subprocess.CompletedProcess[str]:
    argv = [sys.executable, str(BENCHMARKS / "compare_wheels.py"), str(first), str(second)]
    return subprocess.run(argv, capture_output=True, text=True, check=False)


def wheel(
    path: Path, files: dict[str, bytes], day: tuple[int, int, int, int, int, int] = DAY
) -> Path:
    with zipfile.ZipFile(path, "w") as opened:
        for name, content in files.items():
            opened.writestr(zipfile.ZipInfo(name, day), content)
    return path


def test_wheels_are_compared_file_by_file(tmp_path: Path) -> None:
    elf = Path(sys.executable).resolve().read_bytes()
    files = {
        "a/version.py": b"x = 1\ny = 2\n",
        "a/data": b"\xff\x00\x01",
        "a/old.py": b"",
        "a/bin": elf,
    }
    other = {
        "a/version.py": b"x = 1\ny = 3\n",
        "a/data": b"\xff\x00\x02",
        "a/new.py": b"",
        "a/bin": b"",
    }
    first = wheel(tmp_path / "1.whl", files)
    done = compare(first, wheel(tmp_path / "2.whl", other))
    assert done.stdout.splitlines() == [
        f"a/bin: {len(elf)} and 0 bytes, from byte 0",
        "a/data: 3 and 3 bytes, from byte 2",
        "a/new.py: only in 2.whl",
        "a/old.py: only in 1.whl",
        "a/version.py: -y = 2 | +y = 3",
        "the same, byte for byte: False",
    ]
    assert done.returncode == 1
    again = compare(first, wheel(tmp_path / "3.whl", files))
    assert (again.returncode, again.stdout) == (0, "the same, byte for byte: True\n")


def test_wheels_with_the_same_files_may_differ_in_what_is_around_them(tmp_path: Path) -> None:
    files = {"a.py": b"1", "b.py": b"2"}
    later = wheel(tmp_path / "2.whl", dict(reversed(files.items())), (2026, 1, 2, 0, 0, 0))
    assert compare(wheel(tmp_path / "1.whl", files), later).stdout.splitlines() == [
        "the files stand in another order",
        "date_time differs for 2 files, such as a.py",
        "the same, byte for byte: False",
    ]


def test_sections_of_programs_that_differ_are_named(tmp_path: Path) -> None:
    for number in (1, 2):
        source = tmp_path / f"{number}.c"
        source.write_text(f"const int answer = {number};", encoding="ascii")
        subprocess.run(["cc", "-c", source, "-o", source.with_suffix(".o")], check=True)
    packed = [
        wheel(tmp_path / f"{number}.whl", {"a.so": (tmp_path / f"{number}.o").read_bytes()})
        for number in (1, 2)
    ]
    report = compare(*packed).stdout
    assert report.startswith("a.so: sections ")
    assert ".rodata" in report
    assert ".text" not in report


def test_what_a_command_spends_includes_the_servers_it_leaves(tmp_path: Path) -> None:
    (tmp_path / "a.cpp").write_text("int x;", encoding="ascii")
    (tmp_path / "server.py").write_text(SERVER, encoding="ascii")
    argv = [sys.executable, "-c", MEASURE, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(BENCHMARKS)}
    done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True)
    row = json.loads(done.stdout)
    assert row["compiles"] == 1
    assert (row["code"], row["good"]) == (3, False)
    assert row["cpu"] >= 0.5


def test_a_build_is_held_against_what_another_made(tmp_path: Path) -> None:
    """What the source has too does not count, and headers are one line."""
    source, build = tmp_path / "source", tmp_path / "build"
    for folder in (source, build / "CMakeFiles"):
        folder.mkdir(parents=True)
    (source / "old.py").write_bytes(b"old")
    (build / "a.o").write_bytes(b"object")
    (build / "CMakeFiles" / "trial.o").write_bytes(b"of CMake")
    files = {
        "a/old.py": b"old",
        "a/new.py": b"new",
        "torch/include/x.h": b"x",
        "torch/include/y.h": b"y",
    }
    new_wheel = wheel(tmp_path / "1.whl", files)
    script = BENCHMARKS / "recorded_build.py"
    argv: list[str | Path] = [sys.executable, script, "--source", source, "--build", build]
    done = subprocess.run([*argv, "--wheel", new_wheel], capture_output=True, text=True, check=True)
    names = [line.split(",")[0] for line in done.stdout.splitlines()]
    assert names == ["file", "a/new.py", "torch/include", "a.o"]
    table = tmp_path / "made.csv"
    table.write_text(f"# remarks\n{done.stdout}")
    again: list[str | Path] = [*argv, "--against", table, "--wheel"]
    done = subprocess.run([*again, new_wheel], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "the same\n")
    (build / "a.o").write_bytes(b"OBJECT")
    other = wheel(tmp_path / "2.whl", files | {"a/new.py": b"newer", "torch/include/x.h": b"z"})
    done = subprocess.run([*again, other], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stdout.splitlines() == [
        "a.o: another one, of the same size",
        "a/new.py: another one, 3 and 5 bytes",
        "torch/include: another one, of the same size",
    ]


def test_an_intruder_that_outlives_the_build_counts_to_its_end() -> None:
    intruder = Intruder(Path("program"), Path("source"))
    intruder.counts = [(5.0, 6), (7.0, 6), (9.0, 5), (11.0, 3), (12.0, 4)]
    assert intruder.as_row() == {"level": 6, "least": 3, "recovery": None}
    intruder.end = 11.5
    intruder.counts += [(13.0, 6)]
    assert intruder.as_row() == {"level": 6, "least": 3, "recovery": 1.5}


@pytest.mark.parametrize("name", ["guard_overhead", "rebuild", "pack_wheels"])
def test_a_file_without_runs_is_refused_with_the_option_that_records_some(
    name: str, tmp_path: Path
) -> None:
    file = tmp_path / "runs.jsonl"
    file.touch()
    argv = [sys.executable, str(BENCHMARKS / f"{name}.py"), "--render", str(file)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path])}
    rendering = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False)
    assert rendering.returncode == 1
    assert rendering.stderr == f"{file} has no runs: record some with --results {file}\n"
