"""Run one command under a guard: `millguard -- COMMAND`, and the same for Python programs."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from millguard import build_variables, places, processes, recorded_runs
from millguard.known_costs import load_known_costs
from millguard.limits import LimitMeter
from millguard.server import GATE
from millguard.session import GuardedBuild, GuardSite, guard_programs
from millguard.status_line import StatusLine, describe_account
from millguard.timeline import BuildAccount
from millguard.unguarded import UnguardedCompilers, UnguardedWatch

# Exit codes of a command that could not be started, as a shell gives them.
CANNOT_RUN = 126
NOT_FOUND = 127
SIGNALLED = 128  # and the number of the signal that ended the command
UNGUARDED_BYTES = 2 * 2**30  # for each compiler at a time, if no guard can start
# The command is started by a program that is intercepted itself: it may be a compiler.
_ENV = ("/usr/bin/env",)
_LOOK_SECONDS = 0.25  # between two looks at messages and the status
# Passed on to the command, and waited for. SIGINT is not: a terminal sends it to the command itself.
_PASSED_ON = (signal.SIGTERM, signal.SIGHUP)


class CommandNotStartedError(OSError):
    """The command is not there, or cannot be run; `exit_code` is the one that a shell gives."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass(frozen=True, slots=True)
class GuardOptions:
    """What a user decides about a guarded command; nothing needs to be."""

    memory: int | None = None  # bytes for all compilers together; None: what the machine has left
    jobs: int | None = None  # compilers at a time, at most; None: as many as there are processors
    cache: Path | None = None  # for what is learned; None: the user's own, see `places`
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))


@dataclass(frozen=True, slots=True)
class GuardedResult:
    """What came of a guarded command."""

    exit_code: int  # the command's own; 128 and the number of the signal that ended it
    signal: int | None  # that ended the command; None if it ended by itself
    recording: Path | None  # the timeline of its compilers; None if it could not be kept
    account: BuildAccount  # what the guard did
    unguarded: UnguardedCompilers  # compilers that did not come to the guard
    was_guarded: bool  # whether there was a guard at all


def run_guarded(
    command: Sequence[str],
    options: GuardOptions | None = None,
    status: StatusLine | None = None,
) -> GuardedResult:
    """Run a command so that its compilers start as memory allows, and wait for its end.

    The command has the input and output of this process. Without `status` nothing is said of the
    guard. Raises CommandNotStartedError.
    """
    if options is None:
        options = GuardOptions()
    _check_program(command[0], options.environ)
    began = recorded_runs.wall_clock()
    cores = LimitMeter().cores().count
    variables = build_variables.choose_variables(options.environ, options.jobs or cores)
    with _site(options) as site:
        with guard_programs(site) as build:
            environment = {**options.environ, **variables.added, **build.environment}
            if status is not None:
                for message in variables.messages:
                    status.report(message)
            run = _CommandRun(build, status)
            code = run.wait_for([*_ENV, *command], environment)
        run.report_messages()
        record = recorded_runs.RunRecord(
            command=recorded_runs.without_credentials(command),
            folder=str(Path.cwd()),
            began=recorded_runs.iso_time(began),
            seconds=round(recorded_runs.wall_clock() - began, 3),
            exit_code=code if code >= 0 else SIGNALLED - code,
            cores=options.jobs or cores,
            unguarded=dict(run.watch.compilers.counts),
        )
        recording = _keep_recording(site, record, build.account)
    return GuardedResult(
        exit_code=record.exit_code,
        signal=-code if code < 0 else None,
        recording=recording,
        account=build.account,
        unguarded=run.watch.compilers,
        was_guarded=build.gate is not None,
    )


