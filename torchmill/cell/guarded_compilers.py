"""Lead all compilers of a build to the guard's gate, and say which go past it."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

from millguard import compiler_gate, jobserver
from millguard.limits import process_limit, process_room
from millguard.session import GuardedBuild

from torchmill.cell.context import BuildContext
from torchmill.cell.environment import build_environment
from torchmill.core import reaper
from torchmill.core.lenient_paths import read_text
from torchmill.plan.job_count import guarded_slots, usable_memory
from torchmill.toolchain import sccache
from torchmill.toolchain.compiler_cache import CompilerCache

# Assembly is a language of CMake's as well, but assemblers need no memory.
_COMPILER = re.compile(r"^CMAKE_(C|CXX|CUDA)_COMPILER:\w+=", re.MULTILINE)
_LAUNCHER = re.compile(r"^CMAKE_(\w+)_COMPILER_LAUNCHER:\w+=(.*)$", re.MULTILINE)
_OTHER_OPEN_FILES = 64  # of ninja and the process that starts it
# Processes of one compiler, at most: a shell, a cache, the gate, the driver, and what that runs.
_PROCESSES_PER_COMPILER = 5


def compiler_environment(
    context: BuildContext, guard: GuardedBuild, cache: CompilerCache, note: Callable[[str], None]
) -> dict[str, str]:
    """Return the whole environment of the build.

    MAX_JOBS is raised above the plan's only if the gate holds all compilers. Compilers that go past
    the gate are noted, and so is what the compiler cache has to do without.
    """
    if guard.gate is None:
        # Without a guard nobody sees to the end of the compilers but the reaper.
        return build_environment(context, cache.variables) | reaper.mark_of_run()
    own_server = sccache.server_variables(guard.folder) if cache.tool == "sccache" else {}
    variables = build_environment(context, {**cache.variables, **own_server, **guard.environment})
    if own_server:
        variables = sccache.start_server(cache.program, variables, note)
    # Only behind ccache do the stand-ins go through the cache.
    stand_in_cache = cache if "CCACHE_PREFIX" in guard.hooks else CompilerCache()
    variables |= _stand_ins(context, guard.gate, stand_in_cache, variables)
    if guard.fifo is not None:
        variables |= jobserver.jobserver_environment(guard.fifo, variables)
    leaks = list(_leaks(context, guard, cache, variables))
    for leak in leaks:
        note(f"{leak}: compiling {context.plan.jobs} at a time")
    if not leaks:
        memory = usable_memory(context.host, context.options)
        cores = context.options.jobs or context.host.resources.cores
        variables["MAX_JOBS"] = str(_startable(guarded_slots(cores, memory)))
    return variables


def find_replaced_hooks(hooks: Mapping[str, str], variables: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each variable that should lead to the gate and is the user's own."""
    for name, value in hooks.items():
        if variables.get(name) != value:
            yield (
                f"{name} stays {variables.get(name)!r}, as you set it, "
                "so it hides compilers from the guard"
            )


def languages_past_gate(configured: str, launchers: Collection[str]) -> list[str]:
    """Return the languages that CMake compiles past the gate, by the text of its cache.

    CMake keeps the launchers of its first run. `launchers` are those with the gate behind them.
    """
    used = dict(_LAUNCHER.findall(configured))
    languages = [match[1] for match in _COMPILER.finditer(configured)]
    return [language for language in languages if used.get(language, "") not in launchers]


def _leaks(
    context: BuildContext, guard: GuardedBuild, cache: CompilerCache, variables: Mapping[str, str]
) -> Iterator[str]:
    """Yield a sentence for each reason why some compilers do not come to the gate."""
    # Launchers of the cache have the gate behind them.
    leading = dict(guard.hooks)
    for name in compiler_gate.LAUNCHERS:
        if name in cache.variables and name not in leading:
            leading[name] = cache.variables[name]
    yield from find_replaced_hooks(leading, variables)
    # The tree may have been configured by a run without a gate.
    configured = read_text(context.tree.build / "CMakeCache.txt")
    launchers = {leading[name] for name in compiler_gate.LAUNCHERS}
    languages = languages_past_gate(configured, launchers)
    if languages:
        yield (
            f"{context.tree.folder} was configured without a gate for {' and '.join(languages)} "
            "(`invoke clean --kind trees` lets the guard see those compilers)"
        )


def _startable(slots: int) -> int:
    """Return how many of `slots` compilers ninja can start.

    It holds a file open for each, and ends with an error if it gets no further file or process.
    """
    startable = slots
    files = process_limit("RLIMIT_NOFILE")
    if files is not None:
        startable = min(startable, files - _OTHER_OPEN_FILES)
    processes = process_room()
    if processes is not None:
        startable = min(startable, processes // _PROCESSES_PER_COMPILER)
    return max(1, startable)


def _stand_ins(
    context: BuildContext, gate: Path, cache: CompilerCache, environ: Mapping[str, str]
) -> dict[str, str]:
    """Return the variables that lead compilers without a launcher to the gate.

    They go through the cache first if it can have the gate behind it.
    """
    folder = context.tree.folder / "bin"
    found_on_path = context.package.compilers == "path"
    variables: dict[str, str] = {}
    if found_on_path:
        variables |= compiler_gate.make_stand_ins(folder, gate, cache.program or None, environ)
    # With CUDA also if CMake has launchers: some libraries in torch's tree have makefiles.
    if context.plan.build.cuda:
        is_cached = "CMAKE_CUDA_COMPILER_LAUNCHER" in cache.variables
        launcher = cache.program if is_cached else None
        variables |= compiler_gate.make_nvcc_stand_in(folder, gate, launcher, environ)
        if found_on_path:
            variables |= compiler_gate.surround_nvcc(folder, environ)
    return variables
