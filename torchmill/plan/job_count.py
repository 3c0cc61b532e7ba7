"""How many compilers a build starts at a time, by its cores and its memory.

A job is a compiler that ninja starts. Without the memory guard, all jobs compile at a time. With
it, each waits at a gate, a small program before the compiler, until the guard finds that the
memory suffices for it.
"""

from dataclasses import dataclass

from torchmill.config.build import Build
from torchmill.config.costs import CostRange
from torchmill.config.facts import Facts
from torchmill.config.versions import is_within
from torchmill.core.units import format_bytes
from torchmill.host.host import Host
from torchmill.plan.build_options import Options

# Bytes of one preprocessor. Measured on files of torch 1.13.1: gcc 12's took 36 to 100 MiB, and
# ccache another 6.
_PREPROCESSOR_BYTES = 128 * 2**20
# Files that ninja, and the process which starts it, may open beside one for each compiler.
OTHER_OPEN_FILES = 64
# Processes of one compiler, at most: a shell, a cache, the gate, the driver, and what that runs.
PROCESSES_PER_COMPILER = 5


@dataclass(frozen=True, slots=True)
class JobCount:
    """A number of jobs and its reason."""

    count: int
    reason: str  # begins with the number: "4 because of the cores (…)"


def usable_memory(host: Host, options: Options) -> int:
    """Return the bytes that a build may use: the host's memory, or less with `--memory`."""
    if options.memory is None:
        return host.resources.memory
    return min(options.memory, host.resources.memory)


def largest_compile(facts: Facts, build: Build, version: str) -> CostRange:
    """Return the bytes of memory that the largest compile of a release takes, low and high.

    If no peak is recorded for the release, the range ends at the package's memory per job.
    """
    largest: CostRange | None = None
    for peak in facts.costs.peaks:
        fits_release = peak.package == build.package and is_within(peak.release, version)
        if not fits_release or not is_within(peak.cuda, build.cuda):
            continue
        if largest is None or peak.memory.high > largest.high:
            largest = peak.memory
    if largest is not None:
        return largest
    per_job = float(facts.packages[build.package].setup.memory_per_job)
    return CostRange(per_job / 2, per_job)


def guarded_slots(cores: int, memory: int) -> int:
    """Return how many compilers a build under the memory guard may start, within `memory` bytes.

    Most of them wait at their gates: the more the guard can choose from, the better it fills the
    memory. But a compiler cache runs the preprocessor of a file before it asks for the compiler,
    and the gate does not hold preprocessors. So the memory must suffice for all of them.
    """
    return max(1, min(4 * cores + 2, memory // _PREPROCESSOR_BYTES))


def count_jobs(cores: int, memory: int, per_job: int, requested: int | None = None) -> JobCount:
    """Return the number of jobs for a number of cores and bytes of memory, at least one.

    `per_job` are the bytes that the largest compile takes. `requested` is the user's number, which
    is taken as it is; the reason then says if the memory is short.
    """
    carried = memory // per_job if per_job > 0 else cores
    room = f"{format_bytes(memory)} of memory at {format_bytes(per_job)} a job"
    if requested is not None:
        count = max(1, requested)
        excess = f", more than the {carried} that {room} carries" if count > carried else ""
        return JobCount(count, f"{count} as asked{excess}")
    if carried < 1:
        return JobCount(1, f"1, the least possible, although {room} is short")
    if carried < cores:
        reason = f"{carried} because of memory ({room}) though there are {cores} cores"
        return JobCount(carried, reason)
    count = max(1, cores)
    return JobCount(count, f"{count} because of the cores ({room} would carry {carried})")


def limit_slots(slots: int, open_files: int | None, processes: int | None) -> int:
    """Return how many of `slots` compilers ninja can start within a user's limits, at least one.

    ninja keeps a file open for each, and fails if the system denies it another file or process.
    `open_files` and `processes` are the limits; None for any number.
    """
    startable = slots
    if open_files is not None:
        startable = min(startable, open_files - OTHER_OPEN_FILES)
    if processes is not None:
        startable = min(startable, processes // PROCESSES_PER_COMPILER)
    return max(1, startable)
