"""Contenders that build with ninja within a memory limit, and how their builds end.

The contenders are a fixed number of jobs; a jobserver that withholds its tokens while memory is short, as `steve`
does; and the memory guard (millguard), which admits one compiler after another as far as memory allows.
"""

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from memory_cap import Cap, reclaim_memory

HERE = Path(__file__).parent
# The kernel shall kill what a contender started before anything else in the same control group.
FIRST_TO_DIE = ("sh", "-c", 'echo 500 >/proc/self/oom_score_adj; exec "$@"', "sh")
UNLIMITED = 8 * 2**30  # bytes of free memory that a build without a limit starts with
WATCH_SECONDS = 0.02  # between two calls of the function that watches a run
RESERVED_SHARE = 0.25  # of the limit: steve's --min-memory-avail, below which it hands out no token
OUTPUT_CHARACTERS = 400  # of a failed build's output, from its end
# Variables that would reach ninja or the gate from a build around this one.
INHERITED = ("MAKEFLAGS", "NINJA_STATUS", "MILLGUARD_GATE")


@dataclass(slots=True)
class Outcome:
    """How one build ended."""

    seconds: float
    code: int  # exit code
    kills: int  # by the kernel
    given_up: bool = False  # it took longer than its contest allows
    output: str = ""  # the end of it, if the build failed
    counts: dict[str, int] = field(default_factory=dict)  # the guard's interventions, by kind

    @property
    def good(self) -> bool:
        """Whether the build succeeded in time and without a kill."""
        return self.code == 0 and self.kills == 0 and not self.given_up

    def as_row(self) -> dict[str, object]:
        """Return it for a line of JSON."""
        return {
            "seconds": self.seconds,
            "code": self.code,
            "kills": self.kills,
            "gave_up": self.given_up,
            "said": self.output,
            "counts": self.counts,
            "good": self.good,
        }


# Called again and again while a build runs, with its control group and the seconds since its start.
Watch = Callable[[Cap, float], None]


@dataclass(frozen=True, slots=True)
class Contest:
    """What all contenders have in common: the build, its limit, and the time it may take."""

    build: Path  # a folder with a build.ninja
    ninja: str  # 1.13 or newer
    limit: int | None  # bytes
    slots: int  # processors to keep busy
    patience: float  # seconds after which a build is given up
    watch: Watch = lambda *_: None

    def build_with_jobs(self, jobs: int) -> Outcome:
        """Build with a fixed number of jobs."""
        return self._run([self.ninja, "-C", str(self.build), f"-j{jobs}"])

    def build_with_jobserver(self) -> Outcome:
        """Build with ninja as client of a jobserver that withholds tokens while memory is short."""
        with _token_pipe(self.slots - 1) as (pipe, withhold):  # ninja's first job needs no token

            def watch(cap: Cap, seconds: float) -> None:
                withhold(cap.free() < RESERVED_SHARE * (cap.limit or 0))
                self.watch(cap, seconds)

            variables = {"MAKEFLAGS": f"--jobserver-auth=fifo:{pipe}"}
            return self._run([self.ninja, "-C", str(self.build)], variables, watch)

    def build_with_guard(self, tree: Path, cache: Path, root: Path) -> Outcome:
        """Build under the guard, by under_guard.py.

        `tree` gets the gate and the guard's timeline, `cache` keeps what the guard learns of each compile, and
        `root` is the folder below which the guard names sources.
        """
        result = tree / "result.json"
        result.unlink(missing_ok=True)
        argv = [sys.executable, str(HERE / "under_guard.py")]
        argv += ["--tree", str(tree), "--cache", str(cache), "--root", str(root)]
        argv += ["--cores", str(self.slots), "--result", str(result), "--"]
        argv += ["sh", "-c", 'exec "$0" -C "$1" -j"$MAX_JOBS"', self.ninja, str(self.build)]
        outcome = self._run(argv, {"PYTHONPATH": str(HERE.parent)})
        with contextlib.suppress(FileNotFoundError):  # a build that was given up leaves no result
            measured = json.loads(result.read_text(encoding="utf-8"))
            outcome.seconds = measured["seconds"]  # without the start of Python
            outcome.counts = measured["counts"]
        return outcome

    def _run(
        self,
        argv: list[str],
        variables: Mapping[str, str] | None = None,
        watch: Watch | None = None,
    ) -> Outcome:
        environment = {name: value for name, value in os.environ.items() if name not in INHERITED}
        environment |= variables or {}
        log = self.build / "output"
        reclaim_memory(self.limit or UNLIMITED)
        with Cap(self.limit) as cap, log.open("w") as output:
            start = time.monotonic()
            process = subprocess.Popen(
                cap.inside([*FIRST_TO_DIE, *argv]),
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
            process_end = os.pidfd_open(process.pid)  # readable as soon as the process ended
            while (seconds := time.monotonic() - start) < self.patience:
                (watch or self.watch)(cap, seconds)
                readable, _, _ = select.select([process_end], [], [], WATCH_SECONDS)
                if readable:
                    break
            os.close(process_end)
            seconds = time.monotonic() - start
            given_up = process.poll() is None
            cap.empty()
            code = process.wait()
            kills = cap.kills()
        text = ""
        if code:
            text = log.read_text(encoding="utf-8", errors="replace")[-OUTPUT_CHARACTERS:]
        return Outcome(seconds, code, kills, given_up, text)


@contextlib.contextmanager
def _token_pipe(count: int) -> Iterator[tuple[Path, Callable[[bool], None]]]:
    """Make a jobserver's pipe with `count` tokens.

    Yields its path and a function: with True it takes the tokens out that lie in the pipe, so that no further job
    starts, and with False it puts them back.
    """
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tokens"
        os.mkfifo(path)
        pipe = os.open(path, os.O_RDWR | os.O_NONBLOCK)
        withheld = count

        def withhold(memory_is_short: bool) -> None:
            nonlocal withheld
            if memory_is_short:
                with contextlib.suppress(BlockingIOError):  # all tokens are in use
                    withheld += len(os.read(pipe, count))
            elif withheld:
                withheld -= os.write(pipe, b"+" * withheld)

        withhold(False)
        try:
            yield path, withhold
        finally:
            os.close(pipe)
