"""Arrays in miniature, computed in C++."""

import ctypes
from pathlib import Path

__all__ = [
    "__version__",
    "add",
    "built_with",
    "config",
    "fit",
    "git_version",
    "include_path",
    "lib_path",
    "scale",
    "total",
]


def lib_path():
    """Return the shared library, which other extensions link against."""
    return str(next((Path(__file__).parent / "lib").glob("libtiny.*")))


def include_path():
    """Return the folder of the C++ headers."""
    return str(Path(__file__).parent / "include")


# Global, so that the extensions of other packages find it already there.
ctypes.CDLL(lib_path(), mode=ctypes.RTLD_GLOBAL)

from ._C import add, built_with, config, fit, scale, total  # noqa: E402
from .version import __version__, git_version  # noqa: E402
