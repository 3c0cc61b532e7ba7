"""What a CUDA_HOME has beside the files of its packages: the links that NVIDIA's installer makes.

nvcc and CMake look into `targets/<machine>-linux`, torch into `include` and `lib64`, and linkers for names
without a version; packages of every provider leave some of these out.
"""

from __future__ import annotations

from pathlib import Path

TARGETS = {"x86_64": "x86_64-linux", "aarch64": "sbsa-linux"}  # how nvcc calls a machine
_LINKED = {"include": "include", "lib": "lib64", "bin": "bin", "nvvm": "nvvm"}


def complete(home: Path, arch: str) -> None:
    """Add the links that are missing to a toolkit whose libraries are in `lib64`."""
    _link(home / "lib", "lib64")
    target = home / "targets" / TARGETS[arch]
    target.mkdir(parents=True, exist_ok=True)
    for name, real in _LINKED.items():
        if (home / real).is_dir():
            _link(target / name, f"../../{real}")
    if (home / "include/cupti.h").exists():
        profiling = home / "extras/CUPTI"  # where torch's build looks for the profiling interface first
        profiling.mkdir(parents=True, exist_ok=True)
        for name in ("include", "lib64"):
            _link(profiling / name, f"../../{name}")
    unversioned(home / "lib64")


def unversioned(folder: Path) -> None:
    """Give each library of a folder the name by which linkers ask for it: libcudart.so."""
    for file in sorted(folder.glob("lib*.so.*")):
        _link(folder / f"{file.name.partition('.so.')[0]}.so", file.name)


def _link(link: Path, to: str) -> None:
    if not link.exists() and not link.is_symlink():
        link.symlink_to(to)
