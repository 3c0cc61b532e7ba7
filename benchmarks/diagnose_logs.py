"""How often `invoke diagnose` names the right cause: logs from issue threads, and output of successful programs.

`python -m benchmarks.diagnose_logs` prints a table; `--show OUTCOME` also lists the logs with that outcome.

Each log of benchmarks/data/diagnosed_logs.toml names its true cause, and judges the catalogue's causes: "right" ones
say what to do, "poor" ones are true and help little. Every other cause is wrong for it.
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
NO_CAUSE = "only-a-report"  # the catalogue's entry for logs that hold no cause


def read_logs(file: Path) -> Sequence[Mapping[str, Any]]:
    """Return the logs of a file, each with what is known of it."""
    logs: Sequence[Mapping[str, Any]] = tomllib.loads(file.read_text("utf-8"))["log"]
    return logs


def outcome(catalogue: Sequence[FailureCause], log: Mapping[str, Any]) -> str:
    """Return how good the diagnosis of a log is: one of OUTCOMES."""
    diagnosis = causes.diagnose(catalogue, log["said"].splitlines())
    if diagnosis.match is not None:
        name = diagnosis.match.cause.name
        for judgement in ("right", "poor"):
            if name in log.get(judgement, ()):
                return judgement
        if name != NO_CAUSE:
            return "wrong"
    return "first error only" if diagnosis.failure else "none"


def flagged(catalogue: Sequence[FailureCause], log: Mapping[str, Any]) -> bool:
    """Return whether the output of a successful program is taken for that of a failed one."""
    diagnosis = causes.diagnose(catalogue, log["said"].splitlines())
    return diagnosis.match is not None or diagnosis.failure is not None


def main() -> None:
    """Print how many logs of each set have each outcome."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--show", choices=OUTCOMES, help="list the logs with this outcome")
    shown_outcome = parser.parse_args().show
    catalogue = facts_reader.read_facts(ROOT / "build_configs").causes
    counts: dict[str, Counter[str]] = {}  # by set
    for log in read_logs(FAILED):
        log_outcome = outcome(catalogue, log)
        counts.setdefault(log["set"], Counter())[log_outcome] += 1
        if log_outcome == shown_outcome:
            print(f"{log['at']}: {log['truth']}")
    print("| set | logs |", " | ".join(OUTCOMES), "|")
    for set_name, count in counts.items():
        total = count.total()
        cells = [f"{count[name]} ({count[name] / total:.1%})" for name in OUTCOMES]
        print(f"| {set_name} | {total} |", " | ".join(cells), "|")
    harmless_logs = read_logs(HARMLESS)
    flags = sum(flagged(catalogue, log) for log in harmless_logs)
    print(f"{flags} of {len(harmless_logs)} harmless logs flagged")


if __name__ == "__main__":
    main()
