"""Pass signals that ask for an end on to a command that this process runs.

A terminal sends the signal of a key, such as Ctrl-C, to its whole *foreground group*: to this process
and to the command alike. `kill PID` sends one to this process alone, and so it must be passed on.
Passing on both would be wrong: make and ninja end gracefully at the first signal, and at once, with
half-written files, at the second. The kernel tells the two apart by `si_code`: sigaction(2).
"""

import contextlib
import os
import signal
import subprocess
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from types import FrameType

import psutil

_KEYS = (signal.SIGINT, signal.SIGQUIT)  # Ctrl-C and Ctrl-\
_FROM_TERMINAL = (*_KEYS, signal.SIGHUP)  # the last when the terminal is closed
_HANDLED = (signal.SIGTERM, *_FROM_TERMINAL)


class EndSignals:
    """The signals that asked this process to end while it ran a command.

    Only the main thread receives signals in Python; in another one nothing is passed on.
    """

    def __init__(self) -> None:
        self.told_to_end = False  # by a signal that asks for the end of everything
        self.interruptions = 0  # by a key, or by a signal that stands for one
        self._handled: tuple[signal.Signals, ...] = ()
        self._awaited: set[signal.Signals] = set()
        # Signals that the command has not received from here, and whether a terminal sent them.
        self._received: deque[tuple[int, bool]] = deque()

    @property
    def is_impatient(self) -> bool:
        """Tell whether the user has asked a second time for the command to end."""
        return self.interruptions > 1

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Note signals that ask for an end, for as long as the context lasts.

        An ignored signal stays so, for this process and for the command: nohup ignores SIGHUP, and
        a shell ignores SIGINT and SIGQUIT for `COMMAND &` in a script.
        """
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        previous = {number: signal.getsignal(number) for number in _HANDLED}
        self._handled = tuple(number for number in _HANDLED if previous[number] != signal.SIG_IGN)
        for number in self._handled:
            signal.signal(number, self._note)
        try:
            with _default_child_signal():
                yield
        finally:
            for number in self._handled:
                # None: a library in C has set it, and Python cannot set it again.
                if previous[number] is not None:
                    signal.signal(number, previous[number])

    @contextlib.contextmanager
    def awaited(self) -> Iterator[None]:
        """Let `wait` receive all signals, for as long as the context lasts.

        They are blocked meanwhile, so the command must have started: it would inherit that.
        """
        if not self._handled or not _can_wait_for_signals():
            yield
            return
        awaited = {*self._handled, signal.SIGCHLD}
        before = signal.pthread_sigmask(signal.SIG_BLOCK, awaited)
        self._awaited = awaited
        try:
            yield
        finally:
            self._awaited = set()
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def wait(self, process: subprocess.Popen[bytes], seconds: float) -> int | None:
        """Wait for the end of a process or for a signal; return the exit code, None if it runs.

        Signals that have come are passed on to the process.
        """
        code = process.poll()
        if code is None and self._awaited:
            event = signal.sigtimedwait(self._awaited, seconds)
            if event is not None and event.si_signo != signal.SIGCHLD:
                # More than 0: the kernel sent it, and no process.
                self._received.append((event.si_signo, event.si_code > 0))
        elif code is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(seconds)
        self._pass_on(process)
        return process.poll()

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self._received.append((number, number in _FROM_TERMINAL and _is_in_foreground()))

    def _pass_on(self, process: subprocess.Popen[bytes]) -> None:
        """Send each signal that was noted to the command, unless its terminal has done so."""
        while self._received:
            number, is_from_terminal = self._received.popleft()
            if number in _KEYS:
                self.interruptions += 1
            else:
                self.told_to_end = True
            for pid in _receivers(process, number, is_from_terminal=is_from_terminal):
                with contextlib.suppress(OSError):  # it has ended
                    os.kill(pid, number)


def _can_wait_for_signals() -> bool:
    """Tell whether this process can wait for signals: macOS cannot.

    A caller with a handler of its own for ended children would miss what is taken here.
    """
    return hasattr(signal, "sigtimedwait") and signal.getsignal(signal.SIGCHLD) == signal.SIG_DFL


@contextlib.contextmanager
def _default_child_signal() -> Iterator[None]:
    """Let this process learn the exit codes of its children.

    The kernel drops them if the starter of this process has it ignore SIGCHLD: wait(2).
    """
    if signal.getsignal(signal.SIGCHLD) != signal.SIG_IGN:
        yield
        return
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    try:
        yield
    finally:
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)


def _is_in_foreground() -> bool:
    """Tell whether this process is in the foreground group of a terminal, which gets its keys."""
    try:
        terminal = os.open("/dev/tty", os.O_RDONLY | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:
        return False
    try:
        return os.tcgetpgrp(terminal) == os.getpgrp()
    except OSError:
        return False
    finally:
        os.close(terminal)


def _receivers(
    process: subprocess.Popen[bytes], number: int, *, is_from_terminal: bool
) -> Sequence[int]:
    """Return the processes that a signal must be sent to, as a terminal would choose them.

    The signals of a terminal are for the whole group: a shell that waits for make does not end by
    SIGINT unless make does, and make waits for its compilers. SIGTERM is for the command alone.
    """
    try:
        group = os.getpgid(process.pid)
    except OSError:  # it has ended
        return []
    if is_from_terminal and group == os.getpgrp():
        return []
    if number not in _FROM_TERMINAL:
        return [process.pid]
    receivers = [process.pid]
    # This process is of the same group, and its starter may be: so each one is chosen by itself.
    with contextlib.suppress(psutil.Error, OSError):
        for child in psutil.Process(process.pid).children(recursive=True):
            with contextlib.suppress(OSError):
                if os.getpgid(child.pid) == group:
                    receivers.append(child.pid)
    return receivers
