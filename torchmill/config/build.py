"""A build as a value: one cell of the matrix, and the machines that cells are for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from torchmill.config.costs import CostRange
from torchmill.config.field_types import PlatformTemplate, VersionText, no_entries

CPU = "cpu"  # the variant without CUDA
# Variables of a build that change its speed, and not the wheel.
SPEED_ONLY_SWITCHES = frozenset({"MAX_JOBS"})


@dataclass(frozen=True, slots=True)
class Arch:
    """A machine that wheels are for: its operating system and its names."""

    name: str  # "x86_64", "arm64" (macOS), "amd64" (Windows)
    system: str  # "linux", "macos", "windows"
    machines: tuple[str, ...]  # values of platform.machine()
    platform_tag: PlatformTemplate  # "manylinux_{glibc}_x86_64", "macosx_{macos}_arm64"
    # Factor by which compilers take longer under emulation of this machine on another.
    emulated: CostRange | None = None
    # The same factor if cross compilers run natively under that emulation.
    crossed: CostRange | None = None
    # The oldest glibc that a platform tag for this machine can name, "2.17"; None: none is named.
    oldest_glibc: VersionText | None = None
    # The option of gcc and clang that names a processor, "-march"; "": they are given none.
    cpu_option: str = ""
    # The option for versions of the architecture, "-march"; "": they are named like processors.
    version_option: str = ""
    versions: tuple[str, ...] = ()  # "armv8.2-a"
    # processor -> further flags for it, spelled as different compilers do; the first that works
    cpu_wants: Mapping[str, tuple[str, ...]] = no_entries()
    # predefined macro of compilers -> name of the feature in Linux: "__AVX2__" -> "avx2"
    features: Mapping[str, str] = no_entries()

    def processor_flag(self, name: str) -> str:
        """Return the flag that names a processor, or a version of the architecture, to compilers.

        "" if they are given none. Extensions may stand behind the name: "armv8.2-a+fp16".
        """
        if name.partition("+")[0] in self.versions:
            return f"{self.version_option}={name}"
        return f"{self.cpu_option}={name}" if self.cpu_option else ""


@dataclass(frozen=True, slots=True)
class Processor:
    """A processor that a build is for, as its compiler understands the name."""

    name: str  # "x86-64-v3", "native.znver3"
    flags: tuple[str, ...]  # for the compiler: "-march=x86-64-v3"
    needs: tuple[str, ...] = ()  # features that a machine must have to run it: "avx2"


@dataclass(frozen=True, slots=True)
class Build:
    """One cell: a package for an interpreter, a variant and a machine."""

    package: str  # "torch"
    session: str  # "wheel", the package's word in identifiers
    python: str  # "3.10", "3.13t"
    variant: str  # "cpu", "cu118": the wheel's local label
    arch: str  # "x86_64", "aarch64", "arm64" (macOS), "amd64" (Windows)
    cuda: str | None = None  # the toolkit's version, "11.8"

    def identifier(self, native_arch: str) -> str:
        """Return the name of the session: "wheel-3.10-cpu", or "wheel-3.10-cpu-aarch64".

        The arch is named only if it differs from the arch of the machine that builds.
        """
        return self._with_arch(f"{self.session}-{self.python}-{self.variant}", native_arch)

    def family(self, native_arch: str) -> str:
        """Return the common name of the same build for all interpreters: "wheel-cpu"."""
        return self._with_arch(f"{self.session}-{self.variant}", native_arch)

    def _with_arch(self, name: str, native_arch: str) -> str:
        """Return a name, with the build's arch at its end if that is not the native one."""
        return name if self.arch == native_arch else f"{name}-{self.arch}"
