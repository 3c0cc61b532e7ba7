"""A foreign process takes two fifths of the memory during a build: what is killed, and when speed is back.

python benchmarks/guard_intruder.py --results FILE; python benchmarks/guard_intruder.py --render FILE

The build keeps all slots busy within its limit until the foreign process, the intruder, starts. Speed is the number
of compilers that run and are not paused, counted many times a second; a build has recovered when as many run as
before the intruder. The kernel kills compilers of the build rather than the intruder, because all builds run with a
raised oom_score_adj.
"""

import shutil
import statistics
import subprocess
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import mixes
import replayed
import results
from contenders import Contest, Outcome
from memory_cap import Cap
from results import Row

GIB = mixes.GIB
SLOTS, LIMIT = 8, 5 * GIB
INTRUDER_SHARE = 0.4  # of the limit
INTRUDER_START = 8.0  # seconds after the start of the build
RISE_SECONDS = 2.0  # in which the intruder takes its memory
LEVEL_SECONDS = 4.0  # before the intruder's start, over which the build's speed is measured
PATIENCE = 4  # times the lower bound and the intruder's stay, after which a build is given up
ALL_SLOTS, JOBSERVER, COLD, WARM = NAMES = ("all slots", "jobserver", "ours cold", "ours warm")


@dataclass(slots=True)
class Intruder:
    """The foreign process, and how many compilers run before, during and after its stay."""

    program: Path  # a stub, see replay/stub.c
    source: Path  # which tells the stub what memory to take and how long
    process: subprocess.Popen[bytes] | None = None
    end: float | None = None  # in seconds since the start of the build, as all times here
    counts: list[tuple[float, int]] = field(default_factory=list)  # time, running compilers

    def watch(self, cap: Cap, seconds: float) -> None:
        """Start the process when it is time, and count the running compilers."""
        if self.process is None and seconds > INTRUDER_START:
            argv = [str(self.program), "-c", str(self.source), "-o", f"{self.source}.o"]
            self.process = subprocess.Popen(cap.inside(argv))
        if self.process is not None and self.end is None and self.process.poll() is not None:
            self.end = seconds
        self.counts.append((seconds, count_running(cap)))

    def level(self) -> float:
        """Return how many compilers ran before the intruder started."""
        start = INTRUDER_START - LEVEL_SECONDS
        counts = [count for seconds, count in self.counts if start < seconds < INTRUDER_START]
        return statistics.median(counts) if counts else 0.0

    def least(self) -> int:
        """Return how many compilers ran at the least while the intruder held its memory."""
        start = INTRUDER_START + RISE_SECONDS
        least = None
        for seconds, count in self.counts:
            during_stay = start < seconds and (self.end is None or seconds < self.end)
            if during_stay and (least is None or count < least):
                least = count
        return least or 0

    def recovery(self) -> float | None:
        """Return the seconds from the intruder's end until as many compilers run as before, None if never."""
        if self.end is None:
            return None
        level = self.level()
        for seconds, count in self.counts:
            if seconds >= self.end and count >= level:
                return seconds - self.end
        return None

    def as_row(self) -> dict[str, object]:
        """Return the figures for a line of JSON."""
        return {"level": self.level(), "least": self.least(), "recovery": self.recovery()}


@dataclass(frozen=True, slots=True)
class Workshop:
    """A build, and the folder and programs that build it."""

    folder: Path
    compilers: Path
    ninja: str
    mix: mixes.Mix
    stay: float  # seconds between the intruder's start and end

    def build(self, contender: str, intruder: Intruder) -> Outcome:
        """Let one contender build."""
        tree = self.folder / "tree"
        gate = tree / "gate" if contender in {COLD, WARM} else None
        build = replayed.write_build(tree, self.mix.units, self.compilers, gate)
        patience = PATIENCE * (self.mix.bound() + self.stay)
        contest = Contest(build, self.ninja, LIMIT, SLOTS, patience, intruder.watch)
        if contender == ALL_SLOTS:
            return contest.build_with_jobs(SLOTS)
        if contender == JOBSERVER:
            return contest.build_with_jobserver()
        # The first unit stands for the seed: a mix's warm build finds what its cold one learned.
        cache = self.folder / f"learned {self.mix.units[0].source}"
        return contest.build_with_guard(tree, cache, tree / "source")


