"""Find the CPythons of this machine without running any; prove one by running it."""

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from torchmill.core.errors import HostError
from torchmill.core.lenient_paths import exists, is_file, read_text
from torchmill.core.process import CommandError, NoAnswerError, ask
from torchmill.core.silence import answer_limit
from torchmill.host import native
from torchmill.host.disk_usage import list_children, list_names

_EXECUTABLE = re.compile(r"python(?P<version>3\.\d+t?)(?:\.exe)?")
_CPYTHON = re.compile(
    r"(?:cpython-|cp|[Pp]ython@?)?(?P<numbers>\d[\d.]*)"
)  # not pypy, not a named environment
_CONDAS = (
    "miniforge3",
    "mambaforge",
    "miniconda3",
    "anaconda3",
    "micromamba",
)  # folders that its installers make
_OLDEST_OF_UV = 8  # of Python 3
_MOST_AT_ONCE = 16  # interpreters that are asked at the same time
Answer = TypeVar("Answer")
Interpreters = dict[str, Path]  # "3.10" or "3.13t" to executable

_PROBE = """\
import json, sys, sysconfig
version = "%d.%d%s" % (sys.version_info[:2] + ("t" if sysconfig.get_config_var("Py_GIL_DISABLED") else "",))
print(json.dumps([sys.implementation.name, version, sysconfig.get_paths()["include"], sys.executable]))
"""


def installed_interpreters(
    environ: Mapping[str, str] = os.environ, home: Path | None = None
) -> Interpreters:
    """Return the CPythons found, "3.10" or "3.13t" to executable, oldest first; runs nothing."""
    found = _candidates(environ, home)
    oldest_first = sorted(
        found, key=lambda one: (int(one.rstrip("t").partition(".")[2]), one.endswith("t"))
    )
    return {version: found[version][0] for version in oldest_first}


def find_shims(environ: Mapping[str, str] = os.environ) -> Interpreters:
    """Return the shims on PATH that stand for a version, whether or not they run."""
    folders = [folder for folder in _path(environ) if folder.name == "shims"]
    return dict(
        one for folder in reversed(folders) for one in _executables(folder)
    )  # the first on PATH wins


def broken_shims(environ: Mapping[str, str] = os.environ, home: Path | None = None) -> Interpreters:
    """Return the shims that do not run, of versions that are not installed; runs each of those."""
    known = _candidates(environ, home)
    missing = {
        version: path for version, path in find_shims(environ).items() if version not in known
    }
    answers = _at_once(_probe, missing)
    return {version: path for version, path in missing.items() if isinstance(answers[version], str)}


def interpreters_without_headers(
    environ: Mapping[str, str] = os.environ, home: Path | None = None
) -> Interpreters:
    """Return the CPythons without their headers, of which no other is installed; runs each suspect."""
    suspects = {version: places[0] for version, places in _candidates(environ, home).items()}
    asked = {version: path for version, path in suspects.items() if not _has_headers(path)}
    answers = _at_once(_query, asked)
    headers = {
        version: answer[1] for version, answer in answers.items() if not isinstance(answer, str)
    }
    return {version: asked[version] for version, header in headers.items() if not is_file(header)}


def _at_once(
    question: Callable[[str, Path], Answer], asked: Mapping[str, Path]
) -> dict[str, Answer]:
    """Return what a question about each interpreter is answered, by version; those that hang do so together."""
    with ThreadPoolExecutor(_MOST_AT_ONCE) as threads:
        return dict(zip(asked, threads.map(question, asked, asked.values()), strict=True))


def resolve_interpreter(
    version: str, environ: Mapping[str, str] = os.environ, home: Path | None = None
) -> Path:
    """Return a CPython that was seen to run, to be `version`, and to have its headers.

    What Nox takes wins: the one that it runs on, else what comes first on PATH where that is a shim that runs.
    Raise HostError where there is none, saying what was wrong with each that was tried.
    """
    places, rejected = list(_candidates(environ, home).get(version, [])), []
    if shim := find_shims(environ).get(version):
        first = shutil.which(f"python{version}", path=environ.get("PATH")) == str(shim)
        runs = first and not shadowing_shims(
            {version: shim}, environ, Path.home() if home is None else home
        )
        places.insert(0 if runs else len(places), shim)
    if version == f"3.{sys.version_info.minor}" and is_file(
        own := Path(sys.base_prefix, "bin", f"python{version}")
    ):
        places.insert(0, own)
    for place in dict.fromkeys(places):
        proven = _probe(version, place)
        if isinstance(proven, Path):
            return (
                proven if place == shim else place
            )  # what a shim runs: tomorrow it may run another
        rejected.append(
            proven
            if place != shim
            else f"{proven}, and it is a shim whose version is not installed"
        )
    tried = f" ({'; '.join(rejected)})" if rejected else ""
    how = how_to_install(version, pyenv=shutil.which("pyenv", path=environ.get("PATH")) is not None)
    run = how if "`" in how else f"run `{how}`"
    raise HostError(f"no usable CPython {version} was found{tried}: {run}", code="no-interpreter")


