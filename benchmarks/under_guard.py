"""Run a command under the memory guard, as a build is run, and write what came of it as JSON.

python benchmarks/under_guard.py --tree DIR --cache DIR --result FILE --cores N [--root DIR] -- COMMAND...

The gate is then DIR/gate, and MAX_JOBS says how many compilers may be started, waiting ones included. This
is a program of its own because the guard must live in the control group that limits it.
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
    """Run the command; exit as it does."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tree", type=Path, required=True)
    parser.add_argument("--cache", type=Path, required=True)
    parser.add_argument("--result", type=Path, required=True)
    parser.add_argument("--cores", type=int, required=True)
    parser.add_argument("--root", default="/")
    parser.add_argument("command", nargs="+")
    options = parser.parse_args()
    site = GuardSite(
        tree=options.tree,
        cache=options.cache,
        timeline=options.tree / "timeline.jsonl",
        compiler=["cc"],
        unguarded=1,
        cores=options.cores,
        roots=(options.root,),
        known=release_costs(
            facts_reader.read_facts(ROOT / "build_configs").costs.known_units, "torch", "1.13.1"
        ),
    )
    start = time.monotonic()  # what the guard takes to start and to end counts
    with guard_build(site, {}) as guard:
        slots = str(job_count.guarded_slots(options.cores, limits.LimitMeter().memory().available))
        environment = {**os.environ, "MAX_JOBS": slots, **guard.environment}
        code = subprocess.run(options.command, env=environment, check=False).returncode
    seconds = time.monotonic() - start
    while not guard.messages.empty():
        sys.stderr.write(guard.messages.get() + "\n")
    books = {"counts": guard.account.counts, "peak": guard.account.peak, "ran": guard.account.units}
    options.result.write_text(
        json.dumps({"seconds": seconds, "code": code, **books}), encoding="utf-8"
    )
    sys.exit(code)


if __name__ == "__main__":
    main()
