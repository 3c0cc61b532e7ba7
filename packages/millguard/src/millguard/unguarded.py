"""Notice compilers of a command that did not come to the guard, and say what limits those.

A program that is linked statically, or that runs as another user, starts compilers without the gate,
the program that asks the guard before it starts one. They are found by looking at all processes
below the command now and then. A compiler that lives shorter than the time between two looks may be
missed, so the count is a lower bound. A daemon is not below the command once its starter has ended;
its compilers are not found.
"""

import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import psutil

LOOK_SECONDS = 1.0  # between two looks, at least
LOOK_SHARE = 0.02  # of one processor, that looking may cost
_GATED = "MILLGUARD_GATED"  # the gate sets it for the compiler that it starts
# Programs that compile, by the names of their processes. gcc, nvcc and Go start such programs for
# each file; clang and rustc compile in their own process.
_COMPILERS = frozenset(
    {"cc1", "cc1plus", "lto1", "f951", "cicc", "ptxas", "rustc", "clang", "clang++", "compile"}
)
_GO_TOOLS = "/pkg/tool/"  # below which Go's `compile` lies: the name alone says too little
# The advice for the user, by the name of the program that keeps its compilers from the gate.
_ADVICE: Mapping[str, str] = {
    "go": "Go is linked statically: limit it by `go build -p 1` or GOMAXPROCS",
    "bazel": "bazel's server starts compilers with an environment of its own: give bazel "
    "--local_resources=memory=… and --jobs",
    "java": "bazel's server starts compilers with an environment of its own: give bazel "
    "--local_resources=memory=… and --jobs",
    "sccache": "sccache's server is linked statically or ran before: use ccache instead",
    "buck2": "buck2's daemon starts compilers: give it --num-threads",
    "sudo": "sudo drops the guard's variables: run `sudo millguard -- COMMAND` instead",
    "su": "su drops the guard's variables: run millguard inside of it",
    "dockerd": "a container has a guard of its own: run millguard in its RUN line",
    "containerd-shim": "a container has a guard of its own: run millguard in its RUN line",
}


@dataclass(slots=True)
class UnguardedCompilers:
    """The number of compilers that ran without the guard, by the program that started them."""

    counts: dict[str, int] = field(default_factory=dict)

    def messages(self) -> Iterator[str]:
        """Yield a sentence for each program."""
        for starter, count in sorted(self.counts.items()):
            noun = "compiler was" if count == 1 else "compilers were"
            advice = _ADVICE.get(starter, f"`{starter}` starts them in a way that is not seen")
            yield f"at least {count} {noun} not guarded: {advice}"


class UnguardedWatch:
    """Look for unguarded compilers below a command; there is nothing to see without a guard."""

    def __init__(self, *, is_guarded: bool) -> None:
        self.compilers = UnguardedCompilers()
        self._is_guarded = is_guarded
        self._seen: set[tuple[int, float]] = set()
        self._due = time.monotonic() + LOOK_SECONDS

    def look(self, command: int) -> None:
        """Look at all processes below `command`, a process number, if it is time to."""
        if not self._is_guarded or time.monotonic() < self._due:
            return
        began = time.process_time()
        with contextlib.suppress(psutil.Error, OSError):  # without /proc nothing can be seen
            for process in psutil.Process(command).children(recursive=True):
                self._judge(process)
        cost = time.process_time() - began
        self._due = time.monotonic() + max(LOOK_SECONDS, cost / LOOK_SHARE)

    def _judge(self, process: psutil.Process) -> None:
        with contextlib.suppress(psutil.Error, OSError):  # it has ended
            name = process.name()
            identity = (process.pid, process.create_time())
            if name not in _COMPILERS or identity in self._seen:
                return
            # Go's compiler never comes to the gate, because no gcc or clang starts it.
            gated = False if name == "compile" else _is_gated(process.pid)
            if gated is None:
                return  # the next look may tell
            self._seen.add(identity)
            if gated or (name == "compile" and _GO_TOOLS not in process.exe()):
                return
            starter = _starter(process)
            self.compilers.counts[starter] = self.compilers.counts.get(starter, 0) + 1


def _is_gated(pid: int) -> bool | None:
    """Tell whether a process came through a gate; None if that cannot be told now.

    Another user's process did not. Of one that ends, or that the kernel is just loading, no
    variables can be seen.
    """
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes()
    except PermissionError:
        return False
    except OSError:
        return None
    if not variables:
        return None
    return f"{_GATED}=1".encode() in variables.split(b"\0")


def _starter(process: psutil.Process) -> str:
    """Return the name of the nearest ancestor that has advice, else of the parent's parent.

    The parent is often the compiler's own driver: gcc starts cc1plus. The search ends at this
    process: a `su` above it, or the Java of an editor, has kept no compiler from the gate.
    """
    names = []
    for ancestor in process.parents():
        if ancestor.pid == os.getpid():
            break
        names.append(ancestor.name())
    for name in names:
        if name in _ADVICE:
            return name
    return names[min(1, len(names) - 1)] if names else "a program"
