"""What commands that only answer cost in processor time, against invoke and nox with one empty task.

Run it on a quiet machine: python benchmarks/answer_commands.py [--checkout OTHER]

`--checkout` names a second checkout, such as an older commit: its commands take turns with those of this one.
"""

import argparse
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[1]
EMPTY_TASKS = "from invoke import task\n\n\n@task\ndef nothing(_):\n    '''Do nothing.'''\n"
CELL = ("wheel-3.10-cpu", "--tag=v1.13.1")
COMMANDS: Mapping[str, Sequence[str]] = {
    "--list": ("--list",),
    "plan": ("plan", *CELL),
    "doctor": ("doctor", *CELL),
    "build --dry-run": ("build", *CELL, "--dry-run"),
    "matrix": ("matrix", "--tag=v1.13.1"),
    "status": ("status",),
}


def processor_seconds(words: Sequence[str], checkout: Path, home: Path) -> float:
    """Return the seconds of processor time of one `invoke`, with all that it starts.

    `home` has the state and the cache, so that nothing depends on what this user has built. Bytecode is kept, as
    for every user, even if this environment says otherwise.
    """
    env = dict(os.environ)
    for name in ("TORCHMILL_TAG", "PYTHONDONTWRITEBYTECODE", "PYTHONPATH"):
        env.pop(name, None)
    env |= {
        "TORCHMILL_HOME": str(home),
        "XDG_CACHE_HOME": str(home / "cache"),
        "TORCHMILL_PROBE": "off",  # no host is asked whether it answers
    }
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    # The exit code is the answer's: a machine that lacks something is no failure of the benchmark.
    subprocess.run(
        [sys.executable, "-m", "invoke", *words],
        cwd=checkout, env=env, check=False, stdin=subprocess.DEVNULL, capture_output=True,
    )  # fmt: skip
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main() -> None:
    """Time the contenders in turn, and print medians, ranges and ratios to the empty task."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--checkout", type=Path, help="a second checkout to compare with")
    parser.add_argument("--rounds", type=int, default=9)
    options = parser.parse_args()
    checkouts = {"this checkout": ROOT}
    if options.checkout:
        checkouts["the other"] = options.checkout.resolve()
    times: dict[tuple[str, str], list[float]] = {}
    with tempfile.TemporaryDirectory() as folder:
        empty = Path(folder, "empty")
        empty.mkdir()
        (empty / "tasks.py").write_text(EMPTY_TASKS, encoding="utf-8")
        # The first round fills caches and does not count.
        for number in range(options.rounds + 1):
            runs: list[tuple[str, str, Sequence[str], Path]] = []
            runs.append(("", "an empty task", ("--list",), empty))
            for place, checkout in checkouts.items():
                runs += [(place, name, words, checkout) for name, words in COMMANDS.items()]
            for place, name, words, checkout in runs:
                home = Path(folder, f"home {place}")
                home.mkdir(exist_ok=True)
                seconds = processor_seconds(words, checkout, home)
                if number:
                    times.setdefault((place, name), []).append(seconds)
    machine = f"{platform.machine()}, {os.cpu_count()} cores"
    print(f"{machine}, Python {platform.python_version()}, {options.rounds} rounds")
    base = statistics.median(times["", "an empty task"])
    for (place, name), rounds in times.items():
        median = statistics.median(rounds)
        spread = f"{median:.3f} s ({min(rounds):.3f} to {max(rounds):.3f})"
        print(f"{place:14} {name:16} {spread}, ratio {median / base:.2f}")


if __name__ == "__main__":
    main()
