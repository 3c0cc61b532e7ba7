"""A build as a value: one cell of the matrix, and the machines that cells are for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torchmill.config.costs import CostRange
from torchmill.config.field_types import PlatformTemplate, no_entries

CPU = "cpu"
SPEED_ONLY_SWITCHES = frozenset({"MAX_JOBS"})  # changes how fast, not what


@dataclass(frozen=True, slots=True)
class Arch:
    """A machine: the operating system it stands for and how wheels name it."""

    name: str
    system: str  # "linux", "macos", "windows"
    machines: tuple[str, ...]  # what platform.machine() says there
    platform_tag: PlatformTemplate  # "manylinux_{glibc}_x86_64", "macosx_{macos}_arm64"
    emulated: CostRange | None = (
        None  # by which factor compilers take longer on a machine that plays it
    )
    crossed: CostRange | None = None  # the same where cross compilers run on that machine itself
    oldest_glibc: str | None = (
        None  # "2.17": that a tag of wheels can name there; None: no tag names one
    )
    cpu_option: str = ""  # by which gcc and clang are told a processor: "-march"; "": they are not
    cpu_wants: Mapping[str, tuple[str, ...]] = (
        no_entries()
    )  # a processor -> a flag it wants, as compilers spell it
    features: Mapping[str, str] = (
        no_entries()
    )  # macro of the compilers -> what Linux calls it: "__AVX2__" -> "avx2"


@dataclass(frozen=True, slots=True)
class Processor:
    """A processor that a build is for, as its compiler understands the name."""

    name: str  # "x86-64-v3", "native.znver3"
    flags: tuple[str, ...]  # for the compiler: "-march=x86-64-v3"
    needs: tuple[str, ...] = ()  # what a machine must have to run it, as Linux calls it: "avx2"


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
