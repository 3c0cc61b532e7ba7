"""Run the programs of a machine, remember their answers, and tell the versions of its tools."""

import math
import re
import shlex
import shutil
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path
from threading import Lock
from typing import ClassVar

from torchmill.core.errors import HostError
from torchmill.core.lenient_paths import real_path
from torchmill.core.process import CommandError, NoAnswerError, ask
from torchmill.core.silence import answer_limit
from torchmill.core.stat_cache import StatCache

# The output of a program; "" if it does not run, fails or does not answer.
RunProgram = Callable[[Sequence[str]], str]

LINKERS = ("ld.bfd", "ld.gold", "ld.lld", "ld.mold")  # that gcc and clang start for -fuse-ld
TOOLS_WITH_VERSION = ("git", "cmake", "ninja", "ccache", "sccache", "nvcc", "patchelf")
TOOLS = (
    *TOOLS_WITH_VERSION,
    "nvidia-smi",
    "pyenv",
    "xcode-select",
    *LINKERS,
    "docker",
    "podman",
)
# Programs that start the compiler that is given to them.
LAUNCHERS = frozenset({"ccache", "sccache", "distcc", "icecc", "buildcache"})
# Variables that change where a compiler looks for its parts.
_SEARCH_VARIABLES = ("GCC_EXEC_PREFIX", "COMPILER_PATH", "LIBRARY_PATH")
# After which a program that did not answer is asked once more: what it waited for may be there.
_SILENCE_SECONDS = 600.0
_VERSION = re.compile(r"\d+(?:\.\d+)+")
_NVCC_VERSION = re.compile(r"release (\d+\.\d+)")


class ProgramRunner:
    """Runs programs with some variables, in English.

    With a `stat_cache`, the answers of a program are remembered for as long as its file is
    unchanged. A program that did not answer in time is not started again for some minutes, by no
    runner of this process. Until it has answered once, it gets one question at a time.
    """

    _silent: ClassVar[dict[str, float]] = {}  # path of a program -> monotonic time of its silence
    _first_questions: ClassVar[defaultdict[str, Lock]] = defaultdict(Lock)  # by path

    def __init__(self, environ: Mapping[str, str], stat_cache: StatCache | None = None) -> None:
        self.unanswered: dict[str, str] = {}  # name of a program -> "did not answer within 20 s"
        self._path = environ.get("PATH")
        self._variables = {**environ, "LC_ALL": "C"}
        self._searched = " ".join(environ.get(name, "") for name in _SEARCH_VARIABLES)
        self._stat_cache = stat_cache
        self._answered: set[str] = set()  # paths of programs

    def __call__(self, argv: Sequence[str]) -> str:
        """Return the output of a program; "" if it does not run, fails or does not answer."""
        # subprocess would look for a bare name on the PATH of this process, not on that of `env`.
        program = shutil.which(argv[0], path=self._path)
        if program is None:
            return ""
        command = [program, *argv[1:]]
        if program in self._answered:
            return self._find_answer(command)
        with self._first_questions[program]:
            answer = self._find_answer(command)
            self._answered.add(program)
            return answer

    def _find_answer(self, command: Sequence[str]) -> str:
        """Return the output of a command, from the cache or by running it."""
        program = command[0]
        if self._stat_cache is None or starts_another(Path(program)):
            return self._ask(command)
        question = f"{shlex.join(command)} {self._searched}"
        return self._stat_cache.program_output(
            question, [real_path(program)], lambda: self._ask(command)
        )

    def _ask(self, command: Sequence[str]) -> str:
        """Run a command, and return its output; "" if it fails. Record one that does not answer."""
        program = command[0]
        name = Path(program).name
        silent_since = self._silent.get(program, -math.inf)
        try:
            if time.monotonic() - silent_since >= _SILENCE_SECONDS:
                return ask(command, self._variables)
        except NoAnswerError:
            self._silent[program] = time.monotonic()
        except (CommandError, HostError):
            return ""
        self.unanswered[name] = f"did not answer within {answer_limit(name):g} s"
        return ""


def make_runner(environ: Mapping[str, str], stat_cache: StatCache | None = None) -> ProgramRunner:
    """Return a runner of programs with some variables."""
    return ProgramRunner(environ, stat_cache)


def starts_another(program: Path) -> bool:
    """Tell whether a program starts another one, which may change while its own file does not."""
    # On macOS, programs in /usr/bin start those of the selected Xcode.
    if sys.platform == "darwin" and program.parent == Path("/usr/bin"):
        return True
    return real_path(program).stem in LAUNCHERS


def find_tools(environ: Mapping[str, str]) -> dict[str, str]:
    """Return the paths of the tools that are on PATH."""
    paths: dict[str, str] = {}
    for tool in TOOLS:
        path = shutil.which(tool, path=environ.get("PATH"))
        if path:
            paths[tool] = path
    return paths


def tool_versions(paths: Mapping[str, str], run: RunProgram, threads: Executor) -> dict[str, str]:
    """Return the versions of those tools that report one."""
    tools = [tool for tool in TOOLS_WITH_VERSION if tool in paths]
    answers = threads.map(lambda tool: run([paths[tool], "--version"]), tools)
    versions: dict[str, str] = {}
    for tool, answer in zip(tools, answers, strict=True):
        version = parse_tool_version(tool, answer)
        if version:
            versions[tool] = version
    return versions


def parse_tool_version(tool: str, output: str) -> str | None:
    """Return the version in a tool's output for `--version`; None if it has none."""
    if tool == "nvcc":  # whose first lines have the years of its copyright
        release = _NVCC_VERSION.search(output)
        return release[1] if release else None
    match = _VERSION.search(output)
    return match[0] if match else None
