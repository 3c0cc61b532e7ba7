"""Start the guard of a build, read its records, and end programs that the build leaves running.

The *guard* is a process of its own (see `service`). Each compiler of the build is started by a *gate*,
a small program that asks the guard first (see `compiler_gate`). They meet in a folder for this build
alone. The gates find it by a variable of the build's environment, and its *hooks*, further variables,
lead compilers to the gate.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue

from millguard import compiler_gate, interception, jobserver, processes, units
from millguard.costs import KnownCost
from millguard.server import GATE, READY, GuardCommand
from millguard.timeline import BuildAccount, Record, TimelineEvent, parse_record

# Events that the user learns of at once, by kind.
EVENT_MESSAGES = {
    "too large": "{unit} {text}: it is compiled alone",
    "kill": "{unit} was killed or ran out of memory ({text}): it runs again, alone",
    "no timeline": "the timeline cannot be written: {text}",
    "no board": "other builds on this machine are not regarded ({text})",
    "no history": "what units needed cannot be saved in {history} ({text}): make that file writable",
}
# Messages of one kind: with very little memory allowed, there would be one for every unit.
LISTED_PER_KIND = 5
# For the guard to start, on a busy machine, and to end.
START_TIMEOUT_SECONDS = 30.0
# The guard writes at least one record a second. After so many seconds without any, it hangs.
SILENCE_TIMEOUT_SECONDS = 30


@dataclass(frozen=True, slots=True)
class GuardSite:
    """Where one build happens, and what it may use."""

    tree: Path  # the build's folder, which takes the gate: CMake remembers the gate's path
    cache: Path  # kept between builds: compiled gates, and the measured needs of units
    timeline: Path
    compiler: Sequence[str]  # compiles the gate
    unguarded: int  # compilers at a time if no guard answers
    cores: int | None = None  # None: as many as the machine has
    memory: int | None = None  # bytes for all compilers together; None: all that are available
    roots: tuple[str, ...] = ()  # folders below which a source is known by its path
    known: tuple[KnownCost, ...] = ()  # costs of sources that were never compiled here
    # of the guard's process
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    enabled: bool = True  # False: the user wants no guard
    # The folder in which guards of one user share a budget; None: this build knows of no other.
    board: Path | None = None
    # False: programs of the build that outlive it, such as a cache's server, go on.
    ends_leftovers: bool = True
    listing_hint: str = "the timeline lists them"  # for events that are counted and not named
    # Called for each record of the guard, in a thread of its own; it must not raise an exception.
    on_record: Callable[[Record], None] | None = None

    @property
    def history(self) -> Path:
        """Return the file with the needs of units that ran."""
        return self.cache / "units.sqlite"


def _refuse_nothing() -> None:
    """Do nothing: without a guard no compiler waits for it."""


@dataclass(frozen=True, slots=True)
class GuardedBuild:
    """A build under guard; without one the gate is None and the account stays empty."""

    gate: Path | None = None
    folder: Path = Path()  # where gates and guard meet
    fifo: Path | None = None  # of the jobserver
    # variables that lead compilers to the gate
    hooks: Mapping[str, str] = field(default_factory=dict)
    # the hooks, and the other variables that the build needs
    environment: Mapping[str, str] = field(default_factory=dict)
    account: BuildAccount = field(default_factory=BuildAccount)
    messages: SimpleQueue[str] = field(default_factory=SimpleQueue)  # for the user
    # To call when the build has failed: no waiting compiler starts any more.
    refuse: Callable[[], None] = _refuse_nothing


@contextlib.contextmanager
def guard_build(site: GuardSite, caching: Mapping[str, str]) -> Iterator[GuardedBuild]:
    """Guard a build for as long as the context lasts, and leave nothing of it running.

    CMake's launchers lead its compilers to the gate, which lies in the tree because CMake remembers
    its path. `caching` is the environment of a compiler cache, {} without one. What still runs at
    the end is found by the build's `environment`, with which commands must be started. If no guard
    can start, the build goes on without one, a message says so, and nothing is ended.
    """

    def find_gate(_: Path) -> Path:
        compiled = compiler_gate.gate_program(site.cache, site.compiler)
        return compiler_gate.place_gate(compiled, site.tree / "gate", site.compiler)

    def hooks(gate: Path, _: Path) -> dict[str, str]:
        return compiler_gate.gate_hooks(gate, caching)

    with _guarding(site, find_gate, hooks) as build:
        yield build


@contextlib.contextmanager
def guard_programs(site: GuardSite) -> Iterator[GuardedBuild]:
    """Guard any command that is started within the context with the build's `environment`.

    Programs that it starts are intercepted when they start a compiler, so that the command needs no
    launcher. If this system cannot do that, compilers are found by their names on PATH, and by the
    launchers of CMake and cargo. If no guard can start, a message says so.
    """
    problems = []

    # What nobody may run in the cache lies in the folder that is removed with the guard, even if
    # this process is killed.
    def find_gate(folder: Path) -> Path:
        compiled = compiler_gate.gate_program(site.cache, site.compiler)
        return compiled or compiler_gate.place_gate(None, folder / "compiled-gate", site.compiler)

    def hooks(gate: Path, folder: Path) -> dict[str, str]:
        try:
            library = _intercept_library(site, folder)
        except OSError as error:
            problems.append(f"compilers are found by their names on PATH alone ({error})")
            return _hooks_by_name(site, gate)
        return interception.interception_environment(library, gate, site.environ)

    with _guarding(site, find_gate, hooks) as build:
        for problem in problems:
            build.messages.put(problem)
        yield build


def _intercept_library(site: GuardSite, folder: Path) -> Path:
    """Return the library in the cache; in `folder` if nothing in the cache may be run.

    Raises OSError if there is no place for it.
    """
    try:
        return interception.intercept_library(site.cache, site.compiler)
    except OSError:
        return interception.intercept_library(folder, site.compiler)


def _hooks_by_name(site: GuardSite, gate: Path) -> dict[str, str]:
    """Return variables that lead compilers to the gate without interception.

    The stand-ins lie in the cache and not in the build's own folder: CMake and libtool write down
    the paths of their compilers, which must be there when the guard is not.
    """
    folder = site.cache / "stand-ins"
    hooks = compiler_gate.gate_hooks(gate, {})
    hooks |= compiler_gate.make_stand_ins(folder, gate, None, site.environ)
    hooks |= compiler_gate.make_nvcc_stand_in(folder, gate, None, site.environ)
    if not site.environ.get("RUSTC_WRAPPER"):
        hooks["RUSTC_WRAPPER"] = str(gate)
    return hooks


@contextlib.contextmanager
def _guarding(
    site: GuardSite,
    find_gate: Callable[[Path], Path],
    hooks_of: Callable[[Path, Path], Mapping[str, str]],
) -> Iterator[GuardedBuild]:
    """Start the guard, and yield the build; without a guard if there can be none.

    `find_gate` takes the folder of the guard and returns the gate; `hooks_of` takes the gate and the
    folder, and returns the variables that lead compilers to the gate. Both may raise OSError.
    """
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(_meeting_folder(site))
            gate = find_gate(folder)
            hooks = hooks_of(gate, folder)
            (folder / "gate").symlink_to(gate)  # for programs that know the folder only
            fifo = stack.enter_context(jobserver.hold_open(folder))
            guard = _Guard(site, folder, fifo)
            stack.enter_context(guard.serving())
        except OSError as error:
            build = GuardedBuild()
            build.messages.put(f"this build has no memory guard ({error}): {_fallback_text(site)}")
        else:
            build = GuardedBuild(
                gate=gate,
                folder=folder,
                fifo=fifo,
                hooks=hooks,
                environment={**hooks, GATE: str(folder)},
                account=guard.account,
                messages=guard.messages,
                refuse=guard.refuse,
            )
        yield build


def _fallback_text(site: GuardSite) -> str:
    """Return what a build without a guard does, as the end of a message."""
    files = "file" if site.unguarded == 1 else "files"
    return f"compiling {site.unguarded} {files} at a time"


@contextlib.contextmanager
def _meeting_folder(site: GuardSite) -> Iterator[Path]:
    """Make the folder in which gates and guard meet, and delete it in the end.

    Before that, all processes of the build are ended, if the site has it so (`ends_leftovers`).
    The folder has a file for each compiler that may run at a time if no guard answers: gates lock
    these. Raises OSError if there is no place for the folder, on Windows and without /proc, and if
    the user wants no guard.
    """
    if not site.enabled:
        raise OSError("--no-guard")
    if sys.platform == "win32":
        raise OSError("Python on Windows has no Unix sockets")
    # A chroot may lack it. Then nobody can tell what units take, or whose processes they are.
    if sys.platform == "linux" and not Path("/proc/self/stat").exists():
        raise OSError("/proc is not mounted")
    try:
        folder = Path(tempfile.mkdtemp(prefix="millguard-"))
    except OSError:
        folder = Path(tempfile.mkdtemp(prefix="guard-", dir=site.tree))
    try:
        for number in range(1, site.unguarded + 1):
            (folder / str(number)).touch()
        yield folder
    finally:
        try:
            if site.ends_leftovers:
                processes.end_by_variable(GATE, str(folder))
        finally:  # also if Ctrl-C comes a second time
            shutil.rmtree(folder, ignore_errors=True)


def _leave_signals_to_main_thread() -> None:
    """Block signals in this thread, so that the main thread can wait for them: see `end_signals`."""
    if sys.platform != "win32":
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGCHLD)
        signal.pthread_sigmask(signal.SIG_BLOCK, numbers)


class _Guard:
    """The guard's process, and the records that it has written so far."""

    def __init__(self, site: GuardSite, folder: Path, fifo: Path | None) -> None:
        self.account = BuildAccount()
        self.messages: SimpleQueue[str] = SimpleQueue()
        self._site = site
        self._fifo = fifo
        self._errors = folder / "errors"
        self._ready = threading.Event()  # the guard serves, or has ended before it could
        self._has_served = False
        self._has_reported = False  # a record, within this second
        self._is_ending = threading.Event()
        self._process = self._start_process()
        command = GuardCommand(
            folder=str(folder),
            timeline=str(site.timeline),
            history=str(site.history),
            roots=site.roots,
            cores=site.cores,
            memory=site.memory,
            known=site.known,
            board=str(site.board) if site.board else "",
        )
        self._send(command.to_line())
        self._listener = threading.Thread(target=self._listen, name="guard", daemon=True)
        self._listener.start()

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """Wait until the guard serves; end it with the context. Raises OSError if it cannot serve."""
        self._ready.wait(START_TIMEOUT_SECONDS)
        if not self._has_served:
            self._end()
            raise OSError(self._last_error())
        threading.Thread(target=self._watch, name="watch", daemon=True).start()
        try:
            yield
        finally:
            self._end()

    def refuse(self) -> None:
        """Let no waiting compiler start any more, because the build has failed."""
        self._send("refuse")

    def _end(self) -> None:
        """Let the guard write its last records; kill it if it does not end."""
        self._is_ending.set()
        self._send("end")
        try:
            self._process.wait(START_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._listener.join(START_TIMEOUT_SECONDS)
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()

    def _last_error(self) -> str:
        """Return the last line that the guard wrote to stderr."""
        try:
            lines = self._errors.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            lines = []
        return lines[-1] if lines else "it gave no reason"

    def _start_process(self) -> subprocess.Popen[str]:
        """Start the guard in a session of its own: Ctrl-C must end the build, and not the guard."""
        package = Path(__file__).parents[1]  # -P keeps the current folder off the path
        users_path = self._site.environ.get("PYTHONPATH")
        path = f"{package}{os.pathsep}{users_path}" if users_path else str(package)
        with self._errors.open("w", encoding="utf-8") as errors:
            return subprocess.Popen(
                [sys.executable, "-P", "-m", "millguard.service"],
                env={**self._site.environ, "PYTHONPATH": path},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                encoding="utf-8",
                start_new_session=True,
            )

    def _send(self, line: str) -> None:
        if self._process.stdin is None:
            return
        with contextlib.suppress(OSError):  # the guard has ended, which the listener notices
            self._process.stdin.write(line + "\n")
            self._process.stdin.flush()

    def _listen(self) -> None:
        """Enter the guard's records in the account until it ends."""
        _leave_signals_to_main_thread()
        for line in self._process.stdout or ():
            self._has_reported = True
            if not self._has_served and line == READY:
                self._has_served = True
                self._ready.set()
                continue
            with contextlib.suppress(ValueError):
                self._handle_record(parse_record(line))
        self._ready.set()
        if self._has_served and not self._is_ending.is_set():
            self._handle_loss()

    def _handle_loss(self) -> None:
        """Go on without the guard, which has ended in the middle of the build."""
        if self._fifo is not None:
            jobserver.withdraw_tokens(self._fifo)
        # The last moment is no longer true.
        self.account.now = replace(
            self.account.now, used=0, allowed=0, running=0, waiting=0, paused=0
        )
        self.messages.put(
            f"the guard ended unexpectedly ({self._last_error()}): "
            f"{_fallback_text(self._site)} from here on"
        )

    def _watch(self) -> None:
        """Kill the guard if it hangs: gates wait for a living guard for ever, and go on without a dead one.

        Seconds are counted, and no clock is read: while this process is stopped, for example by
        Ctrl-Z, it reads no records, and the guard must not count as silent for that.
        """
        _leave_signals_to_main_thread()
        silent_seconds = 0
        while not self._is_ending.wait(1.0):
            silent_seconds = 0 if self._has_reported else silent_seconds + 1
            self._has_reported = False
            if silent_seconds == SILENCE_TIMEOUT_SECONDS:
                self._process.kill()
                return

    def _handle_record(self, record: Record) -> None:
        """Enter a record, pass it on, and put a message for the user if there is one for its kind.

        At most five messages of a kind are put.
        """
        self.account.add(record)
        if self._site.on_record is not None:
            self._site.on_record(record)
        if not isinstance(record, TimelineEvent) or record.kind not in EVENT_MESSAGES:
            return
        count = self.account.counts[record.kind]
        if count <= LISTED_PER_KIND:
            unit = units.unit_title(record.key) if record.key else ""
            template = EVENT_MESSAGES[record.kind]
            self.messages.put(
                template.format(unit=unit, text=record.text, history=self._site.history)
            )
        if count == LISTED_PER_KIND:
            self.messages.put(
                f"further files of this kind are only counted: {self._site.listing_hint}"
            )
