"""Find the CPythons of this machine without running any; prove one by running it.

A *shim* of pyenv is a script in a folder on PATH, one for each version that pyenv has. It starts
the CPython of that version only if the user has selected the version; else it fails. A
CPython may be without headers (Python.h), as Debian's is without its package python3-dev.
"""

import json
import os
import platform
import re
import shutil
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeVar

from torchmill.core.errors import HostError
from torchmill.core.lenient_paths import exists, is_file, read_text, real_path
from torchmill.core.process import CommandError, NoAnswerError, ask
from torchmill.core.silence import answer_limit
from torchmill.host import native
from torchmill.host.disk_usage import list_children, list_names

_EXECUTABLE = re.compile(r"python(?P<version>3\.\d+t?)(?:\.exe)?")
# The name of a folder with one CPython. Names of PyPy's and of pyenv's environments do not match.
_CPYTHON = re.compile(r"(?:cpython-|cp|[Pp]ython@?)?(?P<numbers>\d[\d.]*)")
# The name of a folder of uv's with a CPython for Linux: "cpython-3.12.4-linux-aarch64-gnu".
_UV_FOLDER = re.compile(r"cpython-[^-]+-linux-(?P<machine>\w+)-\w+")
# Folders that installers of conda make in the user's folder.
_CONDAS = ("miniforge3", "mambaforge", "miniconda3", "anaconda3", "micromamba")
_OLDEST_OF_UV = 8  # the oldest minor version of Python 3 that uv installs
_MOST_AT_ONCE = 16  # interpreters that run at the same time
_PYTHON_3 = 3
# Modules that a CPython has only if a library was there when it was compiled, and one that needs none.
_MODULES = ("_ssl", "_ctypes", "zlib", "_bz2", "_lzma")
_SIGN_OF_FILES = "_socket"
Answer = TypeVar("Answer")
Interpreters = dict[str, Path]  # "3.10" or "3.13t" to executable

# Any Python 3 runs this: no newer syntax.
_PROBE = """\
import json, sys, sysconfig
suffix = "t" if sysconfig.get_config_var("Py_GIL_DISABLED") else ""
version = "%d.%d%s" % (sys.version_info[:2] + (suffix,))
include = sysconfig.get_paths()["include"]
print(json.dumps([sys.implementation.name, version, include, sys.executable]))
"""


def installed_interpreters(
    environ: Mapping[str, str] = os.environ, home: Path | None = None
) -> Interpreters:
    """Return the CPythons of a machine, "3.10" or "3.13t" to executable, oldest first.

    No interpreter is run. `home` is the user's folder.
    """
    candidates = _candidates(environ, home)
    return {version: candidates[version][0] for version in sorted(candidates, key=_version_key)}


def _version_key(version: str) -> tuple[int, bool]:
    """Return a key that sorts versions, "3.13t" after "3.13"."""
    return _minor_version(version), version.endswith("t")


def _minor_version(version: str) -> int:
    """Return 13 for "3.13t"."""
    return int(version.rstrip("t").partition(".")[2])


def find_shims(environ: Mapping[str, str] = os.environ) -> Interpreters:
    """Return the shims of Pythons on PATH, whether or not they run, by version."""
    shims: Interpreters = {}
    for folder in _path_folders(environ):
        if folder.name == "shims":
            for version, path in _executables(folder):
                shims.setdefault(version, path)  # the first on PATH wins
    return shims


def broken_shims(environ: Mapping[str, str] = os.environ, home: Path | None = None) -> Interpreters:
    """Return the shims that fail among those of versions that are not installed.

    Each of these shims is run; one that starts a CPython without headers fails, too. For versions
    that are installed, there is `shadowing_shims`.
    """
    installed = _candidates(environ, home)
    shims = find_shims(environ)
    suspects = {version: path for version, path in shims.items() if version not in installed}
    answers = _ask_each(_prove_interpreter, suspects)
    return {
        version: suspects[version] for version, answer in answers.items() if isinstance(answer, str)
    }


def interpreters_without_headers(
    environ: Mapping[str, str] = os.environ, home: Path | None = None
) -> Interpreters:
    """Return a CPython for each version of which no CPython on this machine has its headers.

    A CPython without headers in the usual folder is run, and asked for its own folder of headers. One
    that does not run is left out.
    """
    suspects: Interpreters = {}
    for version, paths in _candidates(environ, home).items():
        best = paths[0]
        if not _has_headers(best):
            suspects[version] = best
    without_headers: Interpreters = {}
    for version, answer in _ask_each(_ask_interpreter, suspects).items():
        if isinstance(answer, str):
            continue
        _, header = answer
        if not is_file(header):
            without_headers[version] = suspects[version]
    return without_headers


