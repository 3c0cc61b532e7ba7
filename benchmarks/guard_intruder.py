"""Somebody else takes two fifths of the memory amid a build: who is killed, and when is all as before.

python benchmarks/guard_intruder.py --results FILE; python benchmarks/guard_intruder.py --render FILE

The build keeps all slots busy within its limit until the intruder comes. Speed is the number of compilers
that run and are not paused, counted many times a second; recovered is who runs as many again as before. The
kernel kills of the build, not the intruder: all builds are run with a raised oom_score_adj.
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
SLOTS, LIMIT, SHARE = 8, 5 * GIB, 0.4
COMES, RISES = 8.0, 2.0  # seconds after the start of the build; that it takes to have all it wants
BEFORE = 4.0  # seconds before it comes over which the speed is taken
NAMES = ("all slots", "jobserver", "ours cold", "ours warm")


@dataclass(frozen=True, slots=True)
class Ground:
    """A build, and where it happens."""

    folder: Path
    compilers: Path
    ninja: str
    mix: mixes.Mix
    stays: float  # seconds that the intruder is there

    def run(self, name: str, intruder: "Intruder") -> Outcome:
        """Let one contender build."""
        tree = self.folder / "tree"
        gate = tree / "gate" if name.startswith("ours") else None
        build = replayed.write(tree, self.mix.works, self.compilers, gate)
        patience = 4 * (self.mix.bound() + self.stays)
        contest = Contest(build, self.ninja, LIMIT, SLOTS, patience, intruder.watch)
        match name:
            case "all slots":
                return contest.fixed(SLOTS)
            case "jobserver":
                return contest.jobserver()
        return contest.guard(
            tree, self.folder / f"learned {self.mix.works[0].source}", tree / "source"
        )


@dataclass(slots=True)
class Intruder:
    """The foreign process, and who ran before it came, while it was there and after it left."""

    program: Path
    order: Path  # what the stub is told
    process: subprocess.Popen[bytes] | None = None
    left: float | None = None
    seen: list[tuple[float, int]] = field(default_factory=list)  # seconds, compilers that run

    def watch(self, cap: Cap, at: float) -> None:
        """Come when it is time; count the compilers that run."""
        if self.process is None and at > COMES:
            argv = [str(self.program), "-c", str(self.order), "-o", f"{self.order}.o"]
            self.process = subprocess.Popen(cap.inside(argv))
        if self.process is not None and self.left is None and self.process.poll() is not None:
            self.left = at
        self.seen.append((at, moving(cap)))

    def level(self) -> float:
        """Return how many compilers ran before it came."""
        counts = [count for at, count in self.seen if COMES - BEFORE < at < COMES]
        return statistics.median(counts) if counts else 0.0

    def recovery(self) -> float | None:
        """Return the seconds from its leaving until as many compilers run again; None: they never did."""
        if self.left is None:
            return None
        again = [at for at, count in self.seen if at >= self.left and count >= self.level()]
        return again[0] - self.left if again else None

    def as_row(self) -> dict[str, object]:
        """Return what was seen, for a line of JSON."""
        return {"level": self.level(), "least": self.least(), "recovery": self.recovery()}

    def least(self) -> int:
        """Return how few compilers ran while it was there."""
        return min(
            (count for at, count in self.seen if COMES + RISES < at < (self.left or at)), default=0
        )


def moving(cap: Cap) -> int:
    """Count the stubs that run and are not stopped."""
    count = 0
    for pid in cap.members():
        try:
            stat = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
            name, _, rest = stat.partition(" (")[2].rpartition(") ")
        except OSError:
            continue
        count += name in replayed.NAMES.values() and rest[:1] not in "TZ"
    return count


def works(count: int, seed: int) -> tuple[mixes.Work, ...]:
    """Draw units of middling size: how many of them run says how fast the build is."""
    drawn = mixes.cpu(4 * count, seed)
    return tuple(sorted(drawn, key=lambda one: abs(one.peak - 0.5 * GIB))[:count])


def run(asked: Namespace) -> None:
    """Let every contender build with every seed."""
    with tempfile.TemporaryDirectory(prefix="intruder-") as name:
        folder = Path(name)
        ninja, compilers = asked.ninja or replayed.ninja(folder), replayed.stubs(folder)
        shutil.copy(compilers / "c++", folder / "intruder")
        flat = " 1" * int(asked.stays / RISES)
        (folder / "order").write_text(f"{SHARE * LIMIT} {asked.stays} 0{flat}\n", encoding="ascii")
        for seed in range(1, asked.seeds + 1):
            mix = mixes.Mix(works(asked.units, seed), LIMIT, SLOTS).scaled(asked.seconds)
            ground = Ground(folder, compilers, ninja, mix, asked.stays)
            for contender in NAMES if seed % 2 else (*NAMES[2:], *NAMES[:2]):
                if contender not in asked.contenders:
                    continue
                busy = results.busy()
                intruder = Intruder(folder / "intruder", folder / "order")
                outcome = ground.run(contender, intruder)
                row = {"contender": contender, "seed": seed, "busy": busy, "bound": mix.bound()}
                results.keep(asked.results, {**row, **intruder.as_row(), **outcome.as_row()})


def lines(rows: Sequence[Row]) -> Iterator[Sequence[object]]:
    """Yield a line of the table for each contender."""
    for name, found in results.grouped(rows, lambda row: row["contender"]).items():
        ended = f"{sum(row['good'] for row in found)} of {len(found)}"
        again = [row["recovery"] for row in found if row["recovery"] is not None]
        kills = sum(row["kills"] for row in found)
        speeds = [f"{row['level']:g} to {row['least']}" for row in found]
        did = results.interventions(found)
        yield (
            name,
            ended,
            kills,
            ", ".join(dict.fromkeys(speeds)),
            results.spread(again),
            len(again),
            did,
        )


def render(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the table."""
    heads = (
        "contender",
        "built",
        "kernel kills",
        "running",
        "seconds to recover",
        "n",
        "pauses/reruns/kills",
    )
    yield results.table(heads, lines(rows))


def main() -> None:
    """Run, or render what was run."""
    parser = results.parser(__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    results.choice(parser, "--contenders", NAMES)
    parser.add_argument("--units", type=int, default=120)
    parser.add_argument(
        "--seconds", type=float, default=45.0, help="lower bound of the undisturbed build"
    )
    parser.add_argument(
        "--stays", type=float, default=20.0, help="seconds that the intruder is there"
    )
    asked = parser.parse_args()
    results.run_or_render(asked, run, render)


if __name__ == "__main__":
    main()
