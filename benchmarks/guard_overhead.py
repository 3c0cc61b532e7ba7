"""What the guard costs where nothing is short: builds with and without it, and one pass of the gate.

python benchmarks/guard_overhead.py --results FILE; python benchmarks/guard_overhead.py --render FILE

No limit is set. "sleeping": units of 0.2 s that use no processor. "compiling": small real files. "passing":
units that end at once, one at a time: the difference to plain ninja, per unit, is what one pass takes.
"""

import os
import tempfile
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import replayed
import results
from contenders import Contest
from results import Row

TEXT = """#include <algorithm>
#include <map>
#include <string>
#include <vector>
int sorted{n}(std::vector<std::string> words, std::map<std::string, int>& counts) {{
    std::sort(words.begin(), words.end());
    for (const auto& word : words) ++counts[word + "{n}"];
    return static_cast<int>(counts.size());
}}
"""
Source = Callable[[int], str]
KINDS: dict[str, tuple[Source, str]] = {  # what a source says, and the pool that its unit is in
    "sleeping": (lambda _: "20e6 0.2 0 1 1\n", ""),
    "compiling": (lambda number: TEXT.format(n=number), ""),
    "passing": (lambda _: "1e6 0 1\n", "one"),
}


def write(folder: Path, kind: str, count: int, compiler: str, gate: Path | None) -> Path:
    """Write sources and a build.ninja beside which nothing is built yet; return its folder."""
    build = folder / "build"
    build.mkdir(parents=True, exist_ok=True)
    for old in (*build.glob("*.o"), *build.glob(".ninja_*")):
        old.unlink()
    text, pool = KINDS[kind]
    launcher = f"{gate} " if gate else ""
    lines = [
        "pool one",
        "  depth = 1",
        "rule compile",
        f"  command = {launcher}{compiler} -O2 -c $in -o $out",
    ]
    lines.append(f"  pool = {pool}")
    for number in range(count):
        source = folder / "source" / f"{kind}{number}.cpp"
        source.parent.mkdir(exist_ok=True)
        source.write_text(text(number), encoding="ascii")
        lines.append(f"build {kind}{number}.o: compile {source}")
    (build / "build.ninja").write_text("\n".join(lines) + "\n", encoding="utf-8")
    return build


def run(asked: Namespace) -> None:
    """Build by turns with and without, the other first in every other round."""
    counts = {"sleeping": asked.units, "compiling": asked.units // 4, "passing": asked.units // 2}
    with tempfile.TemporaryDirectory(prefix="overhead-") as name:
        folder = Path(name)
        ninja, stubs = asked.ninja or replayed.ninja(folder), replayed.stubs(folder)
        for number in range(asked.rounds):
            for kind in asked.kinds:
                compiler = "c++" if kind == "compiling" else f"{stubs}/c++"
                for guarded in (False, True) if number % 2 else (True, False):
                    busy = results.busy()
                    build = write(
                        folder, kind, counts[kind], compiler, folder / "gate" if guarded else None
                    )
                    contest = Contest(build, ninja, None, asked.slots, 3600.0)
                    learned, root = folder / "learned", folder / "source"
                    outcome = (
                        contest.guard(folder, learned, root)
                        if guarded
                        else contest.fixed(asked.slots)
                    )
                    contender = "ours" if guarded else "ninja"
                    row = {
                        "kind": kind,
                        "contender": contender,
                        "round": number,
                        "slots": asked.slots,
                    }
                    row |= {"units": counts[kind], "busy": busy}
                    results.keep(asked.results, {**row, **outcome.as_row()})


def lines(rows: Sequence[Row]) -> Iterator[Sequence[object]]:
    """Yield a line of the table for each kind of build."""
    for (kind, units, slots), found in results.grouped(
        rows, results.fields("kind", "units", "slots")
    ).items():
        rounds = results.grouped(
            (row for row in found if row["good"]), lambda row: row["round"]
        ).values()
        pairs = [{row["contender"]: row["seconds"] for row in both} for both in rounds]
        whole = [(pair["ours"], pair["ninja"]) for pair in pairs if len(pair) == 2]  # noqa: PLR2004
        ratios = [ours / plain for ours, plain in whole]
        each = [1000 * (ours - plain) / units for ours, plain in whole]
        times = [[pair[index] for pair in whole] for index in (1, 0)]
        ratio, more = results.spread(ratios, 3), results.spread(each, 1)
        yield (
            kind,
            units,
            slots,
            len(whole),
            *(results.spread(one, 1) for one in times),
            ratio,
            more,
        )


def render(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the table."""
    heads = (
        "units that are",
        "units",
        "slots",
        "rounds",
        "ninja, s",
        "ours, s",
        "ratio",
        "ms more per unit",
    )
    yield results.table(heads, lines(rows))


def main() -> None:
    """Run, or render what was run."""
    parser = results.parser(__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--units", type=int, default=400)
    parser.add_argument("--slots", type=int, default=os.cpu_count(), help="processors to keep busy")
    results.choice(parser, "--kinds", tuple(KINDS))
    asked = parser.parse_args()
    results.run_or_render(asked, run, render)


if __name__ == "__main__":
    main()
