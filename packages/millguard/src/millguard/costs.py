"""The memory and time of a source that somebody measured on another machine."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class KnownCost:
    """The memory and time that some sources take to compile."""

    pattern: str  # a glob of the end of a source's path: "native/cpu/*Kernel.cpp.AVX2.cpp"
    peak: int  # bytes; for CUDA, of each thread of nvcc
    seconds: float | None = None  # None: as long as its family usually takes
