"""Control groups that are odd: sessions of the sample under limits that are small, or change while they run.

A *case* takes results of an earlier session away, runs a session in a control group with one fault, and runs it once
more outside of the group. The first must end in the usual wheel or with an error of torchmill, unless the kernel killed
it; the second must end in the usual wheel. Nothing may go on running in the group. The groups are of version 1, as
Docker and Slurm mount them on older systems; making them needs root.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import shlex
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.faults.doors import is_our_traceback
from tests.faults.kills import (
    SESSIONS,
    digest_delivered,
    finish,
    make_upstream,
    remove,
    set_back,
)
from tests.faults.tally import REFUSED, RIGHT, Tally
from tests.support.commands import ROOT, environment
from tests.support.sampled import Sample, fetched

MOUNT = Path("/sys/fs/cgroup")
CONTROLLERS = ("memory", "cpu", "cpuset", "pids", "freezer")
MIB = 1 << 20
LONGEST_SECONDS = 600.0  # for a session; a group may have a tenth of a processor
SETBACKS = ("tree", "packed", "delivered")
_LAST_PROCESS_SECONDS = 15.0  # after the session, until when its processes must have ended
_WAIT_SECONDS = 5.0  # for which a session is frozen, or stopped for want of memory
_KILLED = (-signal.SIGKILL, 128 + signal.SIGKILL)


class Groups:
    """One control group in each controller, below the group of this process."""

    def __init__(self, name: str) -> None:
        self.folders = {controller: _own_folder(controller) / name for controller in CONTROLLERS}
        for folder in self.folders.values():
            folder.mkdir()
        # A new group has no processors and no memory nodes, and takes no process without them.
        cpuset = self.folders["cpuset"]
        for file in ("cpuset.cpus", "cpuset.mems"):
            (cpuset / file).write_text((cpuset.parent / file).read_text())

    def write(self, controller: str, file: str, value: object) -> None:
        """Write a value to a file of the group in one controller. Raises OSError if the kernel refuses it."""
        (self.folders[controller] / file).write_text(str(value))

    def processes(self) -> set[int]:
        """Return the numbers of the processes in the group."""
        numbers = set()
        for folder in self.folders.values():
            numbers |= {int(word) for word in (folder / "cgroup.procs").read_text().split()}
        return numbers

    def enter_command(self) -> str:
        """Return the shell command that puts its shell into the group."""
        files = [shlex.quote(str(folder / "cgroup.procs")) for folder in self.folders.values()]
        return "; ".join(f"echo $$ > {file}" for file in files)

    def remove(self) -> None:
        """Thaw and end what is in the group, and remove it."""
        with contextlib.suppress(OSError):
            self.write("freezer", "freezer.state", "THAWED")
        with contextlib.suppress(OSError):
            self.write("memory", "memory.limit_in_bytes", -1)
        deadline = time.monotonic() + 10
        while (numbers := self.processes()) and time.monotonic() < deadline:
            for number in numbers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(number, signal.SIGKILL)
            time.sleep(0.1)
        for folder in self.folders.values():
            folder.rmdir()


def _own_folder(controller: str) -> Path:
    """Return the folder of this process's group in a controller of version 1."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        _, names, path = line.split(":", 2)
        if controller in names.split(","):
            return MOUNT / controller / path.lstrip("/")
    return MOUNT / controller


Change = Callable[[Groups, float], None]  # takes the seconds that it may wait in the middle


@dataclass(frozen=True)
class Fault:
    """What is wrong with a group: from the beginning, and from a random instant on."""

    before: Sequence[tuple[str, str, object]] = ()  # controller, file, value
    change: Change | None = None
    prefix: str = ""  # words before the session's command


def _change_nothing(_: Groups, __: float) -> None:
    """Leave a group as it is."""


def _set_memory(amount: int) -> Change:
    def change(groups: Groups, _: float) -> None:
        # The kernel refuses a limit below what it cannot free.
        with contextlib.suppress(OSError):
            groups.write("memory", "memory.limit_in_bytes", amount)

    return change


