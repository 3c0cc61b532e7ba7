"""How often the first command of `invoke diagnose` cures: logs from issue threads whose cure is known.

`python -m benchmarks.diagnose_cures` prints a table; `--show` also lists the logs that it does not cure.

Each log of benchmarks/data/cured_builds.toml has its true cause and cure, written before it was diagnosed: the names of
causes that are right or near, and a regular expression that the first command must match.
"""

import argparse
import re
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torchmill.config import facts_reader
from torchmill.config.facts import Facts
from torchmill.plan import causes
from torchmill.plan.causes import Diagnosis
from torchmill.plan.diagnosis.cure_order import first_command

ROOT = Path(__file__).parents[1]
CURED = ROOT / "benchmarks/data/cured_builds.toml"


def read_logs(file: Path = CURED) -> Sequence[Mapping[str, Any]]:
    """Return the logs of a file, each with what is known of it."""
    logs: Sequence[Mapping[str, Any]] = tomllib.loads(file.read_text("utf-8"))["log"]
    return logs


def judge_cause(diagnosis: Diagnosis, log: Mapping[str, Any]) -> str:
    """Return how a diagnosis names the cause: "right", "near", "wrong" or "nothing"."""
    if diagnosis.match is None or diagnosis.match.cause.precedence == "report":
        return "nothing"
    name = diagnosis.match.cause.name
    for judgement in ("right", "near"):
        if name in log.get(judgement, ()):
            return judgement
    return "wrong"


def offered_command(diagnosis: Diagnosis) -> str:
    """Return the first command of the fix; "" if there is none."""
    return first_command(diagnosis.match.cause.cure) if diagnosis.match else ""


def cures(diagnosis: Diagnosis, log: Mapping[str, Any]) -> bool:
    """Tell whether the first command of the fix cures the failure of a log."""
    return re.search(log["cured_by"], offered_command(diagnosis)) is not None


def diagnose_log(facts: Facts, log: Mapping[str, Any]) -> Diagnosis:
    """Return the diagnosis of a log, by its lines and the rules."""
    return causes.diagnose(facts.causes, log["said"].splitlines(), rules=facts)


def main() -> None:
    """Print for each set how many logs have their cause named, and how many are cured."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--show", action="store_true", help="list the logs that are not cured")
    show = parser.parse_args().show
    facts = facts_reader.read_facts(ROOT / "build_configs")
    counts: dict[str, Counter[str]] = {}  # by set
    for log in read_logs():
        diagnosis = diagnose_log(facts, log)
        judgement = judge_cause(diagnosis, log)
        is_cured = cures(diagnosis, log)
        count = counts.setdefault(log["set"], Counter())
        count.update(["logs", judgement])
        count["cured"] += is_cured
        if show and not (is_cured and judgement == "right"):
            name = diagnosis.match.cause.name if diagnosis.match else None
            print(f"{log['at']}: {judgement} ({name}): {offered_command(diagnosis)}")
    columns = ("logs", "right", "near", "wrong", "nothing", "cured")
    print(f"{'set':12}" + "".join(f"{column:>9}" for column in columns))
    for name, count in counts.items():
        print(f"{name:12}" + "".join(f"{count[column]:>9}" for column in columns))


if __name__ == "__main__":
    main()
