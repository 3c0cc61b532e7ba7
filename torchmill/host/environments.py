"""The virtual environments of cells: made from stored ones, and filled for a purpose.

A *purpose* is a digest of all that decides what is installed in an environment: its requirements,
its interpreter. A stamp in the environment has the purpose and the state of its files, so that a
later build can tell whether the environment still is as it was filled.
"""

import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

from torchmill.core import locks, retries
from torchmill.core.errors import HostError
from torchmill.core.lenient_paths import read_text
from torchmill.core.process import CommandError, capture, program_output
from torchmill.core.retries import PassingFailure
from torchmill.core.stat_cache import digest_data, stat_file, stat_folder
from torchmill.core.system_errors import blame_disk, read_refusal, report_unwritable
from torchmill.host.interpreters import resolve_interpreter
from torchmill.host.stored_folders import copy_stored

Install = Callable[..., Any]  # runs `pip install` with its arguments
STAMP_NAME = "torchmill"  # the file in an environment with the purpose that it was filled for
# Environment variables that would make pip install elsewhere, or install something else.
MISLEADING_VARIABLES = (
    "PYTHON.*|PIP_(DRY_RUN|TARGET|PREFIX|ROOT|USER|PYTHON|NO_DEPS|PRE|REQUIREMENT|EDITABLE"
    "|REQUIRE_VIRTUALENV)"
)
# The lines by which pip ends because a connection broke: with the name of an error of urllib3, or
# an answer that asks to come back. Its warnings of such errors may come before an end of another
# kind.
_BROKEN_DOWNLOAD = re.compile(
    r"^(?:ERROR|error|pip\._vendor\S+):.*(?:IncompleteRead|Connection broken|ConnectionResetError"
    r"|RemoteDisconnected|Read timed out|incomplete-download"
    r"|\b(?:408|425|429|500|502|503|504) (?:Client|Server) Error)",
    re.MULTILINE,
)
_SITES = ("lib/python*/site-packages", "Lib/site-packages")
_PATH_FILE = "torchmill.pth"  # leads to packages in another folder
_DIGITS = 16  # of the digest that names a stored environment
# Without -I, Python would import modules of the current folder, such as a logging.py there.
_PIP = """\
#!/bin/sh
exec "$(dirname "$0")/python" -I -m pip "$@"
"""
# Prints the version of an interpreter: "3.10", or "3.13t" of a free-threaded one.
_PRINT_VERSION = """\
import sys, sysconfig
suffix = "t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
print("%d.%d%s" % (sys.version_info[:2] + (suffix,)))
"""


def hold_environment(venv: Path, cell: str) -> AbstractContextManager[None]:
    """Return a context manager that holds the lock of an environment.

    Cells of the same name, of other releases and other checkouts, share the environment. `cell` is
    that name, for messages. Raises BusyError if another run holds the lock, HostError if it cannot
    be locked.
    """
    # Beside the environment: `venv --clear` deletes all files in it.
    lock = venv.with_name(".locks") / venv.name
    # The message goes on: "… is being built by another run".
    product = f"{cell} of another release or checkout, in the same environment ({venv}),"
    return locks.hold_work_folder(lock, product)


def provide_environment(
    venv: Path, interpreter: Path, purpose: str, store: Path, install: Install, *requirements: str
) -> None:
    """Install the requirements of a build in an environment, and stamp it.

    An environment that was filled for `purpose`, and whose packages are unchanged, is used again:
    headers with new times would make ninja compile everything again. Any other is deleted and made
    anew, from the environments in `store`. Raises HostError if it cannot be made. `install` is
    called in either case, with the requirements.
    """
    stamp = venv / STAMP_NAME
    is_usable = False
    if is_unchanged(venv, purpose):
        # If the run that made it was killed, its pip may not run.
        pip_version = ("-I", "-m", "pip", "--version")
        is_usable = bool(program_output(str(environment_python(venv)), *pip_version))
    if not is_usable:
        with report_unwritable(venv):
            # The stamp goes first: the environment must not count as filled while it is made anew.
            stamp.unlink(missing_ok=True)
            make_environment(interpreter, venv, store)
    install(*requirements)
    stamp_environment(venv, purpose)


def stamp_environment(venv: Path, purpose: str) -> None:
    """Record that an environment is filled for a purpose, with the state of its packages."""
    stamp = venv / STAMP_NAME
    stamp.write_text(f"{purpose}\n{_packages_state(venv)}", encoding="utf-8")


def make_environment(
    interpreter: Path, venv: Path, store: Path, run: Callable[[list[str]], object] = capture
) -> None:
    """Make an environment with nothing but pip, in place of the former one.

    `store` is a folder of such environments, one for each interpreter. To install pip takes seconds
    of processor time; to copy it from there takes a tenth of a second. `run` runs a command. Raises
    HostError if no environment can be made.
    """
    digest = digest_data([str(interpreter.resolve()), stat_file(interpreter)])[:_DIGITS]
    _run_venv(run, interpreter, venv, "--without-pip")
    make_with_pip = partial(_run_venv, run, interpreter)
    copy_stored(store / digest, venv, make=make_with_pip, copy=_copy_packages)


def _run_venv(
    run: Callable[[list[str]], object], interpreter: Path, venv: Path, *options: str
) -> None:
    """Run the module venv of an interpreter. Raises HostError if it fails."""
    try:
        run([str(interpreter), "-I", "-m", "venv", "--clear", *options, str(venv)])
    except CommandError as error:
        refusal = blame_disk(error.output, venv) or read_refusal(error.output, venv)
        if refusal is not None:
            raise refusal from None
        raise HostError(
            f"{interpreter}: cannot create a virtual environment ({error}): "
            "install its venv and ensurepip modules",
            code="venv-failed",
        ) from None