def translated_interpreters(places: Mapping[str, Path], arch: str) -> Interpreters:
    """Return those that were made for another machine, which an emulator runs for them.

    What they build would be for that machine too.
    """
    machines = {version: native.machines_of_binary(path) for version, path in places.items()}
    return {
        version: places[version]
        for version, names in machines.items()
        if names and arch not in names
    }


def shadowing_shims(
    places: Mapping[str, Path], environ: Mapping[str, str], home: Path
) -> Interpreters:
    """Return pyenv's shims that come first on PATH and do not run, of versions that are installed.

    None is run: pyenv takes a sixth of a second to say so, and its files say it too.
    """
    base = Path(environ.get("PYENV_ROOT") or home / ".pyenv")
    selected = environ.get("PYENV_VERSION", "").replace(":", " ") or read_text(base / "version")
    folders = [base / "versions" / name / "bin" for name in selected.split()]
    found = {
        version: Path(shutil.which(f"python{version}", path=environ.get("PATH")) or "")
        for version in places
    }
    shims = {version: first for version, first in found.items() if first.parent == base / "shims"}
    return {
        version: one
        for version, one in shims.items()
        if not any(exists(each / one.name) for each in folders)
    }


def search_path(environ: Mapping[str, str] = os.environ, home: Path | None = None) -> str:
    """Return PATH with the folders of CPythons that it does not reach appended, newest first."""
    folders = (folder for folder in environ.get("PATH", "").split(os.pathsep) if folder)
    found = (
        str(executable.parent)
        for executable in reversed(installed_interpreters(environ, home).values())
    )
    return os.pathsep.join(dict.fromkeys((*folders, *found)))


def how_to_install(version: str, *, pyenv: bool) -> str:
    """Return the command that installs a CPython, uv's (it comes with torchmill) or pyenv's; a sentence without any.

    What uv has is what `uv python list --all-versions` names.
    """
    if int(version.rstrip("t").partition(".")[2]) >= _OLDEST_OF_UV:
        return f"uv python install {version}"
    line = f"pyenv install {version}"
    return (
        line
        if pyenv
        else f"uv has none before 3.{_OLDEST_OF_UV}; with https://github.com/pyenv/pyenv, `{line}`"
    )


def _probe(version: str, executable: Path) -> Path | str:
    """Return where the interpreter really is, or what is wrong with it as part of a sentence."""
    answer = _query(version, executable)
    if isinstance(answer, str):
        return answer
    real, header = answer
    return real if is_file(header) else f"{executable} lacks its headers, {header}"


def _query(version: str, executable: Path) -> tuple[Path, Path] | str:
    """Return where the interpreter and its header really are, or what is wrong with it."""
    environ = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    try:
        implementation, actual, include, real = json.loads(
            ask([str(executable), "-I", "-c", _PROBE], environ)
        )
    except CommandError as error:
        without = "" if environ == os.environ else " without LD_LIBRARY_PATH, as a wheel is tried"
        return f"{executable} ends with exit code {error.returncode}{without}"
    except NoAnswerError:
        return f"{executable} did not answer within {answer_limit(executable.name):g} s"
    except (HostError, ValueError):
        return f"{executable} does not run"
    if implementation != "cpython" or actual != version:
        return f"{executable} is {implementation} {actual}"
    return Path(real), Path(include, "Python.h")


def _candidates(environ: Mapping[str, str], home: Path | None) -> dict[str, list[Path]]:
    """Return every executable by version, the best first: those that seem to have their headers."""
    found: dict[str, dict[Path, None]] = {}
    for folder in _folders(environ, Path.home() if home is None else home):
        for version, path in _executables(folder):
            found.setdefault(version, {})[path] = None
    return {
        version: sorted(places, key=lambda path: not _has_headers(path))
        for version, places in found.items()
    }


