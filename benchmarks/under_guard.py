"""Run a command under the memory guard, as a build of torchmill runs, and write the outcome as JSON.

python benchmarks/under_guard.py --tree DIR --cache DIR --result FILE --cores N [--root DIR] -- COMMAND...

The command's compilers are to be started through DIR/gate, DIR being that of --tree. MAX_JOBS in its environment
says how many may be started, including those that wait at the gate. This is a program of its own because the guard
must run in the control group that limits it.
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

from millguard import limits
from millguard.session import GuardSite, guard_build

from torchmill.config import facts_reader
from torchmill.plan import job_count
from torchmill.plan.compile_costs import release_costs

ROOT = Path(__file__).parents[1]  # must be on PYTHONPATH


def main() -> None:
    """Run the command; exit with its exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tree", type=Path, required=True, help="gets the gate and the timeline")
    parser.add_argument("--cache", type=Path, required=True, help="keeps what the guard learns")
    parser.add_argument("--result", type=Path, required=True, help="file for the outcome")
    parser.add_argument("--cores", type=int, required=True)
    parser.add_argument("--root", default="/", help="sources are named by their paths below it")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    facts = facts_reader.read_facts(ROOT / "build_configs")
    site = GuardSite(
        tree=options.tree,
        cache=options.cache,
        timeline=options.tree / "timeline.jsonl",
        compiler=["cc"],
        unguarded=1,
        cores=options.cores,
        roots=(options.root,),
        known=release_costs(facts.costs.known_units, "torch", "1.13.1"),
    )
    start = time.monotonic()  # the start and the end of the guard count as its cost
    with guard_build(site, {}) as guard:
        available = limits.LimitMeter().memory().available
        slots = job_count.guarded_slots(options.cores, available)
        environment = {**os.environ, "MAX_JOBS": str(slots), **guard.environment}
        code = subprocess.run(options.command, env=environment, check=False).returncode
    seconds = time.monotonic() - start
    while not guard.messages.empty():
        sys.stderr.write(guard.messages.get() + "\n")
    outcome = {
        "seconds": seconds,
        "code": code,
        "counts": guard.account.counts,
        "peak": guard.account.peak,
        "ran": guard.account.units,
    }
    options.result.write_text(json.dumps(outcome), encoding="utf-8")
    sys.exit(code)


if __name__ == "__main__":
    main()
