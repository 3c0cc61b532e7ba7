"""Real compilers on the heaviest files of torch below a memory limit: one at a time, four at a time, guarded.

python benchmarks/guard_compilers.py --tree torch/build --results FILE
python benchmarks/guard_compilers.py --render FILE

The tree is a build tree of torch 1.13.1 that was configured for ninja, with its generated sources; nothing is
written to it. With -O2 the files take half an hour of two processors, and the largest needs 2.0 GiB; with
-fsyntax-only they take a quarter of the time and four fifths of the memory, and the default caps are lower to match.

"ours cold" is the guard that knows nothing of these files, "ours warm" the guard that has built them before.
"""

import shlex
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import compile_commands
import mixes
import replayed
import results
from contenders import Contest, Outcome
from results import Row

SLOTS = 4
ONE, FOUR, COLD, WARM = "one at a time", "four at a time", "ours cold", "ours warm"


@dataclass(frozen=True, slots=True)
class Workshop:
    """The files to compile, and the folder and programs to do so."""

    folder: Path
    tree: Path  # of torch
    files: int
    flags: str
    ninja: str
    patience: float  # seconds after which a build is given up

    def build(self, contender: str, cap: float | None) -> Outcome:
        """Let one contender build everything anew, with a limit in GiB if there is a cap."""
        if contender == ONE:
            return self._contest(cap).build_with_jobs(1)
        if contender == FOUR:
            return self._contest(cap).build_with_jobs(SLOTS)
        # The cache of a cap is empty in the cold build, and full in the warm one after it.
        cache = self.folder / f"learned {cap}"
        contest = self._contest(cap, self.folder / "gate")
        return contest.build_with_guard(self.folder, cache, self.tree.resolve().parent)

    def _contest(self, cap: float | None, gate: Path | None = None) -> Contest:
        limit = None if cap is None else int(cap * mixes.GIB)
        return Contest(self._write_build(gate), self.ninja, limit, SLOTS, self.patience)

    def _write_build(self, gate: Path | None) -> Path:
        """Write a build.ninja, and remove what an earlier build made; return its folder."""
        build = self.folder / "build"
        build.mkdir(parents=True, exist_ok=True)
        for path in (*build.glob("*.o"), *build.glob(".ninja_*")):
            path.unlink()
        commands = compile_commands.read_commands(self.tree)
        # touch: with -fsyntax-only a compiler writes no object, which ninja would miss.
        lines = ["rule compile", "  command = cd $folder && $compiler && touch $out"]
        for index, source in enumerate(heaviest_sources(self.files)):
            target = str(build / f"unit{index}.o")
            argv = commands[source].with_output(target, self.flags.split())
            if gate is not None:
                argv = [str(gate), *argv]
            compiler = shlex.join(argv).replace("$", "$$")
            lines.append(f"build {target}: compile")
            lines.append(f"  folder = {commands[source].folder}")
            lines.append(f"  compiler = {compiler}")
        (build / "build.ninja").write_text("\n".join(lines) + "\n", encoding="utf-8")
        return build


def heaviest_sources(count: int) -> list[str]:
    """Return the sources with the largest peaks, sorted by name: build tools do not know the peaks."""
    rows = sorted(mixes.recorded_compiles(), key=lambda row: -int(row["peak_kib"]))
    return sorted(row["source"] for row in rows[:count])


def builds_to_run(caps: Sequence[float | None]) -> Iterator[tuple[float | None, str]]:
    """Yield the cap and the contender of each build.

    One file at a time takes as long below any cap, and a warm guard below the first is enough, so these two are run
    with the first cap only.
    """
    yield caps[0], ONE
    for cap in caps:
        yield cap, COLD
        yield cap, FOUR
    yield caps[0], WARM


def run(options: Namespace) -> None:
    """Run all builds."""
    caps = [None if word == "none" else float(word) for word in options.caps.split(",")]
    with tempfile.TemporaryDirectory(prefix="compilers-") as name:
        folder = Path(name)
        workshop = Workshop(
            folder=folder,
            tree=options.tree,
            files=options.files,
            flags=options.flags,
            ninja=replayed.find_ninja(options, folder),
            patience=options.seconds,
        )
        for cap, contender in builds_to_run(caps):
            if contender not in options.contenders:
                continue
            row = {
                "cap": cap,
                "files": options.files,
                "flags": options.flags,
                "contender": contender,
                "busy": results.busy_share(),
            }
            outcome = workshop.build(contender, cap)
            results.record(options.results, {**row, **outcome.as_row()})


def lines(rows: Sequence[Row]) -> Iterator[Sequence[object]]:
    """Yield a line of the table for each cap and contender."""
    good = [row for row in rows if row["good"]]
    one_seconds = [row["seconds"] for row in good if row["contender"] == ONE]
    uncapped = [row for row in good if row["contender"] == FOUR and row["cap"] is None]
    four_seconds = [row["seconds"] for row in uncapped]
    groups = results.grouped(rows, "cap", "flags", "contender")
    for (cap, flags, contender), runs in groups.items():
        seconds = [row["seconds"] for row in runs if row["good"]]
        kills = sum(row["kills"] for row in runs)
        yield (
            "none" if cap is None else f"{cap:g} GiB",
            flags or "-O2",
            contender,
            f"{len(seconds)} of {len(runs)}, {kills} kills",
            results.spread(seconds, 0),
            results.spread(_ratios(seconds, one_seconds)),
            results.spread(_ratios(seconds, four_seconds)),
            results.guard_interventions(runs),
        )


def _ratios(times: Sequence[float], references: Sequence[float]) -> list[float]:
    """Return the ratio of each time to each reference."""
    ratios: list[float] = []
    for reference in references:
        ratios += [time / reference for time in times]
    return ratios


def render(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the table."""
    heads = ("cap", "switches", "contender", "built", "seconds")
    ratios = ("/ one at a time", "/ four, no cap")
    yield results.table((*heads, *ratios, "pauses/reruns/kills"), lines(rows))


def main() -> None:
    """Run, or render what was run."""
    parser = results.parser(__doc__)
    replayed.add_ninja_option(parser)
    parser.add_argument("--tree", type=Path, help="build tree of torch, configured for ninja")
    parser.add_argument("--files", type=int, default=60)
    parser.add_argument(
        "--flags", default="-fsyntax-only", help="added to every command; empty: -O2 as it is"
    )
    parser.add_argument("--caps", default="1.9,2.4,3.6,none", help="GiB; 2.3,3,4.5,none with -O2")
    results.add_choice(parser, "--contenders", (ONE, FOUR, COLD, WARM))
    parser.add_argument(
        "--seconds", type=float, default=3600.0, help="after which a build is given up"
    )
    options = results.parse_options(
        parser, "tree", "the build tree whose compile commands are to be run"
    )
    results.run_or_render(options, run, render)


if __name__ == "__main__":
    main()
