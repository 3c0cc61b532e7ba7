"""The virtual environment of a cell, and the tools that all cells of a tree share: made once, and copied."""

import contextlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from packaging.tags import platform_tags

from torchmill.core import locks
from torchmill.core.atomic_writes import fresh_path
from torchmill.core.errors import HostError
from torchmill.core.lenient_paths import link_file, read_text
from torchmill.core.process import CommandError, ask, capture, program_output
from torchmill.core.stat_cache import digest_data, stat_file, stat_folder
from torchmill.core.strict_json import parse_json
from torchmill.core.system_errors import blame_disk, read_refusal, report_unwritable
from torchmill.host.interpreters import resolve_interpreter

Install = Callable[..., Any]  # pip's install, given its arguments
STAMP_NAME = "torchmill"  # the file in an environment that says what was installed in it
# Variables by which pip would install elsewhere, or not what it is told.
ASTRAY = "PYTHON.*|PIP_(DRY_RUN|TARGET|PREFIX|ROOT|USER|PYTHON|NO_DEPS|PRE|REQUIREMENT|EDITABLE|REQUIRE_VIRTUALENV)"

_SITES = ("lib/python*/site-packages", "Lib/site-packages")
_LENT = "torchmill.pth"  # leads to packages that lie elsewhere
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
    return locks.hold_lock(
        beside, f"{who} of another release or checkout, in the same environment ({venv}),"
    )


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


def make_environment(
    interpreter: Path, venv: Path, empty: Path, run: Callable[[list[str]], object] = capture
) -> None:
    """Make an environment with nothing but pip in place of what is there; raises HostError where that is not possible.

    `empty` is a folder of such environments, one for each interpreter: to make one takes seconds of processor time,
    most of them for pip, and to copy what it has a tenth of one.
    """
    kept = empty / digest_data([str(interpreter.resolve()), stat_file(interpreter)])[:16]
    _run_venv(run, interpreter, venv, "--without-pip")
    _copy_kept(kept, venv, partial(_run_venv, run, interpreter), _copy_packages)


def provide_shared_tools(
    folder: Path, requirements: Sequence[str], install: Install, kept: Path
) -> None:
    """Fill a folder with the tools that all interpreters share, unless it exists; it appears whole.

    `install` is pip's in any environment. What it installs works whichever interpreter installed it, and is
    kept in `kept`, beside the empty environments; the folder's files are links to that, where they can be.
    """
    if folder.is_dir():
        return
    with fresh_path(folder) as fresh:
        wanted = kept / f"tools-{digest_data([requirements, next(platform_tags())])[:16]}"
        link = partial(shutil.copytree, symlinks=True, copy_function=_link_file)
        _copy_kept(wanted, fresh, partial(_install_tools, requirements, install), link)
        fresh.rename(folder)


def _install_tools(requirements: Sequence[str], install: Install, folder: Path) -> None:
    (folder / "bin").mkdir(parents=True)
    if requirements:
        install(
            "--ignore-installed",
            "--no-warn-script-location",
            "--prefix",
            str(folder),
            *requirements,
        )
    for script in (
        folder / "bin"
    ).iterdir():  # in place of each Python script, a link to what it starts
        if not script.is_symlink() and script.read_bytes()[:2] == b"#!":
            program = next(folder.glob(f"**/data/bin/{script.name}"), None)
            script.unlink()
            if program is not None:
                script.symlink_to(Path("..") / program.relative_to(folder))


def list_shared_tools(folder: Path) -> list[str]:
    """Return what is installed in the folder of shared tools, "name==version" each."""
    names = sorted(
        path.name.removesuffix(".dist-info") for path in folder.glob("**/*-packages/*.dist-info")
    )
    return [name.replace("-", "==", 1) for name in names]


def _copy_kept(
    kept: Path, target: Path, make: Callable[[Path], object], copy: Callable[[Path, Path], object]
) -> None:
    """Copy a kept folder, which is made where it lacks anything; what others remove meanwhile is made in its place."""
    with contextlib.suppress(OSError):  # where nothing can be kept, or others are at it
        if not _is_whole(kept):
            shutil.rmtree(kept, ignore_errors=True)
            with fresh_path(kept) as fresh:
                make(fresh / "made")
                with contextlib.suppress(OSError):  # another build was quicker
                    (fresh / "whole").write_text(_list_files(fresh / "made"), encoding="utf-8")
                    fresh.rename(kept)
        copy(kept / "made", target)
        if _is_whole(kept):
            return
    shutil.rmtree(target, ignore_errors=True)
    make(target)


def _is_whole(kept: Path) -> bool:
    return read_text(kept / "whole") == _list_files(kept / "made")


