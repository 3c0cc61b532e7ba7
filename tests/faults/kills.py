"""Runs that are killed at any instant: the same command must end in the same bytes, and leave nothing behind."""

from __future__ import annotations

import contextlib
import hashlib
import math
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import psutil

from tests.faults.tally import RIGHT, Tally
from tests.support.sampled import THIS, Sample, fetched

ROOT = Path(__file__).parents[2]
SESSIONS = (f"wheel-{THIS}-cpu", f"vision-{THIS}-cpu")
SETBACKS = ("delivered", "packed", "tree", "environment", "everything")
"""What is taken away before each run, so that there is work to be killed in."""
ENVIRONMENT_SECONDS = 6.0  # in which an environment is made and filled
LAST_PROCESS_SECONDS = 15.0
_ANYBODYS = (
    "cache/torchmill/ccache/",
    "cache/torchmill/sccache/",
    "logs/",
    "/source/build/",
    "__pycache__/",
    "/kit/",
)
"""Parts of paths where other programs keep what they like, and where a later run may leave more than the first."""
LITTER = re.compile(r"\.[^/]+\.[0-9a-f]{8}-\d+$")  # a name under which something was being written
WORK = {
    "making an environment": {"pip", "venv", "ensurepip", "virtualenv"},
    "building": {"ninja", "cmake", "setup.py"},
}
"""What a run is doing, by the programs and modules that are running then; the first that fits."""
_SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)
VICTIMS = (
    "nox",
    "one of its processes",
    "all of them",
)  # as a user does, short memory, a machine that is reset
_LONGEST_SECONDS = 120.0  # for a run of which one process was killed


def make_upstream(folder: Path) -> Path:
    """Make the sample's repositories below a folder, and return where. Raises CalledProcessError."""
    upstream = folder / "upstream"
    making = [sys.executable, str(ROOT / "sample/upstream.py"), str(upstream)]
    subprocess.run(making, check=True, capture_output=True)
    return upstream


