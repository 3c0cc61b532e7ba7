"""How many compilers at once, and what the largest of them take."""

from dataclasses import dataclass

from torchmill.model import Build, Facts, Range
from torchmill.quantity import format_bytes
from torchmill.rules import within

PREPROCESSOR = 128 * 2**20  # bytes: for files of torch 1.13.1 gcc 12's took 36 to 100 MiB, and ccache 6


@dataclass(frozen=True, slots=True)
class Jobs:
    """A number of jobs and what it follows from."""

    count: int
    reason: str


def largest(facts: Facts, build: Build, version: str) -> Range:
    """Return the bytes that the largest compiles of a build of a release take, low and high.

    Where no table says so, it is the package's memory per job.
    """
    found = [
        peak.memory
        for peak in facts.peaks
        if peak.package == build.package and within(peak.release, version) and within(peak.cuda, build.cuda)
    ]
    per_job = float(facts.packages[build.package].memory_per_job)
    return max(found, key=lambda memory: memory.high, default=Range(per_job / 2, per_job))


def slots(cores: int, memory: int) -> int:
    """Return how many compilers a guarded build may start, within `memory` in bytes.

    Most of them wait: the more there are to choose from, the better those that run fit together. But each may
    be at its preprocessor, which no gate holds where a cache asks for it.
    """
    return max(1, min(4 * cores + 2, memory // PREPROCESSOR))


def jobs(cores: int, memory: int, per_job: int, options_jobs: int | None = None) -> Jobs:
    """Return the jobs that `cores` and `memory` carry, at least one; what a user asks for wins.

    `memory` and `per_job`, what the largest compiler takes, are in bytes.
    """
    carried = memory // per_job if per_job > 0 else cores
    room = f"{format_bytes(memory)} of memory at {format_bytes(per_job)} a job"
    if options_jobs is not None:
        count = max(1, options_jobs)
        excess = f", more than the {carried} that {room} carries" if count > carried else ""
        return Jobs(count, f"{count} as asked{excess}")
    if carried < 1:
        return Jobs(1, f"1 because there is no less, though {room} is short")
    if carried < cores:
        return Jobs(carried, f"{carried} because of memory ({room}) though there are {cores} cores")
    return Jobs(max(1, cores), f"{max(1, cores)} because of the cores ({room} would carry {carried})")
