"""Run a setup.py dry: in an environment of its own, without a network, with nothing compiled.

`checks/dry_run.py` is the program that does it, with the Python and the torch that the package would
be built with. The environment is a new one, into which torch's folder is lent, and the build
requirements are installed as wheels alone, so that no code of theirs runs outside of the seal. The
seal takes the network and the user's home and variables; it does not hide the user's files.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from torchmill.cell.hidden_nvcc import hide_nvcc
from torchmill.cell.sandbox import Sandbox
from torchmill.core import reaper, retries
from torchmill.core.errors import HostError
from torchmill.core.paths import CHECKOUT
from torchmill.core.process import CommandError, capture
from torchmill.host import environments
from torchmill.plan.package_draft.scenarios import WITHOUT_CUDA, Scenario
from torchmill.plan.package_draft.setup_run import SetupRun, parse_run

PROGRAM = "dry_run.py"
BASE_REQUIREMENTS = ("setuptools<82", "wheel", "packaging", "ninja")
SECONDS = 180.0  # of processor time that one run of a setup.py may take
# As many times as long may it take if others have the processors; checks/dry_run.py has the same.
_PATIENCE = 4
_START_SECONDS = 300.0  # for the program itself, which imports torch
_STAND_IN_NVCC = """\
#!/bin/sh
echo "nvcc: NVIDIA (R) Cuda compiler driver"
echo "Cuda compilation tools, release {version}, V{version}.0"
"""
# Projects that have another name than the module that is imported.
_PROJECTS = {
    "Cython": "Cython",
    "cv2": "opencv-python-headless",
    "pkg_resources": "setuptools<82",
    "skbuild": "scikit-build",
    "yaml": "PyYAML",
}


@dataclass(frozen=True, slots=True)
class DryTorch:
    """The torch that setup.py is run with."""

    title: str  # "torch 2.15.0"
    python: Path  # the interpreter that the environment is made from
    # Without a folder and a wheel, a stand-in takes its place.
    folder: Path | None = None  # of packages, in which torch is installed
    wheel: Path | None = None  # of torch, to be installed in the environment
    version: str = ""  # of the stand-in
    cuda: str = ""  # its toolkit, "13.0"


@dataclass(slots=True)
class DryEnvironment:
    """An environment for dry runs, in a folder that the caller deletes."""

    folder: Path
    torch: DryTorch
    sandbox: Sandbox
    cuda: str  # version of the toolkit: that of torch, or of `toolkit`
    toolkit: Path | None  # that this machine has; None: a stand-in takes its place
    capability: str = "9.0"  # of the GPU that setup.py is told of
    missing: dict[str, str] = field(default_factory=dict)  # modules that were installed -> projects
    _number: int = 0

    @property
    def venv(self) -> Path:
        """Return the virtual environment."""
        return self.folder / "venv"

    @property
    def python(self) -> Path:
        """Return the interpreter of the virtual environment."""
        return environments.environment_python(self.venv)

    def provide(self, store: Path, requirements: Sequence[str]) -> str:
        """Make the environment; return "", or why pip failed: then none of `requirements` is there.

        With a stand-in for torch, they are installed without what they depend on. `store` is the
        folder of stored environments (`make_environment`). Raises HostError if it cannot be made at
        all, CommandError if torch's wheel cannot be installed.
        """
        environments.make_environment(self.torch.python, self.venv, store)
        problem = ""
        if self.torch.folder is not None:
            # First: pip then takes torch, on which some requirements depend, for installed.
            environments.add_package_folder(self.venv, self.torch.folder)
        if self.torch.wheel is not None:
            self.install(str(self.torch.wheel))
        has_torch = self.torch.folder is not None or self.torch.wheel is not None
        try:
            self.install(*BASE_REQUIREMENTS, *requirements, dependencies=has_torch)
        except CommandError as error:
            problem = environments.pip_reason(error)
            # Without an index, the dry run may do with what was lent.
            with contextlib.suppress(CommandError):
                self.install(*BASE_REQUIREMENTS, dependencies=False)
        return problem

    def install(self, *requirements: str, dependencies: bool = True) -> None:
        """Install wheels. Raises CommandError if pip fails."""
        argv = [str(self.python), "-I", "-m", "pip", "install", "--quiet", "--only-binary=:all:"]
        if not dependencies:
            argv.append("--no-deps")
        run_pip = partial(
            capture,
            [*argv, *requirements],
            env=environments.pip_variables(os.environ),
            seconds=900,
        )
        retries.repeat(run_pip, environments.judge_pip, "pip")

    def bring_module(self, module: str) -> bool:
        """Install the project of a module that setup.py imports, as a wheel; tell if that worked.

        A module that was installed before, a submodule, and any name that begins with "torch"
        (torchvision, too) are not tried.
        """
        project = _PROJECTS.get(module, module)
        if module in self.missing or not module.isidentifier() or module.startswith("torch"):
            return False
        try:
            self.install(project, dependencies=False)
        except CommandError:
            return False
        self.missing[module] = project
        return True

    def run(
        self, tree: Path, scenarios: Sequence[Scenario], seconds: float = SECONDS
    ) -> list[SetupRun]:
        """Run the setup.py of a tree in each scenario, and return the records in this order.

        `seconds` is the processor time that each run may take. Raises HostError or CommandError if
        the program itself fails, as if torch cannot be imported.
        """
        requests = [self._request(tree, scenario, seconds) for scenario in scenarios]
        return [parse_run(data) for data in self._call(requests, seconds)]

    def compile(
        self,
        tree: Path,
        variables: Mapping[str, str],
        suffixes: Sequence[str],
        cuda_home: Path | None,
        seconds: float,
    ) -> SetupRun:
        """Run setup.py, compile the smallest source of its extensions, and return the record.

        Sources have one of `suffixes`; the record says so if there is none. `variables` are those
        of the build, and `cuda_home` the toolkit, None without CUDA. Raises HostError or
        CommandError as `run` does.
        """
        self._number += 1
        request = {
            "root": str(tree),
            "seconds": seconds,
            "cuda_home": None if cuda_home is None else str(cuda_home),
            "cuda": self.cuda,
            "variables": {**self._variables(None), **variables},
            "compile": {
                "suffixes": list(suffixes),
                "folder": str(self.folder / f"objects-{self._number}"),
            },
        }
        (record,) = self._call([request], seconds)
        return parse_run(record)

    def ask_backend(self, tree: Path, backend: str, path: Sequence[str]) -> SetupRun:
        """Ask a build backend of the source itself what a wheel requires, and return the record.

        It may write into the tree. `path` has the folders of the tree that it lies in. Raises
        HostError or CommandError as `run` does.
        """
        request = self._request(tree, WITHOUT_CUDA, SECONDS)
        request["backend"] = {"name": backend, "path": list(path)}
        (record,) = self._call([request], SECONDS)
        return parse_run(record)

    def _request(self, tree: Path, scenario: Scenario, seconds: float) -> dict[str, Any]:
        """Return a scenario as the program takes it."""
        home = self._toolkit_home() if scenario.cuda else None
        variables = {**self._variables(home if scenario.nvcc_on_path else None)}
        if home is not None:
            variables |= {
                "CUDA_HOME": str(home),
                "CUDACXX": str(home / "bin/nvcc"),
                "TORCH_CUDA_ARCH_LIST": self.capability,
            }
        major, _, minor = self.capability.partition(".")
        return {
            "root": str(tree),
            "seconds": seconds,
            "cuda_home": None if home is None else str(home),
            "cuda": self.cuda,
            "gpu": scenario.gpu,
            "capability": [int(major), int(minor or 0)],
            "variables": {**variables, **scenario.variables},
        }

    def _variables(self, nvcc_home: Path | None) -> dict[str, str]:
        """Return the variables that every run gets; with `nvcc_home`, that toolkit's nvcc on PATH."""
        folders = [str(self.venv / "bin"), self.base_path()]
        if self.torch.folder is not None:
            # ninja may be installed there, and is then not installed again.
            folders += [str(folder / "bin") for folder in self.torch.folder.parents[2:3]]
        if nvcc_home is not None:
            folders.insert(0, str(nvcc_home / "bin"))
        home = self.folder / "home"
        home.mkdir(exist_ok=True)
        return {
            "PATH": os.pathsep.join(folders),
            "HOME": str(home),
            "TMPDIR": str(home),
            "LANG": "C.UTF-8",
            "MAX_JOBS": "1",
            "CUDA_VISIBLE_DEVICES": "",
            "PYTHONDONTWRITEBYTECODE": "1",
            # The mark lets the reaper end the run and its compilers if this process is killed.
            **reaper.mark_of_run(),
        }

    def base_path(self) -> str:
        """Return the user's PATH without nvcc.

        Folders that have an nvcc are replaced by folders of links, which are made in `folder`.
        """
        return hide_nvcc(os.environ.get("PATH", os.defpath), self.folder / "without-nvcc")

    def _toolkit_home(self) -> Path:
        """Return the toolkit of this machine, or make a folder that looks like one from outside."""
        if self.toolkit is not None:
            return self.toolkit
        home = self.folder / "toolkit"
        nvcc = home / "bin" / "nvcc"
        if not nvcc.exists():
            for name in ("bin", "include", "lib64"):
                (home / name).mkdir(parents=True, exist_ok=True)
            nvcc.write_text(_STAND_IN_NVCC.format(version=self.cuda), encoding="utf-8")
            nvcc.chmod(0o755)
        return home

    def _call(self, requests: Sequence[Mapping[str, Any]], seconds: float) -> list[dict[str, Any]]:
        """Run the program with requests, and return its records."""
        self._number += 1
        folder = self.folder / f"run-{self._number}"
        folder.mkdir()
        request_file = folder / "request.json"
        answer_file = folder / "answer.json"
        stand_in = None
        if self.torch.folder is None and self.torch.wheel is None:
            stand_in = {"version": self.torch.version, "cuda": self.torch.cuda}
        request = {"stand_in": stand_in, "scenarios": list(requests)}
        request_file.write_text(json.dumps(request), encoding="utf-8")
        program = CHECKOUT / "checks" / PROGRAM
        argv = [str(self.python), "-I", str(program), str(request_file), str(answer_file)]
        capture(
            [*self.sandbox.prefix, *argv],
            cwd=folder,
            env=self._variables(None),
            seconds=_START_SECONDS + _PATIENCE * seconds * len(requests),
        )
        answer = json.loads(answer_file.read_text(encoding="utf-8"))
        records: list[dict[str, Any]] = answer["records"]
        return records


def edit_copy(tree: Path, copy: Path, commands: Iterable[Sequence[str]]) -> str:
    """Copy a tree, and run commands in the copy; return why one failed, or "".

    A former copy is deleted. The commands after one that failed are not run.
    """
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(tree, copy, symlinks=True)
    for argv in commands:
        try:
            capture(list(argv), cwd=copy)
        except (CommandError, HostError) as error:
            return str(error)
    return ""
