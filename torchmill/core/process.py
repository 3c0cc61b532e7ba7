"""Run programs, watch their output, and end them with all processes that they started."""

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
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from torchmill.core.errors import ConfigError, HostError, InterruptedBuildError, TorchmillError
from torchmill.core.plain_text import as_plain_text
from torchmill.core.silence import answer_limit, until_silent
from torchmill.core.urls import hide_password

if TYPE_CHECKING:
    import psutil

WATCHERS: set[int] = set()  # processes of this run that see to their own end: reaper
CAPTURE_TIMEOUT_SECONDS = 1800.0  # for a program that makes or unpacks something
NOTICE_SECONDS = 5.0  # after which a person reads what is waited for
KILL_SECONDS = (
    1.0  # that a killed program is waited for; the kernel may hold it in a driver for ever
)
TAIL_LINES = 200  # lines of output that an error carries
_SHOWN_CHARACTERS = 200  # of a command that an error names
_PYTHON_CRASH = re.compile(
    r"\(most recent call first\):\n +(File .+)"
)  # as its faulthandler prints it
INTERRUPT_TIMEOUT_SECONDS = 20.0  # seconds that ninja and its compilers get to put their files away


def end_children() -> None:
    """End all processes that this one has started, without the watchers."""
    import psutil
    from millguard import processes

    children = psutil.Process().children(recursive=True)
    processes.end_processes([child for child in children if child.pid not in WATCHERS])


class CommandError(TorchmillError):
    """A program ended with something other than zero."""

    def __init__(self, argv: Sequence[str], returncode: int, output: str) -> None:
        """Keep the last lines of `output`, in which a caller may look for the cause."""
        lines = output.splitlines()[-TAIL_LINES:]
        self.argv = tuple(argv)
        self.returncode = returncode
        self.output = "\n".join(lines)
        last = next(
            (line.strip() for line in reversed(lines) if line.strip()), "it printed nothing"
        )
        crash = _PYTHON_CRASH.search(output)
        told = hide_password(
            f"`{_shown(argv)}` {_ended(returncode)}: {crash[1] if crash else last}"
        )
        super().__init__(told, code="command-failed")


def capture(
    argv: Sequence[str],
    *,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    seconds: float = CAPTURE_TIMEOUT_SECONDS,
) -> str:
    """Return what `argv` writes to stdout.

    Raise CommandError where it fails, HostError where it cannot be started, or has not ended after `seconds`.
    """
    process = _start(argv, cwd, env, stderr=subprocess.PIPE)
    try:
        stdout, stderr = process.communicate(timeout=seconds)
    except subprocess.TimeoutExpired:
        _stop(process)
        raise HostError(
            f"`{_shown(argv)}` has not ended after {seconds:g} s, and was stopped: see what it waits for",
            code="program-hangs",
        ) from None
    except BaseException:
        _stop(process)
        raise
    if process.returncode != 0:
        raise CommandError(argv, process.returncode, stdout + stderr)
    return stdout


class NoAnswerError(HostError):
    """A program that only tells something did not end in time: what it would have told is not known."""


def ask(
    argv: Sequence[str], env: Mapping[str, str] | None = None, seconds: float | None = None
) -> str:
    """Return what a program that changes nothing writes to stdout.

    A program that has not ended after `seconds`, by default those of `answer_limit`, is killed with its process group
    at once, for it has no files to put away. Raises NoAnswerError then, CommandError if it fails, HostError if it
    cannot be started.
    """
    seconds = answer_limit(Path(argv[0]).name) if seconds is None else seconds
    process = _start(argv, None, env, stderr=subprocess.PIPE)
    try:
        stdout, stderr = _answer(process, argv, seconds)
    except BaseException:
        _abandon(process)
        raise
    if process.returncode != 0:
        raise CommandError(argv, process.returncode, stdout + stderr)
    return stdout


def _answer(process: subprocess.Popen[str], argv: Sequence[str], seconds: float) -> tuple[str, str]:
    notice = min(NOTICE_SECONDS, seconds)
    try:
        return process.communicate(timeout=notice)
    except subprocess.TimeoutExpired:
        pass
    if seconds > notice:
        waiting = (
            f"`{_shown(argv)}` has not answered for {notice:g} s; it is ended after {seconds:g} s"
        )
        print(as_plain_text(waiting), file=sys.stderr, flush=True)  # noqa: T201 - while it is waited for
    try:
        return process.communicate(timeout=seconds - notice)
    except subprocess.TimeoutExpired:
        told = f"`{_shown(argv)}` did not answer within {seconds:g} s and was killed: run it yourself to see why"
        raise NoAnswerError(told, code="program-hangs") from None


