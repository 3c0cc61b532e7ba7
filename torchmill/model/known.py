"""What build_configs/ knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from packaging.specifiers import SpecifierSet

from torchmill.model.conda import Conda
from torchmill.model.costs import Assumed, Linking, Peak, Range, Run
from torchmill.model.images import Images
from torchmill.model.packages import Package
from torchmill.model.provision import Part, ToolkitSource


@dataclass(frozen=True, slots=True)
class Arch:
    """A machine: the operating system it stands for and how wheels name it."""

    name: str
    system: str  # "linux", "macos", "windows"
    machines: tuple[str, ...]  # what platform.machine() says there
    platform_tag: str  # "manylinux_{glibc}_x86_64", "macosx_{macos}_arm64"
    emulated: Range | None = None  # a factor: how much longer compilers take where another machine plays it
    oldest_glibc: str | None = None  # "2.17": that a tag of wheels can name there; None: no tag names one


@dataclass(frozen=True, slots=True)
class Toolkit:
    """A CUDA toolkit's facts."""

    version: str  # "11.8"
    variant: str  # "cu118"
    arches: tuple[str, ...]
    gcc: SpecifierSet  # host compilers that nvcc takes
    clang: SpecifierSet
    capabilities: tuple[str, ...]  # that it compiles for, oldest first: "5.0" … "9.0", "9.0a"
    driver: str | None  # the oldest Linux driver that runs what it makes; None: not known
    source: str
    deprecated: tuple[str, ...] = ()  # capabilities that it warns about
    driver_windows: str | None = None
    driver_ptx: str | None = None  # the Linux driver that came with it: sure to compile the PTX that it makes
    jetson: tuple[str, ...] = ()  # capabilities of the Jetson boards that its aarch64 means, if it does


@dataclass(frozen=True, slots=True)
class Capability:
    """A compute capability and the GPUs that have it."""

    name: str  # "8.6"
    architecture: str  # "Ampere"
    gpus: tuple[str, ...]  # as their vendor names them: "GeForce RTX 3090"
    tegra: bool = False  # a system on a chip: code for another minor is not promised to run on it
    extensions: Mapping[str, SpecifierSet] = field(
        default_factory=dict
    )  # "9.0a" -> releases of torch whose cpp_extension takes it


@dataclass(frozen=True, slots=True)
class ArchName:
    """What an architecture's name stands for in a list of compute capabilities."""

    name: str  # "Ampere", "Kepler+Tesla"
    release: SpecifierSet  # of torch
    means: tuple[str, ...]  # "8.0", "8.6"


@dataclass(frozen=True, slots=True)
class Cuda:
    """What a release says of one toolkit."""

    cudnn: str | None = None
    nccl: str | None = None
    magma: str | None = None
    capabilities: Mapping[str, str] = field(default_factory=dict)  # arch -> TORCH_CUDA_ARCH_LIST
    requires: tuple[str, ...] = ()  # what the wheels require of NVIDIA's packages, on Linux x86_64


@dataclass(frozen=True, slots=True)
class Release:
    """One release of one package."""

    package: str
    version: str
    tag: str
    commit: str | None  # None: not known, so not verified
    pythons: tuple[str, ...]
    arches: tuple[str, ...]
    cuda: SpecifierSet | None  # toolkits it builds with; None: CPU only
    cuda_official: Mapping[str, Cuda]  # toolkit version -> facts
    torch: str | None  # the torch release a dependent package pairs with
    wheel_tag: str | None  # "py3-none" where one wheel serves every Python
    source: str
    date: str | None = None  # "2022-12-15"
    wheels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # platform tag on PyPI -> Pythons
    glibc: str | None = None  # that the official Linux x86_64 builds were made with; their tag may say less
    cuda_pypi: str | None = None  # the toolkit of the wheels on PyPI
    sizes: Mapping[str, int] = field(
        default_factory=dict
    )  # library in the Linux x86_64 wheel -> bytes, unpacked
    partners: Mapping[str, str] = field(
        default_factory=dict
    )  # package that the suite does not build -> version
    built_from: Mapping[str, tuple[str, ...]] = field(
        default_factory=dict
    )  # commit in wheels on PyPI that is not the tag's -> "3.9 win_amd64", "win_amd64"; (): in all of them
    explained: Mapping[str, str] = field(default_factory=dict)  # what PyPI says otherwise -> why
    sha256: str | None = None  # of its source archive on PyPI

    def __str__(self) -> str:
        """Return "torch 1.13.1"."""
        return f"{self.package} {self.version}"

    @property
    def torch_version(self) -> str:
        """Return the version of torch that this is, or is built against."""
        return self.torch or self.version