def _freeze(groups: Groups, seconds: float) -> None:
    groups.write("freezer", "freezer.state", "FROZEN")
    time.sleep(seconds)
    groups.write("freezer", "freezer.state", "THAWED")


def _move_to_one_processor(groups: Groups, _: float) -> None:
    first = groups.folders["cpuset"].parent.joinpath("cpuset.cpus").read_text().split("-")[0]
    groups.write("cpuset", "cpuset.cpus", first.split(",")[0].strip())


def _leave(groups: Groups, _: float) -> None:
    """Put all processes back into the group above, as a systemd that tidies up does."""
    for folder in groups.folders.values():
        for number in (folder / "cgroup.procs").read_text().split():
            with contextlib.suppress(OSError):
                (folder.parent / "cgroup.procs").write_text(number)


def _limit(amount: int) -> tuple[str, str, object]:
    return "memory", "memory.limit_in_bytes", amount


def _stall_and_raise(groups: Groups, seconds: float) -> None:
    """Raise a limit at which the kernel stops processes instead of killing them."""
    time.sleep(seconds)
    groups.write("memory", "memory.limit_in_bytes", 4096 * MIB)


FAULTS: Mapping[str, Fault] = {
    "32 MiB": Fault([_limit(32 * MIB)]),
    "64 MiB": Fault([_limit(64 * MIB)]),
    "96 MiB": Fault([_limit(96 * MIB)]),
    "128 MiB": Fault([_limit(128 * MIB)]),
    "192 MiB": Fault([_limit(192 * MIB)]),
    "256 MiB": Fault([_limit(256 * MIB)]),
    "384 MiB": Fault([_limit(384 * MIB)]),
    "lowered to 64 MiB": Fault([_limit(2048 * MIB)], _set_memory(64 * MIB)),
    "lowered to 192 MiB": Fault([_limit(2048 * MIB)], _set_memory(192 * MIB)),
    "raised from 128 MiB": Fault([_limit(128 * MIB)], _set_memory(2048 * MIB)),
    "128 MiB, stopped instead of killed": Fault(
        [_limit(128 * MIB), ("memory", "memory.oom_control", 1)], _stall_and_raise
    ),
    "frozen": Fault(change=_freeze),
    "a tenth of a processor": Fault(
        [("cpu", "cpu.cfs_period_us", 100_000), ("cpu", "cpu.cfs_quota_us", 10_000)],
    ),
    "moved to one processor": Fault(change=_move_to_one_processor),
    "8 processes": Fault([("pids", "pids.max", 8)]),
    "16 processes": Fault([("pids", "pids.max", 16)]),
    "24 processes": Fault([("pids", "pids.max", 24)]),
    "48 processes": Fault([("pids", "pids.max", 48)]),
    "moved out of its group": Fault([_limit(512 * MIB)], _leave),
    "no /sys/fs/cgroup": Fault(
        [_limit(1024 * MIB)],
        prefix="unshare --mount sh -c 'umount -l /sys/fs/cgroup; exec \"$@\"' sh",
    ),
    "an empty /sys/fs/cgroup": Fault(
        [_limit(1024 * MIB)],
        prefix="unshare --mount sh -c 'mount -t tmpfs none /sys/fs/cgroup; exec \"$@\"' sh",
    ),
    "no /proc/self/cgroup": Fault(
        [_limit(1024 * MIB)],
        prefix="unshare --mount sh -c 'mount --bind /dev/null /proc/self/cgroup; exec \"$@\"' sh",
    ),
    "no /proc/pressure": Fault(
        prefix="unshare --mount sh -c 'mount -t tmpfs none /proc/pressure; exec \"$@\"' sh"
    ),
}