def _abandon(process: subprocess.Popen[str]) -> None:
    """Kill a program with its group and descendants, and wait no longer than KILL_SECONDS for it."""
    _kill(process)
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.communicate(timeout=KILL_SECONDS)
    for pipe in (process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


def program_output(*argv: str, env: Mapping[str, str] | None = None) -> str:
    """Return what a program writes to stdout; "" where it fails, cannot be started or gives no answer."""
    try:
        return ask(argv, env)
    except (CommandError, HostError):
        return ""


def why_failed(argv: Sequence[str], env: Mapping[str, str] | None = None) -> str | None:
    """Return why a program failed, or could not be started; None where it did what it should."""
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
    kills_others: bool = False,
) -> None:
    """Run `argv`, handing each line of stdout and stderr to `log` and, without its end, to `on_line`.

    The program leads a process group of its own: Ctrl-C reaches it once, from here, and it gets
    INTERRUPT_TIMEOUT_SECONDS to stop. Of one that `kills_others` when it is asked to stop, the others in its
    group are asked. Raise InterruptedBuildError then, CommandError where the program fails, HostError where it
    cannot be started, SilentError where it prints nothing for long, and `waits_for` names who should send what
    it prints.
    """
    tail: deque[str] = deque(maxlen=TAIL_LINES)
    with interrupt_on_sigterm():
        process = _start(argv, cwd, env)
        try:
            for line in (
                until_silent(_lines(process), waits_for) if waits_for else process.stdout or ()
            ):
                log.write(line)
                tail.append(line)
                on_line(line.rstrip("\n"))
            process.wait()
        except KeyboardInterrupt:
            log.write(_stop(process, reads=not waits_for, kills_others=kills_others))
            raise InterruptedBuildError(
                f"interrupted: `{_shown(argv)}` was stopped; run the same command again to go on from there",
                code="interrupted",
            ) from None
        except BaseException:
            _stop(process, reads=not waits_for)  # nothing goes on compiling behind an error of ours
            raise
        finally:
            log.flush()
            if process.stdout and not waits_for:  # one that is still read from cannot be closed
                process.stdout.close()
    if process.returncode != 0:
        raise CommandError(argv, process.returncode, "".join(tail))


class TimeUpError(Exception):
    """The time that a block of `end_after` had is over."""


