"""Run one command under a guard: `millguard -- COMMAND`, and the same for Python programs.

`run_guarded` runs the command; `guard_commands` guards commands that the caller runs.

The guard is a process that lets compilers start as memory allows (see `session`). The command finds
it by variables in its environment, so it needs no change.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import psutil

from millguard import build_variables, places, processes, recorded_runs
from millguard.end_signals import EndSignals
from millguard.known_costs import load_known_costs
from millguard.limits import LimitMeter
from millguard.observers import BuildObserver, ObserverThread
from millguard.server import GATE
from millguard.session import GuardedBuild, GuardSite, guard_programs
from millguard.status_line import StatusLine, describe_account
from millguard.timeline import BuildAccount
from millguard.unguarded import UnguardedCompilers, UnguardedWatch

# Exit codes of a command that could not be started, as a shell gives them.
CANNOT_RUN = 126
NOT_FOUND = 127
SIGNALLED = 128  # and the number of the signal that ended the command
NOT_RECORDED = Path(os.devnull)  # the timeline of a run that cannot be kept
# If no guard can start, as many compilers may run as there is memory for at so many bytes each.
UNGUARDED_BYTES = 2 * 2**30
# `env` starts the command: it is intercepted, and Python's own start of a program is not. Otherwise
# `millguard -- gcc …` would start a compiler that the guard does not see.
_ENV = ("/usr/bin/env",)
_LOOK_SECONDS = 0.25  # between two looks at messages and the status
IMPATIENT_SECONDS = 2.0  # that programs get to end after a second Ctrl-C


class CommandNotStartedError(OSError):
    """The command is not there, or cannot be run; `exit_code` is the one that a shell gives."""

    def __init__(self, message: str, exit_code: int) -> None:
        super().__init__(message)
        self.exit_code = exit_code


@dataclass(frozen=True, slots=True)
class GuardOptions:
    """The wishes of a user for a guarded command; each has a default."""

    memory: int | None = None  # bytes for all compilers together; None: all that is available
    jobs: int | None = None  # compilers at a time, at most; None: as many as there are processors
    cache: Path | None = None  # the folder for measured needs; None: the user's, see `places`
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    observers: tuple[BuildObserver, ...] = ()  # that are told of the build; see `observers`


@dataclass(frozen=True, slots=True)
class GuardedResult:
    """How a guarded command ended, and the work of its guard."""

    exit_code: int  # the command's own; 128 and the number of the signal that ended it
    signal: int | None  # that ended the command; None if it ended by itself
    recording: Path | None  # the timeline of its compilers; None if it could not be kept
    account: BuildAccount  # the work of the guard
    unguarded: UnguardedCompilers  # compilers that did not come to the guard
    was_guarded: bool  # False: no guard could start, and the command ran without

    def messages(self, program: str) -> Iterator[str]:
        """Yield what a user should know: the work of the guard, and what it did not see.

        `program` is the name of the command. Without a guard, the user learned that when it began.
        """
        if not self.was_guarded:
            return
        unguarded = list(self.unguarded.messages())
        if self.account.units:
            yield self.account.summary()
        elif not unguarded:
            yield f"{program} started no compiler that had to be guarded"
        yield from unguarded


def run_guarded(
    command: Sequence[str],
    options: GuardOptions | None = None,
    status: StatusLine | None = None,
) -> GuardedResult:
    """Run a command so that its compilers start as memory allows, and wait for its end.

    The command has the input and output of this process. `status` takes messages about the guard;
    without it there are none. Signals that ask this process to end reach the command, if this is
    the main thread: Python handles signals in no other. Raises CommandNotStartedError.
    """
    if options is None:
        options = GuardOptions()
    _check_program(command[0], options.environ)
    began = recorded_runs.wall_clock()
    # Somebody may set the clock of the wall while the build runs.
    began_monotonic = time.monotonic()
    folder = _current_folder()
    shown_command = recorded_runs.without_credentials(command)
    with ObserverThread(options.observers) as observing:
        site = replace(_site(options), on_record=observing.record)
        with guard_programs(site) as plain_build:
            build = _add_job_variables(plain_build, site, options)
            run = _CommandRun(build, status)
            run.report_messages()
            observing.begin(shown_command, folder)
            code = run.wait_for(_start_words(command), {**options.environ, **build.environment})
        record = recorded_runs.RunRecord(
            command=shown_command,
            folder=folder,
            began=recorded_runs.iso_time(began),
            seconds=round(time.monotonic() - began_monotonic, 3),
            exit_code=code if code >= 0 else SIGNALLED - code,
            cores=options.jobs or LimitMeter().cores().count,
            unguarded=dict(run.watch.compilers.counts),
        )
        result = GuardedResult(
            exit_code=record.exit_code,
            signal=-code if code < 0 else None,
            recording=_keep_recording(site, record, build.account),
            account=build.account,
            unguarded=run.watch.compilers,
            was_guarded=build.gate is not None,
        )
        observing.end(result)
    for message in observing.problems:
        build.messages.put(message)
    run.report_messages()
    return result


@contextlib.contextmanager
def guard_commands(options: GuardOptions | None = None) -> Iterator[GuardedBuild]:
    """Guard every command that the caller starts with the build's `environment` in this context.

    Add these variables to those of the command; they lead its compilers to the guard and say how
    many to start. The build's `messages` are for the user. Nothing is recorded for `millguard
    report`, and observers are told of records only. If no guard can start, the build has no gate, a
    message says why, and the variables limit the commands.
    """
    if options is None:
        options = GuardOptions()
    with ObserverThread(options.observers) as observing:
        site = replace(_site(options), timeline=NOT_RECORDED, on_record=observing.record)
        with guard_programs(site) as build:
            yield _add_job_variables(build, site, options)


def _add_job_variables(build: GuardedBuild, site: GuardSite, options: GuardOptions) -> GuardedBuild:
    """Return the build with the variables that tell its commands how many compilers to start."""
    jobs = options.jobs or LimitMeter().cores().count
    if build.gate is None:  # nothing but these variables limits the commands
        jobs = min(jobs, site.unguarded)
    variables = build_variables.choose_variables(options.environ, jobs)
    if build.gate is not None:
        for message in variables.messages:
            build.messages.put(message)
    return replace(build, environment={**variables.added, **build.environment})


def _current_folder() -> str:
    """Return the current folder; "" if somebody has removed it, which is no reason not to run."""
    try:
        return str(Path.cwd())
    except OSError:
        return ""


def _start_words(command: Sequence[str]) -> list[str]:
    """Return the words that start a command by a program that is intercepted.

    env takes a program with "=" in its path for an assignment, so that one is started directly.
    """
    if "=" in command[0]:
        return list(command)
    return [*_ENV, *command]


class _CommandRun:
    """The command while it runs, and the messages about it."""

    def __init__(self, build: GuardedBuild, status: StatusLine | None) -> None:
        self.watch = UnguardedWatch(is_guarded=build.gate is not None, folder=build.folder)
        self._build = build
        self._status = status
        self._signals = EndSignals()

    def wait_for(self, argv: Sequence[str], environment: Mapping[str, str]) -> int:
        """Run the command to its end; return its exit code, or less than 0 for a signal.

        Raises CommandNotStartedError.
        """
        with self._signals.noted():
            try:
                # The command gets what this process has inherited: the jobserver of a make above it,
                # and bash's `<(…)`. Python closes its own descriptors by itself.
                process = subprocess.Popen(argv, env=environment, close_fds=False)
            except OSError as error:
                reason = f"{argv[0]} cannot be run: {error.strerror}"
                raise CommandNotStartedError(reason, CANNOT_RUN) from None
            with self._signals.awaited():
                code = self._wait(process)
            if self._build.gate is not None and self._must_end_all(code):
                processes.end_by_variable(GATE, str(self._build.folder))
        return code

    def _must_end_all(self, code: int) -> bool:
        """Tell whether the user wanted an end of everything, not of the command's process alone.

        A command that goes on after Ctrl-C and ends well, such as a shell, has dealt with it.
        """
        return self._signals.told_to_end or (self._signals.interruptions > 0 and code != 0)

    def report_messages(self) -> None:
        """Pass the guard's messages on to the user; without a status they are dropped."""
        while not self._build.messages.empty():
            message = self._build.messages.get()
            if self._status is not None:
                self._status.report(message)

    def _wait(self, process: subprocess.Popen[bytes]) -> int:
        """Show the state of the build until a process has ended; return its exit code."""
        try:
            code = None
            while code is None:
                code = self._signals.wait(process, _LOOK_SECONDS)
                if code is None and self._signals.is_impatient:
                    _end_at_once(process)
                self.report_messages()
                self.watch.look(process.pid)
                if self._status is not None and self._build.account.now.running:
                    self._status.draw(describe_account(self._build.account))
            return code
        finally:
            if self._status is not None:
                self._status.close()


def _end_at_once(process: subprocess.Popen[bytes]) -> None:
    """End a command and everything below it, whether it wants to or not."""
    below = []
    with contextlib.suppress(psutil.Error, OSError):  # without /proc nothing can be seen
        below = psutil.Process(process.pid).children(recursive=True)
    process.terminate()
    process.send_signal(signal.SIGCONT)  # a stopped process receives the signal when it goes on
    processes.end_processes(below, IMPATIENT_SECONDS)
    # psutil would take the command's exit code away from `process`.
    try:
        process.wait(IMPATIENT_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()


def _check_program(name: str, environ: Mapping[str, str]) -> None:
    """Check that a command's program can be run. Raises CommandNotStartedError."""
    if shutil.which(name, path=environ.get("PATH", os.defpath)) is not None:
        return
    if name and Path(name).is_dir():
        raise CommandNotStartedError(f"{name} cannot be run: it is a folder", CANNOT_RUN)
    if os.sep in name and Path(name).exists():
        raise CommandNotStartedError(f"{name} cannot be run: it is not executable", CANNOT_RUN)
    raise CommandNotStartedError(f"{name}: command not found", NOT_FOUND)


def _site(options: GuardOptions) -> GuardSite:
    """Return the settings of the guard."""
    meter = LimitMeter()
    memory = min(meter.memory().available, options.memory or sys.maxsize)
    cores = options.jobs or meter.cores().count
    cache = places.cache_folder(options.environ) if options.cache is None else options.cache
    try:
        timeline = recorded_runs.new_recording(cache)
    except OSError:  # the cache is read-only or full: this run is not recorded
        timeline = NOT_RECORDED
    return GuardSite(
        tree=cache,
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


def _compiler(environ: Mapping[str, str]) -> Sequence[str]:
    """Return the compiler for the gate. It is not CC, which may compile for another machine."""
    for name in ("cc", "gcc", "clang"):
        program = shutil.which(name, path=environ.get("PATH", os.defpath))
        if program is not None:
            return [program]
    return ["cc"]  # the message about it names what to install


def _keep_recording(
    site: GuardSite, record: recorded_runs.RunRecord, account: BuildAccount
) -> Path | None:
    """Keep the timeline of a run that compiled something; return its path, or None."""
    if site.timeline == NOT_RECORDED:
        return None
    try:
        if account.units == 0:
            site.timeline.unlink(missing_ok=True)
            return None
        recorded_runs.save_run(site.timeline, record)
    except OSError:
        return None
    return site.timeline
