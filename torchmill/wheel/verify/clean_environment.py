"""Install a wheel in a clean environment and run its checks there."""

from __future__ import annotations

import json
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from packaging.version import Version

from torchmill.core.errors import HostError, VerifyError
from torchmill.core.process import CommandError, capture, stream

CHECK_SCRIPTS = Path(__file__).parent / "checks"
OLDEST_PIP_VERSION = Version("20.3")  # knows manylinux_2_36 and its like (PEP 600)
CHECKING_LINE = re.compile(r"^checking (.+)$", re.MULTILINE)
UNWANTED_VARIABLES = re.compile(
    "PYTHON.*|LD_LIBRARY_PATH|LD_PRELOAD|DYLD_.*|VIRTUAL_ENV|CONDA_.*|TORCH_.*"
    "|PIP_(TARGET|PREFIX|ROOT|USER|PYTHON|NO_DEPS|PRE|REQUIREMENT|EDITABLE|REQUIRE_VIRTUALENV)"
)


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What came of one check."""

    ok: bool
    detail: str


def clean_variables(variables: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variables without those that would lend a fresh environment something from outside."""
    return {name: value for name, value in variables.items() if not UNWANTED_VARIABLES.fullmatch(name)}


def create_environment(python: Path, folder: Path, log: TextIO) -> Path:
    """Make a virtual environment in `folder`, in place of what was there; return its interpreter.

    Raise HostError where `python` cannot make one.
    """
    shutil.rmtree(folder, ignore_errors=True)
    try:
        _run_logged([str(python), "-m", "venv", str(folder)], log)
    except CommandError as error:
        raise HostError(
            f"{python}: cannot make a virtual environment ({error}): install its venv and ensurepip modules"
        ) from None
    venv = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    pip = Version(capture([str(venv), "-m", "pip", "--version"], env=clean_variables()).split()[1])
    if pip < OLDEST_PIP_VERSION:
        # not the newest: only old interpreters come with an older pip, and this series runs on all of them
        _pip_install(venv, ["--upgrade", f"pip>={OLDEST_PIP_VERSION},<21"], log)
    return venv


def install_packages(venv: Path, what: Sequence[Path | str], log: TextIO) -> None:
    """Install wheels and requirements at once, so that each satisfies the others."""
    _pip_install(venv, [str(each) for each in what], log)


def installed_packages(venv: Path) -> tuple[str, ...]:
    """Return what the environment holds, "name==version" each."""
    listing = capture([str(venv), "-m", "pip", "list", "--format=freeze"], env=_pip_variables())
    return tuple(line for line in listing.splitlines() if "==" in line)


def site_packages(venv: Path) -> Path:
    """Return the folder in which the environment keeps what is installed: its site-packages."""
    script = "import sysconfig; print(sysconfig.get_paths()['platlib'])"
    return Path(capture([str(venv), "-I", "-c", script], env=clean_variables()).strip())


def run_checks(
    venv: Path, script: str, expected: Mapping[str, object], log: TextIO
) -> dict[str, CheckResult]:
    """Run the check `script` with the environment's interpreter, far from any source tree.

    Raise VerifyError where the script does not come to its end.
    """
    with tempfile.TemporaryDirectory(prefix="verify-") as folder:
        scripts = shutil.copytree(
            CHECK_SCRIPTS, Path(folder) / "checks", ignore=shutil.ignore_patterns("__pycache__")
        )
        expectations = Path(folder) / "expectations.json"
        expectations.write_text(json.dumps(expected), encoding="utf-8")
        argv = [str(venv), str(scripts / script), str(expectations)]
        log.write(f"+ {' '.join(argv)}\n")
        try:
            output = capture(argv, cwd=Path(folder), env=clean_variables())
        except CommandError as error:
            log.write(error.output + "\n")
            raise VerifyError(
                f"{script} broke off while {_last_check(error.output)}: {error}; see the log"
            ) from None
    log.write(output)
    return parse_results(output)


def parse_results(output: str) -> dict[str, CheckResult]:
    """Return the checks from the last line of a script's output; a library may print before it."""
    results = json.loads(output.strip().splitlines()[-1])
    return {name: CheckResult(bool(each["ok"]), str(each["detail"])) for name, each in results.items()}


def _last_check(output: str) -> str:
    found = CHECKING_LINE.findall(output)
    return f"checking {found[-1]}" if found else "starting"


def _pip_install(venv: Path, arguments: Sequence[str], log: TextIO) -> None:
    try:
        _run_logged([str(venv), "-m", "pip", "install", "--no-input", "--no-compile", *arguments], log)
    except CommandError as error:
        said = [line for line in error.output.splitlines() if line.startswith("ERROR:")]
        cause = said[0].removeprefix("ERROR: ") if said else str(error)
        raise VerifyError(
            f"pip cannot install {' '.join(arguments)} in a clean environment: {cause}"
        ) from None


def _run_logged(argv: Sequence[str], log: TextIO) -> None:
    log.write(f"+ {' '.join(argv)}\n")
    stream(argv, cwd=None, env=_pip_variables(), log=log, on_line=lambda _: None)


def _pip_variables() -> dict[str, str]:
    return {**clean_variables(), "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_PROGRESS_BAR": "off"}