def lacking_modules(interpreters: Mapping[str, Path]) -> dict[str, str]:
    """Return the modules of its own that each CPython lacks: "3.8" -> "_ssl, _bz2".

    A CPython that was compiled where a library's headers were not installed has no module for it:
    https://github.com/pyenv/pyenv/wiki/Common-build-problems. Only a CPython whose modules are
    files can be judged: others have them in the program, as uv's have.
    """
    lacking: dict[str, str] = {}
    for version, executable in interpreters.items():
        library = real_path(executable).parents[1] / "lib" / f"python{version}" / "lib-dynload"
        names = {name.partition(".")[0] for name in list_names(library)}
        missing = [module for module in _MODULES if module not in names]
        if _SIGN_OF_FILES in names and missing:
            lacking[version] = ", ".join(missing)
    return lacking


def _ask_each(
    question: Callable[[str, Path], Answer], interpreters: Mapping[str, Path]
) -> dict[str, Answer]:
    """Return the answer of each interpreter, by version.

    They are asked in parallel, because one that hangs answers only at the end of its time.
    """
    with ThreadPoolExecutor(_MOST_AT_ONCE) as threads:
        answers = threads.map(question, interpreters, interpreters.values())
        return dict(zip(interpreters, answers, strict=True))


def resolve_interpreter(
    version: str, environ: Mapping[str, str] = os.environ, home: Path | None = None
) -> Path:
    """Return a CPython that runs, is of `version`, and has its headers.

    They are tried in this order: the interpreter of this process, a shim that Nox would take,
    installed interpreters, another shim. So the result is the one that Nox takes, if that works.
    Raises HostError if none works, with the problem of each.
    """
    paths = list(_candidates(environ, home).get(version, []))
    # Nox takes the first on PATH, which may be a shim.
    shim = find_shims(environ).get(version)
    if shim is not None:
        first_on_path = shutil.which(f"python{version}", path=environ.get("PATH"))
        user_folder = Path.home() if home is None else home
        is_first = first_on_path == str(shim)
        is_taken = is_first and not shadowing_shims({version: shim}, environ, user_folder)
        paths.insert(0 if is_taken else len(paths), shim)
    # The interpreter of this process; in a virtual environment, the one that it was made from.
    current = Path(sys.base_prefix, "bin", f"python{version}")
    if version == f"3.{sys.version_info.minor}" and is_file(current):
        paths.insert(0, current)

    rejections: list[str] = []
    for path in dict.fromkeys(paths):
        answer = _prove_interpreter(version, path)
        if isinstance(answer, Path):
            # A shim may start another interpreter tomorrow: return the one that it starts now.
            return answer if path == shim else path
        if path == shim:
            answer = f"{answer}, and it is a shim whose version is not installed"
        rejections.append(answer)
    tried = f" ({'; '.join(rejections)})" if rejections else ""
    has_pyenv = shutil.which("pyenv", path=environ.get("PATH")) is not None
    cure = how_to_install(version, has_pyenv=has_pyenv)
    if "`" not in cure:
        cure = f"run `{cure}`"
    raise HostError(f"no usable CPython {version} was found{tried}: {cure}", code="no-interpreter")


def translated_interpreters(paths: Mapping[str, Path], arch: str) -> Interpreters:
    """Return the interpreters in `paths` that were made for another arch: an emulator runs them.

    The wheels that they build would be for that arch, too.
    """
    translated: Interpreters = {}
    for version, path in paths.items():
        machines = native.machines_of_binary(path)
        if machines and arch not in machines:
            translated[version] = path
    return translated


