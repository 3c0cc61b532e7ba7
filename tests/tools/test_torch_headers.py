"""The headers of a torch without its libraries, and a setup.py that takes them for torch."""

import io
import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import requests

from tests.support.index_server import Index, serving
from tests.support.refusals import refused
from tools.syntax.torch_headers import provide_headers
from torchmill.wheel.verify.clean_environment import CHECK_SCRIPTS

CPP_EXTENSION = """
from setuptools.command.build_ext import build_ext as BuildExtension
from torch import __version__, cuda, version

def is_ninja_available():
    return True
"""
SETUP = """
from setuptools import Extension, setup
from torch.utils import cpp_extension

assert not cpp_extension.is_ninja_available()
assert not cpp_extension.cuda.is_available() and cpp_extension.version.cuda is None
flags = ["-DTORCH=" + cpp_extension.__version__]
setup(
    name="quick",
    ext_modules=[Extension("quick._sort", ["sort.cpp"], extra_compile_args=flags)],
    cmdclass={"build_ext": cpp_extension.BuildExtension},
)
"""
MEMBERS = {
    "torch/include/torch/torch.h": "#pragma once\n",
    "torch/include/ATen/ATen.h": "#pragma once\n" * 500,
    "torch/lib/libtorch_cpu.so": "a library " * 100_000,
    "torch/__init__.py": "raise ImportError('needs its libraries')\n",
    "torch/nn/modules.py": "",
    "torch/torch_version.py": "from torch.version import __version__\n",
    "torch/utils/cpp_extension.py": CPP_EXTENSION,
    "torch/version.py": "__version__ = '2.15.0'\ncuda = '13.2'\nhip = None\n",
}


@pytest.fixture
def index() -> Index:
    """Return an index with a wheel of torch 2.15.0, which is the one that pip uses."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in MEMBERS.items():
            archive.writestr(name, text)
    served = Index()
    served.add("torch-2.15.0-cp312-cp312-manylinux_2_28_x86_64.whl", content.getvalue())
    served.add("torch-2.15.0-cp312-none-macosx_11_0_arm64.whl", b"no archive")
    return served


def test_a_setup_py_takes_the_headers_for_torch_and_compiles_nothing(
    index: Index, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("setuptools")
    with serving(index), requests.Session() as session:
        monkeypatch.setenv("PIP_INDEX_URL", index.url)
        headers = provide_headers("2.15.0", "3.12", tmp_path, session)
        request_count = len(index.requests)
        assert provide_headers("2.15.0", "3.12", tmp_path, session) == headers
        assert len(index.requests) == request_count, "they are there already"
        with refused("wheel-unreadable"):
            provide_headers("2.15.0", "3.13", tmp_path, session)
    name = "torch/include/ATen/ATen.h"
    assert (headers / name).read_text() == MEMBERS[name]
    assert not (headers / "torch" / "lib").exists()
    assert not (headers / "torch" / "nn").exists()
    source = tmp_path / "quick"
    source.mkdir()
    (source / "setup.py").write_text(SETUP)
    (source / "sort.cpp").write_text("#error is never compiled\n")
    recorder = CHECK_SCRIPTS / "record_compiles.py"
    output = tmp_path / "commands.json"
    subprocess.run([sys.executable, recorder, headers, output], cwd=source, check=True)
    (command,) = json.loads(output.read_text())
    assert command[command.index("-c") + 1] == "sort.cpp"
    assert "-DTORCH=2.15.0" in command
