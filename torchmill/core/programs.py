"""The commands in messages name the programs by which people run torchmill where they are.

Code and tables write `invoke TASK` and `nox -s SESSION`, as in a checkout. An installed torchmill may have put no more
than `torchmill` on PATH, and an environment that is not activated puts nothing there.
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

INVOKE, NOX = (
    "TORCHMILL_INVOKE",
    "TORCHMILL_NOX",
)  # variables with the command that runs tasks, and sessions
_VARIABLES = {"invoke": INVOKE, "nox": NOX}
_UNQUOTABLE = re.compile(r"[\"\\\x00-\x1f]")  # what would have to be escaped in JSON


def name_programs(text: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return a text whose commands `invoke TASK` and `nox -s` name what runs them here, as the environment says.

    A text that was treated before stays as it is.
    """
    invoke, nox = (environ.get(variable, program) for program, variable in _VARIABLES.items())
    if (invoke, nox) == ("invoke", "nox"):
        return text
    commands = _commands(invoke, nox)
    return commands.sub(lambda found: found["as_is"] or (invoke if found["invoke"] else nox), text)


@cache
def _commands(invoke: str, nox: str) -> re.Pattern[str]:
    """Return what matches a command of a text, and before that what has to stay."""
    # What runs in a container, or by `python -m`, finds the programs that are there.
    as_is = rf"\b(?:docker|podman) run [^`\n]*|-m (?:invoke|nox)\b|{re.escape(nox)} |{re.escape(invoke)} "
    start = r"(?:(?<![\w./\\-])|(?<=\\n))"  # in JSON, a line may begin after the two characters of its newline
    option = "--?[a-z]"
    task = rf"(?P<invoke>invoke)(?= (?:(?:{'|'.join(LINES)}|TASK)\b|{option}))"
    session = rf"(?P<nox>nox)(?= {option})"
    return re.compile(f"(?P<as_is>{as_is})|{start}(?:{task}|{session})")


def record_programs(environ: MutableMapping[str, str], program: str = "") -> None:
    """Record in the environment how tasks and sessions are run; what is recorded there already stays.

    `program` is the command of an installed torchmill by which this was started, "" for `invoke` or `nox` themselves.
    """
    if program:
        environ.setdefault(INVOKE, program)
        environ.setdefault(NOX, f"{program} nox")
    for name, variable in _VARIABLES.items():
        environ.setdefault(variable, find_program(name, Path(sys.executable), environ))


def find_program(name: str, python: Path, environ: Mapping[str, str]) -> str:
    """Return the command by which a person runs a program of the environment that a Python is of.

    Its name if that is what PATH has, else where it is, from the shell's folder if it is below that; as a module of
    that Python if there is no such program.
    """
    script = python.parent / name
    on_path = shutil.which(name, path=environ.get("PATH", ""))
    if on_path and (_is_same(Path(on_path), script) or not script.is_file()):
        return name
    if script.is_file():
        command = shlex.quote(_seen_from_shell(script, environ))
    else:
        command = f"{shlex.quote(_seen_from_shell(python, environ))} -m {name}"
    return name if _UNQUOTABLE.search(command) else command


def _is_same(on_path: Path, script: Path) -> bool:
    """Tell whether a program on PATH is a script, or a shim of pyenv, which finds the script."""
    return on_path.parent.name == "shims" or os.path.realpath(on_path) == os.path.realpath(script)


def started_program(argument: str, python: Path, environ: Mapping[str, str]) -> str:
    """Return the command by which an installed torchmill was started: `argument` is the first of its words."""
    script = Path(argument)
    if script.name == "__main__.py":
        return f"{shlex.quote(str(python))} -m {script.parent.name}"
    on_path = shutil.which("torchmill", path=environ.get("PATH", ""))
    if on_path and _is_same(Path(on_path), script):
        return "torchmill"
    command = shlex.quote(_seen_from_shell(script.absolute(), environ))
    return "torchmill" if _UNQUOTABLE.search(command) else command


def install_command(
    words: Sequence[str], python: Path, environ: Mapping[str, str] = os.environ
) -> str:
    """Return the command that installs, by words of pip, into the environment of the Python that runs this.

    Environments that uv makes, those of `uv tool install` too, have no pip.
    """
    on_path = shutil.which("python", path=environ.get("PATH", ""))
    here = on_path and Path(on_path).parent == python.parent
    name = "python" if here else shlex.quote(_seen_from_shell(python, environ))
    wanted = shlex.join(words)
    if _has_pip():
        return f"{name} -m pip install {wanted}"
    return f"{name} -m uv pip install --python {name} {wanted}"


def _has_pip() -> bool:
    """Tell whether the Python that runs this has pip.

    Its metadata are asked: to look for the module would let setuptools put its own distutils in the place of Python's.
    """
    try:
        distribution("pip")
    except PackageNotFoundError:
        return False
    return True


def _seen_from_shell(path: Path, environ: Mapping[str, str]) -> str:
    """Return a path as a word of a command in the shell that this was started in, whose folder is PWD."""
    folder = Path(environ.get("PWD", ""))
    here = folder.is_absolute() and path.is_relative_to(folder) and path.parent != folder
    return str(path.relative_to(folder)) if here else str(path)
