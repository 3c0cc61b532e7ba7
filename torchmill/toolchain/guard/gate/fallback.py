"""The gate for machines on which gate.c cannot be compiled; that file says what it does and how it talks.

It is no module of ours but a script, copied into the tree of a build and run by `python -IS`: of the standard
library it has only what is quickly loaded.
"""

import contextlib
import fcntl
import itertools
import os
import resource
import select
import signal
import socket
import sys
from collections.abc import Callable, Iterable

CANNOT_RUN, NOT_FOUND, STOPPED = 126, 127, 130  # exit codes, as a shell's
NOTHING_TO_DO = {
    "-", "-E", "-M", "-MM", "-###", "--version", "-dumpversion", "-dumpfullversion", "-dumpmachine",
    "-dumpspecs", "--preprocess", "--generate-dependencies", "--generate-nonsystem-dependencies", "--dryrun",
    "-dryrun",
}  # fmt: skip
TRIALS = ("/CMakeFiles/CMakeScratch/", "/CMakeFiles/CMakeTmp")  # tiny, and no measure of the build's own
NAMES_MEMORY = (
    b"Killed signal terminated program", b"Killed (program", b"terminated with signal 9", b"due to signal 9",
    b"unable to execute command: Killed", b"virtual memory exhausted", b": memory exhausted\n",
    b": out of memory\n", b"out of memory allocating", b": Cannot allocate memory\n",
    b"instance of 'std::bad_alloc'", b"of type std::bad_alloc", b"Memory allocation failure",
)  # fmt: skip