def attack_after_setback(setback: str, count: int, seed: int) -> Tally:
    """Run a session once in each of the first `count` faulty groups, each followed by the same one outside.

    `setback`, one of SETBACKS, is taken from the sample before each case.
    """
    tally = Tally(f"control groups, {setback}")
    chance = random.Random(f"{seed} control groups {setback}")  # noqa: S311 - no secret
    session = SESSIONS[0]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        sample = fetched(folder / "user", make_upstream(folder), folder / "envs")
        expected = finish(sample, session)
        set_back(sample, session, "tree")
        start = time.monotonic()
        finish(sample, session)
        usual_seconds = time.monotonic() - start
        for number, fault in enumerate(list(FAULTS)[:count]):
            set_back(sample, session, setback)
            if setback == "tree":
                # Else the compiler cache would leave nothing to compile.
                remove(sample.cache / "ccache")
            delay = chance.random() * usual_seconds
            try:
                groups = Groups(f"torchmill-{os.getpid()}-{number}")
            except OSError as error:
                tally.add(fault, f"no group could be made: {error}")
                break
            try:
                run = _run_in_group(sample, session, groups, FAULTS[fault], delay)
            finally:
                groups.remove()
            tally.notes["killed by the kernel"] += run.code in _KILLED
            outcome = run.outcome(expected)
            if outcome in {RIGHT, REFUSED}:
                outcome = _outcome_afterwards(sample, session, expected) or outcome
            tally.add(f"{fault}, after {delay:.1f} s", outcome)
    return tally


@dataclass(frozen=True)
class GroupedRun:
    """How a session in a control group ended."""

    code: int | None  # None if it did not end
    output: str
    wheel: str  # the digest of what it delivered; "" unless it ended well
    processes_left: int  # in its group, a while after it

    def outcome(self, expected: str) -> str:
        """Return the outcome, where `expected` is the digest of the wheel that it must deliver."""
        if self.code is None:
            return f"no end after {LONGEST_SECONDS:.0f} s: {self.output[-500:]}"
        if self.processes_left:
            return (
                f"{self.processes_left} processes still ran {_LAST_PROCESS_SECONDS:.0f} s after it"
            )
        if is_our_traceback(self.output):
            return f"a traceback: {self.output[-800:]}"
        if self.code == 0:
            return RIGHT if self.wheel == expected else "the wheel is another one"
        if self.code in _KILLED or re.search(r"error\[[\w-]+\]", self.output):
            return REFUSED
        return f"ended with {self.code} without an error code: {self.output[-800:]}"


def _run_in_group(
    sample: Sample, session: str, groups: Groups, fault: Fault, delay: float
) -> GroupedRun:
    """Run a session in a group with a fault, whose change comes after `delay` seconds."""
    for controller, file, value in fault.before:
        groups.write(controller, file, value)
    argv = [sys.executable, "-m", "nox", "--envdir", str(sample.envs), "-s", session]
    run = subprocess.Popen(
        ["sh", "-c", f'{groups.enter_command()}; exec {fault.prefix} "$@"', "sh", *argv],
        cwd=ROOT,
        env=environment(sample.home, sample.env),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    change = threading.Timer(delay, fault.change or _change_nothing, (groups, _WAIT_SECONDS))
    change.start()
    code: int | None = None
    try:
        output, _ = run.communicate(timeout=LONGEST_SECONDS)
        code = run.returncode
    except subprocess.TimeoutExpired as error:
        output = (error.stdout or b"").decode("utf-8", "replace")
    finally:
        change.cancel()
        change.join()
    deadline = time.monotonic() + _LAST_PROCESS_SECONDS
    while (left := groups.processes()) and time.monotonic() < deadline:
        time.sleep(0.1)
    wheel = digest_delivered(sample, session) if code == 0 else ""
    return GroupedRun(code, output, wheel, len(left))


def _outcome_afterwards(sample: Sample, session: str, expected: str) -> str:
    """Run the session once more without a fault; return "" if all is right, or what is not."""
    # In a process of its own: a server of forked commands that a fault hits would end all later cases.
    run = sample.start("-s", session)
    output, _ = run.communicate()
    if run.returncode:
        return f"afterwards it ended with {run.returncode}: {output[-500:]}"
    digest = digest_delivered(sample, session)
    return "" if digest == expected else "afterwards the wheel is another one"