class _CommandRun:
    """The command while it runs, and what is said of it meanwhile."""

    def __init__(self, build: GuardedBuild, status: StatusLine | None) -> None:
        self.watch = UnguardedWatch(is_guarded=build.gate is not None)
        self._build = build
        self._status = status
        self._process: subprocess.Popen[bytes] | None = None
        self._asked_to_end = False

    def wait_for(self, argv: Sequence[str], environment: Mapping[str, str]) -> int:
        """Run the command to its end; return its exit code, or less than 0 for a signal.

        Raises CommandNotStartedError.
        """
        with self._signals_passed_on():
            try:
                self._process = subprocess.Popen(argv, env=environment)
            except OSError as error:
                reason = f"{argv[0]} cannot be run: {error.strerror}"
                raise CommandNotStartedError(reason, CANNOT_RUN) from None
            code = self._wait(self._process)
            if self._asked_to_end:
                # What it leaves behind was not to go on either.
                processes.end_by_variable(GATE, str(self._build.folder))
        return code

    def report_messages(self) -> None:
        """Tell the user what the guard has to say, if anybody wants to know."""
        while not self._build.messages.empty():
            message = self._build.messages.get()
            if self._status is not None:
                self._status.report(message)

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        try:
            while True:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    return process.wait(_LOOK_SECONDS)
                self.report_messages()
                self.watch.look(process.pid)
                if self._status is not None and self._build.account.now.running:
                    self._status.draw(describe_account(self._build.account))
        finally:
            if self._status is not None:
                self._status.close()

    @contextlib.contextmanager
    def _signals_passed_on(self) -> Iterator[None]:
        """Let signals that ask for an end reach the command, and wait for it all the same."""
        previous = {signal.SIGINT: signal.signal(signal.SIGINT, self._note_interrupt)}
        for number in _PASSED_ON:
            if signal.getsignal(number) != signal.SIG_IGN:  # as nohup leaves it
                previous[number] = signal.signal(number, self._pass_on)
        try:
            yield
        finally:
            for number, handler in previous.items():
                signal.signal(number, handler)

    def _note_interrupt(self, _number: int, _frame: FrameType | None) -> None:
        self._asked_to_end = True

    def _pass_on(self, number: int, _frame: FrameType | None) -> None:
        self._asked_to_end = True
        if self._process is not None:
            with contextlib.suppress(OSError):
                self._process.send_signal(number)


def _check_program(name: str, environ: Mapping[str, str]) -> None:
    """Check that a command's program can be run. Raises CommandNotStartedError."""
    if shutil.which(name, path=environ.get("PATH", os.defpath)) is not None:
        return
    if Path(name).is_dir():
        raise CommandNotStartedError(f"{name} cannot be run: it is a folder", CANNOT_RUN)
    if os.sep in name and Path(name).exists():
        raise CommandNotStartedError(f"{name} cannot be run: it is not executable", CANNOT_RUN)
    raise CommandNotStartedError(f"{name}: command not found", NOT_FOUND)


@contextlib.contextmanager
def _site(options: GuardOptions) -> Iterator[GuardSite]:
    """Yield the settings of the guard; what it needs for this run alone goes with the context."""
    meter = LimitMeter()
    memory = min(meter.memory().available, options.memory or sys.maxsize)
    cores = options.jobs or meter.cores().count
    cache = places.cache_folder(options.environ) if options.cache is None else options.cache
    folder = Path(tempfile.mkdtemp(prefix="millguard-tree-"))
    try:
        try:
            timeline = recorded_runs.new_recording(cache)
        except OSError:  # the home is read-only or full: this run is not kept
            timeline = folder / "timeline.jsonl"
        yield GuardSite(
            tree=folder,
            cache=cache,
            timeline=timeline,
            compiler=_compiler(options.environ),
            unguarded=max(1, min(cores, memory // UNGUARDED_BYTES)),
            cores=options.jobs,
            memory=options.memory,
            known=load_known_costs(),
            environ=options.environ,
            board=places.board_folder(options.environ),
            ends_leftovers=False,
            listing_hint="`millguard report` lists them",
        )
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _compiler(environ: Mapping[str, str]) -> Sequence[str]:
    """Return the compiler for the gate: the user's C compiler may be one for another machine."""
    for name in ("cc", "gcc", "clang"):
        program = shutil.which(name, path=environ.get("PATH", os.defpath))
        if program is not None:
            return [program]
    return ["cc"]  # what is missing, for the message


def _keep_recording(
    site: GuardSite, record: recorded_runs.RunRecord, account: BuildAccount
) -> Path | None:
    """Keep the timeline of a run that compiled something; return its path, or None."""
    if site.timeline.parent == site.tree:
        return None
    try:
        if account.units == 0:
            site.timeline.unlink(missing_ok=True)
            return None
        recorded_runs.save_run(site.timeline, record)
    except OSError:
        return None
    return site.timeline
