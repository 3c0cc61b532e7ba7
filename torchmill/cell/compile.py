"""Compile one raw wheel under the memory guard, cut off from the network."""

import contextlib
import os
import shlex
import shutil
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path, PurePath
from typing import Any

from millguard import units
from millguard.places import board_folder
from millguard.session import GuardedBuild, GuardSite, guard_build
from millguard.timeline import BuildAccount

from torchmill.cell import share
from torchmill.cell.cache_setup import set_up_compiler_cache
from torchmill.cell.context import BuildContext, session_command
from torchmill.cell.environment import fill_placeholders
from torchmill.cell.guarded_compilers import prepare_compiler_environment
from torchmill.cell.progress_line import ProgressLine
from torchmill.cell.sandbox import Sandbox, choose_sandbox
from torchmill.config.versions import python_key
from torchmill.core import reaper
from torchmill.core.errors import BuildError, MemoryBuildError, TorchmillError
from torchmill.core.ninja import parse_edge, parse_failure
from torchmill.core.process import CommandError, stream
from torchmill.core.system_errors import blame_disk
from torchmill.plan import causes
from torchmill.plan.diagnosis import answer
from torchmill.plan.diagnosis.host_facts import session_facts
from torchmill.plan.job_count import count_jobs, largest_compile, usable_memory
from torchmill.toolchain import compiler_cache
from torchmill.toolchain.compiler_cache import read_cache_hits, record_hits
from torchmill.toolchain.sccache import watch_shared_cache

# Causes of failures that a build without network can have.
_DOWNLOAD_CAUSES = {"nccl-download", "configure-download", "network"}
# A program that runs a setup.py and compiles its extension modules.
_SETUP_MODULES = Path(compiler_cache.__file__).with_name("setup_modules.py")
_OLDEST_PYTHON_OF_SETUP_MODULES = "3.8"


class BuildOutput:
    """The reader of the lines that a build prints: it moves the progress line and stops the build.

    After the first failure no further compiler starts. ninja alone would stop only when those that
    it has started are done, and with a guard it has started many that wait for memory. A share of a
    build goes on with all other files instead (`ends_at_failure` is false).
    """

    def __init__(self, line: ProgressLine, guard: GuardedBuild, *, ends_at_failure: bool) -> None:
        self.edges = 0  # commands of ninja ("edges") that began or finished
        self._line = line
        self._guard = guard
        self._watches_failures = ends_at_failure

    def read(self, text: str) -> None:
        """Take one line of the build's output."""
        edge = parse_edge(text)
        if edge is not None and edge.done > 0:
            self.edges += 1
        self._line.read(text, self._guard.account)
        failed = parse_failure(text)
        if failed and self._watches_failures:
            self._watches_failures = False
            self._guard.refuse()
            self._line.note(
                f"{PurePath(failed).name} failed: no other compiler starts, "
                "and those that run are waited for"
            )
        self.show_messages()

    def show_messages(self) -> None:
        """Show the messages that the guard has for the user, each once."""
        while not self._guard.messages.empty():
            self._line.note(self._guard.messages.get())


