"""The virtual environment of a cell: what it was made for and what is installed in it."""

import contextlib
import json
import os
import shutil
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torchmill.core import locks
from torchmill.core.dataclass import dataclass
from torchmill.core.errors import HostError
from torchmill.core.files import (
    blame_disk,
    fresh_path,
    parse_json,
    read_refusal,
    read_text,
    report_unwritable,
    write_atomically,
)
from torchmill.core.process import CommandError, capture, program_output
from torchmill.core.stat_cache import digest_data, stat_file, stat_folder
from torchmill.host.interpreters import resolve_interpreter

Install = Callable[..., Any]  # pip's install, given its arguments
STAMP_NAME = "torchmill"  # the file in an environment that says what was installed in it

_SITES = ("lib/python*/site-packages", "Lib/site-packages")
_PACKAGES = tuple(f"{site}/*.dist-info" for site in _SITES)
_PIP = """\
#!/bin/sh
exec "$(dirname "$0")/python" -m pip "$@"
"""
_PROBE = """\
import json, sys, sysconfig
paths = sysconfig.get_paths()
print(json.dumps([sys.version, paths["include"], paths["platinclude"]]))
"""


@dataclass(frozen=True, slots=True)
class TreeUser:
    """Who uses a tree: an interpreter and its packages, which compilers read."""

    identity: str  # digest; "" of who has not made it his own yet
    headers: tuple[str, ...]  # folders of the interpreter's own headers
    folders: tuple[str, ...]  # folders of all that an object may depend on and that is this user's

    def to_json(self) -> str:
        """Return the text that `read_tree_user` reads."""
        return json.dumps(asdict(self))


def read_tree_user(file: Path) -> TreeUser | None:
    """Return the user that a file names; None where it cannot be read, or names none."""
    try:
        data = parse_json(file.read_text(encoding="utf-8"))
        return TreeUser(str(data["identity"]), tuple(data["headers"]), tuple(data["folders"]))
    except (OSError, ValueError, TypeError, KeyError):
        return None


def hold_environment(venv: Path, who: str) -> AbstractContextManager[None]:
    """Hold an environment, which cells of one name share: those of other releases, and of other checkouts.

    Raises BusyError where another run holds it, HostError where it cannot be locked.
    """
    beside = venv.with_name(".locks") / venv.name  # in it, the lock would not outlive `--clear`
    return locks.hold_lock(beside, f"{who} of another release or checkout, in the same environment ({venv}),")


def provide_environment(
    venv: Path, interpreter: Path, wanted: str, empty: Path, install: Install, *requirements: str
) -> None:
    """Bring an environment to what a build requires; one that was not filled for that is made anew, out of `empty`.

    `wanted` is the digest of what it is for. What is right already is kept: fresh headers would make ninja
    compile everything again. A package of which a file was lost or changed since makes all of it anew.
    """
    note = venv / STAMP_NAME
    pip_version = ("-I", "-m", "pip", "--version")  # nothing where the run that made it was killed
    if not (is_as_filled(venv, wanted) and program_output(str(in_environment(venv)), *pip_version)):
        with report_unwritable(venv):
            note.unlink(missing_ok=True)
            make_environment(interpreter, venv, empty)
    install(*requirements)
    note.write_text(f"{wanted}\n{_packages_stat(venv)}", encoding="utf-8")


def make_environment(interpreter: Path, venv: Path, empty: Path, run: Callable[[list[str]], object] = capture) -> None:
    """Make an environment with nothing but pip in place of what is there; raises HostError where that is not possible.

    `empty` is a folder of such environments, one for each interpreter: to make one takes seconds of processor time,
    most of them for pip, and to copy what it has a tenth of one.
    """
    kept = empty / digest_data([str(interpreter.resolve()), stat_file(interpreter)])[:16]
    if not _is_whole(kept):
        shutil.rmtree(kept, ignore_errors=True)
        with fresh_path(kept) as fresh:
            _run_venv(run, interpreter, fresh / "venv")
            with contextlib.suppress(OSError):  # another build was quicker
                fresh.rename(kept)
                write_atomically(kept / "whole", stat_folder(kept / "venv").text)
    _run_venv(run, interpreter, venv, "--without-pip")
    with contextlib.suppress(OSError):
        _copy_packages(kept / "venv", venv)
        if _is_whole(kept):  # nobody has removed it meanwhile, or a part of it
            return
    _run_venv(run, interpreter, venv)


