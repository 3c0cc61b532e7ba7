"""What a machine that builds has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torchmill.model.costs import Run


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C++ compiler."""

    family: str  # "gcc", "clang", "apple-clang", "msvc"
    version: str  # "12.2.0"

    def __str__(self) -> str:
        """Return "gcc 12.2.0"."""
        return f"{self.family} {self.version}"


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU of a machine."""

    name: str  # "NVIDIA GeForce RTX 3090"
    capability: str | None = None  # "8.6"; None: an old driver does not say


@dataclass(frozen=True, slots=True)
class Room:
    """A disk that a build writes to."""

    folder: str  # by which the user knows it
    free: int  # bytes
    there: Mapping[str, int]  # part of the build that goes there -> bytes of it that are there already
    inodes: int | None = None  # more files that it takes; None: any number
    source: int = 0  # files of the source that is still to be copied there


@dataclass(frozen=True, slots=True)
class Host:
    """A machine that builds: measured (host.measure) or described in a file (host.load)."""

    arch: str
    system: str
    cores: int  # that this process may use
    memory: int  # bytes that this process may use
    disk: int | None = None  # free bytes where builds happen
    glibc: str | None = None  # "2.36"; None: not Linux, or another C library
    complete: bool = False  # what is not named below is not there; else it is only not known
    translated: bool = False  # the suite itself was made for Intel and runs on Apple silicon
    compiler: Compiler | None = None  # that a build would use: CXX, or the default; None: there is none
    cuda_compiler: Compiler | None = None  # that CUDAHOSTCXX names for nvcc; None: it names none
    compilers: Mapping[str, Compiler] = field(default_factory=dict)  # every one by its command: "g++-11"
    tools: Mapping[str, str] = field(default_factory=dict)  # "ccache" -> path
    versions: Mapping[str, str] = field(default_factory=dict)  # of tools: "ccache" -> "4.7.5"; of "macos"
    libraries: Mapping[str, str] = field(
        default_factory=dict
    )  # "cudnn", "cudnn@11.8" in a toolkit, "cudnn@/opt/x" in CUDNN_ROOT -> "8.9.7"; "" where it is silent
    manager: str | None = None  # of system packages: "apt", "dnf", "brew", "conda"
    packages: Mapping[str, str] = field(
        default_factory=dict
    )  # that were asked for -> version; "": not installed
    toolkits: Mapping[str, str] = field(default_factory=dict)  # "11.8" -> CUDA_HOME
    completed: Mapping[str, str] = field(
        default_factory=dict
    )  # those that were completed: "11.8" -> "/opt/cuda, completed with nvidia-cufft-cu11 10.9.0.58"
    lacking: Mapping[str, str] = field(
        default_factory=dict
    )  # names of parts that toolkits lack: "11.8" -> "cublas, cufft"
    kept: Mapping[str, str] = field(
        default_factory=dict
    )  # libraries and compilers that were provisioned: "cudnn-8.5.0.96-cu11" -> folder
    interpreters: Mapping[str, str] = field(default_factory=dict)  # "3.10" -> path
    broken_interpreters: Mapping[str, str] = field(default_factory=dict)  # "3.10" -> shim that fails
    headless_interpreters: Mapping[str, str] = field(default_factory=dict)  # "3.10" -> path, without Python.h
    translated_interpreters: Mapping[str, str] = field(
        default_factory=dict
    )  # "3.10" -> path, made for another machine
    driver: str | None = None  # of the GPU, as its library says it: "535.104.05"
    kernel_driver: str | None = None  # as the running kernel says it
    compat: tuple[str, ...] = ()  # folders of CUDA's forward-compatibility libraries that the loader searches
    gpus: tuple[Gpu, ...] = ()
    rooms: tuple[Room, ...] = ()  # the disks of one build, where they were looked at
    runs: tuple[Run, ...] = ()  # builds that it has made, where they were looked at
