"""Let torch tell a setup.py what it would tell on a machine without CUDA and without a GPU.

torch's extension builder takes /usr/local/cuda for a toolkit if neither a variable nor PATH leads to
one, and no value of a variable prevents that: `_find_cuda_home` in torch/utils/cpp_extension.py, for
which an empty CUDA_HOME is as good as none, and a folder that does not exist is a toolkit. Many a
setup.py then compiles kernels, or refuses to go on.

The environment of a build without CUDA gets a copy of this file, which each Python that is started
there imports. It changes values of torch as soon as torch is imported. The Python may be as old as
3.6, and cannot import torchmill.
"""

import sys
from types import ModuleType
from typing import Any


def hide_in_torch(torch: Any) -> None:
    """Let torch call itself a torch without CUDA, and find no GPU."""
    torch.version.cuda = None
    # Deprecated, and asked for all the same; it would answer by the functions of the release.
    torch.has_cuda = False
    torch.has_cudnn = False
    torch.backends.cuda.is_built = lambda: False
    torch.cuda.is_available = lambda: False
    torch.cuda.device_count = lambda: 0


def hide_in_builder(builder: Any) -> None:
    """Let torch's extension builder have no toolkit. Its older releases look for one in any case."""
    builder.CUDA_HOME = None
    builder.CUDNN_HOME = None


_CHANGES = {"torch": hide_in_torch, "torch.utils.cpp_extension": hide_in_builder}


class ChangingFinder:
    """A finder that lets those behind it find a module, and has it changed after its import."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        """Return the spec of a module that is to be changed; None for any other."""
        change = _CHANGES.get(name)
        if change is None:
            return None
        # Those before this one have been asked, and may ask it in turn.
        for finder in sys.meta_path[sys.meta_path.index(self) + 1 :]:
            # Finders of old packages have another method, which Python itself calls by then.
            if not hasattr(finder, "find_spec"):
                continue
            spec = finder.find_spec(name, path, target)
            if spec is not None and spec.loader is not None:
                _change_after_load(spec.loader, change)
                return spec
        return None


def _change_after_load(loader: Any, change: Any) -> None:
    """Let a loader change the module that it has loaded."""
    load = loader.exec_module

    def load_and_change(module: ModuleType) -> None:
        load(module)
        change(module)

    loader.exec_module = load_and_change


sys.meta_path.insert(0, ChangingFinder())
