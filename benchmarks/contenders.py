"""Ways to build within a memory limit: a number of jobs, a jobserver that withholds tokens, and our guard."""

import contextlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from memory_cap import Cap, take_back

HERE = Path(__file__).parent
# Of all that is in a group, the kernel is to kill what a contender started.
FIRST_TO_DIE = ("sh", "-c", 'echo 500 >/proc/self/oom_score_adj; exec "$@"', "sh")
UNLIMITED = 8 * 2**30  # bytes, that a build without a limit finds at hand
LOOK = 0.02  # seconds between two calls of who watches a run
KEPT = 0.25  # of the limit: below so much free memory steve hands out no token (its --min-memory-avail)


@dataclass(slots=True)
class Outcome:
    """What became of one run."""

    seconds: float
    code: int
    kills: int  # by the kernel
    gave_up: bool = False  # it took longer than it was given
    said: str = ""  # at last, where it failed
    counts: dict[str, int] = field(default_factory=dict)  # what the guard did

    @property
    def good(self) -> bool:
        """Tell whether it came to its end without a kill."""
        return self.code == 0 and self.kills == 0 and not self.gave_up

    def as_row(self) -> dict[str, object]:
        """Return it for a line of JSON."""
        return {**asdict(self), "good": self.good}


Watch = Callable[
    [Cap, float], None
]  # called again and again while a run lasts, with the seconds so far


@dataclass(frozen=True, slots=True)
class Contest:
    """What all contenders have in common: the build, its limit, and how long anybody may take."""

    build: Path  # a folder with a build.ninja in it
    ninja: str  # 1.13 or newer
    limit: int | None  # bytes
    slots: int
    patience: float  # seconds
    watch: Watch = lambda *_: None

    def fixed(self, jobs: int) -> Outcome:
        """Build with a number of jobs."""
        return self._run([self.ninja, "-C", str(self.build), f"-j{jobs}"])

    def jobserver(self) -> Outcome:
        """Build with ninja as client of a jobserver that withholds tokens while little memory is free."""
        with _tokens(self.slots - 1) as (pipe, withhold):
            flags = {"MAKEFLAGS": f"--jobserver-auth=fifo:{pipe}"}

            def watch(cap: Cap, at: float) -> None:
                withhold(cap.free() < KEPT * (cap.limit or 0))
                self.watch(cap, at)

            return self._run([self.ninja, "-C", str(self.build)], flags, watch)

    def guard(self, tree: Path, cache: Path, root: Path) -> Outcome:
        """Build under guard; what was learned of units is kept in `cache`."""
        result = tree / "result.json"
        result.unlink(missing_ok=True)
        driver = [
            sys.executable,
            str(HERE / "under_guard.py"),
            "--tree",
            str(tree),
            "--cache",
            str(cache),
        ]
        driver += ["--cores", str(self.slots), "--root", str(root), "--result", str(result), "--"]
        driver += ["sh", "-c", 'exec "$0" -C "$1" -j"$MAX_JOBS"', self.ninja, str(self.build)]
        outcome = self._run(driver, {"PYTHONPATH": str(HERE.parent)})
        with contextlib.suppress(FileNotFoundError):  # it was given up
            said = json.loads(result.read_text(encoding="utf-8"))
            outcome.seconds, outcome.counts = said["seconds"], said["counts"]
        return outcome

    def _run(
        self, argv: list[str], more: Mapping[str, str] | None = None, watch: Watch | None = None
    ) -> Outcome:
        ours = ("MAKEFLAGS", "NINJA_STATUS", "MILLGUARD_GATE")
        environment = {name: value for name, value in os.environ.items() if name not in ours}
        environment |= more or {}
        take_back(self.limit or UNLIMITED)
        with Cap(self.limit) as cap, (self.build / "output").open("w") as output:
            start = time.monotonic()
            command = cap.inside([*FIRST_TO_DIE, *argv])
            process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=output
            )
            end = os.pidfd_open(process.pid)
            while (at := time.monotonic() - start) < self.patience:
                (watch or self.watch)(cap, at)
                if select.select([end], [], [], LOOK)[0]:
                    break
            os.close(end)
            seconds = time.monotonic() - start
            gave_up = process.poll() is None
            cap.empty()
            code, kills = process.wait(), cap.kills()
        said = (
            (self.build / "output").read_text(encoding="utf-8", errors="replace")[-400:]
            if code
            else ""
        )
        return Outcome(seconds, code, kills, gave_up, said)


@contextlib.contextmanager
def _tokens(count: int) -> Iterator[tuple[Path, Callable[[bool], None]]]:
    """Make a jobserver's pipe with `count` tokens in it, and what takes back those that lie there, or not."""
    with tempfile.TemporaryDirectory() as folder:
        pipe = Path(folder) / "tokens"
        os.mkfifo(pipe)
        ends = os.open(pipe, os.O_RDWR | os.O_NONBLOCK)
        kept = count

        def withhold(short: bool) -> None:
            nonlocal kept
            if short:
                with contextlib.suppress(BlockingIOError):
                    kept += len(os.read(ends, count))
            elif kept:
                kept -= os.write(ends, b"+" * kept)

        withhold(False)
        try:
            yield pipe, withhold
        finally:
            os.close(ends)
