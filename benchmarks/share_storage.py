"""What it costs a share of a build to store each compile for other machines, besides its own compiler cache.

python benchmarks/share_storage.py --tree torch/build --results FILE [--files 30]
python benchmarks/share_storage.py --render FILE

A share is one machine's part of a build that several machines do together; it stores its objects in a folder of parts.
The tree is a build tree that was configured for ninja, with all generated files; nothing is written to it. Files are
drawn at random, and each is compiled twice by ccache (4.7 or newer), which has neither in its cache: once with a folder
of parts besides the cache, and once without. Which of the two comes first alternates.
"""

import math
import random
import statistics
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path

import compile_commands
import results
from precompiled_header import measure_compile
from results import Row

ALONE, SHARED = "cache alone", "cache and parts"
CLASSES = (  # of compiles, by seconds of a processor with the cache alone
    ("less than 1 s", 0.0, 1.0),
    ("1 to 10 s", 1.0, 10.0),
    ("10 s and more", 10.0, math.inf),
)


def run(options: Namespace) -> None:
    """Compile each file both ways."""
    commands = compile_commands.read_commands(options.tree)
    chance = random.Random(options.seed)  # noqa: S311 - the same files for the same seed
    sources = chance.sample(sorted(commands), min(options.files, len(commands)))
    with tempfile.TemporaryDirectory(prefix="storage-", dir=options.folder) as name:
        folder = Path(name)
        for number, source in enumerate(sources):
            for way in (ALONE, SHARED) if number % 2 else (SHARED, ALONE):
                # CCACHE_NOHASHDIR as in torchmill/toolchain/caches.toml.
                settings = [f"CCACHE_DIR={folder / way}", "CCACHE_NOHASHDIR=1"]
                if way == SHARED:
                    settings.append(f"CCACHE_REMOTE_STORAGE=file://{folder / 'parts'}")
                compile_words = commands[source].with_output(str(folder / "made.o"))
                row = {"way": way, "source": source, "busy": results.busy_share()}
                argv = ["env", *settings, "ccache", *compile_words]
                cost = measure_compile(argv, options.tree.resolve() / commands[source].folder)
                results.record(options.results, {**row, **cost})


def cost_pairs(rows: Sequence[Row]) -> Iterator[tuple[float, float]]:
    """Yield the processor seconds of each file: with the cache alone, and with parts besides it."""
    good = [row for row in rows if row["good"]]
    for runs in results.grouped(good, "source").values():
        cpu = {row["way"]: row["cpu"] for row in runs}
        if cpu.keys() == {ALONE, SHARED}:
            yield cpu[ALONE], cpu[SHARED]


def render(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the table."""
    pairs = list(cost_pairs(rows))
    lines = []
    for title, least, most in CLASSES:
        class_pairs = [(alone, shared) for alone, shared in pairs if least <= alone < most]
        if len(class_pairs) > 1:  # quantiles need two values
            ratios = [shared / alone for alone, shared in class_pairs]
            quartiles = [f"{ratio:.3f}" for ratio in statistics.quantiles(ratios, n=4)]
            more = statistics.median(shared - alone for alone, shared in class_pairs)
            lines.append((title, len(class_pairs), *quartiles, f"{more:.3f} s"))
    heads = ("a compile of", "files", "first quarter", "median of with / without parts")
    yield results.table((*heads, "third quarter", "more"), lines)


def main() -> None:
    """Run, or render what was run."""
    parser = results.parser(__doc__)
    parser.add_argument("--tree", type=Path, help="the build tree")
    parser.add_argument("--files", type=int, default=30, help="number of files")
    parser.add_argument("--seed", type=int, default=0, help="of the draw of files")
    parser.add_argument("--folder", type=Path, help="where to work; default: TMPDIR")
    results.run_or_render(
        results.parse_options(
            parser, "tree", "the build tree whose compile commands are to be run"
        ),
        run,
        render,
    )


if __name__ == "__main__":
    main()
