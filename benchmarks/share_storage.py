"""What it costs a share to keep each compile for others: against a compile with its own compiler cache alone.

python benchmarks/share_storage.py --tree torch/build --results FILE [--files 30]
python benchmarks/share_storage.py --render FILE

The tree is a configured build tree of ninja, in which nothing is missing that its files include; nothing is written to
it. Files are drawn at random and each is compiled twice by ccache (4.7 or newer), with nothing cached: once with a
folder of parts beside the cache, as a share has it, and once without, in turns first and second.
"""

import random
import statistics
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path

import compile_commands
import results
from precompiled_header import spent
from results import Row

ALONE, SHARED = "cache alone", "cache and parts"


def run(options: Namespace) -> None:
    """Compile each file both ways."""
    commands = compile_commands.read_commands(options.tree)
    chance = random.Random(options.seed)  # noqa: S311 - the same files for the same seed
    drawn = chance.sample(sorted(commands), min(options.files, len(commands)))
    with tempfile.TemporaryDirectory(prefix="storage-", dir=options.folder) as name:
        folder = Path(name)
        for number, source in enumerate(drawn):
            for way in (ALONE, SHARED) if number % 2 else (SHARED, ALONE):
                stored = (
                    [f"CCACHE_REMOTE_STORAGE=file://{folder / 'parts'}"] if way == SHARED else []
                )
                settings = [f"CCACHE_DIR={folder / way}", "CCACHE_NOHASHDIR=1", *stored]
                words = commands[source].with_output(str(folder / "made.o"))
                row = {"way": way, "source": source, "busy": results.busy_share()}
                row |= spent(
                    ["env", *settings, "ccache", *words],
                    options.tree.resolve() / commands[source].folder,
                )
                results.record(options.results, row)


def pairs(rows: Sequence[Row]) -> Iterator[tuple[float, float]]:
    """Yield what each file took, in seconds of a processor: with the cache alone, and with parts beside it."""
    for found in results.grouped((row for row in rows if row["good"]), "source").values():
        took = {row["way"]: row["cpu"] for row in found}
        if took.keys() == {ALONE, SHARED}:
            yield took[ALONE], took[SHARED]


def render(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the table."""
    found = list(pairs(rows))
    lines = []
    for title, least, most in (
        ("less than 1 s", 0.0, 1.0),
        ("1 to 10 s", 1.0, 10.0),
        ("10 s and more", 10.0, 1e9),
    ):
        those = [(alone, shared) for alone, shared in found if least <= alone < most]
        if len(those) > 1:
            ratios = statistics.quantiles([shared / alone for alone, shared in those], n=4)
            more = statistics.median(shared - alone for alone, shared in those)
            lines.append(
                (title, len(those), *(f"{ratio:.3f}" for ratio in ratios), f"{more:.3f} s")
            )
    heads = (
        "a compile of",
        "files",
        "first quarter",
        "median of with / without parts",
        "third quarter",
        "more",
    )
    yield results.table(heads, lines)


def main() -> None:
    """Run, or render what was measured before."""
    parser = results.parser(__doc__)
    parser.add_argument("--tree", type=Path, help="the build tree")
    parser.add_argument("--files", type=int, default=30, help="how many are compiled")
    parser.add_argument("--seed", type=int, default=0, help="which are drawn")
    parser.add_argument("--folder", type=Path, help="where to work: by default in TMPDIR")
    results.run_or_render(
        results.parse_options(parser, "tree", "where to find compiles"), run, render
    )


if __name__ == "__main__":
    main()
