"""Run a machine's tools for their versions, and list its installed system packages."""

import re
import shlex
import shutil
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path

from torchmill.core.errors import HostError
from torchmill.core.files import find_paths, real_path
from torchmill.core.process import CommandError, capture
from torchmill.core.stat_cache import StatCache

RunProgram = Callable[[Sequence[str]], str]  # what a program prints; "" where it does not run

TOOLS = ("git", "cmake", "ninja", "ccache", "sccache", "nvcc", "patchelf", "nvidia-smi", "xcode-select")
_ASKED = ("git", "cmake", "ninja", "ccache", "sccache", "nvcc", "patchelf")
_VERSION = re.compile(r"\d+(?:\.\d+)+")
LAUNCHERS = frozenset({"ccache", "sccache", "distcc", "icecc", "buildcache"})
_SEARCH = ("GCC_EXEC_PREFIX", "COMPILER_PATH", "LIBRARY_PATH")  # change where a compiler looks


def make_runner(environ: Mapping[str, str]) -> RunProgram:
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


def make_caching_runner(environ: Mapping[str, str], stat_cache: StatCache) -> RunProgram:
    """Return what runs compilers, each question once for as long as the compiler stays the same file."""
    ask = make_runner(environ)
    searched = " ".join(environ.get(name, "") for name in _SEARCH)

    def run(argv: Sequence[str]) -> str:
        found = shutil.which(argv[0], path=environ.get("PATH"))
        if found is None or starts_another(Path(found)):
            return ask(argv)
        question = f"{shlex.join([found, *argv[1:]])} {searched}"
        return stat_cache.program_output(question, [real_path(found)], lambda: ask(argv))

    return run


def starts_another(program: Path) -> bool:
    """Tell whether a program starts another, which may change while it does not."""
    if sys.platform == "darwin" and program.parent == Path("/usr/bin"):  # Xcode's, whichever is selected
        return True
    return real_path(program).stem in LAUNCHERS


def find_tools(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the tools that are on PATH, with their places."""
    found = {tool: shutil.which(tool, path=environ.get("PATH")) for tool in TOOLS}
    return {tool: where for tool, where in found.items() if where}


def tool_versions(places: Mapping[str, str], run: RunProgram, threads: Executor) -> dict[str, str]:
    """Return the versions of those tools that have one."""
    asked = [tool for tool in _ASKED if tool in places]
    said = threads.map(lambda tool: run([places[tool], "--version"]), asked)
    found = {tool: parse_tool_version(tool, text) for tool, text in zip(asked, said, strict=True)}
    return {tool: version for tool, version in found.items() if version}


def parse_tool_version(tool: str, said: str) -> str | None:
    """Return the version in what a tool says of itself."""
    if tool == "nvcc":  # its first lines hold years
        match = re.search(r"release (\d+\.\d+)", said)
        return match[1] if match else None
    match = _VERSION.search(said)
    return match[0] if match else None


_LISTING: Mapping[str, tuple[str, ...]] = {
    "apt": ("dpkg-query", "--show", "--showformat", "${db:Status-Status} ${Package} ${Version}\n"),
    "dnf": ("rpm", "--query", "--all", "--queryformat", "installed %{NAME} %{VERSION}\n"),
    "brew": ("brew", "list", "--versions"),
}
_CONDA = re.compile(r"(?P<name>.+)-(?P<version>[^-]+)-[^-]+")


def installed_packages(manager: str, environ: Mapping[str, str], run: RunProgram) -> dict[str, str]:
    """Return every installed package and its version."""
    if manager == "conda":
        return _of_conda(Path(environ.get("CONDA_PREFIX", "")))
    rows = [line.split() for line in run(_LISTING[manager]).splitlines()]
    if manager == "brew":
        return {row[0]: row[-1] for row in rows if row}
    return {row[1]: row[2] for row in rows if row[:1] == ["installed"] and len(row) > 2}  # noqa: PLR2004


def _of_conda(prefix: Path) -> dict[str, str]:
    matches = (_CONDA.fullmatch(path.stem) for path in find_paths(prefix / "conda-meta", "*.json"))
    return {match["name"]: match["version"] for match in matches if match}


def macos_version(run: RunProgram) -> dict[str, str]:
    """Return the version of macOS."""
    said = run(["sw_vers", "-productVersion"]).strip()
    return {"macos": said} if said else {}


def xcode_tools(places: Mapping[str, str], run: RunProgram) -> dict[str, str]:
    """Return where the command-line tools of Xcode are; nothing where they are not installed."""
    said = run([places["xcode-select"], "-p"]).strip() if "xcode-select" in places else ""
    return {"xcode": said} if said else {}


def is_translated(run: RunProgram) -> bool:
    """Tell whether this very process was made for Intel and runs on Apple silicon."""
    return run(["sysctl", "-n", "sysctl.proc_translated"]).strip() == "1"
