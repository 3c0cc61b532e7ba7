"""Two wheels timed in turns: ratios, their spread, and the verdict."""

import json
import math
import subprocess
import sys
from pathlib import Path

from tools.proof.speed import (
    CPU,
    WALL,
    SpeedRatio,
    Times,
    compare_rounds,
    describe,
    geometric_mean,
    write_picture,
)
from torchmill.wheel.verify.clean_environment import CHECK_SCRIPTS


def timed(ours: float, theirs: float) -> dict[str, Times]:
    lacking: Times = {"matmul": [ours, ours / 2], "int8": "RuntimeError: no engine"}
    return {"ours": lacking, "published": {"matmul": [theirs, theirs], "int8": [1.0, 1.0]}}


def test_the_ratio_of_each_round_counts() -> None:
    rounds = [timed(1, 2), timed(10, 11), timed(1, 1.2)]
    assert compare_rounds(rounds, WALL) == {"matmul": SpeedRatio(1.2, 1.1, 2.0)}, (
        "a slow round is slow for both"
    )
    assert compare_rounds(rounds, CPU)["matmul"].median == 2.4


def test_the_verdict_names_what_is_slower(tmp_path: Path) -> None:
    found = {"matmul": SpeedRatio(2.0, 1.9, 2.1), "conv": SpeedRatio(0.5, 0.4, 0.6)}
    assert geometric_mean(found) == 1.0
    assert math.isnan(geometric_mean({}))
    text = "\n".join(
        describe({1: found, 8: {"matmul": SpeedRatio(1.0, 0.9, 1.1)}}, {}, {1: 1.0, 8: 1.0})
    )
    assert "slower, one thread: conv 0.50 (0.40 to 0.60)" in text
    assert "slower, 8 threads: none" in text
    write_picture({1: found}, "ours", tmp_path / "picture.png")
    assert (tmp_path / "picture.png").read_bytes().startswith(b"\x89PNG")


def test_a_case_that_does_not_run_is_told_and_the_others_are_timed(tmp_path: Path) -> None:
    cases = [
        {"name": "sum", "setup": ["numbers = list(range(1000))"], "run": "sum(numbers)"},
        {"name": "lacking", "setup": [], "run": "math.matmul()"},
    ]
    trial = {"setup": ["import math"], "cases": cases, "seconds": 0.01}
    (tmp_path / "trial.json").write_text(json.dumps(trial))
    argv = [sys.executable, str(CHECK_SCRIPTS / "speed_trial.py"), str(tmp_path / "trial.json")]
    said = json.loads(
        subprocess.run(argv, capture_output=True, text=True, check=True).stdout.splitlines()[-1]
    )
    assert said["lacking"].startswith("AttributeError")
    assert all(0 < seconds < 1 for seconds in said["sum"])