@contextlib.contextmanager
def end_after(seconds: float | None) -> Iterator[None]:
    """Raise TimeUpError in the block after so many seconds; None: never. ConfigError where no system can."""
    if seconds is None:
        yield
        return
    if sys.platform == "win32" or threading.current_thread() is not threading.main_thread():
        raise ConfigError("--until needs Linux or macOS", code="until-on-windows")

    def end(*_: object) -> None:
        raise TimeUpError

    before = signal.signal(signal.SIGALRM, end)
    signal.setitimer(
        signal.ITIMER_REAL, min(max(seconds, 0.001), 1e9)
    )  # a system cannot wait longer
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def run_in_terminal(argv: Sequence[str], env: Mapping[str, str]) -> int:
    """Run a program that has the terminal to itself, and return its exit code.

    Ctrl-C reaches it, too, and it gets INTERRUPT_TIMEOUT_SECONDS to stop. Raise InterruptedBuildError then,
    HostError where it cannot be started.
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


def _lines(process: subprocess.Popen[str]) -> Iterator[str]:
    if process.stdout:
        with process.stdout as lines:
            yield from lines


def _shown(argv: Sequence[str]) -> str:
    """Return the command as a shell takes it, shortened, and without passwords of addresses in it."""
    line = hide_password(shlex.join(argv))
    return line if len(line) <= _SHOWN_CHARACTERS else f"{line[:_SHOWN_CHARACTERS]} …"


def _ended(returncode: int) -> str:
    if returncode >= 0:
        return f"ended with exit code {returncode}"
    try:
        return f"was killed by {signal.Signals(-returncode).name}"
    except ValueError:
        return f"was killed by signal {-returncode}"


def _start(
    argv: Sequence[str],
    cwd: Path | None,
    env: Mapping[str, str] | None,
    stderr: int = subprocess.STDOUT,
    *,
    in_terminal: bool = False,
) -> subprocess.Popen[str]:
    """Start a program, and translate what the system says when it cannot be started."""
    windows = sys.platform == "win32"
    how: dict[str, Any] = {"encoding": "utf-8", "errors": "replace"}
    apart = {
        "stdin": subprocess.DEVNULL,
        "stdout": subprocess.PIPE,
        "stderr": stderr,
        "process_group": None if windows else 0,
        "creationflags": 0x200 if windows else 0,  # CREATE_NEW_PROCESS_GROUP
    }
    try:
        return subprocess.Popen(
            list(argv), cwd=cwd, env=env, **(how if in_terminal else how | apart)
        )
    except FileNotFoundError:
        if cwd is not None and not cwd.is_dir():
            told = f"{cwd}: no such folder to run `{argv[0]}` in; fetch the source again"
            raise HostError(told, code="no-working-folder") from None
        told = f"`{argv[0]}` is not on PATH: install it, or add its folder to PATH"
        raise HostError(told, code="program-missing") from None
    except OSError as error:  # not executable, made for another machine, or more than may run
        short = error.errno in (errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENFILE)
        cure = (
            "free some memory, or raise the limits (`ulimit -a`)"
            if short
            else "reinstall it for this machine"
        )
        told = f"`{argv[0]}` cannot be run here ({error.strerror}): {cure}"
        raise HostError(told, code="program-not-runnable") from None


@contextlib.contextmanager
def interrupt_on_sigterm() -> Iterator[None]:
    """Treat SIGTERM (a cancelled CI job) as Ctrl-C, so that the group does not outlive us."""
    try:
        before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    except ValueError:  # not in the main thread, where signals do not arrive
        yield
        return
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _stop(process: subprocess.Popen[str], *, reads: bool = True, kills_others: bool = False) -> str:
    """End the group, ever less politely, and return what it still said, unless another thread `reads` that."""
    said = _ended_politely(process, _asked_first(process) if kills_others else [], reads=reads)
    # who holds no pipe of ours may outlive the leader: for the moment that it needs to put its files away
    from millguard import processes

    processes.end_processes(processes.wait_until_ended(processes.find_by_group(process.pid), 1.0))
    return said


def _asked_first(leader: subprocess.Popen[str]) -> list[psutil.Process]:
    """Return those of the group that run another program than its leader, which may have several processes."""
    from millguard import processes

    leader_name = _program(leader.pid)
    others = []
    for member in processes.find_by_group(leader.pid):
        name = _program(member.pid)
        # those that it starts from memory have its name in theirs
        if name and leader_name not in name:
            others.append(member)
    return others


def _program(pid: int) -> str:
    """Return the name of the file that a process runs; "" where it is gone, or another user's."""
    import psutil

    try:
        return Path(psutil.Process(pid).exe()).name
    except (psutil.Error, OSError):
        return ""


def _ended_politely(
    process: subprocess.Popen[str], first: Sequence[psutil.Process], *, reads: bool
) -> str:
    """Ask the group to end, `first` some of it, until its leader has; return what was still said."""
    import psutil

    seconds = INTERRUPT_TIMEOUT_SECONDS * (2 if first else 1)  # they may have programs to end, too
    for number, patience in ((signal.SIGINT, seconds), (signal.SIGTERM, 5.0), (None, 5.0)):
        if number is None:
            _kill(process)
        elif number == signal.SIGINT and first:
            for one in first:
                with contextlib.suppress(psutil.Error):
                    one.send_signal(number)
        else:
            _signal_group(process, number)
        try:
            # reads on while it waits: a full pipe would keep the program from ending
            if reads:
                return process.communicate(timeout=patience)[0] or ""
            process.wait(timeout=patience)
        except (
            subprocess.TimeoutExpired,
            KeyboardInterrupt,
        ):  # who asks twice has no more patience
            continue
    return ""


def _kill(process: subprocess.Popen[str]) -> None:
    """Kill the descendants too: ninja gives each compiler a group of its own."""
    import psutil

    with contextlib.suppress(psutil.NoSuchProcess):
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                child.kill()
    if sys.platform != "win32":
        _signal_group(process, signal.SIGKILL)
    process.kill()


def _signal_group(process: subprocess.Popen[str], number: signal.Signals) -> None:
    if sys.platform == "win32":
        process.send_signal(signal.CTRL_BREAK_EVENT if number == signal.SIGINT else number)
    else:
        with contextlib.suppress(
            ProcessLookupError, PermissionError
        ):  # all gone, or zombies (macOS)
            os.killpg(process.pid, number)