PRECEDENCE = (
    "machine",
    "specific",
    "general",
)  # of causes: whatever else fails, fails of what the machine lacks


@dataclass(frozen=True, slots=True)
class Cause:
    """A way in which builds fail, told by what stands in the log."""

    name: str  # "memory"
    patterns: tuple[str, ...]  # regular expressions; a line of the log that one of them finds tells the cause
    cause: str
    cure: str
    source: str
    examples: tuple[str, ...]  # lines that it must be told by
    release: SpecifierSet | None = None  # torch releases that it happens to; None: all
    precedence: str = "specific"  # one of PRECEDENCE


@dataclass(frozen=True, slots=True)
class KnownUnit:
    """What the compile of some sources needs where it never ran on this machine."""

    pattern: str  # of the end of a source's path: "native/cpu/*Kernel.cpp.AVX2.cpp"
    peak: int  # bytes; for CUDA, of each thread of nvcc
    seconds: float | None = None
    package: str = ""  # "": of any
    release: SpecifierSet | None = None  # None: of any
    source: str = ""


@dataclass(frozen=True, slots=True)
class Elsewhere:
    """Wheels that others offer in an index; {variant} stands for the name of a variant."""

    name: str  # of the index, for those who have to call it something: "pytorch-{variant}"
    url: str
    packages: tuple[str, ...]
    release: SpecifierSet  # of torch
    variants: tuple[str, ...]  # "cpu", "cuda": every toolkit that the release was officially built with
    arches: tuple[str, ...]
    label: str  # of their versions: "+{variant}", ""
    source: str
    default: bool = False  # installers ask this index without being told


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything in build_configs/."""

    packages: Mapping[str, Package]
    releases: Mapping[str, tuple[Release, ...]]  # by package, oldest first
    toolkits: tuple[Toolkit, ...]  # oldest first
    arches: Mapping[str, Arch]
    patches: Path
    capabilities: tuple[Capability, ...] = ()  # oldest first
    arch_names: tuple[ArchName, ...] = ()
    arch_spelling: Mapping[str, SpecifierSet] = field(
        default_factory=dict
    )  # "two_digits", "a", "f" -> releases of torch whose CMake takes it
    causes: tuple[Cause, ...] = ()  # in the order in which they are tried
    runs: tuple[Run, ...] = ()
    peaks: tuple[Peak, ...] = ()
    assumed: Assumed | None = None  # None: nothing can be estimated
    linking: Linking | None = None  # None: nothing can be predicted
    units: tuple[KnownUnit, ...] = ()  # the first whose pattern fits a source counts
    toolkit_sources: tuple[ToolkitSource, ...] = ()
    toolkit_parts: tuple[Part, ...] = ()
    elsewhere: tuple[Elsewhere, ...] = ()
    images: Images = field(default_factory=Images)
    conda: Conda | None = None  # None: no packages can be made for it

    def toolkit(self, version: str | None) -> Toolkit | None:
        """Return a CUDA toolkit by its version; None for a build without CUDA, or where it is not known."""
        return next((one for one in self.toolkits if one.version == version), None)

    def capability(self, name: str) -> Capability | None:
        """Return a compute capability by its name, "8.6"; None where it is not known."""
        return next((one for one in self.capabilities if one.name == name), None)
