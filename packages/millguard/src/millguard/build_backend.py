"""A PEP 517 backend that builds a project's wheel by another backend, under a guard.

    [build-system]
    requires = ["millguard", "scikit-build-core"]
    build-backend = "millguard.build_backend"

    [tool.millguard]
    backend = "scikit_build_core.build"

Whoever installs such a project from source gets the guard: pip, uv, build and cibuildwheel need no
change. Only the hooks that compile are guarded, those for a wheel and for an editable install; they
run in a process of their own, because a library for LD_PRELOAD is loaded when a process starts. All
others are the other backend's own. https://peps.python.org/pep-0517/
"""

import importlib
import json
import os
import sys
import tempfile
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from millguard.guarded_command import GuardOptions, run_guarded
from millguard.observers import installed_observers
from millguard.server import GATE
from millguard.status_line import StatusLine

_NAME = "millguard.build_backend"  # also in the process in which this module is __main__
_COMPILING_HOOKS = frozenset({"build_wheel", "build_editable"})
_OTHER_HOOKS = frozenset(
    {
        "build_sdist",
        "get_requires_for_build_editable",
        "get_requires_for_build_sdist",
        "get_requires_for_build_wheel",
        "prepare_metadata_for_build_editable",
        "prepare_metadata_for_build_wheel",
    }
)


class BackendSettingsError(ValueError):
    """The project's pyproject.toml does not say which backend to guard."""


def __getattr__(name: str) -> Any:
    """Return a hook. Frontends ask which ones a backend has, and that depends on the other backend."""
    if name in _COMPILING_HOOKS:
        hook = getattr(_wrapped_backend(), name)
        return hook if _must_run_here() else _GuardedHook(name)
    if name in _OTHER_HOOKS:
        return getattr(_wrapped_backend(), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


class _GuardedHook:
    """A hook that runs in a process of its own, under a guard."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *arguments: Any, **named_arguments: Any) -> str:
        """Return the file name that the hook returns. Raises SystemExit with its process's code.

        That process has written the reason to stderr.
        """
        with tempfile.TemporaryDirectory(prefix="millguard-hook-") as folder:
            request = Path(folder, "request.json")
            answer = Path(folder, "answer.json")
            call = {"hook": self._name, "arguments": arguments, "named": named_arguments}
            request.write_text(json.dumps(call), encoding="utf-8")
            # -P, as in frontends: the project's folder is not where its backend is imported from.
            command = [
                sys.executable,
                "-P",
                "-m",
                "millguard.build_backend",
                str(request),
                str(answer),
            ]
            status = StatusLine()
            observers, problems = installed_observers()
            for problem in problems:
                status.report(problem)
            result = run_guarded(command, GuardOptions(observers=observers), status)
            for message in result.messages("the build"):
                status.report(message)
            if result.exit_code != 0:
                raise SystemExit(result.exit_code)
            return str(json.loads(answer.read_text(encoding="utf-8")))


def _must_run_here() -> bool:
    """Tell whether a hook gets no guard: there is one already, or this system can have none.

    `millguard -- pip install` has one already.
    """
    return sys.platform == "win32" or bool(os.environ.get(GATE))


def _wrapped_backend() -> Any:
    """Return the backend that the project names: a module, or an object in one.

    The folders of `backend-path` are put first into sys.path. Raises BackendSettingsError, and
    ImportError or AttributeError for a backend that is not there.
    """
    settings = _read_settings(Path("pyproject.toml"))
    module_name, _, attribute_path = settings["backend"].partition(":")
    for folder in reversed(settings["backend_path"]):
        if folder not in sys.path:
            sys.path.insert(0, folder)
    backend: Any = importlib.import_module(module_name)
    for attribute in filter(None, attribute_path.split(".")):
        backend = getattr(backend, attribute)
    return backend


def _read_settings(file: Path) -> Mapping[str, Any]:
    """Return the name of the wrapped backend, and the folders in the project that it may lie in.

    The keys are "backend" and "backend_path", a list of absolute paths. Frontends call every hook
    in the project's folder. Raises BackendSettingsError; OSError and TOMLDecodeError for the file.
    """
    project = tomllib.loads(file.read_text(encoding="utf-8"))
    backend = project.get("tool", {}).get("millguard", {}).get("backend")
    if not isinstance(backend, str) or backend.partition(":")[0] == _NAME:
        raise BackendSettingsError(
            f"{file} names no backend to guard: add a table [tool.millguard] with a line such as "
            'backend = "setuptools.build_meta"'
        )
    folders = project.get("build-system", {}).get("backend-path", [])
    return {"backend": backend, "backend_path": [str(Path(name).absolute()) for name in folders]}


def _run_hook(request: Path, answer: Path) -> None:
    """Run one hook of the wrapped backend in this process, as a file says, and write its result."""
    call = json.loads(request.read_text(encoding="utf-8"))
    hook = getattr(_wrapped_backend(), call["hook"])
    result = hook(*call["arguments"], **call["named"])
    answer.write_text(json.dumps(result), encoding="utf-8")


if __name__ == "__main__":
    _run_hook(Path(sys.argv[1]), Path(sys.argv[2]))
