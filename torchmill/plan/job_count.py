"""How many compilers may run at a time."""

from dataclasses import dataclass

from torchmill.config.facts_model import CostRange
from torchmill.config.model import Build, Facts
from torchmill.config.rules import is_within
from torchmill.core.units import format_bytes

PREPROCESSOR_BYTES = 128 * 2**20  # bytes: for files of torch 1.13.1 gcc 12's took 36 to 100 MiB, and ccache 6


@dataclass(frozen=True, slots=True)
class JobCount:
    """A number of jobs and what it follows from."""

    count: int
    reason: str


def largest_compile(facts: Facts, build: Build, version: str) -> CostRange:
    """Return the bytes that the largest compiles of a build of a release take, low and high.

    Where no table says so, it is the package's memory per job.
    """
    found = [
        peak.memory
        for peak in facts.peaks
        if peak.package == build.package
        and is_within(peak.release, version)
        and is_within(peak.cuda, build.cuda)
    ]
    per_job = float(facts.packages[build.package].memory_per_job)
    return max(found, key=lambda memory: memory.high, default=CostRange(per_job / 2, per_job))


def guarded_slots(cores: int, memory: int) -> int:
    """Return how many compilers a guarded build may start, within `memory` in bytes.

    Most of them wait: the more there are to choose from, the better those that run fit together. But each may
    be at its preprocessor, which no gate holds where a cache asks for it.
    """
    return max(1, min(4 * cores + 2, memory // PREPROCESSOR_BYTES))


def count_jobs(cores: int, memory: int, per_job: int, options_jobs: int | None = None) -> JobCount:
    """Return the jobs that `cores` and `memory` carry, at least one; what a user asks for wins.

    `memory` and `per_job`, what the largest compiler takes, are in bytes.
    """
    carried = memory // per_job if per_job > 0 else cores
    room = f"{format_bytes(memory)} of memory at {format_bytes(per_job)} a job"
    if options_jobs is not None:
        count = max(1, options_jobs)
        excess = f", more than the {carried} that {room} carries" if count > carried else ""
        return JobCount(count, f"{count} as asked{excess}")
    if carried < 1:
        return JobCount(1, f"1, the least possible, although {room} is short")
    if carried < cores:
        return JobCount(carried, f"{carried} because of memory ({room}) though there are {cores} cores")
    return JobCount(max(1, cores), f"{max(1, cores)} because of the cores ({room} would carry {carried})")
