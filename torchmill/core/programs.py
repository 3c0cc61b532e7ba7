"""The commands in messages name the programs by which people run torchmill in their environment.

Code and tables write `invoke TASK` and `nox -s SESSION`, as in a checkout. An installed torchmill
may have put no more than `torchmill` on PATH, and an environment that is not activated puts nothing
there.
"""

import os
import re
import shlex
import shutil
import sys
from collections.abc import Mapping, MutableMapping, Sequence
from functools import cache
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from torchmill.core.task_lines import LINES

# The variables with the commands that run tasks and sessions.
INVOKE = "TORCHMILL_INVOKE"
NOX = "TORCHMILL_NOX"
_VARIABLES = {"invoke": INVOKE, "nox": NOX}
_UNQUOTABLE = re.compile(r"[\"\\\x00-\x1f]")  # characters that JSON escapes


def name_programs(text: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return a text whose commands `invoke TASK` and `nox -s` name the programs to run them.

    The programs are those that `record_programs` has recorded in the environment. A text that was
    treated before stays as it is.
    """
    invoke = environ.get(INVOKE, "invoke")
    nox = environ.get(NOX, "nox")
    if (invoke, nox) == ("invoke", "nox"):
        return text

    def rename(match: re.Match[str]) -> str:
        if match["as_is"]:
            return match["as_is"]
        return invoke if match["invoke"] else nox

    return _command_pattern(invoke, nox).sub(rename, text)


@cache
def _command_pattern(invoke: str, nox: str) -> re.Pattern[str]:
    """Return a pattern of commands in a text; its group `as_is` has those that must stay."""
    # Commands in a container, or by `python -m`, find the programs there; and those that were
    # renamed before.
    container = r"\b(?:docker|podman) run [^`\n]*"
    as_is = rf"{container}|-m (?:invoke|nox)\b|{re.escape(nox)} |{re.escape(invoke)} "
    # In JSON, a line may begin after the two characters of an escaped newline.
    start = r"(?:(?<![\w./\\-])|(?<=\\n))"
    option = "--?[a-z]"
    tasks = "|".join(LINES)
    task = rf"(?P<invoke>invoke)(?= (?:(?:{tasks}|TASK)\b|{option}))"
    session = rf"(?P<nox>nox)(?= {option})"
    return re.compile(f"(?P<as_is>{as_is})|{start}(?:{task}|{session})")


def record_programs(environ: MutableMapping[str, str], program: str = "") -> None:
    """Record in the environment how tasks and sessions are run; an earlier record stays.

    `program` is the command of an installed torchmill that started this process, "" if that was
    `invoke` or `nox` itself.
    """
    if program:
        environ.setdefault(INVOKE, program)
        environ.setdefault(NOX, f"{program} nox")
    for name, variable in _VARIABLES.items():
        environ.setdefault(variable, find_program(name, Path(sys.executable), environ))


def find_program(name: str, python: Path, environ: Mapping[str, str]) -> str:
    """Return the command by which a person runs a program of a Python's environment.

    That is its name if PATH leads to it, else its path, relative to the shell's folder if it is
    below that, or `python -m NAME` if there is no such program.
    """
    script = python.parent / name
    on_path = shutil.which(name, path=environ.get("PATH", ""))
    if on_path and (_is_same(Path(on_path), script) or not script.is_file()):
        return name
    if script.is_file():
        command = shlex.quote(_relative_to_shell(script, environ))
    else:
        command = f"{shlex.quote(_relative_to_shell(python, environ))} -m {name}"
    return name if _UNQUOTABLE.search(command) else command


def _is_same(on_path: Path, script: Path) -> bool:
    """Tell whether a program on PATH is a script, or a shim of pyenv, which starts the script."""
    return on_path.parent.name == "shims" or os.path.realpath(on_path) == os.path.realpath(script)


def started_program(argument: str, python: Path, environ: Mapping[str, str]) -> str:
    """Return the command that started an installed torchmill; `argument` is its first word."""
    script = Path(argument)
    if script.name == "__main__.py":
        return f"{shlex.quote(str(python))} -m {script.parent.name}"
    on_path = shutil.which("torchmill", path=environ.get("PATH", ""))
    if on_path and _is_same(Path(on_path), script):
        return "torchmill"
    command = shlex.quote(_relative_to_shell(script.absolute(), environ))
    return "torchmill" if _UNQUOTABLE.search(command) else command


def install_command(
    words: Sequence[str], python: Path, environ: Mapping[str, str] = os.environ
) -> str:
    """Return the command that installs something into the environment of this Python.

    `words` are those after `pip install`. Environments made by uv, also those of `uv tool install`,
    have no pip.
    """
    on_path = shutil.which("python", path=environ.get("PATH", ""))
    if on_path and Path(on_path).parent == python.parent:
        name = "python"
    else:
        name = shlex.quote(_relative_to_shell(python, environ))
    arguments = shlex.join(words)
    if _has_pip():
        return f"{name} -m pip install {arguments}"
    return f"{name} -m uv pip install --python {name} {arguments}"


def _has_pip() -> bool:
    """Tell whether the Python that runs this has pip.

    Reads its metadata: a search for the module would make setuptools replace Python's distutils by
    its own.
    """
    try:
        distribution("pip")
    except PackageNotFoundError:
        return False
    return True


def _relative_to_shell(path: Path, environ: Mapping[str, str]) -> str:
    """Return a path as a word of a command in the shell, whose folder is PWD.

    A program in that folder itself keeps its absolute path, because a shell searches a bare name on
    PATH.
    """
    folder = Path(environ.get("PWD", ""))
    if folder.is_absolute() and path.is_relative_to(folder) and path.parent != folder:
        return str(path.relative_to(folder))
    return str(path)
