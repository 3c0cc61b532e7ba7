"""Compile one raw wheel under the memory guard: environment, command, log, and the error where it fails."""

import contextlib
import os
import re
import shlex
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from torchmill.build import tree
from torchmill.build.context import BuildContext, build_environment, set_up_compiler_cache
from torchmill.build.progress_line import ProgressLine
from torchmill.config.model import Command
from torchmill.core.errors import BuildError, MemoryBuildError, TorchmillError
from torchmill.core.ninja import parse_edge
from torchmill.core.process import CommandError, stream
from torchmill.plan.build_plan import usable_memory
from torchmill.plan.diagnosis import causes
from torchmill.plan.job_count import count_jobs, guarded_slots, largest_compile
from torchmill.toolchain import sccache
from torchmill.toolchain.compiler_cache import CacheHits, CompilerCache, read_cache_hits, record_hits
from torchmill.toolchain.guard import jobserver, units
from torchmill.toolchain.guard.expectations import relevant_units
from torchmill.toolchain.guard.gate import install
from torchmill.toolchain.guard.session import GuardedBuild, GuardSite, guard_build
from torchmill.toolchain.guard.timeline import SUFFIX, BuildAccount
from torchmill.toolchain.sccache import watch_shared_cache

_COMPILER = re.compile(r"^CMAKE_(C|CXX|CUDA)_COMPILER:\w+=", re.MULTILINE)  # assembly needs no memory


def compiler_environment(
    context: BuildContext, guard: GuardedBuild, cache: CompilerCache, note: Callable[[str], None]
) -> dict[str, str]:
    """Return the whole environment of the build; more compilers are started only where the gate holds all.

    What goes past the gate is noted, and what the compiler cache has to do without.
    """
    if guard.gate is None:
        return build_environment(context, cache.variables)
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
    cached = {name: cache.variables[name] for name in install.LAUNCHERS if name in cache.variables}
    leading = {**cached, **guard.hooks}
    past = [*find_replaced_hooks(leading, found), *_forgotten(context, leading)]
    for sentence in past:
        note(f"{sentence}: compiling {context.plan.jobs} at a time")
    if not past and "MAX_JOBS" not in context.options.settings:
        memory = usable_memory(context.host, context.options)
        found["MAX_JOBS"] = str(guarded_slots(context.options.jobs or context.host.cores, memory))
    return found


def _stand_ins(
    context: BuildContext, there: Path, cache: CompilerCache, environ: Mapping[str, str]
) -> dict[str, str]:
    """Return what leads compilers that know no launcher to the gate, behind the cache if that knows of it."""
    folder = context.tree.folder / "bin"
    found: dict[str, str] = {}
    by_path = context.package.compilers == "path"
    if by_path:
        found |= install.make_stand_ins(folder, there, cache.program or None, environ)
    if (
        context.plan.build.cuda
    ):  # also where CMake knows launchers: libraries within have makefiles of their own
        cuda = cache.program if "CMAKE_CUDA_COMPILER_LAUNCHER" in cache.variables else None
        found |= install.make_nvcc_stand_in(folder, there, cuda, environ)
        found |= install.surround_nvcc(folder, environ) if by_path else {}
    return found