def shadowing_shims(
    paths: Mapping[str, Path], environ: Mapping[str, str], home: Path
) -> Interpreters:
    """Return pyenv's shims that come first on PATH and fail, although the versions are installed.

    `paths` are the installed interpreters by version. To run a shim takes a sixth of a second, so
    pyenv's files are read instead: they have the versions that the user has selected.
    """
    base = Path(environ.get("PYENV_ROOT") or home / ".pyenv")
    selected = environ.get("PYENV_VERSION", "").replace(":", " ") or read_text(base / "version")
    folders = [base / "versions" / name / "bin" for name in selected.split()]
    shims: Interpreters = {}
    for version in paths:
        first = Path(shutil.which(f"python{version}", path=environ.get("PATH")) or "")
        is_shim = first.parent == base / "shims"
        # A shim runs the program of its name in the first selected version that has it.
        if is_shim and not any(exists(folder / first.name) for folder in folders):
            shims[version] = first
    return shims


def search_path(environ: Mapping[str, str] = os.environ, home: Path | None = None) -> str:
    """Return PATH, and behind it the folders of CPythons that it does not have, newest first."""
    folders = [folder for folder in environ.get("PATH", "").split(os.pathsep) if folder]
    newest_first = reversed(installed_interpreters(environ, home).values())
    folders.extend(str(executable.parent) for executable in newest_first)
    return os.pathsep.join(dict.fromkeys(folders))


def how_to_install(version: str, *, has_pyenv: bool) -> str:
    """Return the command that installs a CPython: of uv, which comes with torchmill, or of pyenv.

    pyenv is for versions that uv does not have (`uv python list --all-versions`); if this machine
    does not have it, the result is a sentence with the command in backquotes.
    """
    if _minor_version(version) >= _OLDEST_OF_UV:
        return f"uv python install {version}"
    command = f"pyenv install {version}"
    if has_pyenv:
        return command
    return f"uv has none before 3.{_OLDEST_OF_UV}; with https://github.com/pyenv/pyenv, `{command}`"


def _prove_interpreter(version: str, executable: Path) -> Path | str:
    """Return the real path of an interpreter that works and has headers, else a problem."""
    answer = _ask_interpreter(version, executable)
    if isinstance(answer, str):
        return answer
    real, header = answer
    return real if is_file(header) else f"{executable} lacks its headers, {header}"


def _ask_interpreter(version: str, executable: Path) -> tuple[Path, Path] | str:
    """Return the real paths of an interpreter and of its Python.h, else a clause on why it fails.

    Whether its Python.h exists is not checked.
    """
    # Wheels are tried without LD_LIBRARY_PATH, so that the interpreter must run without it.
    environ = {name: value for name, value in os.environ.items() if name != "LD_LIBRARY_PATH"}
    try:
        answer = ask([str(executable), "-I", "-c", _PROBE], environ)
        implementation, actual, include, real = json.loads(answer)
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
    """Return all CPythons by version; first those that seem to have their headers."""
    # Ordered sets, because a folder may be searched twice.
    executables: dict[str, dict[Path, None]] = {}
    for folder in _search_folders(environ, Path.home() if home is None else home):
        for version, path in _executables(folder):
            executables.setdefault(version, {})[path] = None
    return {
        version: sorted(paths, key=lambda path: not _has_headers(path))
        for version, paths in executables.items()
    }


def _has_headers(executable: Path) -> bool:
    """Tell whether an interpreter has its headers in the usual folder."""
    if executable.name == "python.exe":
        return exists(executable.parent / "include" / "Python.h")
    include = executable.parents[1] / "include"
    # Until 3.7, the ABI had a letter: "python3.7m".
    names = (executable.name, f"{executable.name}m")
    return any(exists(include / name / "Python.h") for name in names)


def _executables(folder: Path) -> Iterator[tuple[str, Path]]:
    """Yield the interpreters in a folder, by version."""
    for name in list_names(folder):
        if not name.startswith("python"):
            continue
        path = folder / name
        match = _EXECUTABLE.fullmatch(name)
        if match:
            # A CPython with free threads may have both names, python3.13 and python3.13t.
            free_threaded = folder / f"{name}t"
            is_same = is_file(free_threaded) and is_file(path) and free_threaded.samefile(path)
            if not is_same:
                yield match["version"], path
        elif name == "python.exe":
            numbers = _version_of_folder(folder)
            if numbers:
                yield f"3.{numbers[1]}", path


def _path_folders(environ: Mapping[str, str]) -> Iterator[Path]:
    """Yield the folders on PATH."""
    for folder in environ.get("PATH", "").split(os.pathsep):
        if folder:
            yield Path(folder)


