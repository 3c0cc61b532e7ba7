"""Kill guard, gate, compiler or command at random moments, and look at what is left.

python benchmarks/guard_command_kills.py --kills 200 --results FILE
python benchmarks/guard_command_kills.py --render FILE

`millguard -- make -j4` compiles 24 files with a compiler that takes memory and time. One process of one kind gets
SIGKILL at a random moment. Then the build has to end by itself, and within some seconds nothing of it may be left:
no process that runs or is stopped, no claim on the memory. A killed guard or compiler must not fail the build.

Kinds with a "+" are of builds that have too little memory, because the guard expects too little of each file: the
process is killed while a compiler is paused. "forked make" is make's child before it has become another program. The
kinds that begin with "neighbour's" are of a build that claims the memory which a second build waits for; the second
one must start soon after the kill.
"""

import fcntl
import json
import os
import random
import signal
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
FORKED = "forked make"
KINDS = (
    "millguard",
    "service",
    "gate",
    "compiler",
    "make",
    FORKED,
    "millguard+",
    "service+",
    "gate+",
    "paused compiler+",
    "neighbour's millguard",
    "neighbour's service",
)
SHORT_OF_MEMORY = "+"  # at the end of a kind's name
NEIGHBOUR = "neighbour's "
END_SECONDS = 180.0
GONE_SECONDS = 20.0
START_SECONDS = 30.0
FILES = 24
TIGHT_MEMORY = "600MiB"  # for two files that take LARGE_MIB each, which the guard does not expect
SMALL_MIB, LARGE_MIB = 40, 330
HUGE_PEAK, TINY_PEAK = 2**50 - 1, 100 * 2**20  # bytes that are expected of a file
# It takes its memory in 40 steps. The environment names the memory in MiB, and the time in microseconds.
COMPILER = """#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
int main(int argc, char **argv)
{
    size_t step = ((size_t)atoi(getenv("GUARD_KILLS_MIB")) << 20) / 40;
    char *memory = malloc(40 * step);
    for (int number = 0; number < 40; number++) {
        memset(memory + number * step, 1, step);
        usleep(atoi(getenv("GUARD_KILLS_MICROSECONDS")) / 40);
    }
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


def is_paused(process: psutil.Process) -> bool:
    """Tell whether a process is stopped."""
    try:
        return bool(process.status() == psutil.STATUS_STOPPED)
    except psutil.Error:
        return False


def candidates(run: str, kind: str) -> list[psutil.Process]:
    """Return the processes of a run that a kill of a kind may choose from at this moment."""
    processes = processes_of(run)
    name = kind.removesuffix(SHORT_OF_MEMORY)
    if kind.endswith(SHORT_OF_MEMORY):
        paused = [process for process in processes if is_paused(process)]
        if name == "paused compiler" or not paused:
            return paused
    return [process for process in processes if kind_of(process) == name]


def kill_one(run: str, kind: str, until: float) -> bool:
    """Kill a process of a kind once there is one; tell whether there was."""
    while time.monotonic() < until:
        try:
            if kind == FORKED:
                return kill_forked(candidates(run, "make"), until)
            chosen = candidates(run, kind)
            if chosen:
                random.choice(chosen).kill()  # noqa: S311 - a draw, no secret
                return True
        except (psutil.Error, OSError):
            continue
    return False


def kill_forked(makes: Sequence[psutil.Process], until: float) -> bool:
    """Kill a child of make that is still make, which it is for some microseconds."""
    while makes and time.monotonic() < until:
        number = makes[0].pid
        for child in Path(f"/proc/{number}/task/{number}/children").read_text().split():
            if Path(f"/proc/{child}/cmdline").read_bytes().startswith(b"make\0"):
                os.kill(int(child), signal.SIGKILL)
                return True
    return False


def wait_for_one(run: str, kind: str) -> None:
    """Wait until a run has a process of a kind, but not for ever."""
    until = time.monotonic() + START_SECONDS
    while not candidates(run, kind) and time.monotonic() < until:
        time.sleep(0.05)


class Build:
    """One build under `millguard`, whose processes are known by a mark."""

    def __init__(self, folder: Path, run: str, seconds: float, *, is_tight: bool = False) -> None:
        self.folder = folder
        self.run = run
        options = ["--memory", TIGHT_MEMORY] if is_tight else []
        command = [sys.executable, "-m", "millguard", "-q", *options, "--", "make", "-j4"]
        environ = environment(folder, run) | {
            "GUARD_KILLS_MICROSECONDS": str(int(seconds * 1e6)),
            "GUARD_KILLS_MIB": str(LARGE_MIB if is_tight else SMALL_MIB),
        }
        self.process = subprocess.Popen(command, cwd=folder, env=environ, stderr=subprocess.DEVNULL)

    def wait(self) -> int | None:
        """Return the exit code; None if the build hangs, and is killed."""
        try:
            return self.process.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return None

    def wait_until_gone(self) -> list[str]:
        """Return the kinds of the processes that are still there after some seconds, and kill them."""
        until = time.monotonic() + GONE_SECONDS
        left = processes_of(self.run)
        while left and time.monotonic() < until:
            time.sleep(0.1)
            left = processes_of(self.run)
        kinds = [kind_of(process) for process in left]
        for process in left:
            process.kill()
        return kinds

    @property
    def objects(self) -> int:
        """Return how many files are compiled."""
        return len(list(self.folder.glob("*.o")))


def environment(folder: Path, run: str) -> dict[str, str]:
    """Return the environment of a run: a mark, and folders of its own."""
    return {
        **os.environ,
        MARK: run,
        "PATH": f"{folder}/programs:{os.environ['PATH']}",
        "MILLGUARD_CACHE": str(folder / "cache"),
        "MILLGUARD_BOARD": str(folder.parent / "board"),
    }


def count_claims(board: Path) -> int:
    """Return how many guards hold a claim; that of a killed guard is a file without a lock."""
    count = 0
    for path in board.glob("*.build"):
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                count += 1
    return count


def expect(folder: Path, peak: int) -> None:
    """Let the guard expect so many bytes of every file that was compiled before."""
    millguard = [sys.executable, "-m", "millguard", "costs"]
    costs = folder / "costs.jsonl"
    environ = environment(folder, "")
    subprocess.run(
        [*millguard, "export", str(costs)], env=environ, stdout=subprocess.DEVNULL, check=True
    )
    head, *lines = costs.read_text(encoding="utf-8").splitlines()
    changed = [json.dumps(json.loads(line) | {"peak": peak}) for line in lines]
    costs.write_text("\n".join([head, *changed]) + "\n", encoding="utf-8")
    (folder / "cache" / "units.sqlite").unlink()
    subprocess.run(
        [*millguard, "import", str(costs)], env=environ, stdout=subprocess.DEVNULL, check=True
    )


def one_run(folder: Path, number: int, kind: str, delay: float) -> dict[str, object]:
    """Build, kill one process after some seconds, and describe what was left."""
    run = f"{os.getpid()}-{number}"
    subprocess.run(["make", "clean"], cwd=folder, check=True)
    if kind.endswith(SHORT_OF_MEMORY):
        expect(folder, TINY_PEAK)
        build = Build(folder, run, 0.8, is_tight=True)
    else:
        build = Build(folder, run, 0.15)
    if not kind.endswith(SHORT_OF_MEMORY):
        time.sleep(delay)
    patience = START_SECONDS if kind.endswith(SHORT_OF_MEMORY) else 5.0
    was_killed = kill_one(run, kind, time.monotonic() + patience)
    began = time.monotonic()
    code = build.wait()
    ended = time.monotonic()
    left = build.wait_until_gone()
    return {
        "kind": kind,
        "delay": round(delay, 2),
        "killed": was_killed,
        "code": code,
        "seconds": round(ended - began, 2),
        "gone after": round(time.monotonic() - ended, 2),
        "left": left,
        "claims": count_claims(folder.parent / "board"),
        "built": build.objects == FILES,
    }


def neighbour_run(folder: Path, other: Path, number: int, kind: str) -> dict[str, object]:
    """Let a build claim all memory, so that another one waits; kill the first, and time the second."""
    run = f"{os.getpid()}-{number}"
    for place in (folder, other):
        subprocess.run(["make", "clean"], cwd=place, check=True)
    expect(folder, HUGE_PEAK)
    first = Build(folder, run, 20.0)
    wait_for_one(run, "compiler")
    second = Build(other, f"{run}-other", 0.15)
    wait_for_one(second.run, "gate")
    time.sleep(1.0)
    has_waited = second.objects == 0
    was_killed = kill_one(run, kind.removeprefix(NEIGHBOUR), time.monotonic() + 5)
    killed = time.monotonic()
    while second.objects == 0 and time.monotonic() < killed + START_SECONDS:
        time.sleep(0.02)
    started = time.monotonic()
    code = second.wait()
    first.process.terminate()
    first.process.wait()
    left = [*first.wait_until_gone(), *second.wait_until_gone()]
    return {
        "kind": kind,
        "killed": was_killed and has_waited,
        "code": code,
        "seconds": round(started - killed, 2),
        "gone after": 0.0,
        "left": left,
        "claims": count_claims(folder.parent / "board"),
        "built": second.objects == FILES,
    }


def run(options: Namespace) -> None:
    """Do as many kills as are wanted, of each kind in turn."""
    random.seed(options.seed)
    with tempfile.TemporaryDirectory(prefix="guard-kills-") as name:
        folder, other = Path(name, "one"), Path(name, "other")
        for place in (folder, other):
            place.mkdir()
            prepare(place)
            build = Build(place, "first", 0.01)  # the guard gets to know its files
            if build.wait() != 0:
                raise SystemExit("the build fails without a kill")
        for number in range(options.kills):
            kind = options.kinds[number % len(options.kinds)]
            if kind.startswith(NEIGHBOUR):
                row = neighbour_run(folder, other, number, kind)
            else:
                delay = random.uniform(0.2, 2.5)  # noqa: S311 - a draw, no secret
                row = one_run(folder, number, kind, delay)
            results.record(options.results, row)


def render(rows: Sequence[Row]) -> Iterator[str]:
    """Yield the table: what was killed, and what came of it."""
    lines = []
    for kind in KINDS:
        mine = [row for row in rows if row["kind"] == kind and row["killed"]]
        built = sum(row["built"] and row["code"] == 0 for row in mine)
        hung = sum(row["code"] is None for row in mine)
        left = sum(bool(row["left"]) for row in mine)
        claims = sum(row["claims"] for row in mine)
        slowest = max((row["gone after"] for row in mine), default=0.0)
        longest = max((row["seconds"] for row in mine), default=0.0)
        lines.append(
            [kind, len(mine), built, hung, left, claims, f"{slowest:.1f} s", f"{longest:.1f} s"]
        )
    heads = [
        "killed",
        "times",
        "built all the same",
        "hung",
        "left something",
        "claims left",
        "gone after, at most",
        "ended after, at most (neighbour: started)",
    ]
    yield results.table(heads, lines)


def main() -> None:
    """Run or render."""
    parser = results.parser(__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    results.add_choice(parser, "--kinds", KINDS)
    results.run_or_render(parser.parse_args(), run, render)


if __name__ == "__main__":
    main()
