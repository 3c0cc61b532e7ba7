"""`invoke shards`: its advice, and the options that it refuses."""

import json
from pathlib import Path

import pytest

from tests.support.commands import ROOT, run

HOST = f"--host={ROOT}/tests/golden/hosts/debian-12.toml"


def test_a_long_build_is_advised_to_be_shared(tmp_path: Path) -> None:
    words = ("shards", "wheel-3.10-cu126", "--tag=v2.6.0", "--jobs=4", HOST)
    process = run("invoke", *words, home=tmp_path)
    assert process.returncode == 0, process.stderr
    rows = [
        line.split() for line in process.stdout.splitlines() if "█" in line and line[0].isdecimal()
    ]
    assert [row[0] for row in rows] == ["1", "2", "4", "8", "16", "32", "64"]
    assert "4 jobs at a time" in process.stdout
    data = json.loads(run("invoke", *words, "--json", home=tmp_path).stdout)
    command = f"`invoke cluster wheel-3.10-cu126 --tag=v2.6.0 --jobs=4 --shards {data['advised']}`"
    assert command in process.stdout, "with the options of the question"
    assert [build["machines"] for build in data["builds"]] == [1, 2, 4, 8, 16, 32, 64]
    assert "single compiles of device code were never measured" in process.stdout


def test_a_short_build_is_advised_to_stay_on_one_machine(tmp_path: Path) -> None:
    process = run(
        "invoke",
        "shards",
        "wheel-3.10-cpu",
        "--tag=v1.13.1",
        "--jobs=4",
        "--count=3",
        HOST,
        home=tmp_path,
    )
    assert process.returncode == 0, process.stderr
    assert [line.split()[0] for line in process.stdout.splitlines() if "█" in line][:2] == [
        "1",
        "3",
    ]
    assert (
        "one machine is cheaper: `invoke build wheel-3.10-cpu --tag=v1.13.1 --jobs=4`"
        in process.stdout
    )


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["wheel-3.10-cpu", "--count=0"], 2, "--count 0: give a whole number from 1 to 1000"),
        (["wheel-3.10-cpu", "--count=many"], 2, "--count many: give a whole number from 1 to 1000"),
        (["wheel-3.10", "--tag=v1.13.1"], 4, "'wheel-3.10' names no build"),
        (["wheel-3.10-cpu", "--jobs=0"], 2, "--jobs 0: give a whole number from 1 to 4096"),
        (["wheel-3.10-cpu", "--tag=v1.13.1", "--cpu=i287"], 2, "knows no such processor"),
    ],
)
def test_bad_options_are_refused(tmp_path: Path, words: list[str], code: int, message: str) -> None:
    process = run("invoke", "shards", *words, home=tmp_path)
    assert (process.returncode, message in process.stderr) == (code, True), process.stderr
    assert "Traceback" not in process.stderr