def compile_wheel(context: BuildContext, line: ProgressLine) -> tuple[Path, dict[str, Any]]:
    """Run the build; return the wheel as the build made it, and this run's part of the manifest.

    Raw wheel, log and timeline of an earlier run are deleted first. Raises BuildError with the
    compiler's own last error, MemoryBuildError if memory was short, UnfinishedBuildError if a share
    is made or the time of `--until` is up, HostError for a full disk.
    """
    raw = context.outputs.raw
    shutil.rmtree(raw, ignore_errors=True)
    raw.mkdir(parents=True)
    context.log.parent.mkdir(parents=True, exist_ok=True)
    # If the guard cannot write a timeline, that of an earlier build must not be taken for this
    # one's.
    with contextlib.suppress(OSError):
        context.timeline.unlink()
    cache = set_up_compiler_cache(context, line.note)
    with (
        guard_build(_guard_site(context), cache.variables) as guard,
        context.log.open("w", 1, "utf-8") as log,
    ):
        output = BuildOutput(line, guard, ends_at_failure=context.options.shard is None)
        compilers = prepare_compiler_environment(context, guard, cache, line.note)
        variables = share.request_share(context, compilers)
        line.expect(share.pace_by_costs(context))
        cpu_before = _children_cpu_seconds()
        sandbox = choose_sandbox(cache, variables, network_allowed=context.options.network)
        if sandbox.why_open and not context.options.network:
            line.note(
                f"the build has the network ({sandbox.why_open}): what it downloads is not recorded"
            )
        # A file in the guard's folder switches sccache off. ccache gives up on its shared cache
        # by itself.
        watched_cache = cache.shared if guard.gate and cache.tool == "sccache" else None
        try:
            with (
                watch_shared_cache(watched_cache, variables, guard.folder, guard.messages.put),
                share.report_planned_end(context),
            ):
                for command in context.plan.commands:
                    words = _command_words(context, command.argv, variables)
                    stream(
                        [*sandbox.prefix, *words],
                        cwd=context.tree.source,
                        env=variables,
                        log=log,
                        on_line=output.read,
                    )
        except CommandError as error:
            log.flush()  # the explanation reads it
            raise _explain_failure(context, error, guard.account, sandbox) from error
        finally:
            output.show_messages()
            line.settle()
        cpu_seconds = _children_cpu_seconds() - cpu_before
        hits = read_cache_hits(cache, variables)  # while the cache's server runs
    output.show_messages()  # the guard reports at its end what could not be cached
    account = guard.account if guard.gate else None
    if account is not None and account.units:
        line.note(account.summary())
    if hits is not None:
        line.note(str(hits))
        record_hits(hits, context.timeline, guard.account.now.at)
    return _only_wheel(context), {
        "edges": output.edges,
        "cpu_seconds": round(cpu_seconds, 1),
        "slots": variables["MAX_JOBS"],
        "guard": _describe_guard(context, account) if account else None,
        "cache": asdict(hits) if hits else None,
        "network": f"open: {sandbox.why_open}" if sandbox.why_open else "none",
    }


def _guard_site(context: BuildContext) -> GuardSite:
    """Return what the guard has to know: where the build happens, and what it may use."""
    largest = largest_compile(context.facts, context.plan.build, context.plan.release.version)
    memory = usable_memory(context.host, context.options)
    cores = context.host.resources.cores
    # If no guard starts, at most as many compilers run as fit into memory when all are large.
    fitting = count_jobs(cores, memory=memory, per_job=int(largest.high)).count
    return GuardSite(
        tree=context.tree.folder,
        cache=context.layout.cache,
        timeline=context.timeline,
        compiler=shlex.split(context.host.programs.paths.get("c++", "c++")),
        unguarded=min(context.plan.jobs, fitting),
        cores=context.options.jobs,
        memory=context.options.memory,
        roots=(str(context.tree.source.resolve()),),
        known=context.known_units,
        # Without the mark the reaper leaves the guard alone, which ends by itself after the build.
        environ=reaper.without_mark(os.environ),
        enabled=context.options.guard,
        board=board_folder(os.environ),  # builds of other checkouts are of the same machine
        listing_hint="`invoke report` lists them",
    )


def _command_words(
    context: BuildContext, argv: tuple[str, ...], variables: Mapping[str, str]
) -> list[str]:
    """Return the words of a command, with placeholders filled in.

    If the command runs a setup.py that takes compilers from PATH, the program that compiles its
    modules is put before it, except for a Python that is too old for that program. `variables` are
    the environment of the build.
    """
    words = [fill_placeholders(word, context.placeholders) for word in argv]
    is_setup = context.package.setup.compilers == "path" and argv[1:2] == ("setup.py",)
    oldest = python_key(_OLDEST_PYTHON_OF_SETUP_MODULES)
    if is_setup and python_key(context.plan.build.python) >= oldest:
        is_parallel = _compiles_modules_side_by_side(context, variables)
        words[1:1] = [str(_SETUP_MODULES), "parallel" if is_parallel else "serial"]
    return words


