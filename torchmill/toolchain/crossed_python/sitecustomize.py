"""Make a Python of this machine take another machine for its own: that which a build is for.

Python imports this module when it starts: https://docs.python.org/3/library/site.html. It runs with
every Python that wheels are built for, from 3.8 on.

TORCHMILL_TARGET_MACHINE is the other machine, "aarch64". TORCHMILL_TARGET_PACKAGES is a folder with
its packages: torch's builder of extensions takes headers and libraries from the torch there.
"""

from __future__ import annotations

import importlib.abc
import os
import sys
from pathlib import Path
from typing import Any

_BUILDER = "torch.utils.cpp_extension"
_real_uname = os.uname


def _uname() -> os.uname_result:
    """Return what the kernel of the other machine would say."""
    fields = list(_real_uname())
    fields[4] = os.environ["TORCHMILL_TARGET_MACHINE"]
    return os.uname_result(fields)


class _BuilderFinder(importlib.abc.MetaPathFinder):
    """Finds torch's builder of extensions, and leads it to the torch of the other machine."""

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> Any:
        """Return how the builder is imported; None for every other module."""
        if fullname != _BUILDER:
            return None
        # Not Python's own finder alone: in a build without CUDA another one changes the module, too.
        # Those before this one have been asked.
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            # Finders of old packages have another method, which Python itself calls by then.
            if not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(fullname, path, target)
            if spec is not None and spec.loader is not None:
                spec.loader = _BuilderLoader(spec.loader)
                return spec
        return None


class _BuilderLoader(importlib.abc.Loader):
    """Imports the builder, then changes the two names by which it knows the folders of torch."""

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def create_module(self, spec: Any) -> Any:
        """Return the new module, or None for an ordinary one."""
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        """Run the module's code."""
        self._loader.exec_module(module)
        torch = Path(os.environ["TORCHMILL_TARGET_PACKAGES"]) / "torch"
        # https://github.com/pytorch/pytorch/blob/v2.13.0/torch/utils/cpp_extension.py#L43
        module._TORCH_PATH = str(torch)  # noqa: SLF001
        module.TORCH_LIB_PATH = str(torch / "lib")


if "TORCHMILL_TARGET_MACHINE" in os.environ:
    os.uname = _uname  # platform.machine() asks it
    if "TORCHMILL_TARGET_PACKAGES" in os.environ:
        sys.meta_path.insert(0, _BuilderFinder())
