"""Lead the compilers of a build by the gate, unless the user, or an earlier run, has said otherwise."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping
from pathlib import Path

from torchmill.guard import gate, jobserver
from torchmill.guard.jobs import slots
from torchmill.guard.session import Guarded
from torchmill.plan import usable_memory
from torchmill.toolchain import sccache
from torchmill.toolchain.cache import Cache
from torchmill.workshop import Job, environment

_COMPILER = re.compile(r"^CMAKE_(C|CXX|CUDA)_COMPILER:\w+=", re.MULTILINE)  # assembly needs no memory


def variables(job: Job, guard: Guarded, cache: Cache, note: Callable[[str], None]) -> dict[str, str]:
    """Return the whole environment of the build; more compilers are started only where the gate holds all.

    What goes past the gate is noted, and what the compiler cache has to do without.
    """
    if guard.gate is None:
        return environment(job, cache.variables)
    own_server = sccache.server(guard.folder) if cache.tool == "sccache" else {}
    found = environment(job, {**cache.variables, **own_server, **guard.environment})
    if own_server:
        found = sccache.started(cache.program, found, note)
    found |= _stand_ins(job, guard.gate, cache if "CCACHE_PREFIX" in guard.hooks else Cache(), found)
    if guard.fifo is not None:
        found |= jobserver.environment(guard.fifo, found)
    # the gate stands behind these
    cached = {name: cache.variables[name] for name in gate.LAUNCHERS if name in cache.variables}
    leading = {**cached, **guard.hooks}
    past = [*replaced(leading, found), *_forgotten(job, leading)]
    for sentence in past:
        note(f"{sentence}: compiling {job.plan.jobs} at a time")
    if not past and "MAX_JOBS" not in job.options.settings:
        memory = usable_memory(job.host, job.options)
        found["MAX_JOBS"] = str(slots(job.options.jobs or job.host.cores, memory))
    return found


def _stand_ins(job: Job, there: Path, cache: Cache, environ: Mapping[str, str]) -> dict[str, str]:
    """Return what leads compilers that know no launcher to the gate, behind the cache if that knows of it."""
    folder = job.tree.folder / "bin"
    found: dict[str, str] = {}
    by_path = job.package.compilers == "path"
    if by_path:
        found |= gate.stand_ins(folder, there, cache.program or None, environ)
    if job.plan.build.cuda:  # also where CMake knows launchers: libraries within have makefiles of their own
        cuda = cache.program if "CMAKE_CUDA_COMPILER_LAUNCHER" in cache.variables else None
        found |= gate.nvcc(folder, there, cuda, environ)
        found |= gate.toolkit(folder, environ) if by_path else {}
    return found


def _forgotten(job: Job, hooks: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence where the tree was configured by a run that had no gate."""
    file = job.tree.source / "build" / "CMakeCache.txt"
    if file.is_file():
        launchers = {hooks[name] for name in gate.LAUNCHERS}
        languages = forgotten(file.read_text(encoding="utf-8", errors="replace"), launchers)
        if languages:
            where = f"{job.tree.folder} was configured without a gate for {' and '.join(languages)}"
            yield f"{where} (delete it for the guard to see those compilers)"


def replaced(hooks: Mapping[str, str], variables: Mapping[str, str]) -> Iterator[str]:
    """Yield a sentence for each variable that should lead to the gate and is the user's own."""
    for name, value in hooks.items():
        if variables.get(name) != value:
            yield f"{name} stays {variables.get(name)!r}, as you set it, so the guard sees not all compilers"


def forgotten(configured: str, launchers: Collection[str]) -> tuple[str, ...]:
    """Return the languages that CMake compiles past the gate, read from the text of its cache.

    It keeps the launchers of its first run. `launchers` are those behind which a gate stands.
    """
    found = (match[1] for match in _COMPILER.finditer(configured))
    return tuple(language for language in found if _launcher(configured, language) not in launchers)


def _launcher(configured: str, language: str) -> str:
    match = re.search(rf"^CMAKE_{language}_COMPILER_LAUNCHER:\w+=(.*)$", configured, re.MULTILINE)
    return match[1] if match else ""
