"""A machine that builds, as a value: measured, or described in a file.

If its comment does not say otherwise, an empty field of a measured machine means that the machine
has no such thing. A described machine may have it: its file need not say (`Host.complete`).
"""

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

    folder: str  # a folder on it, by which messages name the disk
    free: int  # bytes
    # Each part of the build that goes to this disk -> its bytes that earlier runs have left there.
    present_bytes: Mapping[str, int]
    free_inodes: int | None = None  # number of further files that fit; None: any number
    source_files: int = 0  # number of files that the build will copy there from its source
    noexec: bool = False  # mounted so that no program on it can run
    misread_characters: str = ""  # those in the path of the tree that build tools misread
    read_only: bool = False  # mounted so that nothing can be written to it


@dataclass(frozen=True, slots=True)
class HostResources:
    """The cores, memory and disk space that builds may use."""

    cores: int  # that processes may use, under all limits
    memory: Bytes  # that processes may use, under all limits
    free_disk: Bytes | None = None  # on the disk of builds; None: not known
    processor_seconds: int | None = None  # limit of one process (`ulimit -t`); None: no limit
    # Limits of this user or this container; None: no limit, or not known.
    open_files: int | None = None  # of one process (`ulimit -n`)
    processes: int | None = None  # and threads (`ulimit -u`, or that of the control group)
    largest_file: Bytes | None = None  # that may be written (`ulimit -f`)
    shared_memory: Bytes | None = None  # size of /dev/shm; None: not known
    disks: tuple[DiskSpace, ...] = ()  # that one build writes to; (): not examined


@dataclass(frozen=True, slots=True)
class HostPlatform:
    """The operating system of a machine, and the features of its processor."""

    glibc: VersionText | None = None  # "2.36"; None: not Linux, or another C library
    distribution: LinuxDistribution | None = None  # None: not Linux, or not described
    translated: bool = False  # this process is a Python for Intel that Apple silicon emulates
    processor_features: tuple[str, ...] = ()  # as Linux calls them: "avx2"; (): not known
    # Certificates of authorities that are named and not there: "SSL_CERT_FILE=/etc/x.pem", or
    # "/etc/ssl/certs", where the system's own have to be.
    missing_certificates: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class HostCompilers:
    """The C++ compilers of a machine."""

    default: Compiler | None = None  # that a build would use: CXX, or the usual command
    cuda: Compiler | None = None  # that CUDAHOSTCXX names for nvcc
    by_command: Mapping[str, Compiler] = no_entries()  # "g++-11"; a path if it is not on PATH
    fault: str = ""  # why the default compiler cannot make even an empty program; "": it can

    def of_command(self, command: str) -> Compiler | None:
        """Return the compiler of a command or a path; the default, if any, for an unknown command.

        A path that is not a key of `by_command` counts as the command that is its last part.
        """
        if command in self.by_command:
            return self.by_command[command]
        return self.by_command.get(PurePath(command).name, self.default)


@dataclass(frozen=True, slots=True)
class HostPrograms:
    """The tools of a machine, by name."""

    paths: Mapping[str, str] = no_entries()  # "c++" -> the command of the default compiler
    versions: Mapping[str, str] = no_entries()  # "ccache" -> "4.7.5"; also "macos" -> its version
    # Programs that were run and did not answer: "nvidia-smi" -> "did not answer within 30 s".
    unanswered: Mapping[str, str] = no_entries()


@dataclass(frozen=True, slots=True)
class HostPackages:
    """The system's packages, and whether further ones can be installed."""

    manager: str | None = None  # the one to install with: "apt", "dnf", "brew", "conda"
    managers: tuple[str, ...] = ()  # all on the machine; (): not described
    archives: tuple[str, ...] = ()  # distributions whose keys apt has: "debian"; (): not described
    # Whether commands can be run as root, with sudo if the machine has it; None: not known.
    may_use_root: bool | None = None
    installed: Mapping[str, str] = no_entries()  # queried package -> version; "": not installed


