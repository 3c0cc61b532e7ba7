"""Run the attacks: `python -m benchmarks.faults [CLASS…] [--seed N] [--scale X]`; each class can be run by itself.

It needs nothing but this machine. Exit code 1 where anything was lost, wrong, endless, or a traceback.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from faults import archives, connections, disks, inputs, kills, losses  # noqa: E402 - found only now
from faults.tally import Tally, all_failures  # noqa: E402

SEED = 20261124
Attack = Callable[[int, int], Iterator[Tally]]


def attack_all_connections(count: int, seed: int) -> Iterator[Tally]:
    """Break `count` connections of each kind."""
    for kind in connections.KINDS:
        yield connections.attack_connections(kind, count, seed)


ATTACKS: dict[str, tuple[Attack, int]] = {  # by name, with the usual count
    "archives": (archives.attack_archives, 150),
    "connections": (attack_all_connections, 30),
    "disks": (lambda count, seed: iter([disks.attack_by_disks(count, seed)]), 72),
    "inputs": (inputs.attack_inputs, 40),
    "kills": (lambda count, seed: iter([kills.attack_by_kills(count, seed)]), 400),
    "losses": (lambda count, seed: iter([losses.attack_by_losses(count, seed)]), 170),
}


def main() -> int:
    """Print a row for each class, and the failures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "classes", nargs="*", metavar="CLASS", help=f"of {', '.join(ATTACKS)}; all of them if none"
    )
    parser.add_argument("--seed", type=int, default=SEED)
    parser.add_argument(
        "--scale", type=float, default=1.0, help="how many times the usual number of cases"
    )
    options = parser.parse_args()
    if unknown := sorted({*options.classes} - {*ATTACKS}):
        parser.error(f"no class {', '.join(unknown)}: choose from {', '.join(ATTACKS)}")
    print(f"{platform.machine()}, Python {platform.python_version()}, seed {options.seed}")
    print(
        f"{'class':28}{'tried':>7}{'right':>7}{'refused':>9}{'failed':>8}{'seconds':>9}", flush=True
    )
    every = []
    for name in options.classes or ATTACKS:
        attack, usual = ATTACKS[name]
        start = time.monotonic()
        for tally in attack(max(1, round(usual * options.scale)), options.seed):
            label, tried, right, refused, failed = tally.row()
            seconds = time.monotonic() - start
            print(
                f"{label:28}{tried:>7}{right:>7}{refused:>9}{failed:>8}{seconds:>9.0f}", flush=True
            )
            for note, times in tally.notes.most_common():
                print(f"    {note}: {times}", flush=True)
            every.append(tally)
            start = time.monotonic()
    failures = all_failures(every)
    print("\n".join(failures) or "nothing failed")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
