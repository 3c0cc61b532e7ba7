"""Find the processes of a build by a variable in their environment, and end them."""

import contextlib
import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil

END_TIMEOUT_SECONDS = 5.0  # that a process gets to put its files away
END_POLL_SECONDS = 0.1  # between two looks at processes that should end
END_ROUNDS = 5  # a process that is ended may have started others a moment before
LOAD_TIMEOUT_SECONDS = 1.0  # that the kernel gets to load a program that was just started
LOAD_POLL_SECONDS = 0.005
SETTLED_LOOKS = 2  # a process without variables may be loaded between two looks
PROGRAM_TIMEOUT_SECONDS = 300.0  # of a compiler that makes the gate, on a machine with much to do
ARGUMENT_START = 47  # field of /proc/PID/stat counted from the third, as proc(5) has them
VIRTUAL_SIZE = 20


class ProgramError(OSError):
    """A program failed, could not be started, or did not end in time."""


def run_program(argv: Sequence[str], env: Mapping[str, str] | None = None) -> str:
    """Return a program's output (stdout).

    Raises ProgramError with the command, how it ended, and the last line that it printed.
    """
    command = shlex.join(argv)
    try:
        done = subprocess.run(
            argv,
            env=env,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            encoding="utf-8",
            errors="replace",
            timeout=PROGRAM_TIMEOUT_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise ProgramError(
            f"`{command}` has not ended after {PROGRAM_TIMEOUT_SECONDS:g} s"
        ) from None
    except FileNotFoundError:
        raise ProgramError(f"`{argv[0]}` is not on PATH: install it") from None
    except OSError as error:
        raise ProgramError(f"`{argv[0]}` cannot be run here ({error.strerror})") from None
    if done.returncode != 0:
        lines = (done.stdout + done.stderr).split("\n")
        printed = [line.strip() for line in lines if line.strip()]
        last = printed[-1] if printed else "it printed nothing"
        raise ProgramError(f"`{command}` ended with exit code {done.returncode}: {last}")
    return done.stdout


def find_by_variable(name: str, value: str) -> list[psutil.Process]:
    """Return the processes, other than this one, that were started with a variable."""
    return [process for process in _other_processes() if _variable(process, name) == value]


def find_by_group(group: int) -> list[psutil.Process]:
    """Return the processes, other than this one, of a process group; none on Windows."""
    if sys.platform == "win32":
        return []
    members = []
    for process in _other_processes():
        with contextlib.suppress(OSError):
            if os.getpgid(process.pid) == group:
                members.append(process)
    return members


def end_by_variable(name: str, value: str) -> None:
    """End all processes, other than this one, that were started with a variable."""
    for _ in range(END_ROUNDS):
        processes = find_by_variable(name, value)
        if not processes:
            return
        end_processes(processes)


def end_processes(
    processes: Sequence[psutil.Process], patience: float = END_TIMEOUT_SECONDS
) -> None:
    """End processes, paused ones too; kill those that do not go within `patience` seconds."""
    for process in processes:
        with contextlib.suppress(psutil.Error):
            process.terminate()
            if sys.platform != "win32":
                # one that is stopped receives the signal only when it goes on
                process.send_signal(signal.SIGCONT)
    remaining = wait_until_ended(processes, patience)
    for process in remaining:
        with contextlib.suppress(psutil.Error):
            process.kill()
    wait_until_ended(remaining, patience)


def wait_until_ended(processes: Sequence[psutil.Process], patience: float) -> list[psutil.Process]:
    """Return the processes that still run after `patience` seconds, or at once if none does."""
    deadline = time.monotonic() + patience
    running = list(processes)
    while running:
        # psutil alone does not do: in a container without an init, no process reaps a child that has
        # ended, so that it stays a zombie for ever.
        seconds = min(END_POLL_SECONDS, max(0.0, deadline - time.monotonic()))
        _, alive = psutil.wait_procs(running, timeout=seconds)
        running = [process for process in alive if is_alive(process)]
        if time.monotonic() >= deadline:
            break
    return running


def is_alive(process: psutil.Process) -> bool:
    """Tell whether a process is there and no zombie."""
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


def _other_processes() -> Iterator[psutil.Process]:
    try:
        processes = list(psutil.process_iter())
    except (OSError, IndexError):  # without /proc none can be seen
        return
    for process in processes:
        if process.pid != os.getpid() and is_alive(process):
            yield process


def _variable(process: psutil.Process, name: str) -> str | None:
    """Return a variable of a process; None without it, or if the process is another user's."""
    deadline = time.monotonic() + LOAD_TIMEOUT_SECONDS
    empty_looks = 0
    try:
        variables = process.environ()
        while not variables and empty_looks < SETTLED_LOOKS and time.monotonic() < deadline:
            if _is_loading(process.pid):
                empty_looks = 0
                time.sleep(LOAD_POLL_SECONDS)
            else:
                empty_looks += 1
            variables = process.environ()
    except (psutil.Error, OSError):  # another user's, or gone
        return None
    value: str | None = variables.get(name)
    return value


def _is_loading(pid: int) -> bool:
    """Tell whether the kernel still loads a program, and shows no variables of it until then."""
    try:
        status = Path(f"/proc/{pid}/stat").read_bytes()
        # The name of the program, in parentheses, may hold blanks and parentheses itself.
        fields = status.rpartition(b")")[2].split()
        size = fields[VIRTUAL_SIZE]
        start_of_variables = fields[ARGUMENT_START]
    except (OSError, IndexError):
        return False
    # the kernel's own threads have no size
    return size != b"0" and start_of_variables == b"0"
