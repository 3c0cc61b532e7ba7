"""Start the guard of a build, read its records, and end what it leaves running."""

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from queue import SimpleQueue

from millguard import compiler_gate, jobserver, processes, units
from millguard.costs import KnownCost
from millguard.server import GATE, READY, GuardCommand
from millguard.timeline import BuildAccount, Record, TimelineEvent, parse_record

EVENT_MESSAGES = {  # what the user learns at once, by kind of event
    "too large": "{unit} {text}: it is compiled alone",
    "kill": "{unit} was killed or ran out of memory ({text}): it runs again, alone",
    "no timeline": "the timeline cannot be written: {text}",
    "no history": "what units needed cannot be saved in {history} ({text}): make that file writable",
}
LISTED_PER_KIND = 5  # of a kind: where little is allowed every single unit would be named
START_TIMEOUT_SECONDS = (
    30.0  # seconds that the guard gets to start, on a machine with much to do, and to end
)
SILENCE_TIMEOUT_SECONDS = (
    30  # seconds in a row without a record, of which it writes one each: then it hangs
)


@dataclass(frozen=True, slots=True)
class GuardSite:
    """Where one build happens, and what it may use."""

    tree: Path  # takes the gate: CMake remembers where it lay
    cache: Path  # kept between builds: gates, and what was learned of units
    timeline: Path
    compiler: Sequence[str]  # makes the gate
    unguarded: int  # compilers at a time where no guard answers
    cores: int | None = None  # None: as many as the machine has
    memory: int | None = None  # bytes; None: what the machine has left
    roots: tuple[str, ...] = ()  # folders below which a source is known by its path
    known: tuple[KnownCost, ...] = ()
    environ: Mapping[str, str] = field(
        default_factory=lambda: dict(os.environ)
    )  # of the guard itself
    enabled: bool = True  # False: the user will have no guard

    @property
    def history(self) -> Path:
        """Return the file with what was learned of units."""
        return self.cache / "units.sqlite"


def _nothing_to_refuse() -> None:
    """Do nothing: without a guard no compiler waits."""


@dataclass(frozen=True, slots=True)
class GuardedBuild:
    """A build under guard; where there is none, the gate is None and the account stays empty."""

    gate: Path | None = None
    folder: Path = Path()  # where gates and guard meet
    fifo: Path | None = None  # of the jobserver
    hooks: Mapping[str, str] = field(
        default_factory=dict
    )  # variables that lead compilers to the gate
    environment: Mapping[str, str] = field(
        default_factory=dict
    )  # these, and what else the build must know
    account: BuildAccount = field(default_factory=BuildAccount)
    messages: SimpleQueue[str] = field(default_factory=SimpleQueue)  # for the user
    refuse: Callable[[], None] = _nothing_to_refuse  # lets no compiler start that waits


@contextlib.contextmanager
def guard_build(site: GuardSite, caching: Mapping[str, str]) -> Iterator[GuardedBuild]:
    """Guard a build for as long as the context lasts, and leave nothing of it running.

    `caching` is the environment of the compiler cache. Where no guard starts the build goes on without.
    """
    with contextlib.ExitStack() as stack:
        try:
            folder = stack.enter_context(_meeting_folder(site))
            gate = compiler_gate.gate_program(site.cache, site.compiler)
            gate = compiler_gate.place_gate(gate, site.tree / "gate", site.compiler)
            (folder / "gate").symlink_to(gate)  # for who knows the folder alone
            fifo = stack.enter_context(jobserver.hold_open(folder))
            guard = _Guard(site, folder, fifo)
            stack.enter_context(guard.serving())
        except OSError as error:
            build = GuardedBuild()
            build.messages.put(f"this build has no memory guard ({error}): {_unguarded_text(site)}")
        else:
            hooks = compiler_gate.gate_hooks(gate, caching)
            environment = {**hooks, GATE: str(folder)}
            build = GuardedBuild(
                gate, folder, fifo, hooks, environment, guard.account, guard.messages, guard.refuse
            )
        yield build


def _unguarded_text(site: GuardSite) -> str:
    return f"compiling {site.unguarded} {'file' if site.unguarded == 1 else 'files'} at a time"


@contextlib.contextmanager
def _meeting_folder(site: GuardSite) -> Iterator[Path]:
    """Make the folder in which gates and guard meet; with it goes whatever of the build still runs.

    It has a file for each unit that may run without a guard. Raises OSError where there is no place for it,
    or none is wanted.
    """
    if not site.enabled:
        raise OSError("--no-guard")
    if sys.platform == "win32":
        raise OSError("Python on Windows has no Unix sockets")
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
            processes.end_by_variable(GATE, str(folder))
        finally:  # also where Ctrl-C comes again
            shutil.rmtree(folder, ignore_errors=True)


