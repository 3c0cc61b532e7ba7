"""Measure the processor time that `millguard` adds to a compile: a compiler that does nothing, with it and without.

python benchmarks/guard_command_cost.py --rounds 5 --results FILE
python benchmarks/guard_command_cost.py --render FILE

A shell starts the compiler many times, one after the other. What an empty guarded build takes is measured too, and is
not part of the time for each compile.
"""

import os
import resource
import subprocess
import sys
import tempfile
from argparse import Namespace
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import results
from results import Row

COMPILER = "int main(void) { return 0; }\n"
LOOP = (
    'number=0; while [ "$number" -lt "$1" ]; do ./c++ -c a.c -o a.o; number=$((number + 1)); done'
)
GUARD = [sys.executable, "-P", "-m", "millguard", "--quiet", "--"]


def processor_seconds(words: Sequence[str], folder: Path, environ: Mapping[str, str]) -> float:
    """Run a command in a folder; return the processor time of it and all that it waited for."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run(words, cwd=folder, env=environ, check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def run(options: Namespace) -> None:
    """Time plain, guarded and empty builds in turns."""
    with tempfile.TemporaryDirectory(prefix="guard-command-cost-") as name:
        folder = Path(name)
        source = folder / "compiler.c"
        source.write_text(COMPILER, encoding="utf-8")
        subprocess.run(["cc", "-O2", "-o", folder / "c++", source], check=True)
        (folder / "a.c").write_text("", encoding="utf-8")
        environ = {
            **os.environ,
            "MILLGUARD_CACHE": str(folder / "cache"),
            # Builds of others that run at the same time would have a share of the processors.
            "MILLGUARD_BOARD": "",
        }

        def build(guard: Sequence[str], count: int) -> float:
            words = [*guard, "sh", "-c", LOOP, "sh", str(count)]
            return processor_seconds(words, folder, environ)

        build(GUARD, 1)  # compiles the gate, which is kept
        for number in range(options.rounds):
            plain = build([], options.compiles)
            guarded = build(GUARD, options.compiles)
            empty = build(GUARD, 0)
            row = {
                "round": number,
                "compiles": options.compiles,
                "plain_ms": 1e3 * plain / options.compiles,
                "added_ms": 1e3 * (guarded - empty - plain) / options.compiles,
                "empty_ms": 1e3 * empty,
            }
            results.record(options.results, row)


def render(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the table: milliseconds of processor time, median and range."""
    heads = ["plain compile, ms", "added by the guard, ms", "an empty guarded build, ms"]
    line = [
        results.spread([row[key] for row in rows]) for key in ("plain_ms", "added_ms", "empty_ms")
    ]
    yield results.table(heads, [line])


def main() -> None:
    """Run or render."""
    parser = results.parser(__doc__)
    parser.add_argument("--compiles", type=int, default=400)
    parser.add_argument("--rounds", type=int, default=5)
    results.run_or_render(parser.parse_args(), run, render)


if __name__ == "__main__":
    main()