def _search_folders(environ: Mapping[str, str], home: Path) -> Iterator[Path]:
    """Yield the folders to look in: those on PATH, and then the usual ones of installers."""
    for folder in _path_folders(environ):
        if folder.name != "shims":
            yield folder
    # The Python of this process, even if PATH does not have it.
    yield Path(sys.executable).parent
    for base in _version_folders(environ, home):
        children = []
        for child in list_children(base):
            match = _UV_FOLDER.fullmatch(child.name)
            is_for_here = match is None or match["machine"] == platform.machine()
            if _CPYTHON.match(child.name) and is_for_here:
                children.append(child)
        for child in _newest_first(children):
            yield child / "bin"
            yield child  # on Windows
            # GitHub's runners have a folder for the machine.
            yield child / "x64/bin"
            yield child / "x64"
    for environment in conda_environments(environ, home):
        yield environment / "bin"


def conda_environments(
    environ: Mapping[str, str], home: Path, root: Path = Path("/")
) -> Iterator[Path]:
    """Yield conda's environments: the active one, those that conda records, those in usual folders.

    Some of these folders may not exist.
    """
    variables = ("CONDA_PREFIX", "MAMBA_ROOT_PREFIX")
    active = [Path(environ[name]) for name in variables if environ.get(name)]
    yield from active
    for line in read_text(home / ".conda/environments.txt").splitlines():
        if line.strip():
            yield Path(line.strip())
    usual = [home / name for name in _CONDAS]
    for base in (*active, *usual, root / "opt/conda"):
        yield base
        yield from reversed(list_children(base / "envs"))


def uv_interpreters_for(machine: str, environ: Mapping[str, str], home: Path) -> Interpreters:
    """Return the CPythons that uv installed for another machine with Linux, by version.

    `uv python install cpython-3.12-linux-aarch64-gnu` brings one; it does not run here.
    """
    interpreters: Interpreters = {}
    for folder in _newest_first(list_children(_uv_folder(environ, home))):
        match = _UV_FOLDER.fullmatch(folder.name)
        if match is not None and match["machine"] == machine:
            for version, path in _executables(folder / "bin"):
                interpreters.setdefault(version, path)
    return interpreters


def _newest_first(folders: Iterable[Path]) -> list[Path]:
    """Return folders that are named after versions, the newest version first."""
    return sorted(folders, key=lambda folder: _version_of_folder(folder) or (), reverse=True)


def _uv_folder(environ: Mapping[str, str], home: Path) -> Path:
    """Return the folder in which uv installs CPythons."""
    data = Path(environ.get("XDG_DATA_HOME") or home / ".local/share")
    return Path(environ.get("UV_PYTHON_INSTALL_DIR") or data / "uv/python")


def _version_folders(environ: Mapping[str, str], home: Path) -> Iterator[Path]:
    """Yield the folders that hold one CPython per child, named after its version."""
    yield Path(environ.get("PYENV_ROOT") or home / ".pyenv") / "versions"
    yield _uv_folder(environ, home)
    yield Path("/opt/python")  # manylinux images
    # GitHub's runners
    yield Path(environ.get("RUNNER_TOOL_CACHE") or "/opt/hostedtoolcache") / "Python"
    if sys.platform == "darwin":
        yield Path("/Library/Frameworks/Python.framework/Versions")
        yield Path("/Library/Frameworks/PythonT.framework/Versions")
        yield Path("/opt/homebrew/opt")
        yield Path("/usr/local/opt")
    if sys.platform == "win32":
        yield Path(environ.get("LOCALAPPDATA") or home / "AppData/Local") / "Programs/Python"
        yield Path(environ.get("APPDATA") or home / "AppData/Roaming") / "uv/python"
        yield Path(environ.get("PROGRAMFILES") or "C:/Program Files")


def _version_of_folder(folder: Path) -> tuple[int, ...] | None:
    """Return the version that a folder, or the one around it, is named after.

    Names are "3.10.13", "cpython-3.12.4-linux", "cp310", "Python310".
    """
    match = _CPYTHON.match(folder.name) or _CPYTHON.match(folder.parent.name)
    if match is None:
        return None
    numbers = tuple(int(part) for part in match["numbers"].split(".") if part)
    if len(numbers) == 1:
        digits = str(numbers[0])
        if digits.startswith("3") and len(digits) > 1:
            return _PYTHON_3, int(digits[1:])
        return None
    return numbers if numbers and numbers[0] == _PYTHON_3 else None
