"""Lead all compilers of a build to the guard's gate, and say which go past it.

The gate is a small program that is called in place of a compiler. It asks the memory guard, waits
until there is memory for one more compiler, and starts the compiler. Two things lead a build to the
gate: hooks are variables such as CMAKE_CXX_COMPILER_LAUNCHER, and stand-ins are programs on PATH
with the names of compilers. A leak is a compiler that goes past the gate, because the user has set
a hook's variable, or because CMake remembers an earlier run.
"""

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
from torchmill.plan.job_count import guarded_slots, limit_slots, usable_memory
from torchmill.toolchain import sccache
from torchmill.toolchain.compiler_cache import CompilerCache

# Assembly is a language of CMake's as well, but assemblers need no memory.
_COMPILER = re.compile(r"^CMAKE_(C|CXX|CUDA)_COMPILER:\w+=", re.MULTILINE)
_LAUNCHER = re.compile(r"^CMAKE_(\w+)_COMPILER_LAUNCHER:\w+=(.*)$", re.MULTILINE)


def prepare_compiler_environment(
    context: BuildContext, guard: GuardedBuild, cache: CompilerCache, note: Callable[[str], None]
) -> dict[str, str]:
    """Lead the build's compilers to the gate, and return the whole environment of the build.

    This writes stand-ins into the tree, and starts a server of sccache if that is the cache. Leaks
    are noted, and so are features that the compiler cache has to do without. If there are no leaks,
    MAX_JOBS is raised above the plan's number, because the guard limits how many compilers run. If
    the guard has no gate, nothing of this is done, and the environment is returned.
    """
    if guard.gate is None:
        # Without a guard to end the compilers if this process is killed, the reaper does. It finds
        # them by this mark.
        return build_environment(context, cache.variables) | reaper.mark_of_run()
    server_variables: Mapping[str, str] = {}
    if cache.tool == "sccache":
        # Not the compile's process but the server of sccache starts the compilers. This build gets
        # a server of its own, which starts them by the gate.
        server_variables = sccache.server_variables(guard.folder)
    tool_variables = {**cache.variables, **server_variables, **guard.environment}
    variables = build_environment(context, tool_variables)
    if server_variables:
        variables = sccache.start_server(cache.program, variables, note)
    # A stand-in that starts a cache relies on the cache to start the gate. Only ccache does, by the
    # variable CCACHE_PREFIX. With any other cache, stand-ins start the gate, and nothing is cached.
    stand_in_cache = cache if "CCACHE_PREFIX" in guard.hooks else CompilerCache()
    variables |= _make_stand_ins(context, guard.gate, stand_in_cache, variables)
    if guard.fifo is not None:
        variables |= jobserver.jobserver_environment(guard.fifo, variables)
    leaks = list(_explain_leaks(context, guard, cache, variables))
    for leak in leaks:
        note(f"{leak}: compiling {context.plan.jobs} at a time")
    if not leaks:
        memory = usable_memory(context.host, context.options)
        cores = context.options.jobs or context.host.resources.cores
        variables["MAX_JOBS"] = str(
            limit_slots(
                guarded_slots(cores, memory), process_limit("RLIMIT_NOFILE"), process_room()
            )
        )
    return variables


def find_replaced_hooks(hooks: Mapping[str, str], variables: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each hook whose variable the user has set to something else."""
    for name, value in hooks.items():
        if variables.get(name) != value:
            yield (
                f"{name} stays {variables.get(name)!r}, as you set it, "
                "so it hides compilers from the guard"
            )


def languages_past_gate(cmake_cache: str, launchers: Collection[str]) -> list[str]:
    """Return the languages that CMake compiles past the gate, by the text of its CMakeCache.txt.

    CMake keeps the launchers of its first run. `launchers` are those that lead to the gate.
    """
    launcher_by_language = dict(_LAUNCHER.findall(cmake_cache))
    languages = [match[1] for match in _COMPILER.finditer(cmake_cache)]
    return [
        language for language in languages if launcher_by_language.get(language) not in launchers
    ]


def _explain_leaks(
    context: BuildContext, guard: GuardedBuild, cache: CompilerCache, variables: Mapping[str, str]
) -> Iterator[str]:
    """Yield a sentence for each reason why some compilers do not come to the gate."""
    # If the launcher is the cache's, it leads to the gate too, because the cache starts the gate.
    hooks = dict(guard.hooks)
    for name in compiler_gate.LAUNCHERS:
        if name in cache.variables and name not in hooks:
            hooks[name] = cache.variables[name]
    yield from find_replaced_hooks(hooks, variables)
    # The tree may have been configured by a run without a gate.
    cmake_cache = read_text(context.tree.build / "CMakeCache.txt")
    launchers = {hooks[name] for name in compiler_gate.LAUNCHERS}
    languages = languages_past_gate(cmake_cache, launchers)
    if languages:
        yield (
            f"{context.tree.folder} was configured without a gate for {' and '.join(languages)} "
            "(`invoke clean --kind trees` lets the guard see those compilers)"
        )


def _make_stand_ins(
    context: BuildContext, gate: Path, cache: CompilerCache, environ: Mapping[str, str]
) -> dict[str, str]:
    """Make the stand-ins in the tree, and return the variables by which the build finds them.

    `cache` is the compiler cache that they start first, and `environ` the environment of the build.
    """
    folder = context.tree.folder / "bin"
    # Whether the package's build, such as a setup.py without CMake, takes compilers from PATH.
    uses_path = context.package.setup.compilers == "path"
    variables: dict[str, str] = {}
    if uses_path:
        variables |= compiler_gate.make_stand_ins(folder, gate, cache.program or None, environ)
    # nvcc gets one even if CMake has a launcher for it, because some libraries in torch's tree have
    # makefiles, which call it by its name.
    if context.plan.build.cuda:
        is_cached = "CMAKE_CUDA_COMPILER_LAUNCHER" in cache.variables
        launcher = cache.program if is_cached else None
        variables |= compiler_gate.make_nvcc_stand_in(folder, gate, launcher, environ)
        if uses_path:
            # Such a build may accept only an nvcc in a whole toolkit.
            variables |= compiler_gate.surround_nvcc(folder, environ)
    return variables
