"""Compile one raw wheel under the memory guard, cut off from the network."""

import contextlib
import os
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path, PurePath
from typing import Any

from millguard import units
from millguard.session import GuardedBuild, GuardSite, guard_build
from millguard.timeline import BuildAccount

from torchmill.cell import share
from torchmill.cell.cache_setup import set_up_compiler_cache
from torchmill.cell.context import BuildContext, session_command
from torchmill.cell.environment import fill_placeholders
from torchmill.cell.guarded_compilers import compiler_environment
from torchmill.cell.progress_line import ProgressLine
from torchmill.cell.sandbox import Sandbox, choose_sandbox
from torchmill.config.versions import python_key
from torchmill.core import reaper
from torchmill.core.errors import BuildError, MemoryBuildError, TorchmillError
from torchmill.core.ninja import parse_edge, parse_failure
from torchmill.core.process import CommandError, stream
from torchmill.core.system_errors import blame_disk
from torchmill.plan import causes
from torchmill.plan.job_count import count_jobs, largest_compile, usable_memory
from torchmill.toolchain import compiler_cache
from torchmill.toolchain.compiler_cache import CompilerCache, read_cache_hits, record_hits
from torchmill.toolchain.sccache import watch_shared_cache

# Causes of failures that a build without network can have.
_DOWNLOAD_CAUSES = {"nccl-download", "configure-download", "network"}
_SETUP_MODULES = Path(compiler_cache.__file__).with_name("setup_modules.py")
_OLDEST_PYTHON_OF_SETUP_MODULES = "3.8"


class BuildOutput:
    """The lines that a build prints while it runs, and what follows from them.

    `ends_at_failure` is false for a share of a build, which goes on with all other files.
    """

    def __init__(self, line: ProgressLine, guard: GuardedBuild, *, ends_at_failure: bool) -> None:
        self.edges = 0  # begun or finished
        self._line = line
        self._guard = guard
        self._watches_failures = ends_at_failure

    def read(self, text: str) -> None:
        """Take one line.

        After the first failure no further compiler starts: ninja alone would go on until those that
        it has started are done, and with a guard it has started many that wait.
        """
        edge = parse_edge(text)
        if edge is not None and edge.done > 0:
            self.edges += 1
        self._line.edge(text, self._guard.account)
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
        """Show the guard's messages."""
        while not self._guard.messages.empty():
            self._line.note(self._guard.messages.get())


def compile_wheel(context: BuildContext, line: ProgressLine) -> tuple[Path, dict[str, Any]]:
    """Run the build; return the wheel as it made it, and the run's part of the manifest.

    Raises BuildError with the compiler's own last error, MemoryBuildError if memory was short.
    """
    raw = context.outputs.raw
    shutil.rmtree(raw, ignore_errors=True)
    raw.mkdir(parents=True)
    context.log.parent.mkdir(parents=True, exist_ok=True)
    # A timeline of an earlier build would be taken for this one's, if the guard cannot write.
    with contextlib.suppress(OSError):
        context.timeline.unlink()
    cache = set_up_compiler_cache(context, line.note)
    with (
        guard_build(_guard_site(context), cache.variables) as guard,
        context.log.open("w", 1, "utf-8") as log,
    ):
        output = BuildOutput(line, guard, ends_at_failure=context.options.shard is None)
        compilers = compiler_environment(context, guard, cache, line.note)
        variables = share.order_share(context, compilers)
        line.expect(share.pace_by_costs(context))
        cpu_before = _children_cpu_seconds()
        sandbox = choose_sandbox(context.options.network, cache, variables)
        if sandbox.why_open and not context.options.network:
            line.note(
                f"the build has the network ({sandbox.why_open}): what it downloads is not recorded"
            )
        try:
            with (
                watch_shared_cache(
                    _watched_cache(guard, cache), variables, guard.folder, guard.messages.put
                ),
                share.end_as_asked(context),
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
            log.flush()
            raise _explain_failure(context, error, guard.account, sandbox) from error
        finally:
            output.show_messages()
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
    largest = largest_compile(context.facts, context.plan.build, context.plan.release.version)
    memory = usable_memory(context.host, context.options)
    cores = context.host.resources.cores
    # Without a guard as many compilers run as were asked for, if memory is enough for them.
    fitting = count_jobs(cores, memory, int(largest.high)).count
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
        environ=reaper.without_mark(os.environ),  # the guard sees to its own end
        enabled=context.options.guard,
    )


def _watched_cache(guard: GuardedBuild, cache: CompilerCache) -> Any:
    """Return the shared cache that has to be watched; None for ccache, which gives up by itself."""
    return cache.shared if guard.gate and cache.tool == "sccache" else None


def _command_words(
    context: BuildContext, argv: tuple[str, ...], variables: Mapping[str, str]
) -> list[str]:
    """Return the words of a command, with placeholders filled in.

    setup.py compiles its modules side by side if the guard holds all compilers. Shares of a build
    do so as well. A build that takes their parts does not, because its compilers have to run in the
    folder that they ran in: a compiler cache sees it.
    """
    words = [fill_placeholders(word, context.placeholders) for word in argv]
    runs_setup = context.package.compilers == "path" and argv[1:2] == ("setup.py",)
    oldest = python_key(_OLDEST_PYTHON_OF_SETUP_MODULES)
    is_able = context.host.system == "linux" and python_key(context.plan.build.python) >= oldest
    is_held = variables["MAX_JOBS"] != context.plan.variables["MAX_JOBS"]
    is_side_by_side = context.options.shard or (is_held and context.options.parts is None)
    if runs_setup and is_able and is_side_by_side:
        words.insert(1, str(_SETUP_MODULES))
    return words


def _only_wheel(context: BuildContext) -> Path:
    """Return the wheel that the build made. Raises BuildError if it made none, or several."""
    wheels = list(context.outputs.raw.glob("*.whl"))
    if len(wheels) != 1:
        raise BuildError(
            f"{context.plan.identifier}: expected one wheel in {context.outputs.raw}, found {len(wheels)}: "
            f"see {context.log}",
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
            f"{identifier}: {units.unit_title(unit.key)} was killed or ran out of memory, even alone: it {unit.text}; "
            "give the machine, its container or its job more memory, or add swap "
            "(`invoke jobs` shows the limit, `dmesg` what was killed and why)"
        )
        return MemoryBuildError("\n".join([headline, *places]), code="out-of-memory")
    disk_error = blame_disk("", context.tree.folder, context.layout.cache)
    if disk_error is not None:  # a full disk makes tools fail in words of their own
        return disk_error
    with context.log.open(encoding="utf-8", errors="replace") as lines:
        diagnosis = causes.diagnose(context.facts.causes, lines, context.plan.release.torch_version)
    headline = f"{identifier}: {diagnosis.headline if diagnosis.line_number else error}"
    if sandbox.prefix and diagnosis.match and diagnosis.match.cause.name in _DOWNLOAD_CAUSES:
        places.append(
            "  a build has no network, so that nothing unrecorded goes into its wheel; "
            f"to let this one download: {session_command(context, '--network')}"
        )
    advice = causes.diagnosis_advice(diagnosis)
    return BuildError("\n".join([headline, *places, *advice]), code="compile-failed")


def _children_cpu_seconds() -> float:
    """Return the processor time of all children that ended; 0 on Windows, which does not tell."""
    times = os.times()
    return times.children_user + times.children_system
