"""The C++ compilers of a machine, and which one a build would use."""

import os
import re
import shlex
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from pathlib import Path

from torchmill.config.model import Compiler
from torchmill.core.errors import ConfigError
from torchmill.core.files import find_paths
from torchmill.host.programs import RunProgram

_NAME = re.compile(r"(?:g\+\+|clang\+\+)(?:-\d+)?")
_CLANG = re.compile(r"(?P<apple>Apple )?(?:clang|LLVM) version (?P<version>\d+(?:\.\d+)+)")


CPP = ("CXX", "CC"), ("c++", "cc", "cl")  # variables that name the compiler of C++, and its usual names
C = ("CC",), ("cc", "cl")


def command_words(environ: Mapping[str, str], name: str) -> list[str]:
    """Return the words of the command that a variable names. Raises ConfigError for a quote that is left open."""
    try:
        return shlex.split(environ.get(name) or "")
    except ValueError as error:
        raise ConfigError(
            f"{name} is `{environ[name]}`, which no shell reads ({error}): set it to a command such as `g++-12`",
            code="invalid-command",
        ) from None


def compiler_command(
    environ: Mapping[str, str], language: tuple[Sequence[str], Sequence[str]] = CPP
) -> list[str] | None:
    """Return the command of the compiler that a build would use; None where that is not installed."""
    path = environ.get("PATH")
    variables, usual = language
    for name in variables:
        words = command_words(environ, name)
        if words:  # a build fails on a wrong one, so we do not look past it
            return words if shutil.which(words[0], path=path) else None
    return next(([name] for name in usual if shutil.which(name, path=path)), None)


def identify_compiler(words: list[str], environ: Mapping[str, str], run: RunProgram) -> Compiler | None:
    """Return what a compiler is; None where it does not say."""
    if Path(words[0]).stem.lower() == "cl":  # the prompt of Visual Studio has set its version
        version = environ.get("VCToolsVersion")
        return Compiler("msvc", version) if version else None
    said = run([*words, "--version"])
    if match := _CLANG.search(said):
        return Compiler("apple-clang" if match["apple"] else "clang", match["version"])
    if "Free Software Foundation" not in said:
        return None
    # gcc before 7 knows only the second flag, and later ones shorten its answer
    version = run([*words, "-dumpfullversion", "-dumpversion"]).strip()
    return Compiler("gcc", version) if version else None


def used_compiler(environ: Mapping[str, str], run: RunProgram) -> Compiler | None:
    """Return the compiler that a build would use; None where there is none, or it does not say what it is."""
    words = compiler_command(environ)
    return identify_compiler(words, environ, run) if words else None


def cuda_host_compiler(environ: Mapping[str, str], run: RunProgram) -> Compiler | None:
    """Return the host compiler that CUDAHOSTCXX names for nvcc; None where it names none."""
    words = command_words(environ, "CUDAHOSTCXX")
    return identify_compiler(words, environ, run) if words else None


def installed_compilers(
    environ: Mapping[str, str], root: Path, kept: Iterable[Path], run: RunProgram, threads: Executor
) -> dict[str, Compiler]:
    """Return every gcc and clang by its command, "g++-11"; those outside PATH by their place.

    `kept` are those in the user's cache.
    """
    commands = dict.fromkeys((*_on_path(environ), *_beside(root), *map(str, kept)))
    known = threads.map(lambda name: identify_compiler([name], environ, run), commands)
    return {name: one for name, one in zip(commands, known, strict=True) if one is not None}


def _on_path(environ: Mapping[str, str]) -> Iterator[str]:
    for folder in environ.get("PATH", "").split(os.pathsep):
        try:
            names = sorted(os.listdir(folder)) if folder else []  # noqa: PTH208 (the names alone, and fast)
        except OSError:
            continue
        yield from (name for name in names if _NAME.fullmatch(name.removesuffix(".exe")))


def _beside(root: Path) -> Iterator[str]:
    """Yield the newer compilers that Red Hat's systems keep out of PATH."""
    for folder in ("gcc-toolset-*", "devtoolset-*"):
        yield from map(str, find_paths(root, f"opt/rh/{folder}/root/usr/bin/g++"))
