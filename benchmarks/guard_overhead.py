"""What the guard costs if memory is plentiful: builds with and without it, and one pass through its gate.

python benchmarks/guard_overhead.py --results FILE; python benchmarks/guard_overhead.py --render FILE

No limit is set. The gate is the program that starts each compiler once the guard admits it. Three kinds of units
are built: "sleeping" ones take 0.2 s and no processor; "compiling" ones are small real files; "passing" ones end at
once and run one at a time, so that the difference to plain ninja, divided by their number, is the time of one pass
through the gate.
"""

import os
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import replayed
import results
from contenders import Contest, Outcome
from results import Row

OURS, NINJA = "ours", "ninja"
PATIENCE = 3600.0  # seconds

SORTING_SOURCE = """#include <algorithm>
#include <map>
#include <string>
#include <vector>
int sorted{number}(std::vector<std::string> words, std::map<std::string, int>& counts) {{
    std::sort(words.begin(), words.end());
    for (const auto& word : words) ++counts[word + "{number}"];
    return static_cast<int>(counts.size());
}}
"""


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of units."""

    source: Callable[
        [int], str
    ]  # the text of the source with a number; a stub's is replay/stub.c's
    share: float  # how many of them are built for each of --units
    pool: str = ""  # ninja's pool, which may limit how many run at a time


KINDS = {
    "sleeping": Kind(lambda _: "20e6 0.2 0 1 1\n", share=1),
    "compiling": Kind(lambda number: SORTING_SOURCE.format(number=number), share=1 / 4),
    "passing": Kind(lambda _: "1e6 0 1\n", share=1 / 2, pool="one_at_a_time"),
}


@dataclass(frozen=True, slots=True)
class Workshop:
    """The folder that all builds use, and the programs they run."""

    folder: Path
    ninja: str
    stubs: Path
    slots: int

    def build(self, kind: str, count: int, contender: str) -> Outcome:
        """Build `count` units of a kind from nothing."""
        if contender == OURS:
            contest = self._contest(kind, count, f"{self.folder / 'gate'} ")
            learned, root = self.folder / "learned", self.folder / "source"
            return contest.build_with_guard(self.folder, learned, root)
        return self._contest(kind, count, "").build_with_jobs(self.slots)

    def _contest(self, kind: str, count: int, launcher: str) -> Contest:
        build = self._write_build(kind, count, launcher)
        return Contest(build, self.ninja, limit=None, slots=self.slots, patience=PATIENCE)

    def _write_build(self, kind: str, count: int, launcher: str) -> Path:
        """Write sources and a build.ninja, and remove what an earlier build made; return its folder."""
        build = self.folder / "build"
        build.mkdir(parents=True, exist_ok=True)
        for path in (*build.glob("*.o"), *build.glob(".ninja_*")):
            path.unlink()
        compiler = "c++" if kind == "compiling" else f"{self.stubs}/c++"
        lines = ["pool one_at_a_time", "  depth = 1"]
        lines += ["rule compile", f"  command = {launcher}{compiler} -O2 -c $in -o $out"]
        lines.append(f"  pool = {KINDS[kind].pool}")
        sources = self.folder / "source"
        sources.mkdir(exist_ok=True)
        for number in range(count):
            source = sources / f"{kind}{number}.cpp"
            source.write_text(KINDS[kind].source(number), encoding="ascii")
            lines.append(f"build {kind}{number}.o: compile {source}")
        (build / "build.ninja").write_text("\n".join(lines) + "\n", encoding="utf-8")
        return build


def run(options: Namespace) -> None:
    """Build each kind with and without the guard, in an order that changes from round to round."""
    with tempfile.TemporaryDirectory(prefix="overhead-") as name:
        folder = Path(name)
        ninja = replayed.find_ninja(options, folder)
        workshop = Workshop(folder, ninja, replayed.compile_stubs(folder), options.slots)
        for number in range(options.rounds):
            for kind in options.kinds:
                units = int(options.units * KINDS[kind].share)
                for contender in (NINJA, OURS) if number % 2 else (OURS, NINJA):
                    row = {
                        "kind": kind,
                        "contender": contender,
                        "round": number,
                        "slots": options.slots,
                        "units": units,
                        "busy": results.busy_share(),
                    }
                    outcome = workshop.build(kind, units, contender)
                    results.record(options.results, {**row, **outcome.as_row()})


def lines(rows: Sequence[Row]) -> Iterator[Sequence[object]]:
    """Yield a line of the table for each kind of build, from the rounds in which both builds succeeded."""
    groups = results.grouped(rows, "kind", "units", "slots")
    for (kind, units, slots), runs in groups.items():
        ours, ninja = [], []  # seconds, round by round
        good_runs = [row for row in runs if row["good"]]
        for round_runs in results.grouped(good_runs, "round").values():
            seconds = {row["contender"]: row["seconds"] for row in round_runs}
            if seconds.keys() == {OURS, NINJA}:
                ours.append(seconds[OURS])
                ninja.append(seconds[NINJA])
        pairs = list(zip(ours, ninja, strict=True))
        ratios = [guarded / plain for guarded, plain in pairs]
        unit_milliseconds = [1000 * (guarded - plain) / units for guarded, plain in pairs]
        yield (
            kind,
            units,
            slots,
            len(pairs),
            results.spread(ninja, 1),
            results.spread(ours, 1),
            results.spread(ratios, 3),
            results.spread(unit_milliseconds, 1),
        )


def render(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the table."""
    heads = ("units that are", "units", "slots", "rounds", "ninja, s", "ours, s", "ratio")
    yield results.table((*heads, "ms more per unit"), lines(rows))


def main() -> None:
    """Run, or render what was run."""
    parser = results.parser(__doc__)
    replayed.add_ninja_option(parser)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--units", type=int, default=400)
    parser.add_argument("--slots", type=int, default=os.cpu_count(), help="processors to keep busy")
    results.add_choice(parser, "--kinds", tuple(KINDS))
    results.run_or_render(parser.parse_args(), run, render)


if __name__ == "__main__":
    main()