def _is_whole(kept: Path) -> bool:
    """Tell whether all files of a kept environment look as they did once they were there."""
    return read_text(kept / "whole") == stat_folder(kept / "venv").text


def _run_venv(run: Callable[[list[str]], object], interpreter: Path, venv: Path, *options: str) -> None:
    try:
        run([str(interpreter), "-m", "venv", "--clear", *options, str(venv)])
    except CommandError as error:
        if (refusal := blame_disk(error.output, venv) or read_refusal(error.output, venv)) is not None:
            raise refusal from None
        problem = f"{interpreter}: cannot create a virtual environment ({error})"
        raise HostError(f"{problem}: install its venv and ensurepip modules", code="venv-failed") from None


def _copy_packages(kept: Path, venv: Path) -> None:
    """Copy pip and what else comes with it; its programs would start the pip that they were made for."""
    for folder in (found for site in _SITES for found in kept.glob(site)):
        shutil.copytree(folder, venv / folder.relative_to(kept), dirs_exist_ok=True)
    for program in kept.glob("bin/pip*"):
        (venv / "bin" / program.name).write_text(_PIP, encoding="utf-8")
        (venv / "bin" / program.name).chmod(0o755)


def installed_distributions(venv: Path, wanted: str) -> list[str] | None:
    """Return what is installed in an environment that `provide` filled for this; None where it did not."""
    if _read_stamp(venv)[:1] != [wanted]:
        return None
    return sorted(path.name for pattern in _PACKAGES for path in venv.glob(pattern))


def is_as_filled(venv: Path, wanted: str) -> bool:
    """Tell whether an environment was filled for this, and no file of a package has changed since."""
    return _read_stamp(venv) == [wanted, _packages_stat(venv)]


def _read_stamp(venv: Path) -> list[str]:
    """Return what an environment was filled for, and how its packages looked then; [""] where nobody filled it."""
    return read_text(venv / STAMP_NAME).split("\n")


def _packages_stat(venv: Path) -> str:
    # Python compiles what it imports whenever it likes
    return " ".join(stat_folder(found, ("__pycache__",)).text for site in _SITES for found in venv.glob(site))


def tree_user(venv: Path, python: Path, wanted: str, link: Path) -> TreeUser:
    """Return who uses a tree in which `link` leads to this environment, which was filled for `wanted`.

    Two with one identity compile the same: interpreter, headers and installed packages are the same.
    """
    version, *said = parse_json(capture([str(python), "-I", "-c", _PROBE]))
    headers = _with_real(said)
    identity = digest_data([str(venv), wanted, version, headers, installed_distributions(venv, wanted)])
    folders = _with_real([str(link), str(venv), *headers])
    return TreeUser(identity, headers, folders)


def _with_real(folders: list[str]) -> tuple[str, ...]:
    """Return the folders as they were said and as they are, each once."""
    return tuple(dict.fromkeys(one for folder in folders for one in (folder, os.path.realpath(folder))))


def base_interpreter(venv: Path, python: str) -> Path:
    """Return the interpreter that an environment was made from, or would be: it may be half-made.

    Raises HostError where none of that version works.
    """
    lines = read_text(venv / "pyvenv.cfg").splitlines()
    homes = [Path(line.partition("=")[2].strip()) for line in lines if line.startswith("home")]
    names = (f"python{python}", "python3", "python", "python.exe")
    known = [*(home / name for home in homes for name in names), in_environment(venv)]
    return next((one for one in known if homes and one.exists()), None) or resolve_interpreter(python)


def in_environment(venv: Path) -> Path:
    """Return the interpreter of a virtual environment."""
    return venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
