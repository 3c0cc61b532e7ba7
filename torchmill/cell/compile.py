"""Compile one raw wheel under the memory guard, cut off from the network: environment, command, log, error."""

import contextlib
import os
import re
import shlex
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path, PurePath
from typing import Any

from millguard import compiler_gate, jobserver, units
from millguard.limits import process_limit, process_room
from millguard.session import GuardedBuild, GuardSite, guard_build
from millguard.timeline import BuildAccount

from torchmill.cell import share
from torchmill.cell.context import (
    BuildContext,
    build_environment,
    fill_placeholders,
    session_command,
    set_up_compiler_cache,
)
from torchmill.cell.progress_line import ProgressLine
from torchmill.config.versions import python_key
from torchmill.core import reaper
from torchmill.core.errors import BuildError, HostError, MemoryBuildError, TorchmillError
from torchmill.core.lenient_paths import read_text, real_path
from torchmill.core.ninja import parse_edge, parse_failure
from torchmill.core.process import CommandError, capture, stream
from torchmill.core.system_errors import blame_disk
from torchmill.host.compilers import chosen_compilers, lenient_words
from torchmill.plan import causes
from torchmill.plan.job_count import count_jobs, guarded_slots, largest_compile, usable_memory
from torchmill.toolchain import compiler_cache, sccache
from torchmill.toolchain.compiler_cache import CompilerCache, read_cache_hits, record_hits
from torchmill.toolchain.sccache import watch_shared_cache

_COMPILER = re.compile(
    r"^CMAKE_(C|CXX|CUDA)_COMPILER:\w+=", re.MULTILINE
)  # assembly needs no memory
_DOWNLOADS = {
    "nccl-download",
    "configure-download",
    "network",
}  # causes of a build that has no network
_LAUNCHER = re.compile(r"^CMAKE_(\w+)_COMPILER_LAUNCHER:\w+=(.*)$", re.MULTILINE)
_OWN_FILES = 64  # that ninja and who starts it have open besides
_PROCESSES = (
    5  # of one compiler, at most: a shell, a cache, the gate, the driver and what that runs
)
_UNSHARE = (
    "unshare"  # of util-linux; sockets that are files, as the guard's, are reached from within
)
# As root; as a user who stays the same one; as a user who is root in there, where unshare is older.
_WAYS = (
    ("--net",),
    ("--user", "--map-current-user", "--net"),
    ("--user", "--map-root-user", "--net"),
)
_SETUP_MODULES = Path(compiler_cache.__file__).with_name("setup_modules.py")
_DISTRIBUTED = {"distcc", "icecc"}  # compilers that send their work to other machines
_SANDBOX_LAUNCHERS = (
    "CC",
    "CXX",
    "CCACHE_PREFIX",
    *(f"CMAKE_{one}_COMPILER_LAUNCHER" for one in ("C", "CXX", "CUDA")),
)


@dataclass(frozen=True, slots=True)
class Sandbox:
    """How a build is started, and why it has the network where it does."""

    prefix: tuple[str, ...] = ()  # words before its command; none: it has the network
    why_open: str = ""  # "" where it has none


def choose_sandbox(allowed: bool, cache: CompilerCache, variables: Mapping[str, str]) -> Sandbox:
    """Return the sandbox of a build with these variables; `allowed` says that it may have the network."""
    if why := "--network" if allowed else _why_needed(cache, variables):
        return Sandbox(why_open=why)
    if shutil.which(_UNSHARE) is None:
        return Sandbox(why_open="only Linux can take it away, with `unshare` (util-linux)")
    why = ""
    for options in _WAYS:
        try:
            capture([_UNSHARE, *options, "--", "true"])
        except (CommandError, HostError) as error:
            why = str(error)
        else:
            return Sandbox((_UNSHARE, *options, "--"))
    return Sandbox(why_open=f"this system does not let it be taken away: {why}")


