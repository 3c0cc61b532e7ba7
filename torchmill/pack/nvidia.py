"""NVIDIA's libraries: which open others by name, and which come from packages of PyPI instead of a wheel."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from torchmill.pack import elf

# Opened by name from within torch, cuDNN and each other: by another name nobody would find them.
_NAMED = re.compile(r"lib(cudnn\w*|cublas(Lt)?|nvrtc(-builtins)?|nvJitLink)\.so(\.\d+)*")
# What a library opens when it is used, so that nothing in its headers tells of it.
NVRTC = re.compile(r"libnvrtc\.so\.\d+(\.\d+)*")
_OPENS = (
    (re.compile(r"libcudnn\.so\.\d+"), "libcudnn_*.so.*"),
    (NVRTC, "libnvrtc-builtins.so.*"),
)
CUDNN_8, NVRTC_FOR_CUDNN_8 = "libcudnn.so.8", "libnvrtc.so"  # sdnext#539, facefusion-docker#9
# The libraries of the packages whose name is not that of their only library.
_LIBRARIES = {
    "cublas": ("cublas", "cublasLt", "nvblas"),
    "cuda_cupti": ("cupti", "nvperf_*", "checkpoint", "pcsamplingutil"),
    "cuda_nvrtc": ("nvrtc", "nvrtc-builtins"),
    "cuda_runtime": ("cudart",),
    "cudnn": ("cudnn*",),
    "cufft": ("cufft", "cufftw"),
    "cufile": ("cufile", "cufile_rdma"),
    "cusolver": ("cusolver", "cusolverMg"),
    "cusparselt": ("cusparseLt",),
    "nvjitlink": ("nvJitLink",),
    "nvshmem": ("nvshmem*",),
    "nvtx": ("nvToolsExt", "nvtx3interop"),
}
_EXTRAS = {"cudart": "cuda_runtime", "cupti": "cuda_cupti", "nvrtc": "cuda_nvrtc"}  # of `cuda-toolkit`
_PACKAGE = re.compile(r"nvidia-([a-z-]+)-cu\d+")


def keeps_name(library: str) -> bool:
    """Tell whether others open a library by the very name that it has."""
    return _NAMED.fullmatch(library) is not None


def opened_by(library: Path) -> Iterator[Path]:
    """Yield the libraries beside one that it opens by name when it is used."""
    for pattern, others in _OPENS:
        if pattern.fullmatch(library.name):
            for path in sorted(library.parent.glob(others)):
                facts = elf.read(path.resolve()) if elf.is_elf(path.resolve()) else None
                if facts is not None and facts.soname == path.name:
                    yield path


def brought(requirements: Iterable[str]) -> dict[str, str]:
    """Return what the packages that a wheel requires bring: "libcudnn*.so*" -> its folder in site-packages.

    Requirements that are for other systems than this one do not count.
    """
    found: dict[str, str] = {}
    for requirement in map(Requirement, requirements):
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
            for package, folder in _packages(requirement):
                libraries = _LIBRARIES.get(package, (package,))
                found |= {f"lib{library}.so*": f"nvidia/{folder}/lib" for library in libraries}
    return found


def beside(site: Path) -> dict[str, str]:
    """Return what lies in site-packages for a torch that requires it: "libcublas.so.11" -> folder there.

    The CUDA runtime is left out: whoever is built with another toolkit than torch needs his own, and two of
    it do not get into each other's way. Two of any other would: torch hands out handles that belong to one.
    """
    files = (path for path in site.glob("nvidia/*/lib/*.so*") if not path.name.startswith("libcudart."))
    return {path.name: path.parent.relative_to(site).as_posix() for path in files}


def folder(found: Mapping[str, str], library: str) -> str | None:
    """Return the folder of a library, by what `brought` or `beside` returned; None where it has none."""
    return next((found[pattern] for pattern in found if fnmatchcase(library, pattern)), None)


def _packages(requirement: Requirement) -> Iterator[tuple[str, str]]:
    """Yield the packages of NVIDIA's that a requirement stands for, and their folders below nvidia/."""
    name = canonicalize_name(requirement.name)
    if match := _PACKAGE.fullmatch(name):
        package = match[1].replace("-", "_")
        yield package, package
    if name == "cuda-toolkit":  # from CUDA 13 on: all that is of a toolkit shares one folder
        major = re.search(r"\d+", str(requirement.specifier))
        for extra in sorted(requirement.extras):
            yield _EXTRAS.get(extra, extra), f"cu{major[0] if major else ''}"
