"""Packages that can be built, and the releases that their own files declare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from packaging.specifiers import SpecifierSet

from torchmill.config.field_types import (
    Capabilities,
    Commit,
    DateText,
    Requirements,
    VersionTemplate,
    no_entries,
)
from torchmill.config.rule import Rule
from torchmill.core.units import Bytes

# How a package's build starts compilers: by CMake's launchers, or as it finds them on PATH.
Launch = Literal["cmake", "path"]


@dataclass(frozen=True, slots=True)
class Edition:
    """A release that a package's own file declares: it goes with every torch in bounds."""

    version: str
    torch: SpecifierSet  # that it goes with
    source: str  # where these facts were read, as text for people
    # None or (), in this and the next two fields: as that torch has it.
    python: SpecifierSet | None = None
    arches: tuple[str, ...] = ()
    cuda: SpecifierSet | None = None
    commit: Commit | None = None
    sha256: str | None = None  # of its archive on PyPI
    date: DateText | None = None
    # "py39-none" if its libraries use nothing of Python's interface.
    wheel_tag: str | None = None
    # torch that one wheel serves by libtorch's stable ABI: ">=2.10"
    stable_abi: SpecifierSet | None = None
    # Variants that the source reports builds of: "cu118"; "cpu-arm64" for other than x86_64.
    built: tuple[str, ...] = ()
    # The releases of torch that it reports those builds against; None: all that it goes with.
    built_against: SpecifierSet | None = None


@dataclass(frozen=True, slots=True)
class OffSpelling:
    """The spelling of old releases for switches that are off: "NO_CUDA=1" for "USE_CUDA=0"."""

    switches: Mapping[str, str] = no_entries()  # "USE_CUDA" -> "NO_CUDA"
    # Without releases no version is in bounds, and so the spelling is never used.
    releases: SpecifierSet = field(default_factory=lambda: SpecifierSet("<0"))


@dataclass(frozen=True, slots=True)
class DebianFacts:
    """The releases of a package that Debian has the sources of."""

    # version -> suite and source package in Debian: "trixie/pytorch"
    sources: Mapping[str, str] = no_entries()
    # suite -> path of a submodule -> source package that fills it
    submodules: Mapping[str, Mapping[str, str]] = no_entries()


@dataclass(frozen=True, slots=True)
class PackageSource:
    """The places that have the sources of a package."""

    tag: VersionTemplate = "v{version}"  # of a release, with its version
    repository: str = ""  # "": it is fetched from PyPI
    pypi: str | None = None  # the project on PyPI that has its sources as archives
    debian: DebianFacts = field(default_factory=DebianFacts)


@dataclass(frozen=True, slots=True)
class BuildSetup:
    """What the build of a package needs, and how it is started."""

    # environment variable that fixes the version -> its value, with {version}
    version_variables: Mapping[str, VersionTemplate]
    memory_per_job: Bytes  # of the largest compile that was measured
    disk: Bytes  # that a build of it needs
    kit: Requirements = ()  # projects that its build needs, whatever the interpreter: "cmake"
    compilers: Launch = "cmake"  # how its build starts them
    off_spelling: OffSpelling = field(default_factory=OffSpelling)
    # Variables by which all its compilers get -g, and which its wheel does not quote; (): CFLAGS and
    # CXXFLAGS, if rules set them.
    debug_variables: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PackageChecks:
    """How a finished wheel of a package is tried."""

    script: str = "package"  # name of its checks: checks/NAME_checks.py
    smoke: tuple[str, ...] = ()  # lines of Python that must run with it
    gpu_smoke: tuple[str, ...] = ()  # the same for machines with a GPU
    # Packages of the facts that it imports, although its wheel does not require them.
    imports: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class PackageKernels:
    """The GPUs for which a package has kernels, whatever the toolkit makes code for."""

    capabilities: SpecifierSet | None = None  # of GPUs that it has kernels for; None: of all
    chip_code: Capabilities = ()  # "9.0", if its kernels are empty unless compiled as "9.0a"
    # False: a wheel of it for CUDA has no code for GPUs, which another package has, or which is
    # compiled where it runs.
    device_code: bool = True


@dataclass(frozen=True, slots=True)
class Package:
    """Facts about a package that hold for all its releases."""

    name: str  # "torch": the distribution and the key of everything else
    session: str  # "wheel", "vision", "audio"
    import_name: str  # of its module
    after: str | None  # the package that it is built against
    source: PackageSource
    setup: BuildSetup
    # Of packages that are built in the same way, whose rules and defaults are in kinds/KIND.toml.
    kind: str | None = None
    rules: tuple[Rule, ...] = ()  # those of the kind first
    checks: PackageChecks = field(default_factory=PackageChecks)
    kernels: PackageKernels = field(default_factory=PackageKernels)
    editions: tuple[Edition, ...] = ()  # releases that its own file declares