def attack_by_kills(count: int, seed: int) -> Tally:
    """Kill `count` sessions of the sample, one after another, each followed by the same command left alone."""
    chance, tally = random.Random(f"{seed} kills"), Tally("kills")  # noqa: S311 - no secret
    signal.signal(
        signal.SIGINT, signal.default_int_handler
    )  # a shell's `&` has it ignored, by all programs below
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        sample = fetched(folder / "user", make_upstream(folder), folder / "envs")
        expected = {session: finish(sample, session) for session in SESSIONS}
        seconds: dict[tuple[str, str], float] = {}
        usual = list_files(sample.home)
        for number in range(count):
            session = SESSIONS[number % len(SESSIONS)]
            setback = SETBACKS[number // len(SESSIONS) % len(SETBACKS)]
            victims = VICTIMS[chance.choice((0, 0, 1, 2))]
            way = chance.choice(_SIGNALS) if victims == "nox" else signal.SIGKILL
            work = session, setback
            if work not in seconds:
                seconds[work] = _seconds(sample, *work)
                usual |= list_files(sample.home)  # what only a further run leaves
            longest = ENVIRONMENT_SECONDS if setback == "environment" else math.inf
            after = chance.random() * min(longest, seconds[work])
            set_back(sample, session, setback)
            kill = Kill(victims, way, after, chance)
            struck, outcome = _kill_and_finish(sample, session, kill, expected[session], usual)
            tally.notes[struck] += 1
            tally.add(
                f"{session}, without {setback}, {way.name} to {victims} after {after:.2f} s",
                outcome,
            )
    return tally


@dataclass(frozen=True)
class Kill:
    """What is done to a run."""

    victims: str  # of VICTIMS
    way: signal.Signals
    after: float  # seconds
    chance: random.Random

    def strike(self, run: subprocess.Popen[str]) -> str:
        """Send the signal to the processes that are there at this moment, and return what they were doing."""
        there = [psutil.Process(run.pid), *psutil.Process(run.pid).children(recursive=True)]
        struck = work_of(there)
        if self.victims == "nox":
            there = there[:1]
        elif self.victims == "one of its processes":
            there = [self.chance.choice(there)]
        for one in there:
            with contextlib.suppress(psutil.Error):
                one.send_signal(self.way)
        if self.victims == "one of its processes":
            run.communicate(timeout=_LONGEST_SECONDS)
        return struck


def work_of(processes: Iterable[psutil.Process]) -> str:
    """Return what a run does at this moment, as its programs tell: a key of WORK, or "between programs"."""
    words: set[str] = set()
    for process in processes:
        with contextlib.suppress(psutil.Error):
            words |= {Path(word).name for word in process.cmdline()}
    return next((work for work, programs in WORK.items() if words & programs), "between programs")


def set_back(sample: Sample, session: str, what: str) -> None:
    """Take away what one of SETBACKS names of a session."""
    own = session.partition("-")[0]
    project = {"wheel": "tinytorch", "vision": "tinyvision"}[own]
    state = sample.home / ".torchmill"
    gone = [*(sample.home / "dist").glob(f"{project}*")]
    if what in {"packed", "everything"}:
        gone += state.glob(f"trees/*/{own}-*/packed")
    if what in {"tree", "everything"}:
        gone += state.glob(f"trees/*/{own}-*")
    if what in {"environment", "everything"}:
        gone.append(sample.envs / session.replace(".", "-"))
    for path in gone:
        shutil.rmtree(path, ignore_errors=True) if path.is_dir() else path.unlink(missing_ok=True)


def _kill_and_finish(
    sample: Sample, session: str, kill: Kill, expected: str, usual: set[str]
) -> tuple[str, str]:
    """Return what the run was doing when it was killed, and what came of it."""
    run, struck = sample.start("-s", session), "after its end"
    try:
        run.wait(kill.after)
    except subprocess.TimeoutExpired:
        struck = kill.strike(run)
    return struck, _what_is_left(run, sample, session, expected, usual)


def _what_is_left(
    run: subprocess.Popen[str], sample: Sample, session: str, expected: str, usual: set[str]
) -> str:
    killed = time.monotonic()
    while left := _processes_in(sample.folder):
        if time.monotonic() - killed > LAST_PROCESS_SECONDS:
            return f"after {LAST_PROCESS_SECONDS:.0f} s there still runs {left}"
        time.sleep(0.1)
    run.communicate()
    try:
        found = finish(sample, session)
    except subprocess.CalledProcessError as error:
        return f"the same command ended with {error.returncode}: {error.output[-300:]}"
    if found != expected:
        return "the wheel is another one"
    litter = list_files(sample.home) - usual
    return f"left behind: {sorted(litter)[:5]}" if litter else RIGHT


def list_files(home: Path) -> set[str]:
    """Return all that torchmill keeps in a user's folder, each time the same."""
    names = (str(path.relative_to(home)) for path in home.rglob("*") if not path.is_dir())
    return {name for name in names if not any(part in f"/{name}" for part in _ANYBODYS)}


def _processes_in(folder: Path) -> list[str]:
    """Return the commands of processes that were started for a user's folder, but for a shell that waits."""
    found = []
    for process in psutil.process_iter():
        try:
            home = process.environ().get("TORCHMILL_HOME", "")
            if home.startswith(str(folder)) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(" ".join(process.cmdline())[:200])
        except (psutil.Error, OSError):
            continue
    return found


def _seconds(sample: Sample, session: str, setback: str) -> float:
    """Return how long a session takes that nobody kills."""
    set_back(sample, session, setback)
    start = time.monotonic()
    finish(sample, session)
    return time.monotonic() - start


def finish(sample: Sample, session: str) -> str:
    """Run a session to its end, and return the digest of its wheel. Raises CalledProcessError."""
    done = sample.nox("-s", session)
    if done.returncode:
        raise subprocess.CalledProcessError(done.returncode, session, done.stdout + done.stderr)
    project = {"wheel": "tinytorch", "vision": "tinyvision"}[session.partition("-")[0]]
    (wheel,) = (sample.home / "dist").glob(f"{project}-*.whl")
    return hashlib.sha256(wheel.read_bytes()).hexdigest()