class _Guard:
    """The guard's process, and what it has reported so far."""

    def __init__(self, site: GuardSite, folder: Path, fifo: Path | None) -> None:
        self.account = BuildAccount()
        self.messages: SimpleQueue[str] = SimpleQueue()
        self._site, self._fifo = site, fifo
        self._errors = folder / "errors"
        self._ready = threading.Event()  # it is ready, or will never be
        self._served = False
        self._heard_recently = False  # within this second
        self._ending = threading.Event()
        self._process = self._start_process()
        paths = str(folder), str(site.timeline), str(site.history)
        self._send(GuardCommand(*paths, site.roots, site.cores, site.memory, site.known).to_line())
        self._listener = threading.Thread(target=self._listen, name="guard", daemon=True)
        self._listener.start()

    @contextlib.contextmanager
    def serving(self) -> Iterator[None]:
        """Wait until it serves, and end it when the context ends; raise OSError where it does not serve."""
        self._ready.wait(START_TIMEOUT_SECONDS)
        if not self._served:
            self._end()
            raise OSError(self._last_words())
        threading.Thread(target=self._watch, name="watch", daemon=True).start()
        try:
            yield
        finally:
            self._end()

    def refuse(self) -> None:
        """Let no compiler start that waits: the build has failed."""
        self._send("refuse")

    def _end(self) -> None:
        """Let it write the rest of its records; kill it where it does not."""
        self._ending.set()
        self._send("end")
        try:
            self._process.wait(START_TIMEOUT_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._listener.join(START_TIMEOUT_SECONDS)
        for pipe in filter(None, (self._process.stdin, self._process.stdout)):
            with contextlib.suppress(OSError):
                pipe.close()

    def _last_words(self) -> str:
        """Return the last line that it wrote to stderr."""
        try:
            lines = self._errors.read_text(encoding="utf-8", errors="replace").splitlines()
        except OSError:
            lines = []
        return lines[-1] if lines else "it gave no reason"

    def _start_process(self) -> subprocess.Popen[str]:
        """Start it in a session of its own: Ctrl-C is for the build."""
        package = Path(__file__).parents[1]  # -P keeps the folder that it runs in off the path
        path = os.pathsep.join(filter(None, [str(package), self._site.environ.get("PYTHONPATH")]))
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
        with contextlib.suppress(OSError):  # it is gone, which the listener notices
            if self._process.stdin is not None:
                self._process.stdin.write(line + "\n")
                self._process.stdin.flush()

    def _listen(self) -> None:
        """Enter its records in the account until it ends."""
        for line in self._process.stdout or ():
            self._heard_recently = True
            if not self._served and line == READY:
                self._served = True
                self._ready.set()
                continue
            with contextlib.suppress(ValueError):
                self._handle_record(parse_record(line))
        self._ready.set()
        if self._served and not self._ending.is_set():
            if self._fifo is not None:
                jobserver.withdraw_tokens(self._fifo)
            # what it saw last says nothing of now
            self.account.now = replace(
                self.account.now, used=0, allowed=0, running=0, waiting=0, paused=0
            )
            fallback = _unguarded_text(self._site)
            self.messages.put(
                f"the guard ended unexpectedly ({self._last_words()}): {fallback} from here on"
            )

    def _watch(self) -> None:
        """Kill it where it hangs: gates would wait for it for ever, and go on by themselves when it is gone.

        Seconds are counted, not a clock read: while this process was stopped nobody listened.
        """
        silent = 0
        while not self._ending.wait(1.0):
            silent = 0 if self._heard_recently else silent + 1
            self._heard_recently = False
            if silent == SILENCE_TIMEOUT_SECONDS:
                self._process.kill()
                return

    def _handle_record(self, record: Record) -> None:
        self.account.add(record)
        if not isinstance(record, TimelineEvent) or record.kind not in EVENT_MESSAGES:
            return
        count = self.account.counts[record.kind]
        if count <= LISTED_PER_KIND:
            unit = units.unit_title(record.key) if record.key else ""
            message = EVENT_MESSAGES[record.kind]
            self.messages.put(
                message.format(unit=unit, text=record.text, history=self._site.history)
            )
        if count == LISTED_PER_KIND:
            self.messages.put(
                "further files of this kind are only counted: `invoke report` lists them"
            )
