"""How even the shares of a real build are, for several ways of cutting it.

    python -m benchmarks.shares BUILD TIMELINE [--package torch --release 2.6.0] [--ninja PROGRAM]

A share is one machine's part of the compiles of a build that several machines do together. BUILD is a folder that was
built with ninja, TIMELINE the guard's record of that build (`.torchmill/logs/`). Prints what ninja's tools cost, how
many compiles there are to share, and for each number of shares how many times as long as their mean the longest takes:
cut by the shipped costs, by the number of files, by a digest of the name, and by the true times, which nobody knows
beforehand.
"""

import argparse
import hashlib
import json
import random
import resource
import shutil
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from millguard.timeline import UnitRun, parse_record

from torchmill.config import remembered_facts
from torchmill.core.paths import CHECKOUT
from torchmill.plan.compile_costs import release_costs
from torchmill.toolchain import shards

COUNTS = (2, 4, 8, 16, 32)  # of shares


def read_seconds(timeline: Path) -> dict[str, float]:
    """Return the seconds of each source's compile, without its wait for the guard, by a build's timeline."""
    seconds = {}
    for line in timeline.read_text(encoding="utf-8").splitlines():
        record = parse_record(line)
        if isinstance(record, UnitRun) and record.outcome == "done":
            source = record.key.split("|")[1]
            seconds[source] = record.seconds
    return seconds


def find_seconds(source: str, seconds: Mapping[str, float]) -> float | None:
    """Return the seconds of a source, whichever folder the paths in `seconds` begin in; None if unknown."""
    parts = source.split("/")
    for first in range(len(parts)):
        path = "/".join(parts[first:])
        if path in seconds:
            return seconds[path]
    return None


def cut(costs: Mapping[str, float], count: int) -> list[list[str]]:
    """Return the names of objects in shares of about the same cost."""
    return shards.divide_compiles(costs, [0.0] * count)


def cut_by_digest(names: Iterable[str], count: int) -> list[list[str]]:
    """Return the names in shares that depend on a digest of the name only."""
    shares: list[list[str]] = [[] for _ in range(count)]
    for name in names:
        digest = hashlib.sha256(name.encode()).hexdigest()
        shares[int(digest, 16) % count].append(name)
    return shares


def imbalance(shares: Sequence[Sequence[str]], seconds: Mapping[str, float]) -> float:
    """Return the time of the longest share over their mean."""
    loads = [sum(seconds[name] for name in share) for share in shares]
    return max(loads) / (sum(loads) / len(loads))


def true_seconds(ninja: str, build: Path, timeline: Path, names: Iterable[str]) -> dict[str, float]:
    """Return the seconds that compiles really took, by object, of those that the timeline has."""
    command = [ninja, "-C", str(build), "--quiet", "-t", "compdb"]
    output = subprocess.run(command, check=True, capture_output=True).stdout
    sources = {entry["output"]: entry["file"] for entry in json.loads(output)}
    seconds_by_source = read_seconds(timeline)
    seconds_by_object = {}
    for name in names:
        seconds = find_seconds(sources[name], seconds_by_source)
        if seconds is not None:
            seconds_by_object[name] = seconds
    return seconds_by_object


def cpu_seconds() -> float:
    """Return the processor seconds of this process and its children so far."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return children.ru_utime + children.ru_stime + time.process_time()


def print_line(title: str, imbalances: Iterable[float]) -> None:
    """Print how even one way's shares are, for each number of shares."""
    print(f"{title:36}" + "".join(f"{value:8.3f}" for value in imbalances))


def main() -> None:
    """Cut the compiles of a build in several ways, and print how even the shares are."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("build", type=Path)
    parser.add_argument("timeline", type=Path)
    parser.add_argument("--package", default="torch")
    parser.add_argument("--release", default="2.6.0")
    parser.add_argument("--ninja", default=shutil.which("ninja") or "ninja")
    options = parser.parse_args()
    start = cpu_seconds()
    ninja = shards.Ninja(options.ninja, ["-C", str(options.build), "install"])
    names = ninja.objects_to_share()
    known_units = remembered_facts.load_facts(CHECKOUT).costs.known_units
    units = release_costs(known_units, options.package, options.release)
    patterns = [(unit.pattern, unit.seconds) for unit in units if unit.seconds]
    shipped_costs = {name: shards.expected_seconds(name, patterns) for name in names}
    cut(shipped_costs, COUNTS[-1])  # for its cost
    cutting_seconds = cpu_seconds() - start
    seconds = true_seconds(options.ninja, options.build, options.timeline, names)
    timed = f"{len(seconds)} of them timed, {sum(seconds.values()):.0f} s"
    print(f"{len(names)} compiles to share, {timed}; cut in {cutting_seconds:.2f} CPU s")
    chance = random.Random(1)  # noqa: S311 - figures
    wrong_seconds = {name: true * chance.uniform(2 / 3, 4 / 3) for name, true in seconds.items()}
    costs_by_way = {
        "true times": seconds,
        "true times, wrong by up to a third": wrong_seconds,
        "shipped costs": {name: shipped_costs[name] for name in seconds},
        "number of files": dict.fromkeys(seconds, 1.0),
    }
    print(f"{'longest share / mean':36}" + "".join(f"{count:>8}" for count in COUNTS))
    for way, costs in costs_by_way.items():
        print_line(way, [imbalance(cut(costs, count), seconds) for count in COUNTS])
    by_digest = [imbalance(cut_by_digest(seconds, count), seconds) for count in COUNTS]
    print_line("digest of the name", by_digest)
    longest = max(seconds, key=lambda name: seconds[name])
    print(f"the longest compile: {seconds[longest]:.0f} s, {longest}")


if __name__ == "__main__":
    main()
