"""The guard's policy on imagined machines, against fixed numbers of jobs: time over the lower bound.

python benchmarks/guard_simulated.py [--units 300] [--seeds 3] [--spacing 0.05]

Everything is computed by guard_simulator.py: no compiler runs, and the result does not depend on this machine, nor on
its load. It does depend on the seeds: with few of them, compare the columns with the worst seed.
"warm" is the guard that has built the same units before, "cold" the one that knows only the shipped costs. "GB:4" is
a job for each 4 GB of memory; "best" the fastest number of jobs that the memory allows, which nobody knows beforehand.
"""

import argparse
import math
import statistics
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import mixes
from guard_simulator import (
    ImaginedMachine,
    ImaginedUnit,
    SimulatedOutcome,
    lower_bound,
    measured_curve,
    recorded_curve,
    simulate_build,
)
from millguard.expectations import MeasuredNeed, NeedHistory, UnitExpectations
from millguard.policy import Admit, Decision, PolicyInput, Unit, decide
from millguard.units import UnitDescription

from torchmill.config import facts_reader
from torchmill.plan.compile_costs import release_costs
from torchmill.plan.job_count import guarded_slots

ROOT = Path(__file__).parents[1]
GIB, GB = 2**30, 10**9
KNOWN_COSTS = release_costs(
    facts_reader.read_facts(ROOT / "build_configs").costs.known_units, "torch", "2.0.0"
)
NVCC_THREADS = 4  # that flash attention's setup.py gives to nvcc
DELAY = 0.02  # seconds between looking at the memory and acting
UNGUARDED_DELAY = 0.25  # the same in builds without the guard, which look for nothing but kills


@dataclass(frozen=True, slots=True)
class Case:
    """A machine and a kind of build."""

    mix: str  # "CPU", "CUDA" or "flash"
    memory: float  # bytes
    cores: int


SMALL_MACHINES = [
    *(Case("CPU", gib * GIB, cores) for gib in (2.3, 4, 8, 16) for cores in (8, 32)),
    *(Case("CUDA", gib * GIB, cores) for gib in (6, 8, 16) for cores in (8, 32)),
]
LARGE_MACHINES = [Case("flash", 128 * GB, 64), Case("flash", 880 * GB, 192)]
EXTREME_MACHINES = [Case("CPU", 2 * GIB, 2), Case("flash", 1024 * GIB, 256)]


def draw_units(case: Case, count: int, seed: int) -> list[ImaginedUnit]:
    """Return the units of a build; every second one of a "flash" build is flash attention's."""
    if case.mix == "CPU":
        drawn = mixes.draw_cpu_units(count, seed)
    elif case.mix == "CUDA":
        drawn = mixes.draw_cuda_units(count, seed)
    else:  # large machines need more units to be kept busy
        drawn = mixes.draw_cuda_units(4 * case.cores, seed)
    units = []
    for index, unit in enumerate(drawn):
        curve = recorded_curve(unit.curve[1:])
        if case.mix == "flash" and index % 2:
            flash_unit = ImaginedUnit(
                key=unit.source + "f",
                peak=NVCC_THREADS * 5 * GB,
                seconds=120.0 + index % 60,
                weight=NVCC_THREADS,
                curve=curve,
            )
            units.append(flash_unit)
        else:
            units.append(ImaginedUnit(unit.source, unit.peak, unit.seconds, 1.0, curve))
    return units


def build_guarded(
    units: Sequence[ImaginedUnit], machine: ImaginedMachine, folder: Path, *, warm: bool
) -> SimulatedOutcome:
    """Return the outcome of a build under the guard, which knows the units' needs if it is warm."""
    history = NeedHistory(folder / "none.sqlite")
    if warm:
        for unit in units:
            need = MeasuredNeed(unit.peak, unit.seconds, measured_curve(unit.curve))
            history.learn(unit.key, need)
    expectations = UnitExpectations(history, KNOWN_COSTS)

    def predict(unit: ImaginedUnit) -> Unit:
        return expectations.expect(describe(unit))

    def learn(unit: ImaginedUnit) -> None:
        expectations.learn(describe(unit), unit.peak, unit.seconds)

    return simulate_build(units, machine, decide, predict, learn=learn)


def describe(unit: ImaginedUnit) -> UnitDescription:
    """Return the description of a unit that the gate would send to the guard."""
    if ".cu" in unit.key:
        family = "cuda"
    elif unit.key.endswith(".c"):
        family = "c"
    else:
        family = "c++"
    source = "flash_attn/src/flash.cu" if unit.weight > 1 else unit.key
    return UnitDescription(family, unit.key, unit.weight, source)


class KilledError(Exception):
    """The kernel killed a compiler: the build is lost."""


