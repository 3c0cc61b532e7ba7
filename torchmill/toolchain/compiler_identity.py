"""Identify a compiler by the contents of the programs behind it.

`g++` starts `cc1plus`, `clang` is a small program before large libraries, and /usr/bin/c++ may be a script.
Each can stay as it is while what compiles becomes another: so all that is behind it is read.
"""

import contextlib
import hashlib
import re
import shlex
import shutil
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from torchmill.core.files import is_file, real_path
from torchmill.core.process import program_output

Digest = Callable[[Path], str | None]  # of a file's content; None where it cannot be read
_BEHIND = ("cc1", "cc1plus", "clang")
_LIBRARY = re.compile(r"=> (/\S*/lib(?:clang|LLVM)\S*)")


def chosen_compilers(environ: Mapping[str, str]) -> set[str]:
    """Return the absolute paths of the compilers that a build in this environment uses."""
    commands = (environ.get(name) or default for name, default in (("CC", "cc"), ("CXX", "c++")))
    return find_programs((word for one in commands for word in command_words(one)), environ.get("PATH"))


def command_words(command: str) -> list[str]:
    """Return the words of a command that may be a compiler: CXX may begin with a launcher, and have flags."""
    with contextlib.suppress(ValueError):
        return [word for word in shlex.split(command) if not word.startswith("-")]
    return [command]


def find_programs(names: Iterable[str], path: str | None) -> set[str]:
    """Return the absolute paths of those programs that exist."""
    paths = (shutil.which(name, path=path) for name in names)
    return {one for one in paths if one is not None and Path(one).is_absolute()}


def compiler_identity(compiler: str, digest: Digest) -> str:
    """Return a digest of a compiler and of every program and library behind it; paths do not count."""
    parts = (Path(compiler), *sorted(_programs_behind(compiler), key=lambda path: path.name))
    text = "".join(f"{part.name} {digest(part)}\n" for part in parts)
    return hashlib.sha256(text.encode()).hexdigest()


def _programs_behind(compiler: str) -> set[Path]:
    answers = (program_output(compiler, f"-print-prog-name={name}").strip() for name in _BEHIND)
    programs = {real_path(one) for one in answers if one.startswith("/") and is_file(Path(one))}
    clang = [str(one) for one in programs if one.name.startswith("clang")] if shutil.which("ldd") else []
    found = (one for program in clang for one in _LIBRARY.findall(program_output("ldd", program)))
    return programs | {real_path(one) for one in found}
