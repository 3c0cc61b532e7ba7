"""How far off the time left of a build is, as its progress line says it: with an empty and a partly filled cache.

    python -m benchmarks.time_left

The compiles of torch 1.13.1 (benchmarks/data/) are replayed on two processors, each as long as it took, give or take a
seventh; what comes out of the cache takes 0.15 s. Costs are known as they are in life: off by half, at random. Every
contender sees the same lines. An answer counts for as long as it stands.
"""

import csv
import heapq
import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from statistics import fmean

from torchmill.core.ninja import Edge, EdgePace
from torchmill.core.paths import CHECKOUT

UNITS = CHECKOUT / "benchmarks" / "data" / "torch-1.13.1-cpu-units.csv"
PROCESSORS, ROUNDS, CACHED_SECONDS = 2, 5, 0.15
LAST = 20  # edges, of which nothing is options any more
OFF = 1.5  # times
CACHES = {"nothing": 0.0, "the first half": 0.5, "the first four fifths": 0.8}

Finished = Sequence[tuple[float, str]]  # when, and what
Answers = Callable[[Finished, Mapping[str, float]], Iterator[float | None]]


def average(finished: Finished, costs: Mapping[str, float]) -> Iterator[float | None]:
    """Yield what is left if the rest goes on as all until now, by the costs of files."""
    rest, done = sum(costs.values()), 0.0
    for at, name in finished:
        done += costs[name]
        yield at / done * (rest - done)


def by_edges(finished: Finished, costs: Mapping[str, float]) -> Iterator[float | None]:
    """Yield the same by the number of edges, as ninja does where it has no log of a build before."""
    yield from average(finished, dict.fromkeys(costs, 1.0))


def progress_line(finished: Finished, costs: Mapping[str, float]) -> Iterator[float | None]:
    """Yield what torchmill says."""
    pace = EdgePace(costs.__getitem__, lambda: costs)
    for number, (at, name) in enumerate(finished, 1):
        pace.record(Edge(number, len(costs), f"Building CXX object {name}"), at)
        yield pace.seconds_left(at)


CONTENDERS: Mapping[str, Answers] = {
    "average by cost": average,
    "average by edges": by_edges,
    "torchmill": progress_line,
}


def replay(seconds: Mapping[str, float], cached: float, chance: random.Random) -> Finished:
    """Return when each file is done, the first of them out of a cache."""
    free, finished = [0.0] * PROCESSORS, []
    for number, (name, usual) in enumerate(seconds.items()):
        took = (
            CACHED_SECONDS
            if number < cached * len(seconds)
            else usual * math.exp(chance.gauss(0, 0.15))
        )
        ended = heapq.heappop(free) + took
        heapq.heappush(free, ended)
        finished.append((ended, name))
    return sorted(finished)


def judge(answers: Sequence[float | None], finished: Finished) -> tuple[float, float, float]:
    """Return by which factor answers are off on the average; for which share of the time too far; and without one."""
    end = finished[-1][0]
    stood = [
        (after - at, None if said is None else abs(math.log(max(said, 1) / max(end - at, 1))))
        for said, (at, _), (after, _) in zip(answers, finished[:-LAST], finished[1:], strict=False)
    ]
    given = [(time, error) for time, error in stood if error is not None]
    whole = sum(time for time, _ in given)
    off = math.exp(sum(time * error for time, error in given) / whole)
    return (
        off,
        sum(time for time, error in given if error > math.log(OFF)) / whole,
        1 - whole / sum(time for time, _ in stood),
    )


def main() -> None:
    """Print a table: for each cache and each contender how far off it is."""
    lines = (line for line in UNITS.read_text("utf-8").splitlines() if not line.startswith("#"))
    seconds = {f"{row['source']}.o": float(row["seconds"]) for row in csv.DictReader(lines)}
    print(
        "| cached | contender | off by a factor of | off by more than 1.5, of the time | no answer |"
    )
    print("|---|---|--:|--:|--:|")
    for title, cached in CACHES.items():
        for name, contender in CONTENDERS.items():
            rounds = []
            for seed in range(ROUNDS):
                chance = random.Random(seed)  # noqa: S311 - not for secrets
                costs = {
                    file: usual * math.exp(chance.gauss(0, 0.4)) for file, usual in seconds.items()
                }
                finished = replay(seconds, cached, chance)
                rounds.append(judge(list(contender(finished, costs)), finished))
            off, far, silent = (fmean(one) for one in zip(*rounds, strict=True))
            print(f"| {title} | {name} | {off:.2f} | {far:.0%} | {silent:.0%} |")


if __name__ == "__main__":
    main()
