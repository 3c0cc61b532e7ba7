"""The GPUs of a machine and their driver: the kernel's part, and the library that programs load.

CUDA fails with `Error 804` if the library does not belong to the kernel's part.
"""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

from torchmill.config.gpu import Gpu
from torchmill.core.lenient_paths import exists, find_paths, read_text, real_path
from torchmill.host.programs import RunProgram

# Folders that the loader searches by itself, and those of the driver in containers and in WSL.
_USUAL_FOLDERS = (
    "/usr/local/nvidia/lib64",
    "/usr/lib/wsl/lib",
    "/usr/lib/x86_64-linux-gnu",
    "/usr/lib/aarch64-linux-gnu",
    "/lib64",
    "/usr/lib64",
    "/lib",
    "/usr/lib",
)
# The file name has the driver's version, except on a Jetson, which has libcuda.so.1.1.
_LIBRARY = re.compile(r"lib(?:cuda|nvidia-ml)\.so\.(\d{3}(?:\.\d+)+)")
_KERNEL = re.compile(r"^NVRM version:.*?\s(\d{3}(?:\.\d+)+)\s", re.MULTILINE)
# Systems on a chip of 64-bit Jetsons, by their names in device trees:
# https://github.com/OE4T/meta-tegra (conf/machine), https://github.com/rbonghi/jetson_stats/issues/400
_CHIPS = {
    "nvidia,tegra210": "Tegra X1",
    "nvidia,tegra186": "Tegra X2",
    "nvidia,tegra194": "Jetson Xavier",
    "nvidia,tegra234": "Jetson Orin",
    "nvidia,tegra264": "Jetson Thor",
}
_MODEL = re.compile(r"^Model:\s*(.+?)\s*$", re.MULTILINE)
_CAPABILITY = re.compile(r"\d+\.\d")


def driver_library_version(environ: Mapping[str, str], root: Path) -> str | None:
    """Return the version of the driver's library, from its file name; None without one.

    Folders of forward-compatibility libraries are skipped: `compat_folders` returns those.
    """
    folders = [
        folder for folder in _searched_folders(environ, root) if not _is_compat(root, folder)
    ]
    for name in ("libcuda.so.1", "libnvidia-ml.so.1"):
        for folder in folders:
            version = _library_version(_below(root, folder) / name)
            if version:
                return version
    return None


def kernel_driver_version(root: Path) -> str | None:
    """Return the version of the driver in the running kernel; None without one."""
    match = _KERNEL.search(read_text(root / "proc/driver/nvidia/version"))
    return match[1] if match else None


def compat_folders(environ: Mapping[str, str], root: Path) -> tuple[str, ...]:
    """Return the folders of CUDA's forward-compatibility libraries that the loader searches."""
    folders = [folder for folder in _searched_folders(environ, root) if _is_compat(root, folder)]
    return tuple(dict.fromkeys(folders))


def stub_folders(environ: Mapping[str, str], root: Path) -> tuple[str, ...]:
    """Return the folders of a toolkit's stubs that the loader searches and takes a driver from.

    The stub is for linkers: its libcuda.so does nothing. The loader finds it if somebody has made a
    link to it with the driver's name, libcuda.so.1.
    """
    folders = [
        folder
        for folder in _searched_folders(environ, root)
        if Path(folder).name == "stubs" and exists(_below(root, folder) / "libcuda.so.1")
    ]
    return tuple(dict.fromkeys(folders))


def compat_driver_version(environ: Mapping[str, str], root: Path) -> str | None:
    """Return the version of the driver that the first libraries of forward compatibility are of.

    None without such libraries, and if their file name does not tell it.
    """
    for folder in compat_folders(environ, root):
        return _library_version(_below(root, folder) / "libcuda.so.1")
    return None


def _library_version(link: Path) -> str | None:
    """Return the version in the name of the file that a link of a driver's library leads to."""
    match = _LIBRARY.fullmatch(real_path(link).name)
    return match[1] if match else None


