"""How even the shares of a real build are: cut by shipped costs, by number of files, and by a digest of the name.

    python -m benchmarks.shares BUILD TIMELINE [--package torch --release 2.6.0] [--ninja PROGRAM]

BUILD is a folder that was built with ninja, TIMELINE what the guard saw of that build (`.torchmill/logs/`). Prints what
ninja's tools cost, how many compiles there are to share, and for each number of shares how much longer the longest
is than their mean, for the three ways and for the strongest: the true times, which nobody knows beforehand.
"""

import argparse
import hashlib
import json
import random
import resource
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from millguard.timeline import UnitRun, parse_record

from torchmill.config import facts_reader
from torchmill.core.paths import CHECKOUT
from torchmill.plan.compile_costs import release_costs
from torchmill.toolchain import shards

COUNTS = (2, 4, 8, 16, 32)


def read_seconds(timeline: Path) -> dict[str, float]:
    """Return how long each source was compiled, without waiting, by the guard's record of a build; seconds."""
    records = [parse_record(line) for line in timeline.read_text(encoding="utf-8").splitlines()]
    return {
        one.key.split("|")[1]: one.seconds
        for one in records
        if isinstance(one, UnitRun) and one.outcome == "done"
    }


def seconds_of(source: str, sources: Mapping[str, float]) -> float | None:
    """Return how long a source was compiled, whatever folder its path begins in."""
    parts = source.split("/")
    ends = ("/".join(parts[first:]) for first in range(len(parts)))
    return next((sources[end] for end in ends if end in sources), None)


def cut(seconds: Mapping[str, float], count: int) -> list[list[str]]:
    """Return the names in shares that take about as long."""
    return shards.divide_compiles(seconds, [0.0] * count)


def imbalance(shares: Sequence[Sequence[str]], seconds: Mapping[str, float]) -> float:
    """Return how many times as long as their mean the longest share takes."""
    loads = [sum(seconds[name] for name in share) for share in shares]
    return max(loads) / (sum(loads) / len(loads))


def main() -> None:
    """Cut the compiles of a build in several ways, and print how even that is."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("build", type=Path)
    parser.add_argument("timeline", type=Path)
    parser.add_argument("--package", default="torch")
    parser.add_argument("--release", default="2.6.0")
    parser.add_argument("--ninja", default=shutil.which("ninja") or "ninja")
    options = parser.parse_args()
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.process_time()
    names = shards.Ninja(options.ninja, ["-C", str(options.build), "install"]).objects_to_share()
    units = release_costs(
        facts_reader.load_facts(CHECKOUT).costs.known_units, options.package, options.release
    )
    costs = [(unit.pattern, unit.seconds) for unit in units if unit.seconds]
    said = {name: shards.expected_seconds(name, costs) for name in names}
    cut(said, COUNTS[-1])
    after, ended = resource.getrusage(resource.RUSAGE_CHILDREN), time.process_time()
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime + ended - began
    sources = read_seconds(options.timeline)
    listed = subprocess.run(
        [options.ninja, "-C", str(options.build), "--quiet", "-t", "compdb"],
        check=True,
        capture_output=True,
    )
    compiled = {one["output"]: one["file"] for one in json.loads(listed.stdout)}
    true = {
        name: found for name in names if (found := seconds_of(compiled[name], sources)) is not None
    }
    timed = f"{len(true)} of them timed, {sum(true.values()):.0f} s"
    print(f"{len(names)} compiles to share, {timed}; cut in {spent:.2f} CPU s")
    chance, known = random.Random(1), {name: said[name] for name in true}  # noqa: S311 - figures
    ways = {
        "true times": true,
        "true times, wrong by up to a third": {
            name: each * chance.uniform(2 / 3, 4 / 3) for name, each in true.items()
        },
        "shipped costs": known,
        "number of files": dict.fromkeys(true, 1.0),
    }
    print(f"{'longest share / mean':36}" + "".join(f"{count:>8}" for count in COUNTS))
    for way, each in ways.items():
        print(
            f"{way:36}" + "".join(f"{imbalance(cut(each, count), true):8.3f}" for count in COUNTS)
        )
    hashed = []
    for count in COUNTS:
        shares: list[list[str]] = [[] for _ in range(count)]
        for name in true:
            shares[int(hashlib.sha256(name.encode()).hexdigest(), 16) % count].append(name)
        hashed.append(imbalance(shares, true))
    print(f"{'digest of the name':36}" + "".join(f"{each:8.3f}" for each in hashed))
    longest = max(true, key=lambda name: true[name])
    print(f"the longest compile: {true[longest]:.0f} s, {longest}")


if __name__ == "__main__":
    main()