def _compiles_modules_side_by_side(context: BuildContext, variables: Mapping[str, str]) -> bool:
    """Tell whether a build compiles several modules of a setup.py at a time."""
    if context.host.system != "linux":
        return False
    if context.options.shard is not None:
        return True
    if context.options.parts is not None:
        # The objects of shares are found by a compiler cache, whose keys have the folder in which a
        # compiler runs. It must be the one in which the shares were compiled.
        return False
    # More compilers are started than the plan has jobs only if the guard holds all of them.
    return variables["MAX_JOBS"] != context.plan.variables["MAX_JOBS"]


def _only_wheel(context: BuildContext) -> Path:
    """Return the wheel that the build made. Raises BuildError if it made none, or several."""
    wheels = list(context.outputs.raw.glob("*.whl"))
    if len(wheels) != 1:
        raise BuildError(
            f"{context.plan.identifier}: expected one wheel in {context.outputs.raw}, "
            f"found {len(wheels)}: see {context.log}",
            code="not-one-wheel",
        )
    return wheels[0]


def _describe_guard(context: BuildContext, account: BuildAccount) -> dict[str, Any]:
    """Return the manifest's entry about the guard: bytes, seconds, numbers of events."""
    return {
        "peak": account.peak,
        "allowed": account.now.allowed,
        "cores": context.options.jobs or context.host.resources.cores,
        "units": account.units,
        "pauses": account.counts.get("pause", 0),
        "reruns": account.counts.get("rerun", 0),
        "kills": account.counts.get("kill", 0),
        "short": round(account.now.short, 1),
        "timeline": os.path.relpath(context.timeline, context.layout.dist),
    }


def _explain_failure(
    context: BuildContext, error: CommandError, account: BuildAccount, sandbox: Sandbox
) -> TorchmillError:
    """Return the error to show for a build that failed: its cause, and how to go on."""
    identifier = context.plan.identifier
    places = [
        f"  the whole log: {context.log}",
        f"  the tree:      {context.tree.source}",
        f"  to continue where it stopped: {session_command(context)}",
    ]
    if account.gave_up:
        unit = account.gave_up[-1]
        headline = (
            f"{identifier}: {units.unit_title(unit.key)} was killed or ran out of memory, even "
            f"alone: it {unit.text}; "
            "give the machine, its container or its job more memory, or add swap "
            "(`invoke jobs` shows the limit, `dmesg` what was killed and why)"
        )
        return MemoryBuildError("\n".join([headline, *places]), code="out-of-memory")
    disk_error = blame_disk("", context.tree.folder, context.layout.cache)
    if disk_error is not None:
        # Each tool has words of its own for a full disk, so this is asked before the log is read.
        return disk_error
    with context.log.open(encoding="utf-8", errors="replace") as lines:
        diagnosis = causes.diagnose(
            context.facts.causes,
            lines,
            context.plan.release.torch_version,
            time.process_time,
            rules=context.facts,
            machine_facts=session_facts(context.plan, context.host),
        )
    headline = f"{identifier}: {diagnosis.headline if diagnosis.line_number else error}"
    if sandbox.prefix and diagnosis.match and diagnosis.match.cause.name in _DOWNLOAD_CAUSES:
        places.append(
            "  a build has no network, so that nothing unrecorded goes into its wheel; "
            f"to let this one download: {session_command(context, '--network')}"
        )
    advice = answer.diagnosis_advice(diagnosis)
    return BuildError("\n".join([headline, *places, *advice]), code="compile-failed")


def _children_cpu_seconds() -> float:
    """Return the processor seconds of all children that ended; 0 on Windows, which has no such count."""
    times = os.times()
    return times.children_user + times.children_system
