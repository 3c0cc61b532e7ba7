"""How far off the remaining time in a build's progress line is, with an empty and a partly filled compiler cache.

    python -m benchmarks.time_left

The compiles of torch 1.13.1 (benchmarks/data/) are replayed on two processors. Each takes its recorded time, changed at
random by about a seventh; a compile that the cache answers takes 0.15 s. The expected costs of files are wrong at
random by about half, as they are in real builds. All contenders see the same finished files, and after each they say
how many seconds remain. An answer is judged by how long it stands until the next one.
"""

import argparse
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
SECONDS_DEVIATION = 0.15  # standard deviations of the logarithms of true times and of costs
COST_DEVIATION = 0.4
UNJUDGED_EDGES = 20  # at the end of a build, when nobody asks how long it still takes
FAR_OFF = 1.5  # factor by which an answer is wrong
CACHED_SHARES = {"nothing": 0.0, "the first half": 0.5, "the first four fifths": 0.8}

FinishedFiles = Sequence[tuple[float, str]]  # seconds since the start of the build, and the file
Costs = Mapping[str, float]  # expected seconds by file
# Yields the remaining seconds after each finished file, or None for no answer.
Contender = Callable[[FinishedFiles, Costs], Iterator[float | None]]


def average_by_cost(finished: FinishedFiles, costs: Costs) -> Iterator[float | None]:
    """Assume that the rest is built as fast as all files so far, measured by the costs."""
    remaining, done = sum(costs.values()), 0.0
    for seconds, file in finished:
        done += costs[file]
        yield seconds / done * (remaining - done)


def average_by_edges(finished: FinishedFiles, costs: Costs) -> Iterator[float | None]:
    """Assume the same measured by the number of files, as ninja does without a log of an earlier build."""
    yield from average_by_cost(finished, dict.fromkeys(costs, 1.0))


def progress_line(finished: FinishedFiles, costs: Costs) -> Iterator[float | None]:
    """Yield the answers of torchmill's progress line."""
    pace = EdgePace(costs.__getitem__, lambda: costs)
    for number, (seconds, file) in enumerate(finished, 1):
        pace.record(Edge(number, len(costs), f"Building CXX object {file}"), seconds)
        yield pace.seconds_left(seconds)


CONTENDERS: Mapping[str, Contender] = {
    "average by cost": average_by_cost,
    "average by edges": average_by_edges,
    "torchmill": progress_line,
}


def replay(
    recorded_seconds: Mapping[str, float], cached_share: float, chance: random.Random
) -> FinishedFiles:
    """Return when each file is finished, if the cache has the first share of the files."""
    cached_files = cached_share * len(recorded_seconds)
    free_times = [0.0] * PROCESSORS  # a heap of when each processor becomes free
    finished = []
    for number, (file, recorded) in enumerate(recorded_seconds.items()):
        if number < cached_files:
            seconds = CACHED_SECONDS
        else:
            seconds = recorded * math.exp(chance.gauss(0, SECONDS_DEVIATION))
        end = heapq.heappop(free_times) + seconds
        heapq.heappush(free_times, end)
        finished.append((end, file))
    return sorted(finished)


def judge(answers: Sequence[float | None], finished: FinishedFiles) -> tuple[float, float, float]:
    """Return the mean factor by which answers are wrong, and the shares of time far off and without an answer."""
    build_end, _ = finished[-1]
    answered_time = unanswered_time = far_off_time = weighted_error = 0.0
    times = [seconds for seconds, _ in finished]
    # Each answer stands until the next file is finished.
    for answer, start, end in zip(answers, times[:-UNJUDGED_EDGES], times[1:], strict=False):
        duration = end - start
        if answer is None:
            unanswered_time += duration
            continue
        # Less than a second counts as one, so that the ratio stays finite.
        error = abs(math.log(max(answer, 1) / max(build_end - start, 1)))
        answered_time += duration
        weighted_error += duration * error
        if error > math.log(FAR_OFF):
            far_off_time += duration
    return (
        math.exp(weighted_error / answered_time),
        far_off_time / answered_time,
        unanswered_time / (answered_time + unanswered_time),
    )


def read_recorded_seconds() -> dict[str, float]:
    """Return the recorded seconds of each object of torch 1.13.1."""
    lines = UNITS.read_text("utf-8").splitlines()
    table = csv.DictReader(line for line in lines if not line.startswith("#"))
    return {f"{row['source']}.o": float(row["seconds"]) for row in table}


def judge_rounds(
    contender: Contender, recorded_seconds: Mapping[str, float], cached_share: float
) -> list[tuple[float, float, float]]:
    """Return the judgement of each round; the same seeds give each contender the same rounds."""
    judgements = []
    for seed in range(ROUNDS):
        chance = random.Random(seed)  # noqa: S311 - not for secrets
        costs = {}
        for file, recorded in recorded_seconds.items():
            costs[file] = recorded * math.exp(chance.gauss(0, COST_DEVIATION))
        finished = replay(recorded_seconds, cached_share, chance)
        judgements.append(judge(list(contender(finished, costs)), finished))
    return judgements


def main() -> None:
    """Print a line for each cache and contender."""
    argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    ).parse_args()
    recorded_seconds = read_recorded_seconds()
    print(
        "| cached | contender | off by a factor of | off by more than 1.5, of the time | no answer |"
    )
    print("|---|---|--:|--:|--:|")
    for title, cached_share in CACHED_SHARES.items():
        for name, contender in CONTENDERS.items():
            judgements = judge_rounds(contender, recorded_seconds, cached_share)
            factors, far_off, unanswered = zip(*judgements, strict=True)
            print(
                f"| {title} | {name} | {fmean(factors):.2f} "
                f"| {fmean(far_off):.0%} | {fmean(unanswered):.0%} |"
            )


if __name__ == "__main__":
    main()
