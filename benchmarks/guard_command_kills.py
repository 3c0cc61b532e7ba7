"""Kill guard, gate, compiler or command at random moments, and look at what is left.

python benchmarks/guard_command_kills.py --kills 200 --results FILE
python benchmarks/guard_command_kills.py --render FILE

`millguard -- make -j4` compiles 24 files with a compiler that takes memory and time. One process of one kind gets
SIGKILL at a random moment. Then the build has to end by itself, and within some seconds nothing of it may be left:
no process that runs or is stopped, no claim on the memory. A killed guard or compiler must not fail the build.
"""

import os
import random
import subprocess
import sys
import tempfile
import time
from argparse import Namespace
from collections.abc import Iterator, Sequence
from pathlib import Path

import psutil
import results
from results import Row

MARK = "GUARD_KILLS_RUN"  # in the environment of everything that one run starts
KINDS = ("millguard", "service", "gate", "compiler", "make")
# The others are expected to end the build: nobody can go on for make, or for a gate.
HARMLESS = ("service", "compiler")
END_SECONDS = 60.0
GONE_SECONDS = 20.0
FILES = 24
COMPILER = """#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(int argc, char **argv)
{
    char *memory = malloc(40 << 20);
    memset(memory, 1, 40 << 20);
    usleep(150000);
    FILE *made = fopen(argv[argc - 1], "w");
    return made == NULL || fputc(memory[5], made) < 0 || fclose(made) != 0;
}
"""


def prepare(folder: Path) -> None:
    """Write the compiler, the sources and the Makefile."""
    programs = folder / "programs"
    programs.mkdir()
    (folder / "compiler.c").write_text(COMPILER, encoding="utf-8")
    subprocess.run(["cc", "-O1", "-o", programs / "c++", folder / "compiler.c"], check=True)
    names = [f"f{number}" for number in range(FILES)]
    for name in names:
        (folder / f"{name}.cpp").touch()
    objects = " ".join(f"{name}.o" for name in names)
    rules = f"all: {objects}\n%.o: %.cpp\n\t@c++ -c $< -o $@\nclean:\n\t@rm -f *.o\n"
    (folder / "Makefile").write_text(rules, encoding="utf-8")


def processes_of(run: str) -> list[psutil.Process]:
    """Return the living processes of a run."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == run and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except (psutil.Error, OSError):
            continue
    return found


def kind_of(process: psutil.Process) -> str:
    """Return the kind of a process, "" for others."""
    try:
        words = process.cmdline()
    except psutil.Error:
        return ""
    text = " ".join(words)
    if "millguard.service" in text:
        return "service"
    if "-m millguard" in text:
        return "millguard"
    if words and "/gates/" in words[0]:
        return "gate"
    if words and words[0].endswith("c++"):
        return "compiler"
    return "make" if words and words[0].endswith("make") else ""


def kill_one(run: str, kind: str, until: float) -> bool:
    """Kill a process of a kind once there is one; tell whether there was."""
    while time.monotonic() < until:
        chosen = [process for process in processes_of(run) if kind_of(process) == kind]
        if chosen:
            try:
                random.choice(chosen).kill()  # noqa: S311 - a draw, no secret
            except psutil.Error:
                continue
            return True
    return False


def one_run(folder: Path, number: int, kind: str, delay: float) -> dict[str, object]:
    """Build, kill one process after some seconds, and describe what was left."""
    run = f"{os.getpid()}-{number}"
    subprocess.run(["make", "clean"], cwd=folder, check=True)
    environ = {
        **os.environ,
        MARK: run,
        "PATH": f"{folder}/programs:{os.environ['PATH']}",
        "MILLGUARD_CACHE": str(folder / "cache"),
        "MILLGUARD_BOARD": str(folder / "board"),
    }
    command = [sys.executable, "-m", "millguard", "-q", "--", "make", "-j4"]
    began = time.monotonic()
    process = subprocess.Popen(command, cwd=folder, env=environ, stderr=subprocess.DEVNULL)
    time.sleep(delay)
    was_killed = kill_one(run, kind, time.monotonic() + 5)
    try:
        code: int | None = process.wait(END_SECONDS)
    except subprocess.TimeoutExpired:
        code = None
        process.kill()
    ended = time.monotonic()
    left = processes_of(run)
    while left and time.monotonic() < ended + GONE_SECONDS:
        time.sleep(0.1)
        left = processes_of(run)
    claims = len(list((folder / "board").glob("*.build")))
    for process_left in left:
        process_left.kill()
    return {
        "kind": kind,
        "delay": round(delay, 2),
        "killed": was_killed,
        "code": code,
        "seconds": round(ended - began, 2),
        "gone after": round(time.monotonic() - ended, 2),
        "left": [kind_of(process_left) for process_left in left],
        "claims": claims,
        "built": len(list(folder.glob("*.o"))) == FILES,
    }


def run(options: Namespace) -> None:
    """Do as many kills as are wanted, of each kind in turn."""
    random.seed(options.seed)
    with tempfile.TemporaryDirectory(prefix="guard-kills-") as name:
        folder = Path(name)
        prepare(folder)
        for number in range(options.kills):
            kind = KINDS[number % len(KINDS)]
            delay = random.uniform(0.2, 2.5)  # noqa: S311 - a draw, no secret
            results.record(options.results, one_run(folder, number, kind, delay))


def render(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the table: what was killed, and what came of it."""
    lines = []
    for kind in KINDS:
        mine = [row for row in rows if row["kind"] == kind and row["killed"]]
        built = sum(row["built"] and row["code"] == 0 for row in mine)
        hung = sum(row["code"] is None for row in mine)
        left = sum(bool(row["left"]) for row in mine)
        slowest = max((row["gone after"] for row in mine), default=0.0)
        lines.append([kind, len(mine), built, hung, left, f"{slowest:.1f} s"])
    heads = [
        "killed",
        "times",
        "built all the same",
        "hung",
        "left something",
        "gone after, at most",
    ]
    yield results.table(heads, lines)


def main() -> None:
    """Run or render."""
    parser = results.parser(__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    results.run_or_render(parser.parse_args(), run, render)


if __name__ == "__main__":
    main()