def count_running(cap: Cap) -> int:
    """Count the stubs in a control group that run: neither stopped by the guard nor ended."""
    count = 0
    for pid in cap.members():
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
        except OSError:  # it has just ended
            continue
        # By proc(5): "12 (c++) R ...", and the name in parentheses may itself contain some.
        name, _, fields = stat.partition(" (")[2].rpartition(") ")
        state = fields[:1]
        if name in replayed.COMPILERS.values() and state not in {"T", "Z", ""}:
            count += 1
    return count


def draw_units(count: int, seed: int) -> tuple[mixes.Unit, ...]:
    """Draw units with similar peaks, so that the number of running compilers measures speed."""
    candidates = mixes.draw_cpu_units(4 * count, seed)
    return tuple(sorted(candidates, key=lambda unit: abs(unit.peak - 0.5 * GIB))[:count])


def run(options: Namespace) -> None:
    """Let every contender build with every seed."""
    with tempfile.TemporaryDirectory(prefix="intruder-") as name:
        folder = Path(name)
        ninja, compilers = replayed.find_ninja(options, folder), replayed.compile_stubs(folder)
        # A name that no compiler has: the intruder is not counted as one.
        program = folder / "intruder"
        shutil.copy(compilers / "c++", program)
        source = folder / "order"
        plateau = " 1" * int(options.stays / RISE_SECONDS)
        source.write_text(
            f"{INTRUDER_SHARE * LIMIT} {options.stays} 0{plateau}\n", encoding="ascii"
        )
        for seed in range(1, options.seeds + 1):
            units = draw_units(options.units, seed)
            mix = mixes.Mix(units, LIMIT, SLOTS).scaled(options.seconds)
            workshop = Workshop(folder, compilers, ninja, mix, options.stays)
            order = NAMES if seed % 2 else (COLD, WARM, ALL_SLOTS, JOBSERVER)
            for contender in order:
                if contender not in options.contenders:
                    continue
                row = {
                    "contender": contender,
                    "seed": seed,
                    "busy": results.busy_share(),
                    "bound": mix.bound(),
                }
                intruder = Intruder(program, source)
                outcome = workshop.build(contender, intruder)
                results.record(options.results, {**row, **intruder.as_row(), **outcome.as_row()})


def lines(rows: Sequence[Row]) -> Iterator[Sequence[object]]:
    """Yield a line of the table for each contender."""
    for contender, runs in results.grouped(rows, "contender").items():
        recoveries = [row["recovery"] for row in runs if row["recovery"] is not None]
        speeds = [f"{row['level']:g} to {row['least']}" for row in runs]
        yield (
            contender,
            f"{sum(row['good'] for row in runs)} of {len(runs)}",
            sum(row["kills"] for row in runs),
            ", ".join(dict.fromkeys(speeds)),
            results.spread(recoveries),
            len(recoveries),
            results.guard_interventions(runs),
        )


def render(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the table."""
    heads = ("contender", "built", "kernel kills", "running", "seconds to recover", "n")
    yield results.table((*heads, "pauses/reruns/kills"), lines(rows))


def main() -> None:
    """Run, or render what was run."""
    parser = results.parser(__doc__)
    replayed.add_ninja_option(parser)
    parser.add_argument("--seeds", type=int, default=3)
    results.add_choice(parser, "--contenders", NAMES)
    parser.add_argument("--units", type=int, default=120)
    parser.add_argument(
        "--seconds", type=float, default=45.0, help="lower bound of the undisturbed build"
    )
    parser.add_argument("--stays", type=float, default=20.0, help="seconds that the intruder stays")
    results.run_or_render(parser.parse_args(), run, render)


if __name__ == "__main__":
    main()
