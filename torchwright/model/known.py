"""What build_configs/ knows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from packaging.specifiers import SpecifierSet


@dataclass(frozen=True, slots=True)
class Arch:
    """A machine: the operating system it stands for and how wheels name it."""

    name: str
    system: str  # "linux", "macos", "windows"
    machines: tuple[str, ...]  # what platform.machine() says there
    platform_tag: str  # "manylinux_{glibc}_x86_64", "macosx_{macos}_arm64"


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


@dataclass(frozen=True, slots=True)
class Capability:
    """A compute capability and the GPUs that have it."""

    name: str  # "8.6"
    architecture: str  # "Ampere"
    gpus: tuple[str, ...]  # as their vendor names them: "GeForce RTX 3090"


@dataclass(frozen=True, slots=True)
class When:
    """A conjunction over the axes; a key that is None says nothing."""

    release: SpecifierSet | None = None
    python: SpecifierSet | None = None
    cuda: SpecifierSet | None = None  # never matches a build without CUDA
    variant: tuple[str, ...] | None = None
    arch: tuple[str, ...] | None = None
    system: tuple[str, ...] | None = None
    provider: tuple[str, ...] | None = None  # where the source came from
    gcc: SpecifierSet | None = None  # never matches another compiler
    clang: SpecifierSet | None = None


@dataclass(frozen=True, slots=True)
class Rule:
    """What follows for the cells that `when` matches, why, and where the fact comes from."""

    name: str  # "torch.toml: rule 3", for messages
    when: When
    reason: str
    source: str = ""
    conflict: bool = False  # the cell is impossible, for `reason`
    set: Mapping[str, str] = field(default_factory=dict)
    requires: tuple[str, ...] = ()
    patches: tuple[str, ...] = ()
    prepare: tuple[tuple[str, ...], ...] = ()  # commands that run once in the fresh tree
    system_packages: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by package manager
    front_end: str | None = None  # "setup.py" or "pep517"
    needs: Mapping[str, SpecifierSet] = field(default_factory=dict)  # "gcc" -> bounds outside which it fails
    advises: Mapping[str, SpecifierSet] = field(
        default_factory=dict
    )  # outside them nobody is known to have built it
    cxx: int | None = None  # the C++ standard that it is written in


@dataclass(frozen=True, slots=True)
class Package:
    """What is known of a package in all its releases."""

    name: str  # "torch": the distribution and the key of everything else
    session: str  # "wheel", "vision", "audio"
    repository: str
    import_name: str
    checks: str  # what verify/checks/<checks>_checks.py tries
    after: str | None  # the package it is built against
    tag: str  # "v{version}"
    version_variables: Mapping[str, str]  # environment that fixes the version, values with {version}
    unset: tuple[str, ...]  # patterns of variables the build would read from the user's shell
    off_spelling: Mapping[str, str]  # "USE_CUDA" -> "NO_CUDA", where a rule asks for it
    off_spelling_releases: SpecifierSet
    memory_per_job: int  # bytes; the largest compile seen
    disk: int  # bytes that a build of it needs
    rules: tuple[Rule, ...]
    debian: Mapping[str, str] = field(default_factory=dict)  # version -> source package in Debian
    debian_fill: Mapping[str, str] = field(default_factory=dict)  # submodule path -> source package


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
    cuda_pypi: str | None = None  # the toolkit of the wheels on PyPI
    sizes: Mapping[str, int] = field(
        default_factory=dict
    )  # library in the Linux x86_64 wheel -> bytes, unpacked
    partners: Mapping[str, str] = field(
        default_factory=dict
    )  # package that the suite does not build -> version
    built_from: str | None = None  # commit that the wheels on PyPI say, where it is not the tag's
    explained: Mapping[str, str] = field(default_factory=dict)  # what PyPI says otherwise -> why


@dataclass(frozen=True, slots=True)
class Cause:
    """A way in which builds fail, told by what stands in the log."""

    name: str  # "out-of-memory"
    patterns: tuple[str, ...]  # regular expressions, any of which a line of the log matches
    cause: str
    cure: str
    source: str
    examples: tuple[str, ...]  # lines that it must be told by


@dataclass(frozen=True, slots=True)
class Run:
    """A build that was measured: what estimates are made from."""

    package: str
    release: str
    variant: str
    machine: str  # for people: "2 cores, Xeon 2.8 GHz"
    cores: int
    cpu: float  # seconds of all compilers together
    wall: float  # seconds
    peak: int  # bytes of the largest single compile
    tree: int  # bytes on disk at the end
    wheel: int  # bytes
    capabilities: str  # TORCH_CUDA_ARCH_LIST, "" without CUDA
    source: str


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything in build_configs/."""

    packages: Mapping[str, Package]
    releases: Mapping[str, tuple[Release, ...]]  # by package, oldest first
    toolkits: tuple[Toolkit, ...]  # oldest first
    arches: Mapping[str, Arch]
    patches: Path
    capabilities: tuple[Capability, ...] = ()  # oldest first
    causes: tuple[Cause, ...] = ()  # in the order in which they are tried
    runs: tuple[Run, ...] = ()
