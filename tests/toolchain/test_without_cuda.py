"""The environment of a build without CUDA, whose torch has CUDA, on a machine that has it too."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.contexts import HOST, job
from tests.support.stub_torch import make_stub_torch
from torchmill.cell import session_environment
from torchmill.cell.crossing import CROSSED_PYTHON
from torchmill.config.facts import Facts
from torchmill.host import environments
from torchmill.toolchain import compiler_cache

MODULE = Path(compiler_cache.__file__).with_name("without_cuda.py")
ASK = """\
import torch
from torch.utils.cpp_extension import CUDA_HOME
from torch.utils import cpp_extension
print([torch.version.cuda, torch.has_cuda, torch.cuda.is_available(), torch.backends.cuda.is_built(), CUDA_HOME,
       cpp_extension.CUDA_HOME])
"""


@pytest.fixture
def venv(tmp_path: Path) -> Path:
    """Return an environment with a torch that finds a toolkit and a GPU."""
    folder = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    (site,) = folder.glob("lib/python*/site-packages")
    make_stub_torch(site, "2.11.0", cuda="13.2")
    with (site / "torch/__init__.py").open("a", encoding="utf-8") as file:
        file.write("has_cuda = True\n")
    for name, text in (
        ("torch/cuda.py", "def is_available(): return True\n"),
        ("torch/backends/cuda.py", "def is_built(): return True\n"),
        ("torch/utils/cpp_extension.py", "CUDA_HOME = '/usr/local/cuda'\n"),
    ):
        (site / name).write_text(text, encoding="utf-8")
    return folder


def answers(venv: Path) -> str:
    """Return what torch tells a program in an environment."""
    argv = [str(environments.environment_python(venv)), "-c", ASK]
    return subprocess.run(argv, check=True, capture_output=True, text=True).stdout.strip()


def test_torch_has_neither_a_toolkit_nor_a_gpu(venv: Path) -> None:
    assert answers(venv) == "['13.2', True, True, True, '/usr/local/cuda', '/usr/local/cuda']"
    environments.import_at_start(venv, MODULE)
    assert answers(venv) == "[None, False, False, False, None, None]"


@pytest.mark.skipif(sys.platform != "linux", reason="builds are crossed on Linux only")
def test_a_crossed_build_hides_it_as_well(venv: Path) -> None:
    """Both change torch's builder: one its toolkit, the other the folder of torch."""
    environments.import_at_start(venv, MODULE)
    (site,) = venv.glob("lib/python*/site-packages")
    builder = site / "torch/utils/cpp_extension.py"
    builder.write_text("CUDA_HOME = '/usr/local/cuda'\nTORCH_LIB_PATH = '/here'\n")
    environ = {
        **os.environ,
        "PYTHONPATH": str(CROSSED_PYTHON),
        "TORCHMILL_TARGET_MACHINE": "aarch64",
        "TORCHMILL_TARGET_PACKAGES": "/target",
    }
    code = "from torch.utils import cpp_extension as it; print(it.CUDA_HOME, it.TORCH_LIB_PATH)"
    argv = [str(environments.environment_python(venv)), "-c", code]
    result = subprocess.run(argv, check=True, capture_output=True, text=True, env=environ)
    assert result.stdout == "None /target/torch/lib\n"


def test_a_python_without_torch_starts_as_ever(venv: Path) -> None:
    environments.import_at_start(venv, MODULE)
    argv = [str(environments.environment_python(venv)), "-c", "import json, no_such_module"]
    result = subprocess.run(argv, check=False, capture_output=True, text=True)
    assert result.stderr.splitlines()[-1] == "ModuleNotFoundError: No module named 'no_such_module'"


@pytest.mark.parametrize(
    ("torch", "toolkit", "hidden"),
    [("torch==2.11.0", None, True), ("torch==2.11.0", "13.0", False), (None, None, False)],
)
def test_only_builds_against_torch_without_cuda_hide_it(  # noqa: PLR0917
    small_facts: Facts,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    torch: str | None,
    toolkit: str | None,
    hidden: bool,
) -> None:
    context = job(small_facts, tmp_path, HOST)
    plan = context.plan
    plan = replace(
        plan,
        wheel=replace(plan.wheel, torch=torch, torch_folder=tmp_path),
        cuda=replace(plan.cuda, toolkit=toolkit),
    )
    context = replace(context, plan=plan)
    site = context.venv / "lib/python3.10/site-packages"
    site.mkdir(parents=True)

    def provide(*arguments: object) -> None:
        install = arguments[4]
        assert callable(install)
        install(*arguments[5:])

    monkeypatch.setattr(environments, "provide_environment", provide)
    session_environment.provide_requirements(context, lambda *_: None)
    assert (site / "torchmill_without_cuda.pth").exists() == hidden
    assert (site / "torchmill_without_cuda.py").exists() == hidden
