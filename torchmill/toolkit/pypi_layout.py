"""Where the files of NVIDIA's wheels belong in a CUDA_HOME."""

from __future__ import annotations

from pathlib import PurePosixPath

from torchmill.pack import members

_HEADS = frozenset({"bin", "include", "lib", "nvvm"})
_DEEPEST = 2  # folders before one of these: nvidia/cu13, nvidia/cublas, cusparselt
_PYTHON = frozenset({"__init__.py", "__pycache__"})
_INFO = ".dist-info"


def place(member: str, libraries: str) -> str | None:
    """Return the path of a wheel's member below the folder that is filled; None: it is not for there.

    `libraries` is the folder that libraries go to: "lib64" of a toolkit, "lib" of all else. Licences are
    kept, apart for each package.
    """
    parts = PurePosixPath(member.replace("/extras/CUPTI/", "/")).parts  # as in the packages of CUDA 11.7
    if member.endswith("/") or members.leaves(member) or _PYTHON & set(parts):
        return None
    for depth, part in enumerate(parts[: _DEEPEST + 1]):
        if part in _HEADS and 0 < depth < len(parts) - 1:
            head = libraries if part == "lib" else part
            return "/".join((head, *parts[depth + 1 :]))
    if len(parts) > 1 and parts[-1].lower().startswith("license"):
        package = parts[0].removesuffix(_INFO) if parts[0].endswith(_INFO) else parts[-2]
        return f"licenses/{package}/{parts[-1]}"
    return None
