"""Packages that can be built, and the releases that their own files declare."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from packaging.specifiers import SpecifierSet

from torchmill.config.field_types import Commit, DateText, VersionTemplate, no_entries
from torchmill.config.rule import Rule
from torchmill.core.units import Bytes

Launch = Literal["cmake", "path"]


@dataclass(frozen=True, slots=True)
class Edition:
    """A release that a package's own file declares: it goes with every torch in bounds."""

    version: str
    torch: SpecifierSet
    source: str
    python: SpecifierSet | None = None  # None: every Python of that torch; so with what follows
    arches: tuple[str, ...] = ()
    cuda: SpecifierSet | None = None
    commit: Commit | None = None
    sha256: str | None = None  # of its archive on PyPI
    date: DateText | None = None
    wheel_tag: str | None = (
        None  # "py39-none" where its libraries use nothing of Python's interface
    )
    stable_abi: SpecifierSet | None = (
        None  # torch that one wheel serves, by libtorch's stable ABI: ">=2.10"
    )
    built: tuple[
        str, ...
    ] = ()  # as what the source says that it was built: "cu118", "cpu-arm64" for other than x86_64


@dataclass(frozen=True, slots=True)
class Package:
    """What is known of a package in all its releases."""

    name: str  # "torch": the distribution and the key of everything else
    session: str  # "wheel", "vision", "audio"
    import_name: str
    after: str | None  # the package it is built against
    tag: VersionTemplate  # "v{version}"
    version_variables: Mapping[
        str, VersionTemplate
    ]  # environment that fixes the version, values with {version}
    off_spelling: Mapping[str, str]  # "USE_CUDA" -> "NO_CUDA", where a rule asks for it
    off_spelling_releases: SpecifierSet
    memory_per_job: Bytes  # the largest compile seen
    disk: Bytes  # that a build of it needs
    rules: tuple[Rule, ...]
    repository: str = ""  # "": it is fetched from PyPI
    checks: str = "package"  # what checks/<checks>_checks.py tries
    kit: tuple[str, ...] = ()  # projects that its build needs, whatever the interpreter: "cmake"
    compilers: Launch = (
        "cmake"  # how they are started: by launchers of CMake's, or looked for on PATH
    )
    debian: Mapping[str, str] = (
        no_entries()
    )  # version -> suite and source package in Debian: "trixie/pytorch"
    debian_fill: Mapping[str, Mapping[str, str]] = (
        no_entries()
    )  # suite -> submodule path -> source package
    pypi: str | None = None  # the project on PyPI that has its sources as archives
    smoke: tuple[str, ...] = ()  # lines of Python that must run with it
    gpu_smoke: tuple[str, ...] = ()  # and with it and a GPU
    capabilities: SpecifierSet | None = None  # of GPUs that it has kernels for; None: of all
    chip_code: tuple[str, ...] = ()  # "9.0", where kernels are empty unless compiled as "9.0a"
    imports: tuple[
        str, ...
    ] = ()  # other packages of the facts that it imports, without requiring them
    editions: tuple[Edition, ...] = ()  # releases that its own file declares
