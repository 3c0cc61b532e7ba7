"""The GPUs of a machine and their driver.

A library that does not belong to the kernel's half is what `Error 804` is about.
"""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from torchmill.config.gpu import Gpu
from torchmill.core.lenient_paths import find_paths, read_text, real_path
from torchmill.host.programs import RunProgram

# What the loader finds without being told, and where containers and WSL put the driver.
_USUAL = (
    "/usr/local/nvidia/lib64", "/usr/lib/wsl/lib",
    "/usr/lib/x86_64-linux-gnu", "/usr/lib/aarch64-linux-gnu", "/lib64", "/usr/lib64", "/lib", "/usr/lib",
)  # fmt: skip
# A Jetson's libcuda.so.1.1 says nothing.
_LIBRARY = re.compile(r"lib(?:cuda|nvidia-ml)\.so\.(\d{3}(?:\.\d+)+)")
_KERNEL = re.compile(r"^NVRM version:.*?\s(\d{3}(?:\.\d+)+)\s", re.MULTILINE)
_CAPABILITY = re.compile(r"\d+\.\d")


def driver_library_version(environ: Mapping[str, str], root: Path) -> str | None:
    """Return the version of the driver's library, which its file name bears; None where there is none.

    A forward-compatibility library is passed over: `compat` names its folder.
    """
    folders = [folder for folder in _searched(environ, root) if not _is_compat(root, folder)]
    libraries = (
        _below(root, folder) / name
        for name in ("libcuda.so.1", "libnvidia-ml.so.1")
        for folder in folders
    )
    matches = (_LIBRARY.fullmatch(real_path(library).name) for library in libraries)
    return next((match[1] for match in matches if match), None)


def kernel_driver_version(root: Path) -> str | None:
    """Return the version of the driver in the running kernel."""
    match = _KERNEL.search(read_text(root / "proc/driver/nvidia/version"))
    return match[1] if match else None


def compat_folders(environ: Mapping[str, str], root: Path) -> tuple[str, ...]:
    """Return the folders of CUDA's forward-compatibility libraries that the loader searches."""
    return tuple(
        dict.fromkeys(folder for folder in _searched(environ, root) if _is_compat(root, folder))
    )


def find_host_gpus(root: Path, run: RunProgram) -> tuple[Gpu, ...]:
    """Return the machine's GPUs, from nvidia-smi, or else from what the kernel tells of them."""
    query = ("nvidia-smi", "--format=csv,noheader")
    # drivers before 510 do not know the second field; a program that did not answer is not asked again
    said = run([*query, "--query-gpu=name,compute_cap"]) or run([*query, "--query-gpu=name"])
    board = (
        read_text(root / "proc/device-tree/model")
        .rstrip("\0\n")
        .replace("NVIDIA Orin", "NVIDIA Jetson Orin")
    )
    jetson = (Gpu(board),) if "Jetson" in board else ()
    if said.strip():
        rows = [
            [word.strip() for word in line.partition(",")]
            for line in said.splitlines()
            if line.strip()
        ]
        told = tuple(
            Gpu(name, number if _CAPABILITY.fullmatch(number) else None) for name, _, number in rows
        )
        return (
            told if all(one.capability for one in told) else jetson or told
        )  # JetPack 6 says "Orin (nvgpu), [N/A]"
    files = find_paths(root / "proc/driver/nvidia/gpus", "*/information")
    models = (re.search(r"^Model:\s*(.+?)\s*$", read_text(file), re.MULTILINE) for file in files)
    return tuple(Gpu(model[1]) for model in models if model) or jetson


def _is_compat(root: Path, folder: str) -> bool:
    return "compat" in folder and bool(find_paths(_below(root, folder), "libcuda.so*"))


def _searched(environ: Mapping[str, str], root: Path) -> Iterator[str]:
    """Yield the folders that the loader searches, in its order."""
    yield from (folder for folder in environ.get("LD_LIBRARY_PATH", "").split(os.pathsep) if folder)
    yield from _configured(root, "/etc/ld.so.conf")
    yield from _USUAL


def _configured(root: Path, file: str) -> Iterator[str]:
    for line in read_text(_below(root, file)).splitlines():
        words = line.partition("#")[0].split()
        if words[:1] == ["include"]:
            for pattern in words[1:]:
                for path in find_paths(root, str(Path("/etc", pattern)).lstrip("/")):
                    yield from _configured(root, "/" + str(path.relative_to(root)))
        elif words:
            yield words[0]


def _below(root: Path, path: str) -> Path:
    """Return an absolute path of the machine as it lies below `root`."""
    return root / path.lstrip("/")
