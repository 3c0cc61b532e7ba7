"""Run any build with as many compilers at a time as its memory allows.

`run_guarded` runs one command under a guard, as `millguard -- COMMAND` does:

    from millguard import GuardOptions, run_guarded

    result = run_guarded(["pip", "install", "flash-attn"], GuardOptions(memory=12 * 2**30))
    print(result.exit_code, result.account.summary())

`guard_commands` guards commands that the caller starts:

    from millguard import guard_commands

    with guard_commands() as build:
        subprocess.run(["ninja"], env={**os.environ, **build.environment}, check=True)
    print(build.account.summary())

A `BuildObserver` follows a build (see `observers`), and `millguard.build_backend` guards the build of
a project's wheel (see `build_backend`).

`guard_build` guards a build of CMake by its launchers, and asks for each setting:

    from pathlib import Path
    from millguard import GuardSite, guard_build

    site = GuardSite(
        tree=Path("build"),
        cache=Path.home() / ".cache/millguard",
        timeline=Path("build/timeline.jsonl"),
        compiler=["cc"],
        unguarded=1,
    )
    with guard_build(site, {}) as guard:
        subprocess.run(["ninja"], env={**os.environ, **guard.environment}, check=True)
    print(guard.account.summary())

The modules of the package that others may use as well: `limits` (memory and processors that this
process may use), `processes` (find and end the processes of a build), `timeline` and `drawing` (the
recorded build, and its picture), `units` (which of its lines compile something), `costs` and
`known_costs` (memory of known compiles), `session` (the guard around a build), `compiler_gate`
(compilers behind a gate), `jobserver` (GNU make's tokens) and `places` (folders that are kept
between builds).
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from millguard.costs import KnownCost as KnownCost
    from millguard.guarded_command import CommandNotStartedError as CommandNotStartedError
    from millguard.guarded_command import GuardedResult as GuardedResult
    from millguard.guarded_command import GuardOptions as GuardOptions
    from millguard.guarded_command import guard_commands as guard_commands
    from millguard.guarded_command import run_guarded as run_guarded
    from millguard.known_costs import load_known_costs as load_known_costs
    from millguard.limits import LimitMeter as LimitMeter
    from millguard.observers import BuildObserver as BuildObserver
    from millguard.observers import installed_observers as installed_observers
    from millguard.session import GuardedBuild as GuardedBuild
    from millguard.session import GuardSite as GuardSite
    from millguard.session import guard_build as guard_build
    from millguard.timeline import BuildAccount as BuildAccount
    from millguard.timeline import TimelineEvent as TimelineEvent
    from millguard.timeline import TimelineMoment as TimelineMoment
    from millguard.timeline import UnitRun as UnitRun
    from millguard.timeline import UnitStart as UnitStart

# The module of each name. A module is loaded when its name is used: whoever measures a limit does not
# need to load the guard.
_MODULES = {
    "BuildAccount": "timeline",
    "BuildObserver": "observers",
    "CommandNotStartedError": "guarded_command",
    "GuardOptions": "guarded_command",
    "GuardSite": "session",
    "GuardedBuild": "session",
    "GuardedResult": "guarded_command",
    "KnownCost": "costs",
    "LimitMeter": "limits",
    "TimelineEvent": "timeline",
    "TimelineMoment": "timeline",
    "UnitRun": "timeline",
    "UnitStart": "timeline",
    "guard_build": "session",
    "guard_commands": "guarded_command",
    "installed_observers": "observers",
    "load_known_costs": "known_costs",
    "run_guarded": "guarded_command",
}
__all__ = [
    "BuildAccount",
    "BuildObserver",
    "CommandNotStartedError",
    "GuardOptions",
    "GuardSite",
    "GuardedBuild",
    "GuardedResult",
    "KnownCost",
    "LimitMeter",
    "TimelineEvent",
    "TimelineMoment",
    "UnitRun",
    "UnitStart",
    "guard_build",
    "guard_commands",
    "installed_observers",
    "load_known_costs",
    "run_guarded",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