def _forgotten(context: BuildContext, hooks: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence where the tree was configured by a run that had no gate."""
    file = context.tree.source / "build" / "CMakeCache.txt"
    if file.is_file():
        launchers = {hooks[name] for name in install.LAUNCHERS}
        languages = languages_past_gate(file.read_text(encoding="utf-8", errors="replace"), launchers)
        if languages:
            where = f"{context.tree.folder} was configured without a gate for {' and '.join(languages)}"
            yield f"{where} (delete it for the guard to see those compilers)"


def find_replaced_hooks(hooks: Mapping[str, str], variables: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each variable that should lead to the gate and is the user's own."""
    for name, value in hooks.items():
        if variables.get(name) != value:
            yield f"{name} stays {variables.get(name)!r}, as you set it, so it hides compilers from the guard"


def languages_past_gate(configured: str, launchers: Collection[str]) -> tuple[str, ...]:
    """Return the languages that CMake compiles past the gate, read from the text of its cache.

    It keeps the launchers of its first run. `launchers` are those behind which a gate stands.
    """
    found = (match[1] for match in _COMPILER.finditer(configured))
    return tuple(language for language in found if _launcher(configured, language) not in launchers)


def _launcher(configured: str, language: str) -> str:
    match = re.search(rf"^CMAKE_{language}_COMPILER_LAUNCHER:\w+=(.*)$", configured, re.MULTILINE)
    return match[1] if match else ""


@dataclass(frozen=True, slots=True)
class CompileResult:
    """What compiling left behind."""

    raw: Path  # the wheel as the build made it
    edges: int  # that ninja counted
    cpu: float  # seconds
    slots: str  # how many compilers the build was told to start at a time
    account: BuildAccount | None  # None: there was no guard
    cache: CacheHits | None = None  # what the compiler cache did; None: there was none, or it does not say


def compile_wheel(context: BuildContext, line: ProgressLine) -> CompileResult:
    """Run the build and return what it left.

    Raises BuildError with the compiler's own last error, MemoryBuildError where memory was short.
    """
    shutil.rmtree(context.outputs.raw, ignore_errors=True)
    context.outputs.raw.mkdir(parents=True)
    context.log.parent.mkdir(parents=True, exist_ok=True)
    edges = 0
    with contextlib.suppress(OSError):  # the guard tells of it
        timeline_file(context).unlink()  # one of an earlier build would be taken for this one's
    cache = set_up_compiler_cache(context, line.note)
    with guard_build(_site(context), cache.variables) as guard, context.log.open("w", 1, "utf-8") as log:

        def seen(text: str) -> None:
            nonlocal edges
            edge = parse_edge(text)
            edges = max(edges, edge.total if edge else 0)
            line.edge(text, guard.account)
            _tell(guard, line)

        variables = compiler_environment(context, guard, cache, line.note)
        before = _children_cpu()
        try:
            with watch_shared_cache(
                cache.watched if guard.gate else None, variables, guard.folder, guard.messages.put
            ):
                for command in context.plan.compile:
                    _run(context, command, variables, log, seen, guard.account)
        finally:
            _tell(guard, line)
        spent = _children_cpu() - before
        known = read_cache_hits(cache, variables)  # while its server is there
    _tell(guard, line)  # what could not be kept, it says only at its end
    books = guard.account if guard.gate else None
    if books is not None and books.units:
        line.note(books.summary())
    if known is not None:
        line.note(str(known))
        record_hits(known, timeline_file(context), guard.account.now.at)
    return CompileResult(_only_wheel(context), edges, spent, variables["MAX_JOBS"], books, cache=known)


def timeline_file(context: BuildContext) -> Path:
    """Return the file that holds what the guard saw and did."""
    return context.log.with_suffix(SUFFIX)


def _site(context: BuildContext) -> GuardSite:
    return GuardSite(
        tree=context.tree.folder,
        cache=context.layout.cache,
        timeline=timeline_file(context),
        compiler=shlex.split(context.host.tools.get("c++", "c++")),
        unguarded=_unwatched(context),
        cores=context.options.jobs,
        memory=context.options.memory,
        roots=(str(context.tree.source.resolve()),),
        known=relevant_units(context.facts.units, context.package.name, context.plan.release.version),
        enabled=context.options.guard,
    )


def _unwatched(context: BuildContext) -> int:
    """Return how many compilers may run where the guard is gone: what was asked for, if memory carries it."""
    need = largest_compile(context.facts, context.plan.build, context.plan.release.version)
    memory = usable_memory(context.host, context.options)
    return min(context.plan.jobs, count_jobs(context.host.cores, memory, int(need.high)).count)


def _tell(guard: GuardedBuild, line: ProgressLine) -> None:
    while not guard.messages.empty():
        line.note(guard.messages.get())


def _run(  # noqa: PLR0917 - one command and those who watch it
    context: BuildContext,
    command: Command,
    variables: Mapping[str, str],
    log: TextIO,
    seen: Callable[[str], None],
    account: BuildAccount,
) -> None:
    argv = [tree.fill_placeholders(word, context.placeholders) for word in command.argv]
    cwd = Path(tree.fill_placeholders(command.cwd, context.placeholders))
    try:
        stream(argv, cwd=cwd, env=variables, log=log, on_line=seen)
    except CommandError as error:
        log.flush()
        raise _failure(context, error, account) from error


def _failure(context: BuildContext, error: CommandError, account: BuildAccount) -> TorchmillError:
    """Return the failure of the build in one message, its cause first."""
    go_on = [
        f"  the whole log: {context.log}",
        f"  the tree:      {context.tree.source}",
        f"  to continue where it stopped: nox -s {context.plan.identifier}",
    ]
    if account.gave_up:
        unit = account.gave_up[-1]
        cure = "give the machine, its container or its job more memory, or add swap"
        too_large = (
            f"{units.unit_title(unit.key)} was killed or ran out of memory, even alone: it {unit.text}; "
            f"{cure} (`invoke jobs` shows the limit, `dmesg` what was killed and why)"
        )
        return MemoryBuildError(
            "\n".join([f"{context.plan.identifier}: {too_large}", *go_on]), code="out-of-memory"
        )
    with context.log.open(encoding="utf-8", errors="replace") as lines:
        said = causes.diagnose(context.facts.causes, lines, context.plan.release.torch_version)
    headline = said.headline if said.line_number else error
    return BuildError(
        "\n".join([f"{context.plan.identifier}: {headline}", *go_on, *causes.diagnosis_advice(said)]),
        code="compile-failed",
    )


def _only_wheel(context: BuildContext) -> Path:
    wheels = list(context.outputs.raw.glob("*.whl"))
    if len(wheels) != 1:
        raise BuildError(
            f"{context.plan.identifier}: expected one wheel in {context.outputs.raw}, "
            f"found {len(wheels)}: see {context.log}",
            code="not-one-wheel",
        )
    return wheels[0]


def _children_cpu() -> float:
    """Return the processor seconds of all children that ended (and zero on Windows, which does not tell)."""
    times = os.times()
    return times.children_user + times.children_system
