"""Sessions that are killed at a random instant: the same command must then end in the same wheel, and clean up.

The sessions build the sample's wheel and its torchvision. Before each a *setback* takes results of earlier sessions
away, so that there is work during which it can be killed. A *victim* is what the signal goes to.
"""

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
_PROJECTS = {"wheel": "tinytorch", "vision": "tinyvision"}  # by kind of session
SETBACKS = ("delivered", "packed", "tree", "environment", "everything")
"""What is taken away: each is named after what a session has to make again."""
ENVIRONMENT_SECONDS = 6.0  # in which a session makes and fills its environment
LAST_PROCESS_SECONDS = (
    15.0  # after the kill, until when all processes of the session must have ended
)
_VARYING_PATHS = (
    "cache/torchmill/ccache/",
    "cache/torchmill/sccache/",
    "logs/",
    "/source/build/",
    "__pycache__/",
    "/kit/",
)
"""Parts of paths of files that differ between sessions: those of other programs, and logs."""
LITTER = re.compile(r"\.[^/]+\.[0-9a-f]{8}-\d+$")  # temporary names of unfinished files
WORK = {
    "making an environment": {"pip", "venv", "ensurepip", "virtualenv"},
    "building": {"ninja", "cmake", "setup.py"},
}
"""What a session is doing, by the programs and modules that run; the first entry that fits counts."""
_SIGNALS = (signal.SIGKILL, signal.SIGKILL, signal.SIGTERM, signal.SIGINT)  # SIGKILL twice as often
# As a user ends a session, as the kernel kills if memory is short, and as a machine that is reset.
NOX, ONE_PROCESS, ALL_PROCESSES = VICTIMS = ("nox", "one of its processes", "all of them")
_LONGEST_SECONDS = 120.0  # for a session to end after one of its processes was killed


def make_upstream(folder: Path) -> Path:
    """Make the sample's repositories below a folder; return their folder. Raises CalledProcessError."""
    upstream = folder / "upstream"
    argv = [sys.executable, str(ROOT / "sample/upstream.py"), str(upstream)]
    subprocess.run(argv, check=True, capture_output=True)
    return upstream


