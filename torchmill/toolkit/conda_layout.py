"""Where the files of conda packages belong in a CUDA_HOME, and which packages are of interest."""

from __future__ import annotations

import re
from pathlib import PurePosixPath

from torchmill.pack import members

SUBDIRS = {"x86_64": "linux-64", "aarch64": "linux-aarch64"}  # how conda calls a machine

_FOLDERS = ("bin", "include", "nvvm")
_LIBRARIES = ("lib", "lib64")
_NOT_OURS = ("pkgconfig", "python")  # in a folder of libraries: they tell where the package would lie
# Of what a solution holds: the compiler and the libraries, no profilers and debuggers, no compiler of C++.
_TAKEN = re.compile(
    r"(?:cuda-(?:cccl|crt|cudart|culibos|cuobjdump|cupti|cuxxfilt|driver|libraries|nvcc|nvdisasm|nvml|nvprune"
    r"|nvrtc|nvtx|nvvm|profiler|thrust|toolkit|version)"
    r"|libcu(?:blas|fft|file|rand|solver|sparse)|libnv(?:fatbin|jitlink|jpeg|ptxcompiler|vm))(?:[-_].*)?"
)
# Up to CUDA 11.4 the header of the profiler's interface lies with the profiler itself.
_ALSO = "cuda-nvprof"


def taken(package: str) -> bool:
    """Tell whether a package of a solution becomes a part of the toolkit."""
    return package == _ALSO or _TAKEN.fullmatch(package) is not None


def place(path: str) -> str | None:
    """Return the path of a package's file below CUDA_HOME; None: it is not for there.

    Packages have their files below the prefix (CUDA 11) or below `targets/<machine>-linux` (from 12 on).
    """
    if members.leaves(path):
        return None
    parts = PurePosixPath(path).parts
    if parts[0] == "targets":
        parts = parts[2:]
    if len(parts) < 2:  # noqa: PLR2004 (a folder, and something in it)
        return None
    if parts[0] in _LIBRARIES:
        return None if parts[1].startswith(_NOT_OURS) else "/".join(("lib64", *parts[1:]))
    return "/".join(parts) if parts[0] in _FOLDERS else None
