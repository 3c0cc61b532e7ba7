"""The words of the house as frozen values; nothing here reads a file or asks the machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from packaging.specifiers import SpecifierSet


@dataclass(frozen=True, slots=True)
class Build:
    """One cell: what is built, for which interpreter, variant and machine."""

    package: str  # "torch"
    session: str  # "wheel", the package's word in identifiers
    python: str  # "3.10", "3.13t"
    variant: str  # "cpu", "cu118": the wheel's local label
    arch: str  # "x86_64", "aarch64", "arm64" (macOS), "amd64" (Windows)
    cuda: str | None = None  # the toolkit's version, "11.8"

    def identifier(self, native_arch: str) -> str:
        """Return the session's name; the machine that builds natively is not named in it."""
        name = f"{self.session}-{self.python}-{self.variant}"
        return name if self.arch == native_arch else f"{name}-{self.arch}"


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
    lowest: str  # the oldest compute capability that it compiles for
    source: str


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
    capabilities: str | None = None  # TORCH_CUDA_ARCH_LIST of the official builds


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


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything in build_configs/."""

    packages: Mapping[str, Package]
    releases: Mapping[str, tuple[Release, ...]]  # by package, oldest first
    toolkits: tuple[Toolkit, ...]  # oldest first
    arches: Mapping[str, Arch]
    patches: Path


@dataclass(frozen=True, slots=True)
class Host:
    """A machine that builds: measured (host.measure) or described in a file (host.load)."""

    arch: str
    system: str
    cores: int  # that this process may use
    memory: int  # bytes that this process may use
    disk: int | None = None  # free bytes where builds happen
    glibc: str | None = None  # "2.36"
    gcc: str | None = None  # version of the compiler that CC, or cc, names
    tools: Mapping[str, str] = field(default_factory=dict)  # "ccache" -> path
    toolkits: Mapping[str, str] = field(default_factory=dict)  # "11.8" -> CUDA_HOME
    interpreters: Mapping[str, str] = field(default_factory=dict)  # "3.10" -> path
    broken_interpreters: Mapping[str, str] = field(default_factory=dict)  # "3.10" -> shim that fails


@dataclass(frozen=True, slots=True)
class Source:
    """A fetched source tree, as `invoke fetch` recorded it."""

    package: str
    version: str
    tag: str
    provider: str  # "git", "path", "debian"
    origin: str  # URL, path or archive, for people
    commit: str | None
    path: Path
    verified: bool  # the commit is the recorded one, seen with our own eyes
    submodules: Mapping[str, str] = field(default_factory=dict)  # path -> commit
    build_backend: str | None = None  # of [build-system] in its pyproject.toml


@dataclass(frozen=True, slots=True)
class Options:
    """What a user may say after `--`."""

    label: str = "official"  # "official": +cpu; "git": +git<sha>; "none"
    settings: Mapping[str, str] = field(default_factory=dict)  # variables for the build
    arch_list: str | None = None  # compute capabilities
    jobs: int | None = None
    memory: int | None = None  # bytes
    torch: str | None = None  # "PyPI", or a wheel to build a dependent package against


@dataclass(frozen=True, slots=True)
class Command:
    """One program to run; ${…} stands for a path that only the machine knows."""

    title: str
    argv: tuple[str, ...]
    cwd: str = "${source}"


@dataclass(frozen=True, slots=True)
class Plan:
    """All that will happen for one build, computed without touching anything."""

    build: Build
    identifier: str
    release: Release
    commit: str | None
    version: str  # with the local label
    set: Mapping[str, str]
    unset: tuple[str, ...]  # patterns
    requirements: tuple[str, ...]
    patches: tuple[str, ...]
    prepare: tuple[Command, ...]
    compile: tuple[Command, ...]
    jobs: int
    wheel: str  # file name
    platform_tag: str
    reasons: tuple[str, ...]  # of the rules that shaped it
    torch: str | None  # what a dependent package requires: "torch==1.13.1+cpu"


@dataclass(frozen=True, slots=True)
class Artifact:
    """A verified wheel and the record beside it."""

    wheel: Path
    manifest: Path