def find_host_gpus(root: Path, run: RunProgram) -> tuple[Gpu, ...]:
    """Return the machine's GPUs, from nvidia-smi, or else from the kernel's files.

    Those are the files of the driver for graphics cards, or else the device tree of a Jetson.
    """
    board = _find_jetson(root)
    gpus = _query_gpus(run)
    if gpus and board:
        # With JetPack 6, nvidia-smi prints "Orin (nvgpu), [N/A]" for the GPU of the board. A
        # graphics card in the same machine has its capability.
        return tuple(gpu if gpu.capability else board for gpu in gpus)
    if gpus:
        return gpus
    cards = _gpus_of_kernel(root)
    if cards or board is None:
        return cards
    return (board,)


def _query_gpus(run: RunProgram) -> tuple[Gpu, ...]:
    """Return the GPUs that nvidia-smi lists."""
    query = ("nvidia-smi", "--format=csv,noheader")
    # Drivers before 510 do not know the second field. If the program did not answer, `run` does not
    # start it again. Its answer is "" if the program fails, as with "No devices were found".
    answer = run([*query, "--query-gpu=name,compute_cap"]) or run([*query, "--query-gpu=name"])
    gpus: list[Gpu] = []
    for line in answer.splitlines():
        if not line.strip():
            continue
        name, _, number = line.partition(",")
        number = number.strip()
        capability = number if _CAPABILITY.fullmatch(number) else None
        gpus.append(Gpu(name.strip(), capability))
    return tuple(gpus)


def _gpus_of_kernel(root: Path) -> tuple[Gpu, ...]:
    """Return the graphics cards that the kernel's part of the driver lists."""
    gpus: list[Gpu] = []
    for file in find_paths(root / "proc/driver/nvidia/gpus", "*/information"):
        model = _MODEL.search(read_text(file))
        if model:
            gpus.append(Gpu(model[1]))
    return tuple(gpus)


def _find_jetson(root: Path) -> Gpu | None:
    """Return the GPU of a Jetson board, from its device tree; None elsewhere.

    That has the model, or at least the chip: the makers of other carriers write models of their own.
    """
    model = read_text(root / "proc/device-tree/model").rstrip("\0\n")
    # JetPack 5 calls boards "NVIDIA Orin NX Developer Kit"; all facts on them say "Jetson".
    model = model.replace("NVIDIA Orin", "NVIDIA Jetson Orin")
    if "Jetson" in model:
        return Gpu(model)
    for name in read_text(root / "proc/device-tree/compatible").split("\0"):
        if name in _CHIPS:
            return Gpu(_CHIPS[name])
    return None


def _is_compat(root: Path, folder: str) -> bool:
    """Tell whether a folder has forward-compatibility libraries."""
    return "compat" in folder and bool(find_paths(_below(root, folder), "libcuda.so*"))


def _searched_folders(environ: Mapping[str, str], root: Path) -> Iterator[str]:
    """Yield the folders that the loader searches, in its order."""
    for folder in environ.get("LD_LIBRARY_PATH", "").split(os.pathsep):
        if folder:
            yield folder
    yield from _configured_folders(root, "/etc/ld.so.conf", set())
    yield from _USUAL_FOLDERS


def _configured_folders(root: Path, file: str, read_files: set[str]) -> Iterator[str]:
    """Yield the folders in a file of the loader's settings, and in those that it includes.

    A file in `read_files` is not read again, because it may include itself.
    """
    if file in read_files:
        return
    read_files.add(file)
    for line in read_text(_below(root, file)).splitlines():
        folder = line.partition("#")[0].strip()  # one a line: ldconfig(8)
        if not folder:
            continue
        directive, *patterns = folder.split()
        if directive != "include":
            yield folder
            continue
        for pattern in patterns:
            # Relative patterns are below /etc.
            included = str(Path("/etc", pattern)).lstrip("/")
            for path in find_paths(root, included):
                yield from _configured_folders(root, f"/{path.relative_to(root)}", read_files)


def _below(root: Path, path: str) -> Path:
    """Map an absolute path of the examined machine to its place below `root`."""
    return root / path.lstrip("/")
