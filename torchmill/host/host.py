"""A machine that builds, as a value: measured, or described in a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePath

from torchmill.config.costs import MeasuredRun
from torchmill.config.field_types import VersionText, no_entries
from torchmill.config.gpu import Gpu
from torchmill.config.linux_distribution import LinuxDistribution
from torchmill.core.units import Bytes


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C++ compiler."""

    family: str  # "gcc", "clang", "apple-clang", "msvc"
    version: str  # "12.2.0"

    def __str__(self) -> str:
        """Return "gcc 12.2.0"."""
        return f"{self.family} {self.version}"


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """A disk that a build writes to."""

    folder: str  # by which the user knows it
    free: int  # bytes
    there: Mapping[
        str, int
    ]  # part of the build that goes there -> bytes of it that are there already
    inodes: int | None = None  # more files that it takes; None: any number
    source: int = 0  # files of the source that is still to be copied there
    noexec: bool = False  # no program on it can be run
    misread: str = (
        ""  # characters in the name of the tree there that programs take for something else
    )


@dataclass(frozen=True, slots=True)
class Host:
    """A machine that builds: measured (`measure_host`) or described in a file (`load_host`)."""

    arch: str
    system: str
    cores: int  # that this process may use
    memory: Bytes  # that this process may use
    disk: Bytes | None = None  # free where builds happen
    processor_seconds: int | None = (
        None  # that one process may use (`ulimit -t`); None: as many as it likes
    )
    glibc: VersionText | None = None  # "2.36"; None: not Linux, or another C library
    distribution: LinuxDistribution | None = None  # None: not Linux, or not described
    complete: bool = False  # what is not named below is not there; else it is only not known
    translated: bool = False  # the suite itself was made for Intel and runs on Apple silicon
    compiler: Compiler | None = (
        None  # that a build would use: CXX, or the default; None: there is none
    )
    cuda_compiler: Compiler | None = None  # that CUDAHOSTCXX names for nvcc; None: it names none
    compilers: Mapping[str, Compiler] = no_entries()  # every one by its command: "g++-11"
    tools: Mapping[str, str] = no_entries()  # "ccache" -> path
    versions: Mapping[str, str] = no_entries()  # of tools: "ccache" -> "4.7.5"; of "macos"
    # "cudnn", "cudnn@11.8" in a toolkit, "cudnn@/opt/x" in CUDNN_ROOT -> "8.9.7"; "" where it is silent
    libraries: Mapping[str, str] = no_entries()
    manager: str | None = None  # of system packages: "apt", "dnf", "brew", "conda"
    managers: tuple[str, ...] = ()  # all that are there, `manager` or not; none: not described
    archives: tuple[
        str, ...
    ] = ()  # whose packages apt can check: "debian", "ubuntu"; none: not described
    root: bool | None = (
        None  # commands can be run as root, by sudo if `tools` has it; None: cannot be told
    )
    packages: Mapping[str, str] = no_entries()  # that were asked for -> version; "": not installed
    toolkits: Mapping[str, str] = no_entries()  # "11.8" -> CUDA_HOME
    completed: Mapping[str, str] = (
        no_entries()
    )  # "11.8" -> "/opt/cuda, completed with nvidia-cufft-cu11 10.9"
    lacking: Mapping[str, str] = (
        no_entries()
    )  # names of parts that toolkits lack: "11.8" -> "cublas, cufft"
    kept: Mapping[str, str] = no_entries()  # what was provisioned: "cudnn-8.5.0.96-cu11" -> folder
    interpreters: Mapping[str, str] = no_entries()  # "3.10" -> path
    broken_interpreters: Mapping[str, str] = no_entries()  # "3.10" -> shim that fails
    headless_interpreters: Mapping[str, str] = no_entries()  # "3.10" -> path, without Python.h
    translated_interpreters: Mapping[str, str] = (
        no_entries()
    )  # "3.10" -> path, made for another machine
    processor: tuple[str, ...] = ()  # what it can do, as Linux calls it: "avx2"; none: not known
    driver: VersionText | None = None  # of the GPU, as its library says it: "535.104.05"
    kernel_driver: VersionText | None = None  # as the running kernel says it
    compat: tuple[
        str, ...
    ] = ()  # folders of CUDA's forward-compatibility libraries that the loader searches
    gpus: tuple[Gpu, ...] = ()
    # programs that were asked and did not answer: "nvidia-smi" -> "did not answer within 30 s"
    unanswered: Mapping[str, str] = no_entries()
    rooms: tuple[DiskSpace, ...] = ()  # the disks of one build, where they were looked at
    runs: tuple[MeasuredRun, ...] = ()  # builds that it has made, where they were looked at

    def named_compiler(self, command: str) -> Compiler | None:
        """Return the compiler of a command, a name or a path; the host's own of one that is not known."""
        return self.compilers.get(
            command, self.compilers.get(PurePath(command).name, self.compiler)
        )

    @property
    def gpus_unknown(self) -> str:
        """Return why it is not known which GPUs there are; "" where it is."""
        said = self.unanswered.get("nvidia-smi", "")
        return f"nvidia-smi {said}" if said and not self.gpus else ""

    @property
    def running_driver(self) -> str | None:
        """Return the driver of the GPU that programs meet: the kernel's, or else its library's, as far as is known."""
        return self.kernel_driver or self.driver
