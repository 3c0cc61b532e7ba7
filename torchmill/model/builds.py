"""What is built, and what a build consists of."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torchmill.model.known import Release
from torchmill.model.machines import Compiler


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

    def family(self, native_arch: str) -> str:
        """Return what the identifiers of all interpreters have in common: "wheel-cpu"."""
        name = f"{self.session}-{self.variant}"
        return name if self.arch == native_arch else f"{name}-{self.arch}"


@dataclass(frozen=True, slots=True)
class Case:
    """What a `When` is held against: a build of a release, and what is known of where it happens."""

    build: Build  # its `cuda` is that of the toolkit that compiles it
    version: str  # of the release
    system: str
    provider: str | None = None
    compiler: Compiler | None = None
    kept: frozenset[str] = frozenset()
    lacking: frozenset[str] = frozenset()
    another_toolkit: bool = False


@dataclass(frozen=True, slots=True)
class Source:
    """A fetched source tree, as `invoke fetch` recorded it."""

    package: str
    version: str
    tag: str
    provider: str  # "git", "path", "debian", "pypi"
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
    toolkit: str | None = None  # the version of CUDA to build with, where it is not the variant's
    platform: str = "auto"  # the wheel's tag: "auto", "linux", "manylinux_2_28", "manylinux_2_28_x86_64"
    guard: bool = True  # False: a fixed number of compilers at a time, and no gate before them


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
    kit: tuple[str, ...]  # requirements that serve every interpreter: CMake, ninja
    patches: tuple[str, ...]
    prepare: tuple[Command, ...]
    compile: tuple[Command, ...]
    jobs: int
    wheel: str  # file name
    platform_tag: str
    reasons: tuple[str, ...]  # of the rules that shaped it
    torch: str | None  # what a dependent package requires: "torch==1.13.1+cpu"
    toolkit: str | None = None  # the version of CUDA that compiles it, "11.8"; None: a build without CUDA
    libraries: Mapping[str, str] = field(
        default_factory=dict
    )  # "cudnn" -> "8.5.0.96": of the kept ones, where the machine has none that fits
    kept: Mapping[str, str] = field(default_factory=dict)  # how these are called where they are kept
    computed: bool = False  # `platform_tag` is the newest that there can be: symbols say which it is


@dataclass(frozen=True, slots=True)
class Artifact:
    """A verified wheel and the record beside it."""

    wheel: Path
    manifest: Path
