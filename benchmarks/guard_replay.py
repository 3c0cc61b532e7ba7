"""Builds in a memory control group: our guard against numbers chosen beforehand and a jobserver.

The compilers are stubs that take memory along recorded curves (replayed.py). Times are scaled such that the
lower bound of a build is 30 seconds: memory then grows several times faster than it does in earnest.

python benchmarks/guard_replay.py --results FILE; python benchmarks/guard_replay.py --render FILE
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
HOPELESS = 2.2  # lower bounds after which a contender other than ours is given up
CASES = "cpu:2.3:8:60:30 cpu:4:16:80:30 cpu:8:16:120:30 cuda:8:8:18:30 cuda:12:16:24:30 cuda:16:32:32:30"
RECKONED = (
    "not run"  # one job at a time: the sum of its units' seconds, without what starting them costs
)
NUMBERS = (
    1,
    2,
    3,
    4,
    5,
    6,
    7,
    8,
    10,
    12,
    14,
    16,
    20,
    24,
    28,
    32,
)  # of jobs, tried for the best in hindsight
NAMES = (
    "all slots",
    "GB/4",
    "flash-attention's rule",
    "jobserver",
    "best -j in hindsight",
    "ours cold",
    "ours warm",
)


@dataclass(frozen=True, slots=True)
class Case:
    """A mix of units on a machine."""

    kind: str  # "cpu" or "cuda"
    gib: float
    slots: int
    count: int
    seconds: float  # that the lower bound is made to be

    @classmethod
    def parse(cls, text: str) -> "Case":
        """Return the case in "cpu:2.3:8:60:12"."""
        kind, gib, slots, count, seconds = text.split(":")
        return cls(kind, float(gib), int(slots), int(count), float(seconds))

    def as_row(self) -> dict[str, object]:
        """Return it for a line of JSON."""
        return {"mix": self.kind, "cap": self.gib, "slots": self.slots, "units": self.count}

    def mix(self, seed: int) -> mixes.Mix:
        """Draw its units."""
        draw = {"cpu": mixes.cpu, "cuda": mixes.cuda}[self.kind]
        return mixes.Mix(draw(self.count, seed), int(self.gib * GIB), self.slots).scaled(
            self.seconds
        )


@dataclass(slots=True)
class Field:
    """Where one case is run with one seed, and what was found."""

    case: Case
    seed: int
    mix: mixes.Mix
    folder: Path
    compilers: Path
    ninja: str
    file: Path | None
    best: dict[Case, int]  # the number of jobs that was best with another seed
    by_number: dict[int, Outcome] = field(default_factory=dict)

    def run(self, name: str) -> None:
        """Let one contender build, and keep what came of it."""
        gib = self.case.gib
        match name:
            case "all slots":
                self._keep(name, self._fixed(self.case.slots), self.case.slots)
            case "GB/4":
                self._rule(name, int(gib / 4))
            case "flash-attention's rule":
                self._rule(name, int(0.85 * gib / 5))
            case "jobserver":
                self._keep(name, self._contest(HOPELESS).jobserver(), None)
            case "best -j in hindsight":
                self._sweep(name)
            case "ours cold" | "ours warm":
                self._guard(name)

    def _guard(self, name: str) -> None:
        tree = self.folder / "tree"
        contest = self._contest(10 * HOPELESS, tree / "gate")
        cache = self.folder / f"cache {self.case} {self.seed}"
        self._keep(name, contest.guard(tree, cache, tree / "source"), None)

    def _rule(self, name: str, jobs: int) -> None:
        jobs = min(max(1, jobs), self.case.slots)
        self._keep(name, self._fixed(jobs), jobs)

    def _sweep(self, name: str) -> None:
        """Go up from the best number of another seed while it goes well, else down; keep the fastest."""
        numbers = [number for number in NUMBERS if number <= self.case.slots]
        at = numbers.index(self.best.get(self.case, numbers[len(numbers) // 2]))
        step = 1 if self._fixed(numbers[at]).good else -1
        while 0 <= at + step < len(numbers):
            at += step
            if self._fixed(numbers[at]).good == (step == -1):
                break
        good = {jobs: outcome for jobs, outcome in self.by_number.items() if outcome.good}
        if good:
            jobs = self.best[self.case] = min(good, key=lambda jobs: good[jobs].seconds)
            self._keep(name, good[jobs], jobs)
        else:
            self._keep(name, self._fixed(1), 1)

    def _fixed(self, jobs: int) -> Outcome:
        """Build with a number of jobs, unless that was done; one at a time takes what they take together."""
        if jobs == 1:
            return Outcome(
                sum(work.seconds for work in self.mix.works), code=0, kills=0, said=RECKONED
            )
        if jobs not in self.by_number:
            self.by_number[jobs] = self._contest(HOPELESS).fixed(jobs)
        return self.by_number[jobs]

    def _contest(self, patience: float, gate: Path | None = None) -> Contest:
        build = replayed.write(self.folder / "tree", self.mix.works, self.compilers, gate)
        return Contest(
            build, self.ninja, self.mix.cap, self.case.slots, patience * self.mix.bound()
        )

    def _keep(self, name: str, outcome: Outcome, jobs: int | None) -> None:
        bounds = {
            "bound": self.mix.bound(),
            "area_bound": self.mix.area_bound(),
            "busy": results.busy(0.3),
        }
        case = {**self.case.as_row(), "seed": self.seed, "contender": name, "jobs": jobs}
        results.keep(self.file, {**case, **bounds, **outcome.as_row()})


def order(seed: int, names: Sequence[str]) -> list[str]:
    """Return the contenders in another order for every seed; ours learns before it knows."""
    turned = [*names[seed % len(names) :], *names[: seed % len(names)]]
    if {"ours cold", "ours warm"} <= set(names):
        turned.remove("ours warm")
        turned.insert(turned.index("ours cold") + 1, "ours warm")
    return turned


def run(asked: Namespace) -> None:
    """Run every case with every seed."""
    best: dict[Case, int] = {}
    with tempfile.TemporaryDirectory(prefix="replay-") as name:
        folder = Path(name)
        ninja, compilers = asked.ninja or replayed.ninja(folder), replayed.stubs(folder)
        for seed in range(asked.first_seed, asked.first_seed + asked.seeds):
            for case in map(Case.parse, asked.cases.split()):
                mix = case.mix(seed)
                ground = Field(case, seed, mix, folder, compilers, ninja, asked.results, best)
                for contender in order(seed, asked.contenders):
                    ground.run(contender)


def lines(rows: Sequence[Row]) -> Iterator[Sequence[object]]:
    """Yield a line of the table for each contender of each case."""
    for (mix, cap, slots), found in results.grouped(
        rows, results.fields("mix", "cap", "slots")
    ).items():
        groups = results.grouped(found, lambda row: row["contender"])
        for name in NAMES:
            if name in groups:
                yield (f"{mix}, {cap:g} GiB, {slots} slots", name, *_figures(groups[name]))


def _figures(rows: Sequence[Row]) -> Sequence[object]:
    jobs = "/".join(str(number) for number in dict.fromkeys(row["jobs"] for row in rows) if number)
    good = [row for row in rows if row["good"]]
    ratios = [row["seconds"] / row["bound"] for row in good]
    areas = [row["seconds"] / row["area_bound"] for row in good]
    given = sum(row["gave_up"] for row in rows)
    failed = (
        [f"{sum(row['kills'] > 0 for row in rows)} killed"]
        if any(row["kills"] for row in rows)
        else []
    )
    failed += [f"{given} given up at {HOPELESS}"] if given else []
    failed += [f"{len(rows) - len(good)} failed"] if not failed and len(good) < len(rows) else []
    reckoned = "reckoned" if all(row["said"] == RECKONED for row in rows) else "all built"
    end = ", ".join(failed) or reckoned
    return (
        jobs,
        len(rows),
        end,
        results.spread(ratios),
        results.spread(areas),
        results.interventions(rows),
    )


def summary(rows: Sequence[Row]) -> Iterator[str]:
    """Yield sentences about ours as a whole, against the others in the same run."""
    ours = [row for row in rows if row["contender"].startswith("ours")]
    kills = sum(row["kills"] for row in ours)
    yield f"Ours: {len(ours)} runs, {sum(row['good'] for row in ours)} built, {kills} kills by the kernel."
    for name in ("ours cold", "ours warm"):
        ratios = [
            row["seconds"] / row["bound"]
            for row in ours
            if row["contender"] == name and row["good"]
        ]
        yield f"{name}: {results.spread(ratios)} of the lower bound, n = {len(ratios)}."
        for other in ("GB/4", "best -j in hindsight"):
            found = list(_against(rows, name, other))
            if found:
                yield f"{name}, against {other}: {results.spread(found)}, n = {len(found)}."


def _against(rows: Sequence[Row], name: str, other: str) -> Iterator[float]:
    """Yield the ratios of two contenders' times on the same build; one given up was slower than counted."""
    for found in results.grouped(rows, results.fields("mix", "cap", "slots", "seed")).values():
        times = {row["contender"]: row["seconds"] for row in found if row["good"] or row["gave_up"]}
        if name in times and other in times:
            yield times[name] / times[other]


def render(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the table and what it comes to."""
    heads = (
        "build",
        "contender",
        "-j",
        "n",
        "outcome",
        "/ bound",
        "/ area bound",
        "pauses/reruns/kills",
    )
    yield results.table(heads, lines(rows))
    yield from summary(rows)


def main() -> None:
    """Run, or render what was run."""
    parser = results.parser(__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument(
        "--cases", default=CASES, help="mix:GiB:slots:units:seconds of the lower bound ..."
    )
    results.choice(parser, "--contenders", NAMES)
    asked = parser.parse_args()
    results.run_or_render(asked, run, render)


if __name__ == "__main__":
    main()
