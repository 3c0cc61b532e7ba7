"""Install a wheel in a clean virtual environment and run its checks there.

A clean environment has the wheel and the packages that it requires. Packages of the user, and
variables that bring in libraries or settings, have no effect in it. The checks are the scripts in
checks/, which the wheel's Python runs: they import the package, compute with it, and print their
results as JSON.
"""

import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TextIO

from packaging.version import Version

from torchmill.core import retries
from torchmill.core.errors import VerifyError
from torchmill.core.paths import CHECKOUT
from torchmill.core.process import CommandError, capture, stream
from torchmill.core.strict_json import parse_json_object
from torchmill.core.system_errors import blame_disk
from torchmill.host import environments

CHECK_SCRIPTS = CHECKOUT / "checks"
OLDEST_PIP_VERSION = Version("20.3")  # the first that knows tags like manylinux_2_36 (PEP 600)
CHECKING_LINE = re.compile(r"^checking .+$", re.MULTILINE)
# Variables that bring in libraries, packages or settings.
_UNWANTED = re.compile(
    "LD_LIBRARY_PATH|LD_PRELOAD|DYLD_.*|VIRTUAL_ENV|CONDA_.*|TORCH_.*|"
    + environments.MISLEADING_VARIABLES
)


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of one check."""

    ok: bool
    detail: str


def clean_variables(variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables without those that bring in packages, libraries or settings."""
    return {name: value for name, value in variables.items() if not _UNWANTED.fullmatch(name)}


def create_environment(python: Path, folder: Path, log: TextIO, empty: Path) -> Path:
    """Create a virtual environment in place of `folder`, and return its interpreter.

    `empty` is a folder of stored environments with nothing but pip, one for each interpreter: the
    packages are copied from there, because to install them takes seconds. A pip that is too old for
    new tags is replaced. Raises HostError if `python` cannot create an environment.
    """
    environments.make_environment(python, folder, empty, partial(_run_logged, log=log))
    interpreter = environments.environment_python(folder)
    answer = capture([str(interpreter), "-I", "-m", "pip", "--version"], env=clean_variables())
    pip_version = Version(answer.split()[1])  # "pip 20.0.2 from …"
    if pip_version < OLDEST_PIP_VERSION:
        # Not the newest: only old interpreters have an older pip, and this series runs on all of
        # them.
        install_packages(interpreter, ["--upgrade", f"pip>={OLDEST_PIP_VERSION},<21"], log)
    return interpreter


def install_packages(interpreter: Path, packages: Sequence[Path | str], log: TextIO) -> None:
    """Install wheels and requirements in one run of pip, in the environment of an interpreter.

    Raises VerifyError if pip refuses, HostError if the disk is full.
    """
    words = [str(package) for package in packages]
    argv = [str(interpreter), "-I", "-m", "pip", "install", "--no-input", "--no-compile", *words]
    try:
        _run_logged(argv, log)
    except CommandError as error:
        disk_error = blame_disk(error.output, interpreter)
        if disk_error is not None:
            raise disk_error from None
        raise VerifyError(
            f"pip cannot install {' '.join(words)} in a clean environment: "
            f"{environments.pip_reason(error)}",
            code="wheel-not-installable",
        ) from None


def site_packages(interpreter: Path) -> Path:
    """Return the folder that the packages of an interpreter's environment are installed in."""
    script = "import sysconfig; print(sysconfig.get_paths()['platlib'])"
    return Path(capture([str(interpreter), "-I", "-c", script], env=clean_variables()).strip())


def run_checks(
    interpreter: Path, script: str, expected: Mapping[str, object], log: TextIO
) -> dict[str, CheckResult]:
    """Run the check `script`, a file in checks/, by an interpreter; return its results by name.

    It runs away from any source tree. `expected` are the values that the script compares the wheel
    with; it reads them from a JSON file. A check that fails is a result, too. Raises VerifyError if
    the script does not run to its end.
    """
    with tempfile.TemporaryDirectory(prefix="verify-") as name:
        folder = Path(name)
        ignored = shutil.ignore_patterns("__pycache__")
        shutil.copytree(CHECK_SCRIPTS, folder / "checks", ignore=ignored)
        expectations = folder / "expectations.json"
        expectations.write_text(json.dumps(expected), encoding="utf-8")
        argv = [str(interpreter), str(folder / "checks" / script), str(expectations)]
        log.write(f"+ {' '.join(argv)}\n")
        try:
            output = capture(argv, cwd=folder, env=clean_variables())
        except CommandError as error:
            log.write(error.output + "\n")
            checking_lines = CHECKING_LINE.findall(error.output)
            last = checking_lines[-1] if checking_lines else "starting"
            problem = f"{script} stopped while {last}: {error}; see the log"
            raise VerifyError(problem, code="check-script-stopped") from None
    log.write(output)
    try:
        return parse_results(output)
    except ValueError:
        # A library can end the program with success while it is imported.
        raise VerifyError(
            f"{script} stopped before it printed its results; see the log",
            code="check-script-stopped",
        ) from None


def parse_results(output: str) -> dict[str, CheckResult]:
    """Return the results in the last line of a script's output; libraries may print before it.

    Raises ValueError if the last line has no results.
    """
    last_line = output.strip().rpartition("\n")[2]
    results = parse_json_object(last_line)
    return {
        name: CheckResult(bool(result["ok"]), str(result["detail"]))
        for name, result in results.items()
    }


def _run_logged(argv: Sequence[str], log: TextIO) -> None:
    log.write(f"+ {' '.join(argv)}\n")
    variables = environments.pip_variables(clean_variables())
    run = partial(stream, argv, cwd=None, env=variables, log=log, on_line=lambda _: None)
    retries.repeat(run, environments.judge_pip, "pip")
