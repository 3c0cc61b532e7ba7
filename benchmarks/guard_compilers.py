"""Real compilers on the heaviest files of torch below a memory limit: one at a time, four at a time, guarded.

python benchmarks/guard_compilers.py --tree torch/build --results FILE
python benchmarks/guard_compilers.py --render FILE

The tree is a build tree of torch 1.13.1 that was configured for ninja, with its generated sources; nothing is
written to it. With -O2 the files take half an hour of two processors, and the largest needs 2.0 GiB; with
-fsyntax-only a quarter of the time and four fifths of the memory, and the default caps are lower by as much.
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
ONE, FOUR, FIRST, OURS = "one at a time", "four at a time", "ours cold", "ours warm"


@dataclass(frozen=True, slots=True)
class Ground:
    """What is compiled, and where to."""

    folder: Path
    tree: Path
    files: int
    flags: str
    ninja: str
    patience: float  # seconds after which a build is given up

    def run(self, cap: float | None, contender: str) -> Outcome:
        """Let one contender build below a cap in GiB."""
        match contender:
            case "one at a time":
                return self._contest(cap).fixed(1)
            case "four at a time":
                return self._contest(cap).fixed(SLOTS)
        cache = self.folder / f"learned {cap}"
        ground = self._contest(cap, self.folder / "gate")
        return ground.guard(self.folder, cache, self.tree.resolve().parent)

    def _contest(self, cap: float | None, gate: Path | None = None) -> Contest:
        limit = None if cap is None else int(cap * mixes.GIB)
        return Contest(self._written(gate), self.ninja, limit, SLOTS, self.patience)

    def _written(self, gate: Path | None) -> Path:
        """Write a build.ninja beside which nothing is built yet; return its folder."""
        build = self.folder / "build"
        build.mkdir(parents=True, exist_ok=True)
        for old in (*build.glob("*.o"), *build.glob(".ninja_*")):
            old.unlink()
        commands = compile_commands.of(self.tree)
        lines = ["rule compile", "  command = cd $folder && $compiler && touch $out"]
        for index, source in enumerate(heaviest(self.files)):
            target = str(build / f"unit{index}.o")
            argv = commands[source].with_output(target, self.flags.split())
            words = shlex.join([str(gate), *argv] if gate else argv).replace("$", "$$")
            lines += [f"build {target}: compile", f"  folder = {commands[source].folder}"]
            lines += [f"  compiler = {words}"]
        (build / "build.ninja").write_text("\n".join(lines) + "\n", encoding="utf-8")
        return build


def heaviest(count: int) -> list[str]:
    """Return the sources with the largest peaks, by name: as a build tool would take them, not by weight."""
    rows = sorted(mixes.recorded(), key=lambda row: -int(row["peak_kib"]))
    return sorted(row["source"] for row in rows[:count])


def plan(caps: Sequence[float | None]) -> Iterator[tuple[float | None, str]]:
    """Yield who builds below which cap; what hardly depends on it is done once."""
    yield caps[0], ONE
    for cap in caps:
        yield cap, FIRST
        yield cap, FOUR
    yield caps[0], OURS


def run(asked: Namespace) -> None:
    """Let all build in turn."""
    caps = [None if word == "none" else float(word) for word in asked.caps.split(",")]
    with tempfile.TemporaryDirectory(prefix="compilers-") as name:
        folder = Path(name)
        ninja = asked.ninja or replayed.ninja(folder)
        ground = Ground(folder, asked.tree, asked.files, asked.flags, ninja, asked.seconds)
        for cap, contender in plan(caps):
            if contender in asked.contenders:
                case = {
                    "cap": cap,
                    "files": asked.files,
                    "flags": asked.flags,
                    "contender": contender,
                }
                case["busy"] = results.busy()
                results.keep(asked.results, {**case, **ground.run(cap, contender).as_row()})


def lines(rows: Sequence[Row]) -> Iterator[Sequence[object]]:
    """Yield a line of the table for each cap and contender."""
    good = [row for row in rows if row["good"]]
    one = [row["seconds"] for row in good if row["contender"] == ONE]
    four = [row["seconds"] for row in good if row["contender"] == FOUR and row["cap"] is None]
    for (cap, flags, name), found in results.grouped(
        rows, results.fields("cap", "flags", "contender")
    ).items():
        times = [row["seconds"] for row in found if row["good"]]
        ended = f"{len(times)} of {len(found)}, {sum(row['kills'] for row in found)} kills"
        ratios = [[mine / other for mine in times for other in others] for others in (one, four)]
        limit = "none" if cap is None else f"{cap:g} GiB"
        figures = [results.spread(times, 0), *map(results.spread, ratios)]
        yield limit, flags or "-O2", name, ended, *figures, results.interventions(found)


def render(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the table."""
    heads = (
        "cap",
        "switches",
        "contender",
        "built",
        "seconds",
        "/ one at a time",
        "/ four, no cap",
    )
    yield results.table((*heads, "pauses/reruns/kills"), lines(rows))


def main() -> None:
    """Run, or render what was run."""
    parser = results.parser(__doc__)
    parser.add_argument("--tree", type=Path, help="build tree of torch, configured for ninja")
    parser.add_argument("--files", type=int, default=60)
    parser.add_argument(
        "--flags", default="-fsyntax-only", help="added to every command; none: -O2 as it is"
    )
    parser.add_argument("--caps", default="1.9,2.4,3.6,none", help="GiB; 2.3,3,4.5,none with -O2")
    results.choice(parser, "--contenders", (ONE, FOUR, FIRST, OURS))
    parser.add_argument(
        "--seconds", type=float, default=3600.0, help="after which a build is given up"
    )
    asked = results.given(parser, "tree", "the build tree whose compile commands are to be run")
    results.run_or_render(asked, run, render)


if __name__ == "__main__":
    main()
