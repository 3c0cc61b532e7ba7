"""The programs of a machine, and what they say of themselves."""

import re
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path

from torchmill.errors import HostError
from torchmill.process import CommandError, capture
from torchmill.recall import Recall

Run = Callable[[Sequence[str]], str]  # what a program prints; "" where it does not run

TOOLS = ("git", "cmake", "ninja", "ccache", "sccache", "nvcc", "patchelf", "nvidia-smi", "xcode-select")
_ASKED = ("git", "cmake", "ninja", "ccache", "sccache", "nvcc", "patchelf")
_VERSION = re.compile(r"\d+(?:\.\d+)+")
LAUNCHERS = frozenset({"ccache", "sccache", "distcc", "icecc", "buildcache"})
_SEARCH = ("GCC_EXEC_PREFIX", "COMPILER_PATH", "LIBRARY_PATH")  # change where a compiler looks


def runner(environ: Mapping[str, str]) -> Run:
    """Return what runs programs with these variables, in English."""
    variables = {**environ, "LC_ALL": "C"}

    def run(argv: Sequence[str]) -> str:
        # The calling process's PATH, not that of `env`, is where a bare name would be looked for.
        found = shutil.which(argv[0], path=environ.get("PATH"))
        try:
            return capture([found, *argv[1:]], env=variables) if found else ""
        except (CommandError, HostError):
            return ""

    return run


def remembered(environ: Mapping[str, str], recall: Recall) -> Run:
    """Return what runs compilers, each question once for as long as the compiler stays the same file."""
    ask = runner(environ)
    searched = " ".join(environ.get(name, "") for name in _SEARCH)

    def run(argv: Sequence[str]) -> str:
        found = shutil.which(argv[0], path=environ.get("PATH"))
        if found is None or leads_elsewhere(Path(found)):
            return ask(argv)
        question = f"{shlex.join([found, *argv[1:]])} {searched}"
        return recall.said(question, [Path(found).resolve()], lambda: ask(argv))

    return run


def leads_elsewhere(program: Path) -> bool:
    """Tell whether a program starts another, which may change while it does not."""
    if sys.platform == "darwin" and program.parent == Path("/usr/bin"):  # Xcode's, whichever is selected
        return True
    return program.resolve().stem in LAUNCHERS


def tools(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the tools that are on PATH, with their places."""
    found = {tool: shutil.which(tool, path=environ.get("PATH")) for tool in TOOLS}
    return {tool: where for tool, where in found.items() if where}


def versions(places: Mapping[str, str], run: Run, threads: Executor) -> dict[str, str]:
    """Return the versions of those tools that have one."""
    asked = [tool for tool in _ASKED if tool in places]
    said = threads.map(lambda tool: run([places[tool], "--version"]), asked)
    found = {tool: version_in(tool, text) for tool, text in zip(asked, said, strict=True)}
    return {tool: version for tool, version in found.items() if version}


def version_in(tool: str, said: str) -> str | None:
    """Return the version in what a tool says of itself."""
    if tool == "nvcc":  # its first lines hold years
        match = re.search(r"release (\d+\.\d+)", said)
        return match[1] if match else None
    match = _VERSION.search(said)
    return match[0] if match else None
