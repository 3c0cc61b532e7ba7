"""One release of a package, and its facts about CUDA toolkits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from packaging.specifiers import SpecifierSet

from torchmill.config.field_types import Commit, DateText, Pythons, VersionText, no_entries


@dataclass(frozen=True, slots=True)
class Cuda:
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
class Release:
    """One release of one package."""

    package: str
    version: str
    tag: str
    commit: Commit | None  # None: not known, so not verified
    pythons: Pythons
    arches: tuple[str, ...]
    cuda: SpecifierSet | None  # toolkits it builds with; None: CPU only
    cuda_official: Mapping[str, Cuda]  # toolkit version -> facts
    torch: str | None  # the torch release that a dependent package goes with
    wheel_tag: str | None  # "py3-none" if one wheel serves every Python
    source: str
    date: DateText | None = None  # of the first upload to PyPI: "2022-12-15"
    wheels: Mapping[str, tuple[str, ...]] = no_entries()  # platform tag on PyPI -> Pythons
    # That the official Linux x86_64 builds were made with; their tag may name an older one.
    glibc: VersionText | None = None
    cuda_pypi: VersionText | None = None  # the toolkit of the wheels on PyPI
    sizes: Mapping[str, int] = no_entries()  # library in the Linux x86_64 wheel -> bytes, unpacked
    partners: Mapping[str, str] = no_entries()  # package that the suite does not build -> version
    # commit in wheels on PyPI that is not the tag's -> "3.9 win_amd64", "win_amd64"; (): in all
    built_from: Mapping[str, tuple[str, ...]] = no_entries()
    explained: Mapping[str, str] = no_entries()  # difference to PyPI -> reason for it
    sha256: str | None = None  # of its source archive on PyPI
    # torch that its wheel serves by libtorch's stable ABI: ">=2.10"
    stable_abi: SpecifierSet | None = None
    # variant, "cu114", "cu114-aarch64" -> URL of somebody's build beside upstream's
    tried: Mapping[str, str] = no_entries()

    def __str__(self) -> str:
        """Return "torch 1.13.1"."""
        return f"{self.package} {self.version}"

    @property
    def torch_version(self) -> str:
        """Return the version of torch that this is, or is built against."""
        return self.torch or self.version