@dataclass(frozen=True, slots=True)
class HostToolkits:
    """The CUDA toolkits of a machine, by version, and the libraries that builds link."""

    homes: Mapping[str, str] = no_entries()  # "11.8" -> CUDA_HOME
    # Toolkits whose home is a copy that torchmill completed -> the original and the added package:
    # "11.8" -> "/opt/cuda, completed with PACKAGE 1.0".
    completed: Mapping[str, str] = no_entries()
    lacking_parts: Mapping[str, str] = no_entries()  # "11.8" -> "cublas, cufft"
    # Libraries and compilers in torchmill's cache: "cudnn-8.5.0.96-cu11" -> folder.
    provisioned: Mapping[str, str] = no_entries()
    # "cudnn", or "cudnn@11.8" for that in a toolkit, or "cudnn@/opt/x" for that in CUDNN_ROOT ->
    # "8.9.7"; "": of no known version.
    libraries: Mapping[str, str] = no_entries()
    # Libraries of CUDA, MKL and C++ that LD_LIBRARY_PATH puts before all others:
    # "libcudnn.so.8" -> its folder.
    loader_libraries: Mapping[str, str] = no_entries()


@dataclass(frozen=True, slots=True)
class HostInterpreters:
    """The CPythons of a machine: "3.10" -> path."""

    paths: Mapping[str, str] = no_entries()
    broken: Mapping[str, str] = no_entries()  # shims that fail
    # These three are among `paths`.
    lacking_modules: Mapping[str, str] = no_entries()  # "3.8" -> "_ssl, _bz2"
    without_headers: Mapping[str, str] = no_entries()  # without Python.h
    translated: Mapping[str, str] = no_entries()  # made for another processor, and emulated


@dataclass(frozen=True, slots=True)
class HostGpus:
    """The GPUs of a machine and their driver."""

    devices: tuple[Gpu, ...] = ()
    driver: VersionText | None = None  # as its library says: "535.104.05"
    kernel_driver: VersionText | None = None  # as the running kernel says
    # Folders of CUDA's forward-compatibility libraries that the loader searches:
    # https://docs.nvidia.com/deploy/cuda-compatibility/
    compat_folders: tuple[str, ...] = ()
    # Folders on the loader's path in which a toolkit's stub stands for the driver's libcuda.so.1.
    stub_folders: tuple[str, ...] = ()
    compat_driver: VersionText | None = None  # that the libraries in the first of them are of

    @property
    def running_driver(self) -> str | None:
        """Return the version of the kernel's driver, which programs need, or else the library's.

        None if neither is known.
        """
        return self.kernel_driver or self.driver


@dataclass(frozen=True, slots=True)
class HostCrossing:
    """What a machine has to build for another arch, and to try what it built."""

    compilers: Mapping[str, Compiler] = no_entries()  # by command: "aarch64-linux-gnu-g++-12"
    glibc: VersionText | None = None  # that they link
    # "13.0" -> folder with programs of this machine, and libraries of the other one
    toolkits: Mapping[str, str] = no_entries()
    # "13.0" -> "cublas, cufft"; as described: it is not measured
    lacking_parts: Mapping[str, str] = no_entries()
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
    complete: bool = False  # the machine has nothing that this value lacks
    runs: tuple[MeasuredRun, ...] = ()  # measured builds on it; (): none, or not examined
    crossings: Mapping[str, HostCrossing] = no_entries()  # what it has to build for other arches
    # The arch that this view of the machine builds for (`crossing_view`); "": its own.
    crosses: str = ""

    @property
    def unknown_gpus_reason(self) -> str:
        """Return a clause on why the GPUs are unknown; "" if they are known, or not described."""
        reason = self.programs.unanswered.get("nvidia-smi", "")
        if reason and not self.gpus.devices:
            return f"nvidia-smi {reason}"
        return ""
