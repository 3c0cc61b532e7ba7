"""What build_configs/ knows of a package in all its releases, and the rules that shape its builds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from packaging.specifiers import SpecifierSet


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
    kept: tuple[str, ...] | None = None  # libraries that are taken from the kept ones: "cudnn"
    lacking: tuple[str, ...] | None = None  # libraries that the machine is known not to have: "magma"
    another_toolkit: bool = False  # only where the toolkit is not the variant's own


@dataclass(frozen=True, slots=True)
class Rule:
    """What follows for the cells that `when` matches, why, and where the fact comes from."""

    name: str  # "torch.toml: rule 3", for messages
    when: When
    reason: str
    source: str = ""
    conflict: bool = False  # the cell is impossible, for `reason`
    set: Mapping[str, str] = field(default_factory=dict)
    append: Mapping[str, str] = field(
        default_factory=dict
    )  # flags, joined to what other rules and the user say
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
class Edition:
    """A release that a package's own file declares: it goes with every torch in bounds."""

    version: str
    torch: SpecifierSet
    source: str
    python: SpecifierSet | None = None  # None: every Python of that torch; so with what follows
    arches: tuple[str, ...] = ()
    cuda: SpecifierSet | None = None
    commit: str | None = None
    sha256: str | None = None  # of its archive on PyPI
    date: str | None = None


@dataclass(frozen=True, slots=True)
class Package:
    """What is known of a package in all its releases."""

    name: str  # "torch": the distribution and the key of everything else
    session: str  # "wheel", "vision", "audio"
    repository: str  # "": it is fetched from PyPI
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
    kit: tuple[str, ...] = ()  # projects that its build needs, whatever the interpreter: "cmake"
    compilers: str = "cmake"  # what starts them: "cmake", by launchers; "path": what looks for them on PATH
    debian: Mapping[str, str] = field(default_factory=dict)  # version -> source package in Debian
    debian_fill: Mapping[str, str] = field(default_factory=dict)  # submodule path -> source package
    pypi: str | None = None  # the project on PyPI that has its sources as archives
    smoke: tuple[str, ...] = ()  # lines of Python that must run with it
    editions: tuple[Edition, ...] = ()  # releases that its own file declares
