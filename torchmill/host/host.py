"""A machine that builds, as a value: measured, or described in a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
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
    # Part of the build that goes to this disk -> its bytes that an earlier run has left there.
    present: Mapping[str, int]
    free_inodes: int | None = None  # the number of further files that fit; None: any number
    source_files: int = 0  # the number of files that will be copied there from the source
    noexec: bool = False  # it is mounted so that no program on it can run
    misread: str = ""  # characters in the path of the tree that programs misread


@dataclass(frozen=True, slots=True)
class HostResources:
    """The cores, memory and disk space that builds may use."""

    cores: int  # that processes may use, under all limits
    memory: Bytes  # that processes may use, under all limits
    free_disk: Bytes | None = None  # on the disk of builds
    processor_seconds: int | None = None  # limit of one process (`ulimit -t`); None: no limit
    disks: tuple[DiskSpace, ...] = ()  # that one build writes to; (): not examined


@dataclass(frozen=True, slots=True)
class HostPlatform:
    """The operating system of a machine, and the features of its processor."""

    glibc: VersionText | None = None  # "2.36"; None: not Linux, or another C library
    distribution: LinuxDistribution | None = None  # None: not Linux, or not described
    translated: bool = False  # the suite itself was made for Intel and runs on Apple silicon
    processor_features: tuple[str, ...] = ()  # as Linux calls them: "avx2"; (): not known


@dataclass(frozen=True, slots=True)
class HostCompilers:
    """The C++ compilers of a machine."""

    default: Compiler | None = None  # that a build would use: CXX, or the usual one; None: none
    cuda: Compiler | None = None  # that CUDAHOSTCXX names for nvcc; None: it names none
    by_command: Mapping[str, Compiler] = no_entries()  # "g++-11"; a path if it is not on PATH

    def of_command(self, command: str) -> Compiler | None:
        """Return the compiler of a command, a name or a path; the default one if it is unknown."""
        if command in self.by_command:
            return self.by_command[command]
        return self.by_command.get(PurePath(command).name, self.default)


@dataclass(frozen=True, slots=True)
class HostPrograms:
    """The tools of a machine."""

    paths: Mapping[str, str] = no_entries()  # "ccache" -> path; "c++" -> the default's command
    versions: Mapping[str, str] = no_entries()  # "ccache" -> "4.7.5"; of "macos" as well
    # programs that were run and did not answer: "nvidia-smi" -> "did not answer within 30 s"
    unanswered: Mapping[str, str] = no_entries()


@dataclass(frozen=True, slots=True)
class HostPackages:
    """The system's packages, and who may install further ones."""

    manager: str | None = None  # that is used: "apt", "dnf", "brew", "conda"
    managers: tuple[str, ...] = ()  # all that are installed; (): not described
    archives: tuple[str, ...] = ()  # that apt has the keys of: "debian"; (): not described
    # commands can be run as root, with sudo if the machine has it; None: cannot be told
    may_use_root: bool | None = None
    installed: Mapping[str, str] = no_entries()  # queried package -> version; "": not installed


@dataclass(frozen=True, slots=True)
class HostToolkits:
    """The CUDA toolkits of a machine, and the libraries that builds link."""

    homes: Mapping[str, str] = no_entries()  # "11.8" -> CUDA_HOME
    completed: Mapping[str, str] = no_entries()  # "11.8" -> "/opt/cuda, completed with PACKAGE 1.0"
    lacking_parts: Mapping[str, str] = no_entries()  # "11.8" -> "cublas, cufft"
    provisioned: Mapping[str, str] = no_entries()  # in the cache: "cudnn-8.5.0.96-cu11" -> folder
    # "cudnn", "cudnn@11.8" in a toolkit, "cudnn@/opt/x" in CUDNN_ROOT -> "8.9.7"; "": no version
    libraries: Mapping[str, str] = no_entries()


@dataclass(frozen=True, slots=True)
class HostInterpreters:
    """The CPythons of a machine by their versions, "3.10", each with its path."""

    paths: Mapping[str, str] = no_entries()
    broken: Mapping[str, str] = no_entries()  # shims that fail
    without_headers: Mapping[str, str] = no_entries()  # without Python.h
    translated: Mapping[str, str] = no_entries()  # made for another processor


@dataclass(frozen=True, slots=True)
class HostGpus:
    """The GPUs of a machine and their driver."""

    devices: tuple[Gpu, ...] = ()
    driver: VersionText | None = None  # as its library says: "535.104.05"
    kernel_driver: VersionText | None = None  # as the running kernel says
    # folders of CUDA's forward-compatibility libraries that the loader searches:
    # https://docs.nvidia.com/deploy/cuda-compatibility/
    compat_folders: tuple[str, ...] = ()

    @property
    def running_driver(self) -> str | None:
        """Return the kernel's driver, which programs depend on, or the library's if unknown."""
        return self.kernel_driver or self.driver


@dataclass(frozen=True, slots=True)
class HostCrossing:
    """What a machine has to build for another arch, and to try what it built."""

    compilers: Mapping[str, Compiler] = no_entries()  # by command: "aarch64-linux-gnu-g++-12"
    glibc: VersionText | None = None  # that they link
    # "13.0" -> folder with programs of this machine, and libraries of the other one
    toolkits: Mapping[str, str] = no_entries()
    lacking_parts: Mapping[str, str] = no_entries()  # "13.0" -> "cublas, cufft"
    emulator: str = ""  # path of QEMU for the other machine; "": none
    system: str = ""  # folder with the other machine's loader and C library; "": none
    interpreters: Mapping[str, str] = no_entries()  # CPythons for the other machine, "3.11" -> path


@dataclass(frozen=True, slots=True)
class Host:
    """A machine that builds: measured (`measure_host`) or described in a file (`load_host`)."""

    arch: str  # "x86_64"
    system: str  # "linux", "macos", "windows"
    resources: HostResources
    platform: HostPlatform = field(default_factory=HostPlatform)
    compilers: HostCompilers = field(default_factory=HostCompilers)
    programs: HostPrograms = field(default_factory=HostPrograms)
    packages: HostPackages = field(default_factory=HostPackages)
    toolkits: HostToolkits = field(default_factory=HostToolkits)
    interpreters: HostInterpreters = field(default_factory=HostInterpreters)
    gpus: HostGpus = field(default_factory=HostGpus)
    complete: bool = False  # things that the value lacks do not exist; else they may be unknown
    runs: tuple[MeasuredRun, ...] = ()  # builds that it has made; (): not examined
    crossings: Mapping[str, HostCrossing] = no_entries()  # what it has to build for other arches
    # The arch that this view of the machine builds for (`crossing_view`); "": its own.
    crosses: str = ""

    @property
    def unknown_gpus_reason(self) -> str:
        """Return why it is unknown which GPUs there are; "" if it is known."""
        reason = self.programs.unanswered.get("nvidia-smi", "")
        if reason and not self.gpus.devices:
            return f"nvidia-smi {reason}"
        return ""
