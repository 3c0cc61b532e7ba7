"""Run programs, watch their output, and end them with all processes that they started.

`ask` runs a program that only prints information, and `capture` one that may change files: both
return its output. `stream` passes each line of output on as it comes. `run_in_terminal` gives a
program the terminal.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shlex
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from torchmill.core.errors import ConfigError, HostError, InterruptedBuildError, TorchmillError
from torchmill.core.plain_text import as_plain_text
from torchmill.core.silence import answer_limit, watch_for_silence
from torchmill.core.urls import hide_password

if TYPE_CHECKING:
    import psutil

WATCHERS: set[int] = set()  # numbers of the reaper's processes, which end by themselves
CAPTURE_TIMEOUT_SECONDS = 1800.0  # for a program that makes or unpacks something
NOTICE_SECONDS = 5.0  # after which a line says which program this process waits for
# The wait for a killed program to end: a driver in the kernel may keep it for ever.
KILL_SECONDS = 1.0
_START_FIELD = 19  # of /proc/PID/stat behind the name of the program, counted from 0 (proc(5))
TAIL_LINES = 200  # lines of output that an error carries
_SHOWN_CHARACTERS = 200  # of a command that an error names
# The innermost frame of a Python that crashed, and the words above it:
# https://docs.python.org/3/library/faulthandler.html
_PYTHON_CRASH = re.compile(r"\(most recent call first\):\n +(File .+)")
INTERRUPT_TIMEOUT_SECONDS = 20.0  # for ninja and its compilers to remove incomplete files
_TERMINATE_TIMEOUT_SECONDS = 5.0  # after SIGTERM, and after SIGKILL
_CREATE_NEW_PROCESS_GROUP = 0x200  # a flag of Windows: elsewhere, subprocess lacks its name


def end_children() -> None:
    """End the children of this process, and their children, except for the watchers.

    Each gets SIGTERM, and is killed if it does not end soon.
    """
    import psutil
    from millguard import processes

    children = psutil.Process().children(recursive=True)
    processes.end_processes([child for child in children if child.pid not in WATCHERS])


class CommandError(TorchmillError):
    """A program ended with an exit code other than zero.

    `output` has the last lines that it printed, in which a caller may look for the cause.
    """

    def __init__(self, argv: Sequence[str], returncode: int, output: str) -> None:
        lines = output.splitlines()[-TAIL_LINES:]
        self.argv = tuple(argv)
        self.returncode = returncode
        self.output = "\n".join(lines)
        crash = _PYTHON_CRASH.search(output)
        reason = crash[1] if crash else _last_text(lines)
        message = f"`{_shorten(argv)}` {_describe_end(returncode)}: {reason}"
        super().__init__(hide_password(message), code="command-failed")


def _last_text(lines: Sequence[str]) -> str:
    """Return the last line with any text, or a clause that says that there is none."""
    for line in reversed(lines):
        if line.strip():
            return line.strip()
    return "it printed nothing"


def capture(
    argv: Sequence[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    seconds: float = CAPTURE_TIMEOUT_SECONDS,
) -> str:
    """Return the standard output of a program that may change files, and may take long.

    A program that has not ended after `seconds` gets time to clean up and is ended; HostError is
    raised then. Raises CommandError if the program fails, HostError if it cannot be started.
    """
    process = _start(argv, cwd, env, stderr=subprocess.PIPE)
    try:
        stdout, stderr = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        _stop(process)
        raise HostError(
            f"`{_shorten(argv)}` has not ended after {seconds:g} s, and was stopped: "
            "see what it waits for",
            code="program-hangs",
        ) from None
    except BaseException:
        _stop(process)
        raise
    if process.returncode != 0:
        raise CommandError(argv, process.returncode, stdout + stderr)
    return stdout


class NoAnswerError(HostError):
    """A program that only prints information did not end in time: the information is unknown."""


def ask(
    argv: Sequence[str], env: Mapping[str, str] | None = None, seconds: float | None = None
) -> str:
    """Return the standard output of a program that only prints information.

    A program that has not ended after `seconds` (by default those of `answer_limit`) is killed at
    once with its process group, because it has no files to clean up; NoAnswerError is raised then.
    Raises CommandError if the program fails, HostError if it cannot be started.
    """
    if seconds is None:
        seconds = answer_limit(Path(argv[0]).name)
    process = _start(argv, None, env, stderr=subprocess.PIPE)
    try:
        stdout, stderr = _await_answer(process, argv, seconds)
    except BaseException:
        _abandon(process)
        raise
    if process.returncode != 0:
        raise CommandError(argv, process.returncode, stdout + stderr)
    return stdout


def _await_answer(
    process: subprocess.Popen[str], argv: Sequence[str], seconds: float
) -> tuple[str, str]:
    """Return standard output and standard error of a program when it has ended.

    After NOTICE_SECONDS, a line tells people what they wait for. Raises NoAnswerError after
    `seconds`.
    """
    notice_seconds = min(NOTICE_SECONDS, seconds)
    try:
        return process.communicate(timeout=notice_seconds)
    except subprocess.TimeoutExpired:
        pass
    if seconds > notice_seconds:
        notice = (
            f"`{_shorten(argv)}` has not answered for {notice_seconds:g} s; "
            f"it is ended after {seconds:g} s"
        )
        print(as_plain_text(notice), file=sys.stderr, flush=True)  # noqa: T201 - at once
    try:
        return process.communicate(timeout=seconds - notice_seconds)
    except subprocess.TimeoutExpired:
        raise NoAnswerError(
            f"`{_shorten(argv)}` did not answer within {seconds:g} s and was killed: "
            "run it yourself to see why",
            code="program-hangs",
        ) from None


def _abandon(process: subprocess.Popen[str]) -> None:
    """Kill a program with its group and descendants, and wait at most KILL_SECONDS for it."""
    _kill(process)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=KILL_SECONDS)
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def program_output(*argv: str, env: Mapping[str, str] | None = None) -> str:
    """Return the standard output of a program, from `ask`; "" if `ask` raises an error."""
    try:
        return ask(argv, env)
    except (CommandError, HostError):
        return ""


def why_failed(argv: Sequence[str], env: Mapping[str, str] | None = None) -> str | None:
    """Return why a program failed, did not end, or could not be started; None if it succeeded.

    The program runs as by `capture`.
    """
    try:
        capture(argv, env=env)
    except (CommandError, HostError) as error:
        return str(error)
    return None


def stream(
    argv: Sequence[str],
    *,
    cwd: Path | None,
    env: Mapping[str, str] | None,
    log: TextIO,
    on_line: Callable[[str], None],
    waits_for: str = "",
    bytes_of: Callable[[str], int] | None = None,
    kills_others: bool = False,
) -> None:
    """Run a program until it ends, and pass on each line of its output and of its errors.

    `log` gets the lines as they are, `on_line` gets them without the newline.

    The program leads a process group of its own. So the terminal's Ctrl-C reaches this process
    only, which interrupts the group once and gives it INTERRUPT_TIMEOUT_SECONDS to stop.
    `kills_others` is for a program such as buildah. If it were interrupted, it would kill the
    programs that it has started at once. So only these programs are interrupted, which have time to
    clean up then, and it ends after them.

    `waits_for` names the sender of the output, such as a server. If it is given, the silence of the
    sender is limited (`watch_for_silence`). `bytes_of` returns how many bytes from the sender a
    line stands for; without it, any line ends the silence.

    Raises InterruptedBuildError after Ctrl-C or SIGTERM, CommandError if the program fails,
    HostError if it cannot be started, SilentError if `waits_for` is silent for too long.
    """
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    # `watch_for_silence` reads the output in another thread.
    reads_here = not waits_for
    with interrupt_on_sigterm():
        process = _start(argv, cwd, env)
        try:
            # Not by _read_lines in this thread: after Ctrl-C it would close the pipe, from which
            # _stop still reads the last output.
            lines: Iterable[str] = process.stdout or ()
            if waits_for:
                lines = watch_for_silence(_read_lines(process), waits_for, bytes_of)
            for line in lines:
                log.write(line)
                tail.append(line)
                on_line(line.rstrip("\n"))
            process.wait()
        except KeyboardInterrupt:
            log.write(_stop(process, reads=reads_here, kills_others=kills_others))
            raise InterruptedBuildError(
                f"interrupted: `{_shorten(argv)}` was stopped; "
                "run the same command again to go on from there",
                code="interrupted",
            ) from None
        except BaseException:
            # No compiler may go on if this process fails, as when its log cannot be written.
            _stop(process, reads=reads_here)
            raise
        finally:
            log.flush()
            if process.stdout and reads_here:  # a pipe that another thread reads cannot be closed
                process.stdout.close()
    if process.returncode != 0:
        raise CommandError(argv, process.returncode, "".join(tail))


def own_age() -> float:
    """Return the seconds since this process was started.

    On Linux both times are those of the kernel since the machine was booted, which nobody can set.
    """
    try:
        fields = Path("/proc/self/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        started = int(fields[_START_FIELD]) / os.sysconf("SC_CLK_TCK")
        return time.clock_gettime(time.CLOCK_BOOTTIME) - started
    except (OSError, ValueError, IndexError, AttributeError):  # another system
        import psutil

        return time.time() - psutil.Process().create_time()


class TimeUpError(Exception):
    """The time that `end_after` gives a block is over."""


@contextlib.contextmanager
def end_after(seconds: float | None) -> Iterator[None]:
    """Raise TimeUpError in the block when it has run for `seconds`; None sets no limit.

    Raises ConfigError on Windows, and outside of the main thread.
    """
    if seconds is None:
        yield
        return
    # Windows has no timer that interrupts the main thread, and other threads get no signals.
    if sys.platform == "win32" or threading.current_thread() is not threading.main_thread():
        raise ConfigError("--until needs Linux or macOS", code="until-on-windows")

    def raise_time_up(*_: object) -> None:
        raise TimeUpError

    previous_handler = signal.signal(signal.SIGALRM, raise_time_up)
    # 0 would switch the timer off, and macOS refuses more than 1e9 or so.
    timer_seconds = min(max(seconds, 0.001), 1e9)
    signal.setitimer(signal.ITIMER_REAL, timer_seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous_handler)


def run_in_terminal(argv: Sequence[str], env: Mapping[str, str]) -> int:
    """Run a program that has the terminal to itself, and return its exit code, -N for signal N.

    The terminal's Ctrl-C reaches both this process and the program, which gets
    INTERRUPT_TIMEOUT_SECONDS to stop; InterruptedBuildError is raised then, and also after SIGTERM.
    Raises HostError if the program cannot be started.
    """
    with interrupt_on_sigterm():
        process = _start(argv, None, env, in_terminal=True)
        try:
            return process.wait()
        except KeyboardInterrupt:
            with contextlib.suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
                process.wait(INTERRUPT_TIMEOUT_SECONDS)
            end_children()
            raise InterruptedBuildError(
                "interrupted: run the same command to go on", code="interrupted"
            ) from None


def _read_lines(process: subprocess.Popen[str]) -> Iterator[str]:
    """Yield the lines of a program's output, and close the pipe in the end."""
    if process.stdout:
        with process.stdout as lines:
            yield from lines


