"""One release of a package, and its facts about CUDA toolkits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from packaging.specifiers import SpecifierSet

from torchmill.config.field_types import Commit, DateText, Pythons, VersionText, no_entries


@dataclass(frozen=True, slots=True)
class OfficialCuda:
    """Facts about the official wheels of a release with one toolkit."""

    # The versions of libraries that they were built with; None: not known.
    cudnn: VersionText | None = None
    nccl: VersionText | None = None  # the same
    magma: VersionText | None = None  # the same
    capabilities: Mapping[str, str] = no_entries()  # arch -> TORCH_CUDA_ARCH_LIST
    requires: tuple[str, ...] = ()  # NVIDIA's packages that the wheels require on Linux
    cusparselt: VersionText | None = None  # None: as `requires` has it
    nvshmem: VersionText | None = None  # the same


@dataclass(frozen=True, slots=True)
class CudaSupport:
    """The CUDA toolkits of a release."""

    range: SpecifierSet | None = None  # toolkits it builds with; None: CPU only
    # toolkit version -> facts about the official wheels
    official: Mapping[str, OfficialCuda] = no_entries()
    # The toolkit of the wheels on PyPI; None: there are none, or none with CUDA, or it is not known.
    pypi: VersionText | None = None


@dataclass(frozen=True, slots=True)
class ReleaseProof:
    """The digests that prove a fetched source to be that of a release."""

    commit: Commit | None = None  # None: not known, so not verified
    sha256: str | None = None  # of its source archive on PyPI


@dataclass(frozen=True, slots=True)
class WheelTraits:
    """What is special about the wheels of a release, whoever builds them."""

    tag: str | None = None  # "py3-none" if one wheel serves every Python
    # torch that one wheel serves by libtorch's stable ABI: ">=2.10"
    stable_abi: SpecifierSet | None = None
    partners: Mapping[str, str] = no_entries()  # package that the suite does not build -> version


@dataclass(frozen=True, slots=True)
class UpstreamWheels:
    """The wheels of a release that upstream has built, and published on PyPI."""

    date: DateText | None = None  # of the first upload to PyPI: "2022-12-15"
    wheels: Mapping[str, Pythons] = no_entries()  # platform tag on PyPI -> Pythons
    # That the official Linux x86_64 builds were made with; their tag may name an older one.
    glibc: VersionText | None = None
    sizes: Mapping[str, int] = no_entries()  # library in the Linux x86_64 wheel -> bytes, unpacked
    # commit in wheels on PyPI that is not the tag's -> "3.9 win_amd64", "win_amd64"; (): in all
    built_from: Mapping[str, tuple[str, ...]] = no_entries()
    explained: Mapping[str, str] = no_entries()  # difference to PyPI -> reason for it


@dataclass(frozen=True, slots=True)
class Release:
    """One release of one package."""

    package: str
    version: str
    tag: str  # of its source's repository: "v1.13.1"
    torch: str | None  # the torch release that a dependent package goes with; None for torch itself
    pythons: Pythons
    arches: tuple[str, ...]
    source: str  # where these facts were read, as text for people: "PyPI METADATA: torch==1.5.0"
    cuda: CudaSupport = field(default_factory=CudaSupport)
    proof: ReleaseProof = field(default_factory=ReleaseProof)
    wheel: WheelTraits = field(default_factory=WheelTraits)
    upstream: UpstreamWheels = field(default_factory=UpstreamWheels)
    # variant, "cu114", "cu114-aarch64" -> where somebody reports a build, beside upstream's: a URL
    tried: Mapping[str, str] = no_entries()
    # A program wrote the facts from what PyPI knows, and nobody has completed them.
    drafted: bool = False

    def __str__(self) -> str:
        """Return "torch 1.13.1"."""
        return f"{self.package} {self.version}"

    @property
    def torch_version(self) -> str:
        """Return the version of torch that this is, or is built against."""
        return self.torch or self.version