def _has_headers(executable: Path) -> bool:
    if executable.name == "python.exe":
        return exists(executable.parent / "include" / "Python.h")
    include = executable.parents[1] / "include"
    names = (executable.name, f"{executable.name}m")  # until 3.7, the ABI had a letter
    return any(exists(include / name / "Python.h") for name in names)


def _executables(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the interpreters that a folder holds by their names."""
    for name in list_names(folder):
        match, twin = (
            _EXECUTABLE.fullmatch(name),
            folder / f"{name}t",
        )  # one of free threads may have both names
        if match and not (
            is_file(twin) and is_file(folder / name) and twin.samefile(folder / name)
        ):
            yield match["version"], folder / name
        elif name == "python.exe" and (numbers := _numbers(folder)):
            yield f"3.{numbers[1]}", folder / name


def _path(environ: Mapping[str, str]) -> Iterator[Path]:
    yield from (Path(folder) for folder in environ.get("PATH", "").split(os.pathsep) if folder)


def _folders(environ: Mapping[str, str], home: Path) -> Iterator[Path]:
    """Yield the folders to look in, PATH before what is installed elsewhere."""
    yield from (folder for folder in _path(environ) if folder.name != "shims")
    yield Path(sys.executable).parent
    for base in _bases(environ, home):
        children = [child for child in list_children(base) if _CPYTHON.match(child.name)]
        for child in sorted(children, key=lambda child: _numbers(child) or (), reverse=True):
            yield from (child / "bin", child, child / "x64/bin", child / "x64")
    yield from (environment / "bin" for environment in conda_environments(environ, home))


def conda_environments(
    environ: Mapping[str, str], home: Path, root: Path = Path("/")
) -> Iterator[Path]:
    """Yield conda's environments: the active one, those that it has noted, those in its usual folders, gone or not."""
    named = [
        Path(environ[name]) for name in ("CONDA_PREFIX", "MAMBA_ROOT_PREFIX") if environ.get(name)
    ]
    yield from named
    noted = read_text(home / ".conda/environments.txt").splitlines()
    yield from (Path(line.strip()) for line in noted if line.strip())
    for base in (*named, *(home / name for name in _CONDAS), root / "opt/conda"):
        yield base
        yield from reversed(list_children(base / "envs"))


def _bases(environ: Mapping[str, str], home: Path) -> Iterator[Path]:
    """Yield the folders that hold one CPython per child, named after its version."""
    yield Path(environ.get("PYENV_ROOT") or home / ".pyenv") / "versions"
    data = Path(environ.get("XDG_DATA_HOME") or home / ".local/share")
    yield Path(environ.get("UV_PYTHON_INSTALL_DIR") or data / "uv/python")
    yield Path("/opt/python")  # manylinux images
    yield (
        Path(environ.get("RUNNER_TOOL_CACHE") or "/opt/hostedtoolcache") / "Python"
    )  # GitHub's runners
    if sys.platform == "darwin":
        yield Path("/Library/Frameworks/Python.framework/Versions")
        yield Path("/Library/Frameworks/PythonT.framework/Versions")
        yield from (Path("/opt/homebrew/opt"), Path("/usr/local/opt"))
    if sys.platform == "win32":
        yield Path(environ.get("LOCALAPPDATA") or home / "AppData/Local") / "Programs/Python"
        yield Path(environ.get("APPDATA") or home / "AppData/Roaming") / "uv/python"
        yield Path(environ.get("PROGRAMFILES") or "C:/Program Files")


def _numbers(folder: Path) -> tuple[int, ...] | None:
    """Return the version that a folder is named after: 3.10.13, cpython-3.12.4-linux, cp310, Python310."""
    match = _CPYTHON.match(folder.name) or _CPYTHON.match(folder.parent.name)
    if match is None:
        return None
    numbers = tuple(int(part) for part in match["numbers"].split(".") if part)
    if len(numbers) == 1 and (packed := str(numbers[0])).startswith("3") and len(packed) > 1:
        return 3, int(packed[1:])
    return numbers if len(numbers) > 1 and numbers[0] == 3 else None  # noqa: PLR2004 (Python 3)
