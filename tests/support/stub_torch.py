"""A folder of packages with a torch that is none: as much of it as a setup.py reads."""

import sys
from pathlib import Path

_VERSION = '__version__ = "{version}"\ncuda: "str | None" = {cuda}\nhip = None\n'
_INIT = """\
from torch import version
from torch import backends, cuda
from torch.version import __version__
"""
_EXTENSION = """\
import setuptools

CUDA_HOME = None

class BuildExtension(setuptools.Command):
    use_ninja = True

    @classmethod
    def with_options(cls, **options):
        return cls

def CppExtension(name, sources, **settings):
    return setuptools.Extension(name, sources, **settings)

def CUDAExtension(name, sources, **settings):
    if CUDA_HOME is None:
        raise OSError("CUDA_HOME environment variable is not set.")
    return setuptools.Extension(name, sources, **settings)
"""


def make_stub_torch(folder: Path, version: str, cuda: str | None = None) -> Path:
    """Make a folder of packages with a torch of this version, for the Python that runs the tests."""
    files = {
        "torch/__init__.py": _INIT,
        "torch/version.py": _VERSION.format(version=version, cuda=repr(cuda)),
        "torch/cuda.py": "def is_available():\n    return False\n",
        "torch/backends/__init__.py": "from torch.backends import cuda\n",
        "torch/backends/cuda.py": "def is_built():\n    return False\n",
        "torch/utils/__init__.py": "",
        "torch/utils/cpp_extension.py": _EXTENSION,
        f"torch-{version}.dist-info/WHEEL": f"Tag: {_tag()}\n",
        f"torch-{version}.dist-info/METADATA": f"Name: torch\nVersion: {version}\n",
    }
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return folder


def _tag() -> str:
    python = f"cp{sys.version_info.major}{sys.version_info.minor}"
    return f"{python}-{python}-manylinux_2_28_x86_64"