def _list_files(folder: Path) -> str:
    """Return a digest of the names, sizes and dates of all files; links to them change none of these."""
    paths = [os.path.join(home, name) for home, _, names in os.walk(folder) for name in names]  # noqa: PTH118
    seen = ((os.path.relpath(path, folder), os.lstat(path)) for path in sorted(paths))
    return digest_data([(name, status.st_size, status.st_mtime_ns) for name, status in seen])


def _link_file(file: str, target: str) -> None:
    if not link_file(Path(file), Path(target)):
        shutil.copy2(file, target)


def pip_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Return the variables with which pip installs what it is told where it is, whatever its files of settings say."""
    kept = {name: value for name, value in variables.items() if not re.fullmatch(ASTRAY, name)}
    return kept | {"PIP_USER": "0", "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_PROGRESS_BAR": "off"}


def _run_venv(
    run: Callable[[list[str]], object], interpreter: Path, venv: Path, *options: str
) -> None:
    try:
        run([str(interpreter), "-I", "-m", "venv", "--clear", *options, str(venv)])
    except CommandError as error:
        if (
            refusal := blame_disk(error.output, venv) or read_refusal(error.output, venv)
        ) is not None:
            raise refusal from None
        problem = f"{interpreter}: cannot create a virtual environment ({error})"
        raise HostError(
            f"{problem}: install its venv and ensurepip modules", code="venv-failed"
        ) from None


def _copy_packages(kept: Path, venv: Path) -> None:
    """Copy pip and what else comes with it; its programs would start the pip that they were made for."""
    for folder in (found for site in _SITES for found in kept.glob(site)):
        shutil.copytree(folder, venv / folder.relative_to(kept), dirs_exist_ok=True)
    for program in kept.glob("bin/pip*"):
        (venv / "bin" / program.name).write_text(_PIP, encoding="utf-8")
        (venv / "bin" / program.name).chmod(0o755)


def lend_packages(venv: Path, lender: Path) -> None:
    """Let an environment import, after its own, what is installed in a folder of packages; pip leaves that alone."""
    line = f"import site; site.addsitedir({str(lender)!r})\n"  # its own .pth files as well
    for file in (found / _LENT for site in _SITES for found in venv.glob(site)):
        if read_text(file) != line:
            file.write_text(line, encoding="utf-8")


def installed_distributions(venv: Path, wanted: str) -> list[str] | None:
    """Return what is installed in an environment that `provide_environment` filled for this; None where it did not."""
    if _read_stamp(venv)[:1] != [wanted]:
        return None
    return sorted(path.name for site in _SITES for path in venv.glob(f"{site}/*.dist-info"))


def is_as_filled(venv: Path, wanted: str) -> bool:
    """Tell whether an environment was filled for this, and no file of a package has changed since."""
    return _read_stamp(venv) == [wanted, _packages_stat(venv)]


def _read_stamp(venv: Path) -> list[str]:
    """Return what an environment was filled for, and how its packages looked then; [""] where nobody filled it."""
    return read_text(venv / STAMP_NAME).split("\n")


def _packages_stat(venv: Path) -> str:
    # Python compiles what it imports whenever it likes
    return " ".join(
        stat_folder(found, ("__pycache__",)).text for site in _SITES for found in venv.glob(site)
    )


def tree_user(venv: Path, python: Path, wanted: str, link: Path) -> TreeUser:
    """Return who uses a tree in which `link` leads to this environment, which was filled for `wanted`.

    Two with one identity compile the same: interpreter, headers and installed packages are the same.
    """
    version, *said = parse_json(ask([str(python), "-I", "-c", _PROBE]))
    headers = _with_real(said)
    identity = digest_data(
        [str(venv), wanted, version, headers, installed_distributions(venv, wanted)]
    )
    return TreeUser(identity, headers, _with_real([str(link), str(venv), *headers]))


def _with_real(folders: list[str]) -> tuple[str, ...]:
    """Return the folders as they were said and as they are, each once."""
    return tuple(
        dict.fromkeys(one for folder in folders for one in (folder, os.path.realpath(folder)))
    )


def base_interpreter(venv: Path, python: str) -> Path:
    """Return the interpreter that an environment was made from, or would be: it may be half-made.

    Raises HostError where none of that version works.
    """
    lines = read_text(venv / "pyvenv.cfg").splitlines()
    homes = [Path(line.partition("=")[2].strip()) for line in lines if line.startswith("home")]
    names = (f"python{python}", "python3", "python", "python.exe")
    known = [*(home / name for home in homes for name in names), in_environment(venv)]
    return next((one for one in known if homes and one.exists()), None) or resolve_interpreter(
        python
    )


def in_environment(venv: Path) -> Path:
    """Return the interpreter of a virtual environment."""
    return venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