def _shorten(argv: Sequence[str]) -> str:
    """Return a command as for a shell, shortened, without passwords of URLs."""
    line = hide_password(shlex.join(argv))
    if len(line) <= _SHOWN_CHARACTERS:
        return line
    return f"{line[:_SHOWN_CHARACTERS]} …"


def _describe_end(returncode: int) -> str:
    """Return how a program ended, "was killed by SIGKILL"; subprocess negates a signal's number."""
    if returncode >= 0:
        return f"ended with exit code {returncode}"
    try:
        return f"was killed by {signal.Signals(-returncode).name}"
    except ValueError:  # a real-time signal
        return f"was killed by signal {-returncode}"


def _start(
    argv: Sequence[str],
    cwd: Path | None,
    env: Mapping[str, str] | None,
    stderr: int = subprocess.STDOUT,
    *,
    in_terminal: bool = False,
) -> subprocess.Popen[str]:
    """Start a program and return its process.

    Unless the program runs `in_terminal`, it leads a process group of its own, its input is empty,
    and its output is a pipe. Raises HostError, with a cure, if the program cannot be started.
    """
    options: dict[str, Any] = {"encoding": "utf-8", "errors": "replace"}
    if not in_terminal:
        options["stdin"] = subprocess.DEVNULL
        options["stdout"] = subprocess.PIPE
        options["stderr"] = stderr
        if sys.platform == "win32":
            options["creationflags"] = _CREATE_NEW_PROCESS_GROUP
        else:
            options["process_group"] = 0
    try:
        return subprocess.Popen(list(argv), cwd=cwd, env=env, **options)
    except FileNotFoundError:
        if cwd is not None and not cwd.is_dir():
            raise HostError(
                f"{cwd}: no such folder to run `{argv[0]}` in; fetch the source again",
                code="no-working-folder",
            ) from None
        raise HostError(
            f"`{argv[0]}` is not on PATH: install it, or add its folder to PATH",
            code="program-missing",
        ) from None
    except OSError as error:  # not executable, made for another machine, or one process too many
        cure = "reinstall it for this machine"
        if error.errno in (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE):
            cure = "free some memory, or raise the limits (`ulimit -a`)"
        raise HostError(
            f"`{argv[0]}` cannot be run here ({error.strerror}): {cure}",
            code="program-not-runnable",
        ) from None