def seconds_with_jobs(jobs: int, units: Sequence[ImaginedUnit], case: Case) -> float:
    """Return the seconds of a build with a fixed number of jobs.

    Raises KilledError if memory runs out.
    """

    def admit_up_to_jobs(view: PolicyInput) -> list[Decision]:
        # The simulator marks a unit so that was killed, and has it wait again.
        if any(ticket.alone for ticket in view.waiting):
            raise KilledError
        free = jobs - len(view.running)
        return [Admit(ticket.number) for ticket in view.waiting[:free]]

    def predict(unit: ImaginedUnit) -> Unit:
        return Unit(unit.key, 0, unit.seconds)

    machine = ImaginedMachine(int(case.memory), case.cores, jobs, UNGUARDED_DELAY)
    return simulate_build(units, machine, admit_up_to_jobs, predict).seconds


def seconds_by_rule(units: Sequence[ImaginedUnit], case: Case) -> float:
    """Return the seconds with a job for each 4 GB of memory; infinity if memory runs out."""
    jobs = max(1, min(case.cores, int(case.memory / (4 * GB))))
    try:
        return seconds_with_jobs(jobs, units, case)
    except KilledError:
        return math.inf


def best_jobs(units: Sequence[ImaginedUnit], case: Case) -> tuple[int, float]:
    """Return the fastest number of jobs, and its seconds, below the first with which memory runs out."""
    best, best_seconds = 1, seconds_with_jobs(1, units, case)
    step = max(1, case.cores // 64)  # else the search takes long on the large machines
    for jobs in range(1 + step, case.cores + 1, step):
        try:
            seconds = seconds_with_jobs(jobs, units, case)
        except KilledError:
            break
        if seconds < best_seconds:
            best, best_seconds = jobs, seconds
    return best, best_seconds


def table_line(case: Case, options: argparse.Namespace, folder: Path) -> str:
    """Return a line of the table: medians over the seeds, and the worst if the guard is compared by it."""
    ratios: list[tuple[float, ...]] = []  # for each seed, in the order of the columns
    job_counts, rule_seconds = [], []
    outcomes: list[SimulatedOutcome] = []
    for seed in range(options.seeds):
        units = draw_units(case, options.units, seed)
        slots = guarded_slots(case.cores, int(case.memory))
        machine = ImaginedMachine(int(case.memory), case.cores, slots, DELAY, options.spacing)
        warm = build_guarded(units, machine, folder, warm=True)
        cold = build_guarded(units, machine, folder, warm=False)
        outcomes += [warm, cold]
        by_rule = seconds_by_rule(units, case)
        jobs, by_best_jobs = best_jobs(units, case)
        references = (lower_bound(units, machine), by_rule, by_best_jobs)
        seed_ratios: list[float] = []
        for reference in references:
            seed_ratios += [warm.seconds / reference, cold.seconds / reference]
        ratios.append(tuple(seed_ratios))
        rule_seconds.append(by_rule)
        job_counts.append(jobs)
    columns = list(zip(*ratios, strict=True))
    medians = [f"{statistics.median(column):.2f}" for column in columns]
    for index in (0, 1, 4, 5):  # by the bound and by the best number of jobs
        medians[index] += f" ({max(columns[index]):.2f})"
    if killed := rule_seconds.count(math.inf):
        medians[2] = medians[3] = f"{killed} of {options.seeds} killed"
    cells = (
        case.mix,
        f"{case.memory / GIB:.1f}",
        case.cores,
        *medians,
        int(statistics.median(job_counts)),
        sum(outcome.kills for outcome in outcomes),
        sum(outcome.pauses for outcome in outcomes),
        sum(outcome.reruns for outcome in outcomes),
    )
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--units", type=int, default=300, help="in a build on the smaller machines")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--spacing",
        type=float,
        default=0.05,
        help="seconds between the starts of two guarded compilers",
    )
    parser.add_argument(
        "--large", action="store_true", help="only machines of 64 cores and more, or of 2"
    )
    options = parser.parse_args()
    print(f"{options.units} units, seeds 0 to {options.seeds - 1}, spacing {options.spacing} s\n")
    print(
        "| mix | GiB | cores | warm / bound (worst) | cold / bound (worst) | warm / GB:4 | cold / GB:4 "
        "| warm / best (worst) | cold / best (worst) | best -j | kills | pauses | reruns |"
    )
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    small_machines = [] if options.large else SMALL_MACHINES
    with tempfile.TemporaryDirectory() as folder:
        for case in (*small_machines, *LARGE_MACHINES, *EXTREME_MACHINES):
            print(table_line(case, options, Path(folder)), flush=True)


if __name__ == "__main__":
    main()
