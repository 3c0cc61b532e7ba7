"""The guard's policy on imagined machines, against fixed numbers of jobs: time over the lower bound.

python benchmarks/guard_simulated.py [--units 300] [--seeds 3] [--spacing 0.05]

Everything is computed: no compiler runs, and the result does not depend on the machine.
"""

import argparse
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
    half_peak_share,
    lower_bound,
    recorded_curve,
    simulate_build,
)
from millguard.expectations import (
    MeasuredNeed,
    NeedHistory,
    UnitExpectations,
)
from millguard.policy import Admit, Decision, PolicyInput, Unit, decide
from millguard.units import UnitDescription

from torchmill.config import facts_reader
from torchmill.plan.compile_costs import release_costs
from torchmill.plan.job_count import guarded_slots

ROOT = Path(__file__).parents[1]
GIB, GB = 2**30, 10**9
KNOWN = release_costs(
    facts_reader.read_facts(ROOT / "build_configs").costs.known_units, "torch", "2.0.0"
)
THREADS = 4  # of nvcc, as flash attention's setup.py has it
DELAY = 0.02  # seconds between looking at the memory and acting


@dataclass(frozen=True, slots=True)
class Case:
    """A machine and a kind of build."""

    mix: str
    memory: float  # bytes
    cores: int


SMALL = [Case("CPU", cap * GIB, cores) for cap in (2.3, 4, 8, 16) for cores in (8, 32)]
SMALL += [Case("CUDA", cap * GIB, cores) for cap in (6, 8, 16) for cores in (8, 32)]
LARGE = [Case("flash", 128 * GB, 64), Case("flash", 880 * GB, 192)]
EDGES = [Case("CPU", 2 * GIB, 2), Case("flash", 1024 * GIB, 256)]


def jobs(case: Case, count: int, seed: int) -> list[ImaginedUnit]:
    """Return the units of a build; in a flash one every second is flash attention's, of several threads."""
    if case.mix == "CPU":
        works: Sequence[mixes.Work] = mixes.cpu(count, seed)
    else:
        works = mixes.cuda(count if case.mix == "CUDA" else 4 * case.cores, seed)
    made = [
        ImaginedUnit(one.source, one.peak, one.seconds, 1.0, recorded_curve(one.curve[1:]))
        for one in works
    ]
    if case.mix == "flash":
        made = [
            ImaginedUnit(job.key + "f", THREADS * 5 * GB, 120.0 + place % 60, THREADS, job.curve)
            if place % 2
            else job
            for place, job in enumerate(made)
        ]
    return made


def ours(
    work: Sequence[ImaginedUnit], machine: ImaginedMachine, folder: Path, *, warm: bool
) -> SimulatedOutcome:
    """Return what becomes of a build under guard, that ran before or did not."""
    history = NeedHistory(folder / "none.sqlite")
    if warm:
        for job in work:
            history.learn(job.key, MeasuredNeed(job.peak, job.seconds, half_peak_share(job.curve)))
    expectations = UnitExpectations(history, KNOWN)

    def learn(job: ImaginedUnit) -> None:
        expectations.learn(described(job), job.peak, job.seconds, half_peak_share(job.curve))

    return simulate_build(
        work, machine, decide, lambda job: expectations.expect(described(job)), learn=learn
    )


def described(job: ImaginedUnit) -> UnitDescription:
    """Return a unit as the gate describes it."""
    family = "cuda" if ".cu" in job.key else "c" if job.key.endswith(".c") else "c++"
    source = "flash_attn/src/flash.cu" if job.weight > 1 else job.key
    return UnitDescription(family, job.key, job.weight, source)


class KilledError(Exception):
    """The kernel killed a compiler: the build is lost."""


def fixed(number: int, work: Sequence[ImaginedUnit], case: Case) -> float:
    """Return the seconds of a build with so many jobs at a time, whatever they take.

    Raise KilledError where memory runs out.
    """

    def policy(view: PolicyInput) -> list[Decision]:
        if any(one.alone for one in view.waiting):
            raise KilledError
        return [Admit(one.number) for one in view.waiting[: number - len(view.running)]]

    machine = ImaginedMachine(int(case.memory), case.cores, number, 0.25)
    return simulate_build(work, machine, policy, lambda job: Unit(job.key, 0, job.seconds)).seconds


def rule(work: Sequence[ImaginedUnit], case: Case) -> float:
    """Return the seconds with a job for each 4 GB; infinite where memory runs out all the same."""
    try:
        return fixed(max(1, min(case.cores, int(case.memory / (4 * GB)))), work, case)
    except KilledError:
        return float("inf")


def hindsight(work: Sequence[ImaginedUnit], case: Case) -> tuple[int, float]:
    """Return the best number of jobs with which nothing is killed, nor with fewer, and its seconds."""
    best = (1, fixed(1, work, case))
    step = max(1, case.cores // 64)
    for number in range(1 + step, case.cores + 1, step):
        try:
            best = min(best, (number, fixed(number, work, case)), key=lambda one: one[1])
        except KilledError:
            break
    return best


def row(case: Case, asked: argparse.Namespace, folder: Path) -> str:
    """Return a line of the table: medians over the seeds; against the bound also the worst."""
    ratios: list[tuple[float, ...]] = []
    outcomes: list[SimulatedOutcome] = []
    for seed in range(asked.seeds):
        work = jobs(case, asked.units, seed)
        places = guarded_slots(case.cores, int(case.memory))
        machine = ImaginedMachine(int(case.memory), case.cores, places, DELAY, asked.spacing)
        bound, static = lower_bound(work, machine), rule(work, case)
        number, best = hindsight(work, case)
        both = [ours(work, machine, folder, warm=warm) for warm in (True, False)]
        outcomes += both
        warm, cold = (one.seconds for one in both)
        ratios.append(
            (
                warm / bound,
                cold / bound,
                warm / static,
                cold / static,
                warm / best,
                cold / best,
                static,
                number,
            )
        )
    columns = list(zip(*ratios, strict=True))
    middle = [f"{statistics.median(column):.2f}" for column in columns]
    if killed := columns[6].count(float("inf")):
        middle[2] = middle[3] = f"{killed} of {asked.seeds} killed"
    for place in (0, 1):
        middle[place] += f" ({max(columns[place]):.2f})"
    counts = (
        sum(one.kills for one in outcomes),
        sum(one.pauses for one in outcomes),
        sum(one.reruns for one in outcomes),
    )
    cells = (
        case.mix,
        f"{case.memory / GIB:.1f}",
        case.cores,
        *middle[:6],
        int(statistics.median(columns[7])),
        *counts,
    )
    return f"| {' | '.join(map(str, cells))} |"


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--units", type=int, default=300, help="in a build on the smaller machines")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument(
        "--spacing",
        type=float,
        default=0.05,
        help="seconds between two compilers that start, if guarded",
    )
    parser.add_argument(
        "--large", action="store_true", help="only the machines of 64 cores and more, and 2"
    )
    given = parser.parse_args()
    print(
        "| mix | GiB | cores | warm / bound (worst) | cold / bound (worst) | warm / GB:4 | cold / GB:4 "
        "| warm / best | cold / best | best -j | kills | pauses | reruns |"
    )
    print("|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|--:|")
    with tempfile.TemporaryDirectory() as folder:
        for case in (*(() if given.large else SMALL), *LARGE, *EDGES):
            print(row(case, given, Path(folder)), flush=True)


if __name__ == "__main__":
    main()
