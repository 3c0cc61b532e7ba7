"""Record how the memory of real compilers grows: for the stubs of guard_replay.py, and to compare switches.

python benchmarks/record_curves.py TREE [--flags=-O1] SOURCE... >> benchmarks/data/curves.csv
python benchmarks/record_curves.py nvcc -- nvcc -gencode=arch=compute_80,code=sm_80 -c sort.cu

TREE is a build tree that was configured for ninja, SOURCE a path as in benchmarks/data/. If the first argument is not a
folder, the words after it are the command of one compile. Compiles run one at a time; their objects are thrown away.
"""

import argparse
import csv
import os
import resource
import subprocess
import sys
import time
from pathlib import Path

import compile_commands
import psutil

POINTS = 24  # of a curve, at evenly spaced moments of the compile
LOOK_SECONDS = 0.02  # between two looks at the memory


def resident_bytes(process: psutil.Process) -> int:
    """Return the resident memory of a process and all its descendants."""
    total = 0
    for member in [process, *process.children(recursive=True)]:
        try:
            total += member.memory_info().rss
        except psutil.Error:  # it has just ended
            continue
    return total


def watch_memory(argv: list[str], folder: Path) -> tuple[list[int], float]:
    """Run a command; return its memory at each look, in bytes, and its processor seconds. Exits if it fails."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    looks: list[int] = []
    with subprocess.Popen(argv, cwd=folder, stderr=subprocess.DEVNULL) as process:
        while process.poll() is None:
            try:
                looks.append(resident_bytes(psutil.Process(process.pid)))
            except psutil.Error:
                break
            time.sleep(LOOK_SECONDS)
    if process.returncode:
        sys.exit(f"exit {process.returncode}: {' '.join(argv)}")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return looks, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def curve(looks: list[int]) -> list[str]:
    """Return the most memory in each of POINTS equal parts of the time, as fractions of the peak."""
    peak = max(looks)
    levels = []
    for index in range(POINTS):
        begin, end = index * len(looks) // POINTS, (index + 1) * len(looks) // POINTS
        part = looks[begin : max(end, begin + 1)]  # of a short compile a part may have no look
        levels.append(f"{max(part) / peak:.2f}")
    return levels


def main() -> None:
    """Write a line for each compile: language, source, switches, processor seconds, peak in KiB, the curve."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("tree", type=Path)
    parser.add_argument("words", nargs="+", metavar="SOURCE")
    parser.add_argument("--flags", default="", help="added to each command")
    options = parser.parse_args()
    if options.tree.is_dir():
        language = "c++"
        tree_commands = compile_commands.read_commands(options.tree)
        commands = {source: tree_commands[source] for source in options.words}
    else:
        language = "cuda"
        command = compile_commands.Command(Path.cwd(), tuple(options.words))
        commands = {options.words[-1]: command}
    writer = csv.writer(sys.stdout, lineterminator="\n")
    for source, command in commands.items():
        argv = command.with_output(os.devnull, options.flags.split())
        looks, seconds = watch_memory(argv, command.folder)
        peak_kib = max(looks) // 1024
        levels = " ".join(curve(looks))
        writer.writerow([language, source, options.flags, f"{seconds:.1f}", peak_kib, levels])
        sys.stdout.flush()


if __name__ == "__main__":
    main()
