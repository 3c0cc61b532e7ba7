"""A Python of this machine takes another machine for its own."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from torchmill.cell.crossing import CROSSED_PYTHON

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="builds are crossed on Linux only")

PROBE = """
import json, platform, sysconfig
names = ("EXT_SUFFIX", "SOABI", "CC", "CXX", "LDSHARED", "LDFLAGS", "SIZEOF_LONG")
values = sysconfig.get_config_vars()
print(json.dumps([platform.machine(), sysconfig.get_platform(), {n: values[n] for n in names}]))
"""
BUILDER = """
import os
_TORCH_PATH = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
TORCH_LIB_PATH = os.path.join(_TORCH_PATH, "lib")

def include_paths():
    return [os.path.join(_TORCH_PATH, "include")]
"""


def run(code: str, tmp_path: Path, **variables: str) -> str:
    """Run code with the variables of a crossed build and more, and return what it prints."""
    environ = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join((str(CROSSED_PYTHON), str(tmp_path))),
        "_PYTHON_HOST_PLATFORM": "linux-aarch64",
        "_PYTHON_SYSCONFIGDATA_NAME": "_sysconfigdata_torchmill",
        "TORCHMILL_TARGET_MACHINE": "aarch64",
        "TORCHMILL_TARGET_TRIPLET": "aarch64-linux-gnu",
        "CC": "aarch64-linux-gnu-gcc-12",
        "CXX": "aarch64-linux-gnu-g++-12",
        **variables,
    }
    done = subprocess.run(
        [sys.executable, "-c", code], env=environ, capture_output=True, text=True, check=True
    )
    return done.stdout


def test_it_names_the_target_and_its_compilers(tmp_path: Path) -> None:
    machine, platform, values = json.loads(run(PROBE, tmp_path))
    assert (machine, platform) == ("aarch64", "linux-aarch64")
    version = f"cpython-3{sys.version_info.minor}"
    assert values["EXT_SUFFIX"] == f".{version}-aarch64-linux-gnu.so"
    assert values["SOABI"] == f"{version}-aarch64-linux-gnu"
    assert values["CC"] == "aarch64-linux-gnu-gcc-12"
    assert values["LDSHARED"] == "aarch64-linux-gnu-gcc-12 -shared"
    assert values["LDFLAGS"] == "", "this machine's may name folders with its libraries"
    assert values["SIZEOF_LONG"] == sysconfig.get_config_var("SIZEOF_LONG")


def test_its_own_modules_are_still_imported(tmp_path: Path) -> None:
    """Its interpreter is of this machine, and so are the modules that setup.py imports."""
    assert run("import _ctypes, zlib; print('imported')", tmp_path) == "imported\n"


def test_torchs_builder_takes_headers_and_libraries_of_the_target(tmp_path: Path) -> None:
    utils = tmp_path / "torch/utils"
    utils.mkdir(parents=True)
    (tmp_path / "torch/__init__.py").touch()
    (utils / "__init__.py").touch()
    (utils / "cpp_extension.py").write_text(BUILDER)
    code = (
        "from torch.utils import cpp_extension as builder\n"
        "print(builder.include_paths()[0], builder.TORCH_LIB_PATH)"
    )
    target = run(code, tmp_path, TORCHMILL_TARGET_PACKAGES="/target")
    assert target == "/target/torch/include /target/torch/lib\n"
    own = run(code, tmp_path)
    assert own == f"{tmp_path}/torch/include {tmp_path}/torch/lib\n"


def test_without_a_target_nothing_changes() -> None:
    environ = {**os.environ, "PYTHONPATH": str(CROSSED_PYTHON)}
    code = "import os, sys; print(os.uname is __import__('posix').uname, len(sys.meta_path))"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    plain = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == plain.stdout