@contextlib.contextmanager
def interrupt_on_sigterm() -> Iterator[None]:
    """Let SIGTERM in the block act as Ctrl-C, so that the programs of a cancelled CI job end."""
    try:
        previous_handler = signal.signal(signal.SIGTERM, signal.default_int_handler)
    except ValueError:  # not in the main thread, and other threads get no signals
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous_handler)


def _stop(process: subprocess.Popen[str], *, reads: bool = True, kills_others: bool = False) -> str:
    """End a program and its process group, and return the output that was not read before.

    `kills_others` means the same as for `stream`. If another thread reads the output, `reads` is
    false, and the result is "".
    """
    from millguard import processes

    members: list[psutil.Process] = []
    if kills_others:
        members = _other_programs(process)
    output = _end_step_by_step(process, members, reads=reads)
    # Members of the group may need a moment to clean up after their leader has ended.
    remaining = processes.wait_until_ended(processes.find_by_group(process.pid), 1.0)
    processes.end_processes(remaining)
    return output


def _other_programs(leader: subprocess.Popen[str]) -> list[psutil.Process]:
    """Return the processes in a group that run another program than the group's leader.

    The leader may have forked: processes of its own program are a part of it.
    """
    from millguard import processes

    leader_name = _program_name(leader.pid)
    members = []
    for member in processes.find_by_group(leader.pid):
        name = _program_name(member.pid)
        # buildah runs copies of itself from memory: "/memfd:buildah (deleted)" contains its name.
        if name and leader_name not in name:
            members.append(member)
    return members


