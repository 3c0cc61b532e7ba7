"""How often `invoke diagnose` tells the right cause: logs out of issue threads, and output of programs that succeeded.

`python -m benchmarks.diagnose_logs` prints a table; `--show OUTCOME` lists the logs with that outcome.
"""

import argparse
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torchmill.config import facts_reader
from torchmill.config.facts import FailureCause
from torchmill.plan import causes

ROOT = Path(__file__).parents[1]
FAILED = ROOT / "benchmarks/data/diagnosed_logs.toml"
HARMLESS = ROOT / "benchmarks/data/harmless_logs.toml"
OUTCOMES = ("right", "poor", "first error only", "wrong", "none")
REPORT = "only-a-report"  # which says that the log holds no cause


def read_logs(file: Path) -> Sequence[Mapping[str, Any]]:
    """Return the tables of a file of logs."""
    logs: Sequence[Mapping[str, Any]] = tomllib.loads(file.read_text("utf-8"))["log"]
    return logs


def outcome(catalogue: Sequence[FailureCause], log: Mapping[str, Any]) -> str:
    """Return how well a log is told: one of OUTCOMES."""
    found = causes.diagnose(catalogue, log["said"].splitlines())
    name = found.match and found.match.cause.name
    for judged in ("right", "poor"):
        if name in log.get(judged, ()):
            return judged
    if name and name != REPORT:
        return "wrong"
    return "first error only" if found.failure else "none"


def flagged(catalogue: Sequence[FailureCause], log: Mapping[str, Any]) -> bool:
    """Return whether the output of a program that succeeded is taken for a failure's."""
    found = causes.diagnose(catalogue, log["said"].splitlines())
    return found.match is not None or found.failure is not None


def main() -> None:
    """Print the figures of each set."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--show", choices=OUTCOMES)
    show = parser.parse_args().show
    catalogue = facts_reader.read_facts(ROOT / "build_configs").causes
    counts: dict[str, Counter[str]] = {}
    for log in read_logs(FAILED):
        told = outcome(catalogue, log)
        counts.setdefault(log["set"], Counter())[told] += 1
        if told == show:
            print(f"{log['at']}: {log['truth']}")
    print("| set | logs |", " | ".join(OUTCOMES), "|")
    for name, count in counts.items():
        shares = (f"{count[told]} ({count[told] / count.total():.1%})" for told in OUTCOMES)
        print(f"| {name} | {count.total()} |", " | ".join(shares), "|")
    harmless = read_logs(HARMLESS)
    print(
        f"{sum(flagged(catalogue, log) for log in harmless)} of {len(harmless)} harmless logs flagged"
    )


if __name__ == "__main__":
    main()
