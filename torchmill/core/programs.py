"""Rewrite the commands in messages to those that work in the user's shell.

Code and tables write `invoke TASK` and `nox -s SESSION`, as in a checkout whose environment is
activated. An installed torchmill may have only `torchmill` on PATH, and an environment that is not
activated has nothing there. `record_programs` finds the right commands when the process begins, and
`name_programs` writes them into each message.
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

from torchmill.core.task_lines import TASK_LINES

# Names of environment variables that hold the commands for tasks and sessions.
INVOKE = "TORCHMILL_INVOKE"
NOX = "TORCHMILL_NOX"
_VARIABLES = {"invoke": INVOKE, "nox": NOX}
# Characters that JSON escapes: a command with one of them would be broken in the output of --json.
_UNQUOTABLE = re.compile(r"[\"\\\x00-\x1f]")


def name_programs(text: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return a text with its commands `invoke TASK` and `nox -s SESSION` rewritten.

    `invoke` and `nox` are replaced by the commands that `record_programs` has recorded in the
    environment. Commands that are rewritten already stay as they are.
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
    """Return a pattern of the commands in a text.

    Its groups `invoke` and `nox` match the words to replace, its group `as_is` matches what must
    stay: commands that run in a container or by `python -m`, and commands that are rewritten.
    """
    container = r"\b(?:docker|podman) run [^`\n]*"
    as_is = rf"{container}|-m (?:invoke|nox)\b|{re.escape(nox)} |{re.escape(invoke)} "
    # A command does not begin after these characters, which would make it a part of a longer word.
    # In JSON, a new line is written as the two characters "\n", after which one may begin.
    start = r"(?:(?<![\w./\\-])|(?<=\\n))"
    option = "--?[a-z]"
    tasks = "|".join(TASK_LINES)
    task = rf"(?P<invoke>invoke)(?= (?:(?:{tasks}|TASK)\b|{option}))"
    session = rf"(?P<nox>nox)(?= {option})"
    return re.compile(f"(?P<as_is>{as_is})|{start}(?:{task}|{session})")


def record_programs(environ: MutableMapping[str, str], program: str = "") -> None:
    """Set the variables INVOKE and NOX to the commands that run tasks and sessions.

    Variables that are set already stay: this process was then started by torchmill. `program` is
    the command of an installed torchmill that started this process; "" if `invoke` or `nox` did.
    """
    if program:
        environ.setdefault(INVOKE, program)
        environ.setdefault(NOX, f"{program} nox")
    for name, variable in _VARIABLES.items():
        environ.setdefault(variable, find_program(name, Path(sys.executable), environ))


def find_program(name: str, python: Path, environ: Mapping[str, str]) -> str:
    """Return the command that runs a program, such as nox, with `python` in the user's shell.

    The program should lie beside `python`, in one environment. If PATH leads to it there, the
    command is its name, else its path. If it is not there, the command is its name if PATH leads to
    any program of that name, as after `pip install --user`, else `python -m NAME`.
    """
    script = python.parent / name
    path_program = shutil.which(name, path=environ.get("PATH", ""))
    if path_program and (_starts_script(Path(path_program), script) or not script.is_file()):
        return name
    if script.is_file():
        command = shlex.quote(_relative_to_shell(script, environ))
    else:
        command = f"{shlex.quote(_relative_to_shell(python, environ))} -m {name}"
    if _UNQUOTABLE.search(command):
        return name
    return command


def _starts_script(path_program: Path, script: Path) -> bool:
    """Tell whether a program on PATH is a script, or a shim of pyenv, which starts the script."""
    is_shim = path_program.parent.name == "shims"
    return is_shim or os.path.realpath(path_program) == os.path.realpath(script)


def started_program(argument: str, python: Path, environ: Mapping[str, str]) -> str:
    """Return the command that started an installed torchmill; `argument` is its sys.argv[0]."""
    script = Path(argument)
    if script.name == "__main__.py":  # started by `python -m torchmill_suite`
        return f"{shlex.quote(str(python))} -m {script.parent.name}"
    path_program = shutil.which("torchmill", path=environ.get("PATH", ""))
    if path_program and _starts_script(Path(path_program), script):
        return "torchmill"
    command = shlex.quote(_relative_to_shell(script.absolute(), environ))
    if _UNQUOTABLE.search(command):
        return "torchmill"
    return command


def install_command(
    arguments: Sequence[str], python: Path, environ: Mapping[str, str] = os.environ
) -> str:
    """Return the command that installs packages into the environment of the running Python.

    `arguments` are those of `pip install`, `python` is the path of the running Python. Environments
    that uv made have no pip: there, uv installs.
    """
    path_python = shutil.which("python", path=environ.get("PATH", ""))
    if path_python and Path(path_python).parent == python.parent:
        name = "python"
    else:
        name = shlex.quote(_relative_to_shell(python, environ))
    quoted_arguments = shlex.join(arguments)
    if has_pip():
        return f"{name} -m pip install {quoted_arguments}"
    return f"{name} -m uv pip install --python {name} {quoted_arguments}"


def has_pip() -> bool:
    """Tell whether the running Python has pip.

    Looks for the metadata of pip: a search for its module would start a hook of setuptools, which
    replaces Python's distutils.
    """
    try:
        distribution("pip")
    except PackageNotFoundError:
        return False
    return True


def _relative_to_shell(path: Path, environ: Mapping[str, str]) -> str:
    """Return a path relative to the folder of the user's shell, PWD, if it is in a folder below.

    Other paths stay as they are. So does the path of a program in PWD itself: a shell would search
    for a bare name on PATH.
    """
    folder = Path(environ.get("PWD", ""))
    if folder.is_absolute() and path.is_relative_to(folder) and path.parent != folder:
        return str(path.relative_to(folder))
    return str(path)