def _program_name(pid: int) -> str:
    """Return the name of a process's file; "" if the process is gone, or another user's."""
    import psutil

    try:
        return Path(psutil.Process(pid).exe()).name
    except (psutil.Error, OSError):
        return ""


def _end_step_by_step(
    process: subprocess.Popen[str], members: Sequence[psutil.Process], *, reads: bool
) -> str:
    """Interrupt a group, then terminate it, then kill it, until its leader has ended.

    If `members` of the group are given, only these are interrupted. Returns the output that was not
    read before, "" if another thread reads it (`reads` is false).
    """

    def interrupt() -> None:
        import psutil

        if not members:
            _signal_group(process, signal.SIGINT)
        for member in members:
            with contextlib.suppress(psutil.Error):
                member.send_signal(signal.SIGINT)

    # The members may have to end programs that they have started themselves.
    interrupt_seconds = INTERRUPT_TIMEOUT_SECONDS * (2 if members else 1)
    steps: tuple[tuple[Callable[[], None], float], ...] = (
        (interrupt, interrupt_seconds),
        (lambda: _signal_group(process, signal.SIGTERM), _TERMINATE_TIMEOUT_SECONDS),
        (lambda: _kill(process), _TERMINATE_TIMEOUT_SECONDS),
    )
    for send, seconds in steps:
        send()
        try:
            if reads:  # a program cannot end while it writes into a full pipe
                return process.communicate(timeout=seconds)[0] or ""
            process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            continue
        except KeyboardInterrupt:  # a second Ctrl-C skips the waiting
            continue
    return ""


def _kill(process: subprocess.Popen[str]) -> None:
    """Kill a program, its process group, and its descendants in other groups.

    ninja starts each compiler in a group of its own.
    """
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
    if sys.platform != "win32":
        _signal_group(process, signal.SIGKILL)
    process.kill()


def _signal_group(process: subprocess.Popen[str], number: signal.Signals) -> None:
    """Send a signal to the process group that a program leads; no error if the group is gone."""
    if sys.platform == "win32":
        # Windows can send Ctrl-Break to a process group, but not Ctrl-C (GenerateConsoleCtrlEvent).
        if number == signal.SIGINT:
            number = signal.CTRL_BREAK_EVENT
        process.send_signal(number)
    else:
        # macOS refuses signals to a group in which only zombies are left.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