def attack_by_kills(count: int, seed: int) -> Tally:
    """Kill `count` sessions of the sample; after each, run the same command to its end."""
    chance, tally = random.Random(f"{seed} kills"), Tally("kills")  # noqa: S311 - no secret
    # A shell's `&` sets SIGINT to be ignored, which all programs started here would inherit.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        sample = fetched(folder / "user", make_upstream(folder), folder / "envs")
        expected = {session: finish(sample, session) for session in SESSIONS}
        undisturbed_seconds: dict[tuple[str, str], float] = {}  # by session and setback
        usual_files = list_files(sample.home)
        for number in range(count):
            session = SESSIONS[number % len(SESSIONS)]
            setback = SETBACKS[number // len(SESSIONS) % len(SETBACKS)]
            work = session, setback
            if work not in undisturbed_seconds:
                undisturbed_seconds[work] = _time_session(sample, *work)
                usual_files |= list_files(sample.home)  # some are left by a second session only
            longest = ENVIRONMENT_SECONDS if setback == "environment" else math.inf
            kill = draw_kill(chance, min(longest, undisturbed_seconds[work]))
            set_back(sample, session, setback)
            run = sample.start("-s", session)
            struck_work = kill.carry_out(run)
            outcome = _finish_after_kill(run, sample, session, expected[session], usual_files)
            tally.notes[struck_work] += 1
            tally.add(f"{session}, without {setback}, {kill}", outcome)
    return tally


@dataclass(frozen=True)
class Kill:
    """A signal to processes of a session."""

    victims: str  # of VICTIMS
    signal_number: signal.Signals
    delay: float  # seconds after the session's start
    chance: random.Random

    def __str__(self) -> str:
        """Return it in words, for the list of failures."""
        return f"{self.signal_number.name} to {self.victims} after {self.delay:.2f} s"

    def carry_out(self, run: subprocess.Popen[str]) -> str:
        """Wait for the instant and send the signal; return what the session was doing."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            run.wait(self.delay)
            return "after its end"
        nox = psutil.Process(run.pid)
        processes = [nox, *nox.children(recursive=True)]
        work = work_of(processes)
        if self.victims == NOX:
            processes = [nox]
        elif self.victims == ONE_PROCESS:
            processes = [self.chance.choice(processes)]
        for process in processes:
            with contextlib.suppress(psutil.Error):
                process.send_signal(self.signal_number)
        if self.victims == ONE_PROCESS:  # the others notice, and end by themselves
            run.communicate(timeout=_LONGEST_SECONDS)
        return work


def draw_kill(chance: random.Random, longest: float) -> Kill:
    """Draw the victims, the signal and the instant, within `longest` seconds, of a kill."""
    victims = VICTIMS[chance.choice((0, 0, 1, 2))]
    signal_number = chance.choice(_SIGNALS) if victims == NOX else signal.SIGKILL
    return Kill(victims, signal_number, chance.random() * longest, chance)


def work_of(processes: Iterable[psutil.Process]) -> str:
    """Return what a session is doing, by its processes: a key of WORK, or "between programs"."""
    words: set[str] = set()
    for process in processes:
        with contextlib.suppress(psutil.Error):
            words |= {Path(word).name for word in process.cmdline()}
    for work, programs in WORK.items():
        if words & programs:
            return work
    return "between programs"


def set_back(sample: Sample, session: str, setback: str) -> None:
    """Take away what one of SETBACKS names, and always the delivered wheel of the session."""
    kind, _, _ = session.partition("-")
    state = sample.home / ".torchmill"
    paths = [*(sample.home / "dist").glob(f"{_PROJECTS[kind]}*")]
    if setback in {"packed", "everything"}:
        paths += state.glob(f"trees/*/{kind}-*/packed")
    if setback in {"tree", "everything"}:
        paths += state.glob(f"trees/*/{kind}-*")
    if setback in {"environment", "everything"}:
        paths.append(sample.envs / session.replace(".", "-"))
    remove(*paths)


def remove(*paths: Path) -> None:
    """Remove files and folders, as far as they are there."""
    for path in paths:
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path, ignore_errors=True)
        else:
            path.unlink(missing_ok=True)


def _finish_after_kill(
    run: subprocess.Popen[str], sample: Sample, session: str, expected: str, usual_files: set[str]
) -> str:
    """Wait for the processes of a killed session, run it again to its end, and return the outcome."""
    if complaint := wait_for_last_process(sample.folder):
        return complaint
    run.communicate()
    try:
        digest = finish(sample, session)
    except subprocess.CalledProcessError as error:
        return f"the same command ended with {error.returncode}: {error.output[-300:]}"
    if digest != expected:
        return "the wheel is another one"
    litter = list_files(sample.home) - usual_files
    return f"left behind: {sorted(litter)[:5]}" if litter else RIGHT


def list_files(home: Path) -> set[str]:
    """Return the files in a user's folder, without those that differ from session to session."""
    names = set()
    for path in home.rglob("*"):
        name = str(path.relative_to(home))
        if not path.is_dir() and not any(part in f"/{name}" for part in _VARYING_PATHS):
            names.add(name)
    return names


def wait_for_last_process(folder: Path) -> str:
    """Wait until no process is left that was started for homes below a folder; return "", or what runs."""
    killed = time.monotonic()
    while commands := _running_commands(folder):
        if time.monotonic() - killed > LAST_PROCESS_SECONDS:
            return f"after {LAST_PROCESS_SECONDS:.0f} s there still runs {commands}"
        time.sleep(0.1)
    return ""


def _running_commands(folder: Path) -> list[str]:
    """Return the commands of running processes that were started for homes below a folder."""
    commands = []
    for process in psutil.process_iter():
        try:
            home = process.environ().get("TORCHMILL_HOME", "")
            if home.startswith(str(folder)) and process.status() != psutil.STATUS_ZOMBIE:
                commands.append(" ".join(process.cmdline())[:200])
        except (psutil.Error, OSError):
            continue
    return commands


def _time_session(sample: Sample, session: str, setback: str) -> float:
    """Return the seconds of a session after a setback that nobody kills."""
    set_back(sample, session, setback)
    start = time.monotonic()
    finish(sample, session)
    return time.monotonic() - start


def finish(sample: Sample, session: str) -> str:
    """Run a session to its end; return the digest of its wheel. Raises CalledProcessError."""
    nox = sample.nox("-s", session)
    if nox.returncode:
        raise subprocess.CalledProcessError(nox.returncode, session, nox.stdout + nox.stderr)
    return digest_delivered(sample, session)


def digest_delivered(sample: Sample, session: str) -> str:
    """Return the digest of the wheel that a session delivered. Raises ValueError unless it is one."""
    kind, _, _ = session.partition("-")
    (wheel,) = (sample.home / "dist").glob(f"{_PROJECTS[kind]}-*.whl")
    return hashlib.sha256(wheel.read_bytes()).hexdigest()
