"""The programs of a machine, and what they say of themselves."""

import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor

from torchwright.errors import HostError
from torchwright.process import CommandError, capture

Run = Callable[[Sequence[str]], str]  # what a program prints; "" where it does not run

TOOLS = ("git", "cmake", "ninja", "ccache", "sccache", "nvcc", "patchelf", "nvidia-smi", "xcode-select")
_ASKED = ("git", "cmake", "ninja", "ccache", "sccache", "nvcc", "patchelf")
_VERSION = re.compile(r"\d+(?:\.\d+)+")


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