def _why_needed(cache: CompilerCache, variables: Mapping[str, str]) -> str:
    """Return what the build reaches over the network; "" where there is nothing."""
    if cache.tool == "sccache" and sccache.ADDRESS_VARIABLE not in variables:
        return "sccache's server is reached over it"
    remote = next(
        (value for name in compiler_cache.REMOTE_STORAGE if (value := variables.get(name, ""))),
        "file:",
    )
    if not remote.startswith("file:"):
        return f"ccache reaches {cache.shared or 'its remote storage'} over it"
    words = (
        word
        for name in _SANDBOX_LAUNCHERS
        for word in lenient_words(variables.get(name, "").replace(";", " "))
    )
    found = (
        str(real_path(one)) for one in chosen_compilers(os.environ)
    )  # /usr/lib/icecc/bin/c++ is icecc
    name = next(
        (name for word in (*words, *found) if (name := PurePath(word).name) in _DISTRIBUTED), None
    )
    return f"{name} compiles on other machines" if name else ""


def compiler_environment(
    context: BuildContext, guard: GuardedBuild, cache: CompilerCache, note: Callable[[str], None]
) -> dict[str, str]:
    """Return the whole environment of the build; more compilers are started only where the gate holds all.

    What goes past the gate is noted, and what the compiler cache has to do without.
    """
    if guard.gate is None:  # nor does the guard see to their end
        return build_environment(context, cache.variables) | reaper.mark_of_run()
    own_server = sccache.server_variables(guard.folder) if cache.tool == "sccache" else {}
    found = build_environment(context, {**cache.variables, **own_server, **guard.environment})
    if own_server:
        found = sccache.start_server(cache.program, found, note)
    found |= _stand_ins(
        context, guard.gate, cache if "CCACHE_PREFIX" in guard.hooks else CompilerCache(), found
    )
    if guard.fifo is not None:
        found |= jobserver.jobserver_environment(guard.fifo, found)
    # the gate stands behind these
    cached = {
        name: cache.variables[name] for name in compiler_gate.LAUNCHERS if name in cache.variables
    }
    leading = {**cached, **guard.hooks}
    past = list(find_replaced_hooks(leading, found))
    configured = read_text(
        context.tree.build / "CMakeCache.txt"
    )  # by a run that may have had no gate
    if languages := languages_past_gate(
        configured, {leading[name] for name in compiler_gate.LAUNCHERS}
    ):
        tree = f"{context.tree.folder} was configured without a gate for {' and '.join(languages)}"
        past.append(f"{tree} (`invoke clean --kind trees` lets the guard see those compilers)")
    for sentence in past:
        note(f"{sentence}: compiling {context.plan.jobs} at a time")
    if not past:
        memory = usable_memory(context.host, context.options)
        found["MAX_JOBS"] = str(
            _startable(guarded_slots(context.options.jobs or context.host.resources.cores, memory))
        )
    return found


