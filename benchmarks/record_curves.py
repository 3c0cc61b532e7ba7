"""Record how the memory of real compilers grows: for the stub of guard_replay.py, and to compare switches.

python benchmarks/record_curves.py TREE [--flags=-O1] SOURCE... >> benchmarks/data/curves.csv
python benchmarks/record_curves.py nvcc -- nvcc -gencode=arch=compute_80,code=sm_80 -c sort.cu

TREE is a configured build tree of ninja, SOURCE a path as in the data beside it. One compile at a time; what
it makes is thrown away.
"""

import argparse
import csv
import itertools
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import compile_commands
import psutil

POINTS = 24  # of a curve; evenly over the unit's time
PERIOD = 0.02  # seconds between two looks


def resident(process: psutil.Process) -> int:
    """Return the resident bytes of a process and all below it."""
    total = 0
    for one in [process, *process.children(recursive=True)]:
        try:
            total += one.memory_info().rss
        except psutil.Error:
            continue
    return total


def watched(argv: list[str], folder: Path) -> tuple[list[int], float]:
    """Run a command to its end; return its memory, look by look, and its processor seconds."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    looks: list[int] = []
    with subprocess.Popen(argv, cwd=folder, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None:
            try:
                looks.append(resident(psutil.Process(process.pid)))
            except psutil.Error:
                break
            time.sleep(PERIOD)
    if process.returncode:
        sys.exit(f"exit {process.returncode}: {' '.join(argv)}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return looks, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def curve(looks: list[int]) -> list[str]:
    """Return what was the most in each of evenly long parts of the time, as fractions of the peak."""
    peak = max(looks)
    edges = [index * len(looks) // POINTS for index in range(POINTS + 1)]
    parts = [looks[begin : max(end, begin + 1)] for begin, end in itertools.pairwise(edges)]
    return [f"{max(part) / peak:.2f}" for part in parts]


def main() -> None:
    """Write one line for each compile: language, source, switches, seconds, peak in KiB, the curve."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tree", type=Path)
    parser.add_argument("words", nargs="+")
    parser.add_argument("--flags", default="")
    options = parser.parse_args()
    writer = csv.writer(sys.stdout, lineterminator="\n")
    if options.tree.is_dir():
        commands = compile_commands.read_commands(options.tree)
        todo = {name: (commands[name], "c++") for name in options.words}
    else:
        todo = {
            options.words[-1]: (compile_commands.Command(Path.cwd(), tuple(options.words)), "cuda")
        }
    for name, (command, language) in todo.items():
        argv = command.with_output(os.devnull, options.flags.split())
        looks, seconds = watched(argv, command.folder)
        writer.writerow(
            [
                language,
                name,
                options.flags,
                f"{seconds:.1f}",
                max(looks) // 1024,
                " ".join(curve(looks)),
            ]
        )
        sys.stdout.flush()


if __name__ == "__main__":
    main()
