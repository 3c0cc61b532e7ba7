"""Replayed builds below a memory limit: the guard, numbers of jobs chosen beforehand, and a jobserver.

The compilers are stubs that take memory along recorded curves (replayed.py). All times of a build are scaled so that
its lower bound is 30 seconds: memory then grows several times faster than in a real build.

python benchmarks/guard_replay.py --results FILE; python benchmarks/guard_replay.py --render FILE

"ours cold" is the guard that knows nothing of a build's units, "ours warm" the guard that has built them before.
"best -j in hindsight" is the fastest number of jobs with which the kernel kills nothing; nobody knows it beforehand.
"""

import tempfile
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import mixes
import replayed
import results
from contenders import Contest, Outcome
from results import Row

GIB = mixes.GIB
PATIENCE = 2.2  # lower bounds, after which a contender other than ours is given up
GUARD_PATIENCE = 10 * PATIENCE
CASES = "cpu:2.3:8:60:30 cpu:4:16:80:30 cpu:8:16:120:30 cuda:8:8:18:30 cuda:12:16:24:30 cuda:16:32:32:30"
# In place of the output of a build that was computed and not run; a value in recorded files.
COMPUTED = "not run"
JOB_COUNTS = (1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 16, 20, 24, 28, 32)  # tried for the best one
ALL_SLOTS, GB_RULE, FLASH_RULE = "all slots", "GB/4", "flash-attention's rule"
JOBSERVER, BEST = "jobserver", "best -j in hindsight"
COLD, WARM = "ours cold", "ours warm"
NAMES = (ALL_SLOTS, GB_RULE, FLASH_RULE, JOBSERVER, BEST, COLD, WARM)


@dataclass(frozen=True, slots=True)
class Case:
    """A kind of units, and the machine that builds them."""

    kind: str  # "cpu" or "cuda"
    gib: float
    slots: int
    count: int  # of units
    seconds: float  # to which the lower bound is scaled

    @classmethod
    def parse(cls, text: str) -> "Case":
        """Return the case in a text such as "cpu:2.3:8:60:12"."""
        kind, gib, slots, count, seconds = text.split(":")
        return cls(kind, float(gib), int(slots), int(count), float(seconds))

    def as_row(self) -> dict[str, object]:
        """Return it for a line of JSON."""
        return {"mix": self.kind, "cap": self.gib, "slots": self.slots, "units": self.count}

    def draw_mix(self, seed: int) -> mixes.Mix:
        """Draw its units."""
        draw_units = {"cpu": mixes.draw_cpu_units, "cuda": mixes.draw_cuda_units}[self.kind]
        mix = mixes.Mix(draw_units(self.count, seed), int(self.gib * GIB), self.slots)
        return mix.scaled(self.seconds)