def _site_folders(venv: Path) -> Iterator[Path]:
    """Yield the folders of packages in an environment."""
    for site in _SITES:
        yield from venv.glob(site)


def _copy_packages(stored: Path, venv: Path) -> None:
    """Copy pip and the packages that come with it into an environment.

    The pip scripts are written anew: the stored ones would start the stored pip. On Windows there
    are none, because pip is run as a module there.
    """
    for folder in _site_folders(stored):
        shutil.copytree(folder, venv / folder.relative_to(stored), dirs_exist_ok=True)
    for program in stored.glob("bin/pip*"):
        script = venv / "bin" / program.name
        script.write_text(_PIP, encoding="utf-8")
        script.chmod(0o755)


def pip_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables for a pip that installs what it is asked to, into its own environment.

    They are `variables`, without those that mislead pip, and with some that are set here, which also
    override the user's pip.conf. Its other settings stay in force,
    because the index to install from may be one of them; so do the user's PIP_RETRIES, the number
    of times that pip repeats a request, and PIP_RESUME_RETRIES. The latter is set for others,
    because pip 25.1 resumes no download by itself.
    """
    harmless = {"PIP_RESUME_RETRIES": str(retries.tries_allowed() - 1)}
    for name, value in variables.items():
        if not re.fullmatch(MISLEADING_VARIABLES, name):
            harmless[name] = value
    return {
        **harmless,
        "PIP_USER": "0",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_PROGRESS_BAR": "off",
    }


def judge_pip(error: Exception) -> PassingFailure | None:
    """Return how a failure of pip may pass: its connection broke although it repeated requests.

    Before version 25.2, pip did not resume a download that broke off.
    """
    if isinstance(error, CommandError) and _BROKEN_DOWNLOAD.search(error.output):
        return PassingFailure(pip_reason(error))
    return None


def pip_reason(error: CommandError) -> str:
    """Return why pip failed: its first line that says so, or else how it ended."""
    for line in error.output.splitlines():
        if line.startswith("ERROR:"):
            return line.removeprefix("ERROR:").strip()
    return str(error)


def add_package_folder(venv: Path, folder: Path) -> None:
    """Let an environment import the packages in a folder, after its own.

    pip then takes them for installed, without the programs that they would have put on PATH. The
    folder takes the place of one that was added before.
    """
    # A plain path in a .pth file would not read the .pth files of that folder; addsitedir does.
    line = f"import site; site.addsitedir({str(folder)!r})\n"
    for site in _site_folders(venv):
        file = site / _PATH_FILE
        if read_text(file) != line:
            file.write_text(line, encoding="utf-8")


def import_at_start(venv: Path, module: Path) -> None:
    """Let each interpreter that is started in an environment import a copy of a module first."""
    for site in _site_folders(venv):
        shutil.copyfile(module, site / f"torchmill_{module.name}")
        # Lines of a .pth file that begin with "import" are run: https://docs.python.org/3/library/site.html
        file = site / f"torchmill_{module.stem}.pth"
        file.write_text(f"import torchmill_{module.stem}\n", encoding="utf-8")


def installed_distributions(venv: Path, purpose: str) -> list[str] | None:
    """Return the .dist-info folders in an environment: "numpy-1.24.4.dist-info".

    Returns None if the environment was not filled for this purpose.
    """
    if _read_stamp(venv)[0] != purpose:
        return None
    names: list[str] = []
    for site in _site_folders(venv):
        names.extend(path.name for path in site.glob("*.dist-info"))
    return sorted(names)


def is_unchanged(venv: Path, purpose: str) -> bool:
    """Tell whether an environment is as it was filled for a purpose: no file has changed."""
    return _read_stamp(venv) == [purpose, _packages_state(venv)]


def _read_stamp(venv: Path) -> list[str]:
    """Return the purpose that an environment was filled for, and the state of its packages then.

    It is [""] if it was never filled.
    """
    return read_text(venv / STAMP_NAME).split("\n")


def _packages_state(venv: Path) -> str:
    """Return the state of the files of all packages, without bytecode, which Python may write."""
    return " ".join(stat_folder(site, ("__pycache__",)).text for site in _site_folders(venv))


def base_interpreter(venv: Path, python: str) -> Path:
    """Return the interpreter that an environment was made from, or would be made from.

    `python` is its version, "3.12". The environment may be half-made. Its configuration names the
    folder of the interpreter, in which python3 may be of another version by now. If none of that
    version is there, the environment's own is returned, if it is of the version, or else any that
    `resolve_interpreter` finds. Raises HostError if no interpreter of that version works.
    """
    settings = read_text(venv / "pyvenv.cfg").splitlines()
    homes = [line.partition("=")[2].strip() for line in settings if line.startswith("home")]
    if not homes:
        return resolve_interpreter(python)
    versioned_name = f"python{python}"
    names = (versioned_name, "python3", "python", "python.exe")
    paths: list[Path] = []
    for home in homes:
        paths.extend(Path(home) / name for name in names)
    paths.append(environment_python(venv))
    for path in filter(Path.exists, paths):
        if path.name == versioned_name:
            return path
        if program_output(str(path), "-I", "-c", _PRINT_VERSION).strip() == python:
            return path
    return resolve_interpreter(python)


def packages_folder(venv: Path, python: str) -> Path:
    """Return the folder of packages of a virtual environment for a Python: "3.12", "3.13t".

    https://docs.python.org/3/library/sysconfig.html#installation-paths
    """
    return venv / ("Lib" if os.name == "nt" else f"lib/python{python}") / "site-packages"


def environment_python(venv: Path) -> Path:
    """Return the interpreter of a virtual environment."""
    return venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