def _startable(slots: int) -> int:
    """Return how many of so many compilers ninja can start: it holds a file open for each, and ends without one.

    So it does where one more process cannot be started.
    """
    files, processes = process_limit("RLIMIT_NOFILE"), process_room()
    files_allow = slots if files is None else files - _OWN_FILES
    return max(1, min(slots, files_allow, slots if processes is None else processes // _PROCESSES))


def _stand_ins(
    context: BuildContext, gate: Path, cache: CompilerCache, environ: Mapping[str, str]
) -> dict[str, str]:
    """Return what leads compilers that have no launcher to the gate, behind the cache if that supports it."""
    folder = context.tree.folder / "bin"
    by_path = context.package.compilers == "path"
    variables = (
        compiler_gate.make_stand_ins(folder, gate, cache.program or None, environ)
        if by_path
        else {}
    )
    if (
        context.plan.build.cuda
    ):  # also where CMake has launchers: some libraries in the tree have makefiles
        launcher = cache.program if "CMAKE_CUDA_COMPILER_LAUNCHER" in cache.variables else None
        variables |= compiler_gate.make_nvcc_stand_in(folder, gate, launcher, environ)
        variables |= compiler_gate.surround_nvcc(folder, environ) if by_path else {}
    return variables


def find_replaced_hooks(hooks: Mapping[str, str], variables: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each variable that should lead to the gate and is the user's own."""
    for name, value in hooks.items():
        if variables.get(name) != value:
            yield f"{name} stays {variables.get(name)!r}, as you set it, so it hides compilers from the guard"


def languages_past_gate(configured: str, launchers: Collection[str]) -> list[str]:
    """Return the languages that CMake compiles past the gate, read from the text of its cache.

    It keeps the launchers of its first run. `launchers` are those behind which a gate stands.
    """
    languages = [match[1] for match in _COMPILER.finditer(configured)]
    used = dict(_LAUNCHER.findall(configured))
    return [language for language in languages if used.get(language, "") not in launchers]


class BuildOutput:
    """What a build prints while it runs, and what follows from it.

    `ends_at_failure` is false for a share of a build, which goes on with all other files.
    """

    def __init__(self, line: ProgressLine, guard: GuardedBuild, *, ends_at_failure: bool) -> None:
        self.edges = 0  # that were begun or made
        self._line, self._guard = line, guard
        self._watches = ends_at_failure

    def read(self, text: str) -> None:
        """Take one line. At the first failure nothing else is started: ninja itself waits for what it has started."""
        edge = parse_edge(text)
        self.edges += edge is not None and edge.done > 0
        self._line.edge(text, self._guard.account)
        failed = parse_failure(text)
        if failed and self._watches:
            self._watches = False
            self._guard.refuse()
            name = PurePath(failed).name
            self._line.note(
                f"{name} failed: no other compiler starts, and those that run are waited for"
            )
        self.show_messages()

    def show_messages(self) -> None:
        """Show what the guard has to say."""
        while not self._guard.messages.empty():
            self._line.note(self._guard.messages.get())


def compile_wheel(context: BuildContext, line: ProgressLine) -> tuple[Path, dict[str, Any]]:
    """Run the build; return the wheel as it made it, and what the manifest says of the run.

    Raises BuildError with the compiler's own last error, MemoryBuildError where memory was short.
    """
    raw = context.outputs.raw
    shutil.rmtree(raw, ignore_errors=True)
    raw.mkdir(parents=True)
    context.log.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(OSError):  # the guard reports it
        context.timeline.unlink()  # one of an earlier build would be taken for this one's
    cache = set_up_compiler_cache(context, line.note)
    with (
        guard_build(_guard_site(context), cache.variables) as guard,
        context.log.open("w", 1, "utf-8") as log,
    ):
        output = BuildOutput(line, guard, ends_at_failure=context.options.shard is None)
        variables = share.order_share(
            context, compiler_environment(context, guard, cache, line.note)
        )
        line.expect(share.pace_by_costs(context))
        before = _children_cpu_seconds()
        sandbox = choose_sandbox(context.options.network, cache, variables)
        if sandbox.why_open and not context.options.network:
            line.note(
                f"the build has the network ({sandbox.why_open}): what it downloads is not recorded"
            )
        watched = (
            cache.shared if guard.gate and cache.tool == "sccache" else None
        )  # ccache gives up by itself
        try:
            with (
                watch_shared_cache(watched, variables, guard.folder, guard.messages.put),
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
            raise _failure(context, error, guard.account, sandbox) from error
        finally:
            output.show_messages()
        cpu = _children_cpu_seconds() - before
        hits = read_cache_hits(cache, variables)  # while its server runs
    output.show_messages()  # what could not be cached, the guard says only at its end
    account = guard.account if guard.gate else None
    if account is not None and account.units:
        line.note(account.summary())
    if hits is not None:
        line.note(str(hits))
        record_hits(hits, context.timeline, guard.account.now.at)
    return _only_wheel(context), {
        "edges": output.edges,
        "cpu_seconds": round(cpu, 1),
        "slots": variables["MAX_JOBS"],
        "guard": _describe_guard(context, account) if account else None,
        "cache": asdict(hits) if hits else None,
        "network": f"open: {sandbox.why_open}" if sandbox.why_open else "none",
    }


def _command_words(
    context: BuildContext, argv: tuple[str, ...], variables: Mapping[str, str]
) -> list[str]:
    """Return the words of a command; setup.py compiles modules side by side where the guard holds all compilers.

    Shares, of all modules, and the build of them stay in the folder that they have in common: a compiler cache sees it.
    """
    words = [fill_placeholders(word, context.placeholders) for word in argv]
    held = variables["MAX_JOBS"] != context.plan.variables["MAX_JOBS"]
    able = context.host.system == "linux" and python_key(context.plan.build.python) >= python_key(
        "3.8"
    )
    able = able and context.package.compilers == "path" and argv[1:2] == ("setup.py",)
    if able and (context.options.shard or (held and context.options.parts is None)):
        words.insert(1, str(_SETUP_MODULES))
    return words


def _only_wheel(context: BuildContext) -> Path:
    """Return the wheel that the build made. Raises BuildError where it made none, or several."""
    wheels = list(context.outputs.raw.glob("*.whl"))
    if len(wheels) != 1:
        raise BuildError(
            f"{context.plan.identifier}: expected one wheel in {context.outputs.raw}, found {len(wheels)}: "
            f"see {context.log}",
            code="not-one-wheel",
        )
    return wheels[0]


def _describe_guard(context: BuildContext, account: BuildAccount) -> dict[str, Any]:
    """Return what the guard of a build saw and did."""
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


def _guard_site(context: BuildContext) -> GuardSite:
    # Where the guard is gone, as many compilers run as were asked for, if memory is enough.
    largest = largest_compile(context.facts, context.plan.build, context.plan.release.version)
    memory = usable_memory(context.host, context.options)
    return GuardSite(
        tree=context.tree.folder,
        cache=context.layout.cache,
        timeline=context.timeline,
        compiler=shlex.split(context.host.programs.paths.get("c++", "c++")),
        unguarded=min(
            context.plan.jobs,
            count_jobs(context.host.resources.cores, memory, int(largest.high)).count,
        ),
        cores=context.options.jobs,
        memory=context.options.memory,
        roots=(str(context.tree.source.resolve()),),
        known=context.known_units,
        environ=reaper.without_mark(os.environ),  # it sees to its own end
        enabled=context.options.guard,
    )


def _failure(
    context: BuildContext, error: CommandError, account: BuildAccount, sandbox: Sandbox
) -> TorchmillError:
    go_on = [
        f"  the whole log: {context.log}",
        f"  the tree:      {context.tree.source}",
        f"  to continue where it stopped: {session_command(context)}",
    ]
    if account.gave_up:
        unit = account.gave_up[-1]
        too_large = (
            f"{units.unit_title(unit.key)} was killed or ran out of memory, even alone: it {unit.text}; "
            "give the machine, its container or its job more memory, or add swap "
            "(`invoke jobs` shows the limit, `dmesg` what was killed and why)"
        )
        return MemoryBuildError(
            "\n".join([f"{context.plan.identifier}: {too_large}", *go_on]), code="out-of-memory"
        )
    if (full := blame_disk("", context.tree.folder, context.layout.cache)) is not None:
        return full  # which makes tools fail in words of their own
    with context.log.open(encoding="utf-8", errors="replace") as lines:
        diagnosis = causes.diagnose(context.facts.causes, lines, context.plan.release.torch_version)
    headline = diagnosis.headline if diagnosis.line_number else error
    if sandbox.prefix and diagnosis.match and diagnosis.match.cause.name in _DOWNLOADS:
        go_on.append(
            "  a build has no network, so that nothing unrecorded goes into its wheel; "
            f"to let this one download: {session_command(context, '--network')}"
        )
    told = [f"{context.plan.identifier}: {headline}", *go_on, *causes.diagnosis_advice(diagnosis)]
    return BuildError("\n".join(told), code="compile-failed")


def _children_cpu_seconds() -> float:
    """Return the processor time of all children that ended; 0 on Windows, which does not tell."""
    times = os.times()
    return times.children_user + times.children_system
