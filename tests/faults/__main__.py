"""Attack torchmill on purpose: `python -m tests.faults [CLASS[:KIND]…] [--seed N] [--scale X]`.

The attacks come in classes, for example broken connections or killed runs, and each class can be run by itself. A
class with kinds can be run for one of them: `doors:bisect` kills only searches for a bad commit.
All of them together take hours on 2 processors. They need no network. `disks` needs the right to mount,
and `control-groups` the right to make control groups.

Prints a row for each class: how many cases were tried, how many ended with the right result, how many were refused
with an error of torchmill, and how many failed: a wrong result, a traceback, an error without a code, or no end.
Exit code 1 if any case failed.
"""

from __future__ import annotations

import argparse
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).parents[2]
# tests/support imports press_support, which pytest finds through `pythonpath` in pyproject.toml.
sys.path.append(str(ROOT / "packages/millpress/tests"))

from tests.faults import (  # noqa: E402
    archives,
    clocks,
    connections,
    control_groups,
    disks,
    doors,
    flaky,
    hangs,
    inputs,
    kills,
    losses,
    repositories,
)
from tests.faults.tally import Tally, all_failures  # noqa: E402

SEED = 20261124  # that of the recorded runs in docs/measurements/index.md
Attack = Callable[[int, int], Iterator[Tally]]  # takes the number of cases and the seed


def attack_by_hangs(count: int, seed: int) -> Iterator[Tally]:
    """Run commands beside programs that hang: all of them, and `count` times a single one."""
    yield hangs.attack_by_hangs(count, seed)


def attack_disks(count: int, seed: int) -> Iterator[Tally]:
    """Run the sample on `count` disks that are too small."""
    yield disks.attack_by_disks(count, seed)


def attack_by_kills(count: int, seed: int) -> Iterator[Tally]:
    """Kill `count` runs of the sample."""
    yield kills.attack_by_kills(count, seed)


def attack_by_losses(count: int, seed: int) -> Iterator[Tally]:
    """Spoil `count` files or folders of the sample."""
    yield losses.attack_by_losses(count, seed)


def attack_by_repositories(count: int, seed: int) -> Iterator[Tally]:
    """Run `count` commands in hostile repositories, under strace."""
    yield repositories.attack_by_repositories(count, seed)


def _attack_each(
    attack: Callable[[str, int, int], Tally], kinds: Sequence[str]
) -> Callable[[int, int], Iterator[Tally]]:
    """Return the attack that tries so many cases of each of these kinds."""

    def attack_kinds(count: int, seed: int) -> Iterator[Tally]:
        for kind in kinds:
            yield attack(kind, count, seed)

    return attack_kinds


KINDS: Mapping[str, tuple[Callable[[str, int, int], Tally], Sequence[str], int]] = {
    "connections": (connections.attack_connections, connections.KINDS, 30),
    "control-groups": (
        control_groups.attack_after_setback,
        control_groups.SETBACKS,
        len(control_groups.FAULTS),
    ),
    "doors": (doors.attack_door, tuple(doors.DOORS), 60),
    "flaky": (flaky.attack_kind, tuple(flaky.KINDS), 100),
}
"""By class: what attacks one of its kinds, the kinds, and the usual number of cases of each."""
ATTACKS: Mapping[str, tuple[Attack, int]] = {  # by class, with its usual number of cases
    "archives": (archives.attack_archives, 150),
    "clocks": (clocks.attack_by_clocks, 24),
    "disks": (attack_disks, 72),
    "hangs": (attack_by_hangs, 60),
    "inputs": (inputs.attack_inputs, 40),
    "kills": (attack_by_kills, 400),
    "losses": (attack_by_losses, 170),
    "repositories": (attack_by_repositories, 400),
    **{
        class_name: (_attack_each(attack, kinds), usual_count)
        for class_name, (attack, kinds, usual_count) in KINDS.items()
    },
}


def find_attack(word: str) -> tuple[Attack, int]:
    """Return the attack that CLASS or CLASS:KIND names, and its usual number of cases. Raises ValueError."""
    class_name, _, kind = word.partition(":")
    if class_name not in ATTACKS:
        raise ValueError(f"no class {class_name}: choose from {', '.join(sorted(ATTACKS))}")
    if not kind:
        return ATTACKS[class_name]
    if class_name not in KINDS or kind not in KINDS[class_name][1]:
        raise ValueError(f"{class_name} has no kind {kind}")
    attack, _, usual_count = KINDS[class_name]
    return _attack_each(attack, (kind,)), usual_count


def main() -> int:
    """Print a row for each class, and then the failures. Return the exit code."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "classes",
        nargs="*",
        metavar="CLASS[:KIND]",
        help=f"any of {', '.join(sorted(ATTACKS))} (default: all of them)",
    )
    parser.add_argument("--seed", type=int, default=SEED, help="of all random choices")
    parser.add_argument(
        "--scale", type=float, default=1.0, help="factor on each class's usual number of cases"
    )
    options = parser.parse_args()
    try:
        attacks = [find_attack(word) for word in options.classes or sorted(ATTACKS)]
    except ValueError as error:
        parser.error(str(error))
    print(f"{platform.machine()}, Python {platform.python_version()}, seed {options.seed}")
    _print_row("class", "tried", "right", "refused", "failed", "seconds")
    tallies = []
    for attack, usual_count in attacks:
        start = time.monotonic()
        for tally in attack(max(1, round(usual_count * options.scale)), options.seed):
            _print_row(*tally.row(), f"{time.monotonic() - start:.0f}")
            for note, count in tally.notes.most_common():
                print(f"    {note}: {count}", flush=True)
            tallies.append(tally)
            start = time.monotonic()
    failures = all_failures(tallies)
    print("\n".join(failures) or "nothing failed")
    return 1 if failures else 0


def _print_row(*cells: str) -> None:
    label, tried, right, refused, failed, seconds = cells
    print(f"{label:28}{tried:>7}{right:>7}{refused:>9}{failed:>8}{seconds:>9}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
