"""Compile and run a C++ program against an archive, as its users do: unzipped, found by CMake."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO
from zipfile import ZipFile

from torchmill.errors import VerifyError
from torchmill.process import CommandError, stream
from torchmill.verify import trial

PROJECTS = Path(__file__).parent / "consumers"
TOOLS = ("cmake>=3.18", "ninja")


@dataclass(frozen=True, slots=True)
class Trial:
    """Where an archive is tried, and with what."""

    project: str  # a folder of PROJECTS
    scratch: Path
    definitions: Sequence[str] = ()  # "CUDA_TOOLKIT_ROOT_DIR=/usr/local/cuda"
    variables: Mapping[str, str] = field(default_factory=dict)


def run(archive: Path, trial_: Trial, log: TextIO) -> str:
    """Unzip the archive, build the consumer against it and run it; return what it printed.

    CMake and ninja come from PyPI where the machine has none. Raises VerifyError where any of it fails.
    """
    scratch = trial_.scratch
    shutil.rmtree(scratch, ignore_errors=True)
    with ZipFile(archive) as unpacked:
        unpacked.extractall(scratch)
        root = scratch / unpacked.namelist()[0].partition("/")[0]
    source = shutil.copytree(PROJECTS / trial_.project, scratch / "consumer")
    build, cmake, ninja = source / "build", *_tools(scratch, log)
    said: list[str] = []
    definitions = [f"CMAKE_PREFIX_PATH={root}", f"CMAKE_MAKE_PROGRAM={ninja}", "CMAKE_BUILD_TYPE=Release"]
    definitions += trial_.definitions
    steps: dict[str, list[str | Path]] = {
        "configured": [cmake, "-G", "Ninja", "-S", source, "-B", build, *(f"-D{one}" for one in definitions)],
        "compiled": [cmake, "--build", build],
        "run": [build / "consumer"],
    }
    for step, argv in steps.items():
        said.clear()
        words = [str(word) for word in argv]
        log.write(f"+ {' '.join(words)}\n")
        try:
            environ = {**trial.clean(), **trial_.variables}
            stream(words, cwd=scratch, env=environ, log=log, on_line=said.append)
        except CommandError as error:
            raise VerifyError(
                f"{archive.name}: a C++ program could not be {step} against it, so it is not delivered "
                f"({_cause(error)}): see {log.name}"
            ) from None
    return "\n".join(said)


def _tools(scratch: Path, log: TextIO) -> tuple[str, str]:
    """Return CMake and ninja: this machine's, or those of PyPI in an environment of their own."""
    found = shutil.which("cmake"), shutil.which("ninja")
    if found[0] and found[1]:
        return found[0], found[1]
    python = trial.environment(Path(sys.executable), scratch / "tools", log)
    trial.install(python, TOOLS, log)
    suffix = ".exe" if sys.platform == "win32" else ""
    return str(python.with_name(f"cmake{suffix}")), str(python.with_name(f"ninja{suffix}"))


def _cause(error: CommandError) -> str:
    """Return the first line that a compiler, a linker or CMake marks as an error, else how it ended."""
    lines = [line.strip() for line in error.output.splitlines()]
    told = ("error:", "undefined reference", "cmake error")
    return next((line for line in lines if any(word in line.lower() for word in told)), str(error))
