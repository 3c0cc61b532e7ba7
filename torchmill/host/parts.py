"""Which of its parts a CUDA toolkit has."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from torchmill.model import Part

# Where compilers and CMake look for them: NVIDIA's, Debian's and conda's layouts.
_HEADERS = ("include", "include/cccl", "targets/*/include", "extras/CUPTI/include")
_LIBRARIES = ("lib64", "lib", "targets/*/lib", "extras/CUPTI/lib64", "lib/*-linux-gnu")


def lacking(home: Path, version: str, parts: Iterable[Part]) -> tuple[Part, ...]:
    """Return the parts that a toolkit of some version should have and lacks, or has without their headers."""
    return tuple(part for part in parts if part.belongs(version) and not _there(home, part))


def called(parts: Iterable[Part]) -> str:
    """Return the names of parts for a message: "cuBLAS, cuFFT"."""
    return ", ".join(dict.fromkeys(part.called for part in parts))


def _there(home: Path, part: Part) -> bool:
    wanted = {_HEADERS: part.headers, _LIBRARIES: part.libraries}
    return all(
        any(folder.joinpath(name).exists() for place in places for folder in home.glob(place))
        for places, names in wanted.items()
        for name in names
    )


def is_spread(home: Path) -> bool:
    """Tell whether a toolkit lies among the files of a whole system, as that of Debian's packages."""
    return home.name in {"usr", "local"}