@dataclass(slots=True)
class Workshop:
    """One case with one seed: its units, and the folder and programs that build them."""

    case: Case
    seed: int
    mix: mixes.Mix
    folder: Path
    compilers: Path
    ninja: str
    results_file: Path | None
    best_jobs: dict[Case, int]  # the best number of jobs with an earlier seed
    outcomes: dict[int, Outcome] = field(default_factory=dict)  # by number of jobs

    def build(self, contender: str) -> None:
        """Let one contender build, and record the outcome."""
        gib = self.case.gib
        jobs: int | None = None
        if contender == ALL_SLOTS:
            jobs = self.case.slots
            outcome = self._build_with_jobs(jobs)
        elif contender == GB_RULE:
            jobs = self._within_slots(gib / 4)
            outcome = self._build_with_jobs(jobs)
        elif contender == FLASH_RULE:
            jobs = self._within_slots(0.85 * gib / 5)
            outcome = self._build_with_jobs(jobs)
        elif contender == BEST:
            jobs = self._find_best_jobs()
            outcome = self._build_with_jobs(jobs)
        elif contender == JOBSERVER:
            outcome = self._contest(PATIENCE).build_with_jobserver()
        else:
            outcome = self._build_with_guard()
        self._record(contender, outcome, jobs)

    def _within_slots(self, jobs: float) -> int:
        return min(max(1, int(jobs)), self.case.slots)

    def _build_with_guard(self) -> Outcome:
        tree = self.folder / "tree"
        # Empty in the cold build of a case and seed, and full in the warm one after it.
        cache = self.folder / f"cache {self.case} {self.seed}"
        contest = self._contest(GUARD_PATIENCE, tree / "gate")
        return contest.build_with_guard(tree, cache, tree / "source")

    def _find_best_jobs(self) -> int:
        """Return the fastest number of jobs that builds without a kill.

        The search starts at the best number of an earlier seed. It goes up as long as builds are good; if the first
        one is not, it goes down until one is.
        """
        numbers = [number for number in JOB_COUNTS if number <= self.case.slots]
        index = numbers.index(self.best_jobs.get(self.case, numbers[len(numbers) // 2]))
        first_is_good = self._build_with_jobs(numbers[index]).good
        step = 1 if first_is_good else -1
        while 0 <= index + step < len(numbers):
            index += step
            if self._build_with_jobs(numbers[index]).good != first_is_good:
                break
        good = {jobs: outcome for jobs, outcome in self.outcomes.items() if outcome.good}
        if not good:
            return 1
        best = min(good, key=lambda jobs: good[jobs].seconds)
        self.best_jobs[self.case] = best
        return best

    def _build_with_jobs(self, jobs: int) -> Outcome:
        """Build with a number of jobs, unless that was done before.

        One job at a time is not run: it takes the sum of the units' seconds, and a little to start them.
        """
        if jobs == 1:
            seconds = sum(unit.seconds for unit in self.mix.units)
            return Outcome(seconds, code=0, kills=0, output=COMPUTED)
        if jobs not in self.outcomes:
            self.outcomes[jobs] = self._contest(PATIENCE).build_with_jobs(jobs)
        return self.outcomes[jobs]

    def _contest(self, patience: float, gate: Path | None = None) -> Contest:
        """Write the build anew; `patience` is in lower bounds."""
        tree = self.folder / "tree"
        build = replayed.write_build(tree, self.mix.units, self.compilers, gate)
        seconds = patience * self.mix.bound()
        return Contest(build, self.ninja, self.mix.cap, self.case.slots, seconds)

    def _record(self, contender: str, outcome: Outcome, jobs: int | None) -> None:
        row = {
            **self.case.as_row(),
            "seed": self.seed,
            "contender": contender,
            "jobs": jobs,
            "bound": self.mix.bound(),
            "area_bound": self.mix.area_bound(),
            "busy": results.busy_share(0.3),
        }
        results.record(self.results_file, {**row, **outcome.as_row()})


def rotated_order(seed: int, names: Sequence[str]) -> list[str]:
    """Return the contenders in an order that changes with the seed; warm follows cold, from which it learns."""
    start = seed % len(names)
    order = [*names[start:], *names[:start]]
    if {COLD, WARM} <= set(names):
        order.remove(WARM)
        order.insert(order.index(COLD) + 1, WARM)
    return order


def run(options: Namespace) -> None:
    """Let all contenders build every case with every seed."""
    best_jobs: dict[Case, int] = {}
    with tempfile.TemporaryDirectory(prefix="replay-") as name:
        folder = Path(name)
        ninja, compilers = replayed.find_ninja(options, folder), replayed.compile_stubs(folder)
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            for text in options.cases.split():
                case = Case.parse(text)
                workshop = Workshop(
                    case=case,
                    seed=seed,
                    mix=case.draw_mix(seed),
                    folder=folder,
                    compilers=compilers,
                    ninja=ninja,
                    results_file=options.results,
                    best_jobs=best_jobs,
                )
                for contender in rotated_order(seed, options.contenders):
                    workshop.build(contender)


def lines(rows: Sequence[Row]) -> Iterator[Sequence[object]]:
    """Yield a line of the table for each contender of each case."""
    for (mix, cap, slots), case_runs in results.grouped(rows, "mix", "cap", "slots").items():
        by_contender = results.grouped(case_runs, "contender")
        for contender in NAMES:
            if contender in by_contender:
                runs = by_contender[contender]
                yield (f"{mix}, {cap:g} GiB, {slots} slots", contender, *_figures(runs))


def _figures(runs: Sequence[Row]) -> Sequence[object]:
    """Return the cells of a contender's line, after its name."""
    job_counts = dict.fromkeys(row["jobs"] for row in runs if row["jobs"])
    good = [row for row in runs if row["good"]]
    return (
        "/".join(map(str, job_counts)),
        len(runs),
        _outcome_in_words(runs),
        results.spread([row["seconds"] / row["bound"] for row in good]),
        results.spread([row["seconds"] / row["area_bound"] for row in good]),
        results.guard_interventions(runs),
    )


def _outcome_in_words(runs: Sequence[Row]) -> str:
    killed = sum(row["kills"] > 0 for row in runs)
    given_up = sum(row["gave_up"] for row in runs)
    failed = sum(not row["good"] for row in runs)
    if killed and given_up:
        return f"{killed} killed, {given_up} given up at {PATIENCE}"
    if killed:
        return f"{killed} killed"
    if given_up:
        return f"{given_up} given up at {PATIENCE}"
    if failed:
        return f"{failed} failed"
    return "reckoned" if all(row["said"] == COMPUTED for row in runs) else "all built"


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """Yield sentences on all builds of the guard, and on how it compares with others on the same builds."""
    ours = [row for row in rows if row["contender"] in {COLD, WARM}]
    built = sum(row["good"] for row in ours)
    kills = sum(row["kills"] for row in ours)
    yield f"Ours: {len(ours)} runs, {built} built, {kills} kills by the kernel."
    for contender in (COLD, WARM):
        good = [row for row in ours if row["contender"] == contender and row["good"]]
        ratios = [row["seconds"] / row["bound"] for row in good]
        yield f"{contender}: {results.spread(ratios)} of the lower bound, n = {len(ratios)}."
        for other in (GB_RULE, BEST):
            ratios = list(time_ratios(rows, contender, other))
            if ratios:
                yield f"{contender}, against {other}: {results.spread(ratios)}, n = {len(ratios)}."


def time_ratios(rows: Sequence[Row], contender: str, other: str) -> Iterator[float]:
    """Yield the ratio of two contenders' times for each build of both.

    A build that was given up counts with the time until then, so the ratio favours the one that was given up.
    """
    for runs in results.grouped(rows, "mix", "cap", "slots", "seed").values():
        ended = [row for row in runs if row["good"] or row["gave_up"]]
        seconds = {row["contender"]: row["seconds"] for row in ended}
        if contender in seconds and other in seconds:
            yield seconds[contender] / seconds[other]


def render(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the table, and its summary."""
    heads = ("build", "contender", "-j", "n", "outcome", "/ bound", "/ area bound")
    yield results.table((*heads, "pauses/reruns/kills"), lines(rows))
    yield from summary(rows)


def main() -> None:
    """Run, or render what was run."""
    parser = results.parser(__doc__)
    replayed.add_ninja_option(parser)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument(
        "--cases", default=CASES, help="mix:GiB:slots:units:seconds of the lower bound ..."
    )
    results.add_choice(parser, "--contenders", NAMES)
    results.run_or_render(parser.parse_args(), run, render)


if __name__ == "__main__":
    main()