class Gate:
    """One command on its way through the gate."""

    def __init__(self, folder: str, command: list[str]) -> None:
        """Take signals from here on; raise OSError where the folder is gone."""
        self._command = command
        self._room = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
        self._parent = os.getppid()
        self._asked_to_end = 0  # by this signal
        self._child = 0
        self._locked: list[int] = []
        name = f"stderr.{os.getpid()}"
        self._stderr = os.open(name, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o600, dir_fd=self._room)
        os.unlink(name, dir_fd=self._room)
        self._wake, bell = os.pipe()
        os.set_blocking(bell, False)
        signal.set_wakeup_fd(bell, warn_on_full_buffer=False)
        for number in (signal.SIGCHLD, signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if number == signal.SIGCHLD or signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, self._on_signal)
        self._guard = self._reach_guard()

    def pass_through(self) -> int:
        """Run the compiler as often as it has to be; return its code."""
        was_killed = False
        while True:
            admitted = self._ask()
            alone = not admitted and was_killed
            while not admitted and not self._lock_slots(all if alone else any):
                self._rest(0.05)
            outcome, code = self._run()
            if outcome == "stop":
                self._leave()
            killed = outcome == "killed"
            answer = self._expect("again", "done") if killed else ""
            if not outcome or answer == "done" or (killed and alone and not answer):
                with contextlib.suppress(OSError):  # nobody reads it
                    sys.stderr.buffer.write(self._read_stderr())
                return code
            was_killed |= killed
            while self._locked:
                os.close(self._locked.pop())

    def _on_signal(self, number: int, _frame: object) -> None:
        if number != signal.SIGCHLD:
            self._asked_to_end = number

    def _wait_for(self, seconds: float) -> bool:
        guard = self._guard.fileno() if self._guard else self._wake
        ready = select.select([self._wake, guard], [], [], seconds)[0]
        if self._wake in ready:
            os.read(self._wake, 4096)
        return guard in ready and guard != self._wake

    def _is_wanted(self) -> bool:
        return not self._asked_to_end and os.getppid() == self._parent

    def _leave(self) -> None:
        if self._asked_to_end:
            signal.signal(self._asked_to_end, signal.SIG_DFL)
            os.kill(os.getpid(), self._asked_to_end)
        os._exit(STOPPED)

    def _rest(self, seconds: float) -> bool:
        ready = self._wait_for(seconds)
        if not self._is_wanted():
            self._leave()
        return ready

    def _lock(self, name: str) -> bool:
        self._locked.append(os.open(name, os.O_RDONLY, dir_fd=self._room))
        try:
            fcntl.flock(self._locked[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if isinstance(error, BlockingIOError):  # else there are no locks here
                os.close(self._locked.pop())
                return False
        return True

    def _lock_slots(self, enough: Callable[[Iterable[bool]], bool]) -> bool:
        """Lock free slots in their order until that is enough; without any there is nothing to wait for."""
        slots = sorted(filter(str.isdigit, os.listdir(self._room)), key=int)  # noqa: PTH208
        more = slots[len(self._locked) :]
        return not more or enough(map(self._lock, more))

    def _reach_guard(self) -> socket.SocketIO | None:
        guard, here = None, os.open(".", os.O_RDONLY | os.O_DIRECTORY)
        os.fchdir(self._room)  # a path may be longer than an address holds
        with contextlib.suppress(OSError):  # nobody is there, or sockets are forbidden
            reached = socket.socket(socket.AF_UNIX)
            reached.connect("s")
            guard = reached.makefile("rwb", buffering=0)
        os.fchdir(here)
        os.close(here)
        return guard

    def _lose_guard(self) -> None:
        self._guard = None
        if self._child:
            self._signal_group(signal.SIGCONT)  # whoever paused it is gone
            self._lock_slots(any)  # it goes on in any case, and is counted where it can be

    def _tell(self, words: bytes) -> None:
        while self._guard and words:
            try:
                words = words[self._guard.write(words) :]
            except OSError:
                self._lose_guard()

    def _hear(self) -> str:
        word = b""
        if self._guard:
            with contextlib.suppress(OSError):
                word = self._guard.readline(16)
        if not word.endswith(b"\n"):
            self._lose_guard()
        return word.decode(errors="replace").strip()

    def _expect(self, *words: str) -> str:
        while self._guard:
            word = self._hear() if self._rest(1) else ""
            if word in words:
                return word
            if word == "stop":
                self._leave()
        return ""

    def _ask(self) -> bool:
        cwd = b"/"
        with contextlib.suppress(OSError):
            cwd = os.getcwdb()  # noqa: PTH109 - pathlib takes long to load
        question = b"".join(word + b"\0" for word in (cwd, *map(os.fsencode, self._command)))
        self._tell(b"ask %d\n%b" % (len(question), question))
        if self._expect("go"):
            return True
        self._rest(0.1)  # compilers that run already take their slots first
        return False

    def _read_stderr(self) -> bytes:
        return os.pread(self._stderr, os.fstat(self._stderr).st_size, 0)

    def _signal_group(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self._child, number)

    def _start(self) -> None:
        os.ftruncate(self._stderr, 0)
        self._child = os.fork()
        if self._child == 0:
            os.setpgid(0, 0)
            with contextlib.suppress(OSError):  # a compiler can run again, ninja and the guard cannot
                os.write(os.open("/proc/self/oom_score_adj", os.O_WRONLY), b"1000")
            os.dup2(self._stderr, 2)
            become(self._command)
        with contextlib.suppress(OSError):  # it has done so itself
            os.setpgid(self._child, self._child)
        self._tell(b"pid %d\n" % self._child)

    def _run(self) -> tuple[str, int]:
        """Run the compiler to its end, and tell the guard of it; return what became of it, and its code."""
        self._start()
        order, patience, ended = "", 20, 0
        while not ended:  # once more when it has: the guard may have ended it, and says so first
            ended, status, used = os.wait4(self._child, os.WNOHANG)
            word = self._hear() if self._wait_for(0 if ended else 0.05 if order else 1) else ""
            order = (word if word in {"again", "stop"} else order) if self._is_wanted() else "stop"
            if order and not ended:  # more than once: before it has become the compiler, it does not hear
                patience -= 1
                self._signal_group(signal.SIGKILL if patience < 0 else self._asked_to_end or signal.SIGTERM)
                self._signal_group(signal.SIGCONT)
        if order:
            self._signal_group(signal.SIGKILL)  # what it started, and left behind
        self._child = 0
        return (order, STOPPED) if order else self._report(status, used)

    def _report(self, status: int, used: resource.struct_rusage) -> tuple[str, int]:
        code = os.waitstatus_to_exitcode(status)
        code = code if code >= 0 else 128 - code
        text = self._read_stderr() if code else b""
        killed = code == 128 + signal.SIGKILL or any(word in text for word in NAMES_MEMORY)
        peak = used.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
        self._tell(b"end %d %d %d\n" % (code, peak, killed))
        return ("killed" if killed else ""), code


def needs_no_guard(command: list[str]) -> bool:
    """Tell whether a command compiles and links nothing, reads a pipe, or is a trial of CMake's."""
    tries = any(trials in os.getcwd() for trials in TRIALS)  # noqa: PTH109
    # what follows -Xlinker is for the linker, whatever it means to the compiler
    words = [word for before, word in itertools.pairwise(command) if before != "-Xlinker"]
    asks = any(word in NOTHING_TO_DO or word.startswith(("--help", "-print-", "--print-")) for word in words)
    return tries or asks or all(word.startswith("-") for word in words)


def become(command: list[str]) -> int:
    """Become the command, and so never return."""
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # Python ignores these two, a compiler must not
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    try:
        os.execvp(command[0], command)  # noqa: S606 - no shell is wanted
    except OSError as error:
        os.write(2, os.fsencode(f"gate: {command[0]}: {error.strerror}\n"))
        os._exit(NOT_FOUND if isinstance(error, FileNotFoundError) else CANNOT_RUN)


def main(command: list[str]) -> int:
    """Send a command through the gate; return its code."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    folder, gate = os.environ.get("TORCHMILL_GATE"), None
    with contextlib.suppress(OSError):  # the guard's folder is gone, or this one: the build is over
        if folder and not os.environ.get("TORCHMILL_GATED") and not needs_no_guard(command):
            os.environ["TORCHMILL_GATED"] = "1"
            gate = Gate(folder, command)
    return become(command) if gate is None else gate.pass_through()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
