"""Values: builds, plans, packages, releases, rules, toolkits, machines."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Literal

from packaging.specifiers import SpecifierSet

from torchmill.config.facts_model import (
    BoardIndex,
    BrokenFile,
    Commit,
    CompilePeak,
    CondaFacts,
    CostAssumptions,
    CostRange,
    DateText,
    DeviceMaker,
    FeatureLibrary,
    GpuHost,
    ImageFacts,
    LinkFacts,
    MeasuredRun,
    PackageCode,
    PlatformTemplate,
    ProcessorNeed,
    Pythons,
    ToolkitPart,
    ToolkitSource,
    VariantTemplate,
    VersionTemplate,
    VersionText,
    WheelCode,
    no_entries,
)
from torchmill.core.units import Bytes

Launch = Literal["cmake", "path"]
Precedence = Literal[
    "machine", "specific", "general", "report"
]  # whatever else fails, fails of what a machine lacks
SWITCHED_ON, SWITCHED_OFF = (
    {"1", "ON", "YES", "TRUE", "Y"},
    {"0", "OFF", "NO", "FALSE", "N"},
)  # whatever their case
# major version of L4T -> of JetPack: https://developer.nvidia.com/embedded/jetpack-archive
JETPACKS: Mapping[str, int] = {"32": 4, "34": 5, "35": 5, "36": 6, "38": 7, "39": 7}
SPEED_ONLY_SWITCHES = frozenset({"MAX_JOBS"})  # changes how fast, not what


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
    lacking: tuple[str, ...] | None = (
        None  # libraries that the machine is known not to have: "magma"
    )
    another_toolkit: bool = False  # only where the toolkit is not the variant's own


@dataclass(frozen=True, slots=True)
class Rule:
    """What follows for the cells that `when` matches, why, and where the fact comes from."""

    name: str  # "torch.toml: rule 3", for messages
    when: When
    reason: str
    source: str = ""
    conflict: bool = False  # the cell is impossible, for `reason`
    set: Mapping[str, str] = no_entries()
    append: Mapping[str, str] = no_entries()  # flags, joined to what other rules and the user say
    requires: tuple[str, ...] = ()
    installs: tuple[
        str, ...
    ] = ()  # what pip is to install with the wheel; {triton} is that partner's version
    folders: tuple[str, ...] = ()  # of the source, which a build compiles: empty ones stop it
    unless: tuple[str, ...] = ()  # variables with which it does not
    patches: tuple[str, ...] = ()
    prepare: tuple[tuple[str, ...], ...] = ()  # commands that run once in the fresh tree
    system_packages: Mapping[str, tuple[str, ...]] = no_entries()  # by package manager
    front_end: str | None = None  # "setup.py" or "pep517"
    needs: Mapping[str, SpecifierSet] = no_entries()  # "gcc" -> bounds outside which it fails
    advises: Mapping[str, SpecifierSet] = (
        no_entries()
    )  # outside them nobody is known to have built it
    cxx: int | None = None  # the C++ standard that it is written in


@dataclass(frozen=True, slots=True)
class OfficialPart:
    """Something that official wheels were built with; a plan has it too, lacks it, or differs for a reason."""

    name: str
    when: When
    source: str
    shown: tuple[
        str, ...
    ] = ()  # by patterns of what a plan says, "USE_LLVM=*"; (): the release does it by itself
    unless: tuple[
        str, ...
    ] = ()  # patterns of what a plan says that has it not: "USE_KINETO=0", "lacking magma"
    cost: str = ""  # of being without it
    brings: VariantTemplate = ""  # how to bring it
    explained: str = ""  # why ours differs on purpose


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
    deprecated: tuple[str, ...] = ()  # capabilities that it warns about
    driver_windows: VersionText | None = None
    driver_ptx: VersionText | None = (
        None  # the Linux driver that came with it: sure to compile the PTX that it makes
    )
    jetson: tuple[
        str, ...
    ] = ()  # capabilities of the Jetson boards that its aarch64 means, if it does
    msvc: SpecifierSet | None = None  # Visual Studio's compilers that nvcc takes; None: not known


@dataclass(frozen=True, slots=True)
class Capability:
    """A compute capability and the GPUs that have it."""

    name: str  # "8.6"
    architecture: str  # "Ampere"
    gpus: tuple[str, ...]  # as their vendor names them: "GeForce RTX 3090"
    tegra: bool = False  # a system on a chip: code for another minor is not promised to run on it
    jetpack: SpecifierSet = field(
        default_factory=SpecifierSet
    )  # toolkits that a driver of its boards' runs
    extensions: Mapping[str, SpecifierSet] = (
        no_entries()
    )  # "9.0a" -> torch whose cpp_extension takes it
    cudnn: SpecifierSet = field(
        default_factory=SpecifierSet
    )  # the versions that have code for it, as far as is known


@dataclass(frozen=True, slots=True)
class ArchName:
    """What an architecture's name stands for in a list of compute capabilities."""

    name: str  # "Ampere", "Kepler+Tesla"
    release: SpecifierSet  # of torch
    means: tuple[str, ...]  # "8.0", "8.6"


@dataclass(frozen=True, slots=True)
class Cuda:
    """What a release says of one toolkit."""

    cudnn: VersionText | None = None
    nccl: VersionText | None = None
    magma: VersionText | None = None
    capabilities: Mapping[str, str] = no_entries()  # arch -> TORCH_CUDA_ARCH_LIST
    requires: tuple[str, ...] = ()  # what the wheels require of NVIDIA's packages, on Linux
    cusparselt: VersionText | None = None  # where it is not said, what the wheels require
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
    torch: str | None  # the torch release a dependent package pairs with
    wheel_tag: str | None  # "py3-none" where one wheel serves every Python
    source: str
    date: DateText | None = None  # "2022-12-15"
    wheels: Mapping[str, tuple[str, ...]] = no_entries()  # platform tag on PyPI -> Pythons
    glibc: VersionText | None = (
        None  # that the official Linux x86_64 builds were made with; their tag may say less
    )
    cuda_pypi: VersionText | None = None  # the toolkit of the wheels on PyPI
    sizes: Mapping[str, int] = no_entries()  # library in the Linux x86_64 wheel -> bytes, unpacked
    partners: Mapping[str, str] = no_entries()  # package that the suite does not build -> version
    # commit in wheels on PyPI that is not the tag's -> "3.9 win_amd64", "win_amd64"; (): in all of them
    built_from: Mapping[str, tuple[str, ...]] = no_entries()
    explained: Mapping[str, str] = no_entries()  # what PyPI says otherwise -> why
    sha256: str | None = None  # of its source archive on PyPI
    stable_abi: SpecifierSet | None = (
        None  # torch that its wheel serves, by libtorch's stable ABI: ">=2.10"
    )
    tried: Mapping[str, str] = (
        no_entries()
    )  # "cu114", "cu114-aarch64" -> who built it so, beside upstream: an address

    def __str__(self) -> str:
        """Return "torch 1.13.1"."""
        return f"{self.package} {self.version}"

    @property
    def torch_version(self) -> str:
        """Return the version of torch that this is, or is built against."""
        return self.torch or self.version


@dataclass(frozen=True, slots=True)
class FailureCause:
    """A way in which builds fail, told by what stands in the log."""

    name: str  # "memory"
    patterns: tuple[
        str, ...
    ]  # regular expressions; a line of the log that one of them finds tells the cause
    cause: str
    cure: str
    source: str
    examples: tuple[str, ...]  # lines that it must be told by
    release: SpecifierSet | None = None  # torch releases that it happens to; None: all
    precedence: Precedence = "specific"
    known: str = ""  # lines "answer: NAME …" for the (?P<name>…) of patterns: cause and cure have {name} and {answer}


@dataclass(frozen=True, slots=True)
class KnownUnit:
    """What the compile of some sources needs where it never ran on this machine."""

    pattern: str  # of the end of a source's path: "native/cpu/*Kernel.cpp.AVX2.cpp"
    peak: Bytes  # for CUDA, of each thread of nvcc
    seconds: float | None = None
    package: str = ""  # "": of any
    release: SpecifierSet | None = None  # None: of any
    source: str = ""


@dataclass(frozen=True, slots=True)
class OfferedWheels:
    """Wheels that others offer in an index; {variant} stands for the name of a variant."""

    name: VariantTemplate  # of the index, for those who have to call it something: "pytorch-{variant}"
    url: VariantTemplate
    packages: tuple[str, ...]
    release: SpecifierSet  # of torch
    variants: tuple[
        str, ...
    ]  # "cpu", "cuda": every toolkit that the release was officially built with
    arches: tuple[str, ...]
    source: str
    label: VariantTemplate = ""  # of their versions: "+{variant}"
    default: bool = False  # installers ask this index without being told


@dataclass(frozen=True, slots=True)
class Facts:
    """Everything in build_configs/."""

    packages: Mapping[str, Package]
    releases: Mapping[str, tuple[Release, ...]]  # by package, oldest first
    toolkits: tuple[Toolkit, ...]  # oldest first
    arches: Mapping[str, Arch]
    patches: Path
    capabilities: tuple[Capability, ...] = ()  # oldest first
    arch_names: tuple[ArchName, ...] = ()
    arch_spelling: Mapping[str, SpecifierSet] = (
        no_entries()
    )  # "two_digits", "a" -> torch whose CMake takes it
    causes: tuple[FailureCause, ...] = ()  # in the order in which they are tried
    runs: tuple[MeasuredRun, ...] = ()
    peaks: tuple[CompilePeak, ...] = ()
    assumed: CostAssumptions | None = None  # None: nothing can be estimated
    linking: LinkFacts | None = None  # None: nothing can be predicted
    units: tuple[KnownUnit, ...] = ()  # the first whose pattern fits a source counts
    toolkit_sources: tuple[ToolkitSource, ...] = ()
    toolkit_parts: tuple[ToolkitPart, ...] = ()
    elsewhere: tuple[OfferedWheels, ...] = ()
    official: tuple[OfficialPart, ...] = ()  # of torch's wheels
    kept_libraries: tuple[str, ...] = ()  # patterns of files that are never slimmed: "libcublas*"
    images: ImageFacts = field(default_factory=ImageFacts)
    conda: CondaFacts | None = None  # None: no packages can be made for it
    makers: tuple[
        DeviceMaker, ...
    ] = ()  # of other devices than NVIDIA's; the first whose name fits counts
    wheel_code: tuple[WheelCode, ...] = ()  # what was read in official wheels
    package_code: tuple[
        PackageCode, ...
    ] = ()  # what was read in the packages of libraries that they require
    feature_libraries: tuple[FeatureLibrary, ...] = ()
    processor_needs: tuple[
        ProcessorNeed, ...
    ] = ()  # of official wheels; all that fit a release count
    boards: tuple[GpuHost, ...] = ()
    board_indexes: tuple[BoardIndex, ...] = ()
    left_out: tuple[BrokenFile, ...] = ()

    def toolkit(self, version: str | None) -> Toolkit | None:
        """Return a CUDA toolkit by its version; None for a build without CUDA, or where it is not known."""
        return next((one for one in self.toolkits if one.version == version), None)

    def capability(self, name: str) -> Capability | None:
        """Return a compute capability by its name, "8.6"; None where it is not known."""
        return next((one for one in self.capabilities if one.name == name), None)


@dataclass(frozen=True, slots=True)
class Compiler:
    """A C++ compiler."""

    family: str  # "gcc", "clang", "apple-clang", "msvc"
    version: str  # "12.2.0"

    def __str__(self) -> str:
        """Return "gcc 12.2.0"."""
        return f"{self.family} {self.version}"


@dataclass(frozen=True, slots=True)
class Processor:
    """A processor that a build is for, as its compiler understands the name."""

    name: str  # "x86-64-v3", "native.znver3"
    flags: tuple[str, ...]  # for the compiler: "-march=x86-64-v3"
    needs: tuple[str, ...] = ()  # what a machine must have to run it, as Linux calls it: "avx2"


@dataclass(frozen=True, slots=True)
class Gpu:
    """A GPU of a machine."""

    name: str  # "NVIDIA GeForce RTX 3090"
    capability: str | None = None  # "8.6"; None: an old driver does not say


@dataclass(frozen=True, slots=True)
class DiskSpace:
    """A disk that a build writes to."""

    folder: str  # by which the user knows it
    free: int  # bytes
    there: Mapping[
        str, int
    ]  # part of the build that goes there -> bytes of it that are there already
    inodes: int | None = None  # more files that it takes; None: any number
    source: int = 0  # files of the source that is still to be copied there
    noexec: bool = False  # no program on it can be run
    misread: str = (
        ""  # characters in the name of the tree there that programs take for something else
    )


@dataclass(frozen=True, slots=True)
class LinuxDistribution:
    """A Linux distribution, as its os-release file names it."""

    id: str  # ID, "ubuntu"
    version: str = ""  # VERSION_ID, "22.04"; "" for one without releases, as Arch
    like: tuple[str, ...] = ()  # ID_LIKE, the nearest first: "rhel", "fedora"
    l4t: str | None = (
        None  # the release of Jetson Linux on a board of NVIDIA's, "36.4.3"; None: no Jetson
    )

    def __str__(self) -> str:
        """Return "ubuntu 22.04", with "JetPack 6" if it is a Jetson's."""
        board = (
            f"(JetPack {self.jetpack})" if self.jetpack else f"(L4T {self.l4t})" if self.l4t else ""
        )
        return " ".join(filter(None, (self.id, self.version, board)))

    @property
    def jetpack(self) -> int | None:
        """Return the major version of NVIDIA's JetPack; None if this is no Jetson, or its L4T is not recorded."""
        return JETPACKS.get((self.l4t or "").partition(".")[0])


@dataclass(frozen=True, slots=True)
class Host:
    """A machine that builds: measured (`measure_host`) or described in a file (`load_host`)."""

    arch: str
    system: str
    cores: int  # that this process may use
    memory: Bytes  # that this process may use
    disk: Bytes | None = None  # free where builds happen
    processor_seconds: int | None = (
        None  # that one process may use (`ulimit -t`); None: as many as it likes
    )
    glibc: VersionText | None = None  # "2.36"; None: not Linux, or another C library
    distribution: LinuxDistribution | None = None  # None: not Linux, or not described
    complete: bool = False  # what is not named below is not there; else it is only not known
    translated: bool = False  # the suite itself was made for Intel and runs on Apple silicon
    compiler: Compiler | None = (
        None  # that a build would use: CXX, or the default; None: there is none
    )
    cuda_compiler: Compiler | None = None  # that CUDAHOSTCXX names for nvcc; None: it names none
    compilers: Mapping[str, Compiler] = no_entries()  # every one by its command: "g++-11"
    tools: Mapping[str, str] = no_entries()  # "ccache" -> path
    versions: Mapping[str, str] = no_entries()  # of tools: "ccache" -> "4.7.5"; of "macos"
    # "cudnn", "cudnn@11.8" in a toolkit, "cudnn@/opt/x" in CUDNN_ROOT -> "8.9.7"; "" where it is silent
    libraries: Mapping[str, str] = no_entries()
    manager: str | None = None  # of system packages: "apt", "dnf", "brew", "conda"
    managers: tuple[str, ...] = ()  # all that are there, `manager` or not; none: not described
    archives: tuple[
        str, ...
    ] = ()  # whose packages apt can check: "debian", "ubuntu"; none: not described
    root: bool | None = (
        None  # commands can be run as root, by sudo if `tools` has it; None: cannot be told
    )
    packages: Mapping[str, str] = no_entries()  # that were asked for -> version; "": not installed
    toolkits: Mapping[str, str] = no_entries()  # "11.8" -> CUDA_HOME
    completed: Mapping[str, str] = (
        no_entries()
    )  # "11.8" -> "/opt/cuda, completed with nvidia-cufft-cu11 10.9"
    lacking: Mapping[str, str] = (
        no_entries()
    )  # names of parts that toolkits lack: "11.8" -> "cublas, cufft"
    kept: Mapping[str, str] = no_entries()  # what was provisioned: "cudnn-8.5.0.96-cu11" -> folder
    interpreters: Mapping[str, str] = no_entries()  # "3.10" -> path
    broken_interpreters: Mapping[str, str] = no_entries()  # "3.10" -> shim that fails
    headless_interpreters: Mapping[str, str] = no_entries()  # "3.10" -> path, without Python.h
    translated_interpreters: Mapping[str, str] = (
        no_entries()
    )  # "3.10" -> path, made for another machine
    processor: tuple[str, ...] = ()  # what it can do, as Linux calls it: "avx2"; none: not known
    driver: VersionText | None = None  # of the GPU, as its library says it: "535.104.05"
    kernel_driver: VersionText | None = None  # as the running kernel says it
    compat: tuple[
        str, ...
    ] = ()  # folders of CUDA's forward-compatibility libraries that the loader searches
    gpus: tuple[Gpu, ...] = ()
    # programs that were asked and did not answer: "nvidia-smi" -> "did not answer within 30 s"
    unanswered: Mapping[str, str] = no_entries()
    rooms: tuple[DiskSpace, ...] = ()  # the disks of one build, where they were looked at
    runs: tuple[MeasuredRun, ...] = ()  # builds that it has made, where they were looked at

    def named_compiler(self, command: str) -> Compiler | None:
        """Return the compiler of a command, a name or a path; the host's own of one that is not known."""
        return self.compilers.get(
            command, self.compilers.get(PurePath(command).name, self.compiler)
        )

    @property
    def gpus_unknown(self) -> str:
        """Return why it is not known which GPUs there are; "" where it is."""
        said = self.unanswered.get("nvidia-smi", "")
        return f"nvidia-smi {said}" if said and not self.gpus else ""

    @property
    def running_driver(self) -> str | None:
        """Return the driver of the GPU that programs meet: the kernel's, or else its library's, as far as is known."""
        return self.kernel_driver or self.driver


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
    commit: (
        str | None
    )  # that the files were proven to be, by git's objects; None: nothing proves any
    path: Path
    verified: bool  # the commit, or the digest of the archive, is the one that the facts record for the release
    submodules: Mapping[str, str] = no_entries()  # path -> commit; proven as `commit` is
    build_backend: str | None = None  # of [build-system] in its pyproject.toml
    contents: str = ""  # sha256 over names, modes and contents of all files
    archive: str | None = None  # sha256 of the archive that it was unpacked from
    declared: str | None = (
        None  # the commit that an archive or a folder names, which nothing proves
    )
    unproven: str = ""  # why no commit is proven, as a clause
    refusal: str = (
        ""  # why a build refuses it as it lies there now: it was changed after it was fetched
    )

    @property
    def identity(self) -> str:
        """Return what tells its files from others: the commit if that is proven, else the digest of its contents."""
        return f"commit {self.commit}" if self.commit else f"contents {self.contents}"

    @property
    def title(self) -> str:
        """Return what is known of its files, for people: "commit 49444c3e", "no proven commit, contents 1a2b3c4d"."""
        if self.commit:
            return f"commit {self.commit[:8]}"
        return f"no proven commit{f', contents {self.contents[:8]}' if self.contents else ''}"


@dataclass(frozen=True, slots=True)
class SourceName:
    """What a wheel and its documents may call a source."""

    commit: (
        str | None
    )  # that it is proven to be; where none is fetched yet, that which git would bring
    label: str  # of versions by `--label git`: "git49444c3"; "" where nothing is known
    git_version: (
        str | None
    )  # what the wheel's version module shall say; None: what upstream writes there
    title: str  # what is known of its files, for people


UNFETCHED = SourceName(None, "", None, "not fetched")

PYPI = "PyPI"  # as what a dependent package is built against


@dataclass(frozen=True, slots=True)
class Options:
    """What a user may say after `--`."""

    label: str = "official"  # "official": +cpu; "git": +git<sha>; "none"
    settings: Mapping[str, str] = no_entries()  # variables for the build
    arch_list: str | None = None  # compute capabilities
    jobs: int | None = None
    memory: int | None = None  # bytes
    torch: str | None = (
        None  # what a dependent package is built against: "PyPI", a wheel, or an environment
    )
    toolkit: str | None = None  # the version of CUDA to build with, where it is not the variant's
    platform: str = (
        "auto"  # the wheel's tag: "auto", "linux", "manylinux_2_28", "manylinux_2_28_x86_64"
    )
    guard: bool = True  # False: a fixed number of compilers at a time, and no gate before them
    network: bool = False  # True: what the build itself starts may use the network
    cpu: str | None = None  # the processor that it is for: "native", "x86-64-v3"; None: any
    processor: Processor | None = None  # what the compiler makes of `cpu`, once it was asked
    shard: str | None = None  # "3/16": compile this share alone, "auto" as the engine says
    parts: str | None = None  # the folder of what shares made
    until: float | None = None  # seconds after which the run ends, done or not
    patches: Mapping[str, str] = (
        no_entries()
    )  # "given/fix.patch" to the path of the user's file, in their order

    @property
    def torch_wheel(self) -> Path | None:
        """Return the wheel that `torch` names, if it names one."""
        return Path(self.torch) if self.torch and self.torch.endswith(".whl") else None

    @property
    def torch_folder(self) -> Path | None:
        """Return the environment, or the folder of packages, that `torch` names, if it names one."""
        return None if self.torch in {None, PYPI} or self.torch_wheel else Path(str(self.torch))


NO_OPTIONS = Options()


@dataclass(frozen=True, slots=True)
class Command:
    """One program to run; ${…} stands for a path that only the machine knows."""

    title: str
    argv: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Something that the official wheel has and ours will not."""

    what: str
    cost: str  # of being without it
    cure: str  # how to bring it

    def __str__(self) -> str:
        """Return it as a sentence without its full stop."""
        return f"{self.what} ({self.cost}): {self.cure}"


Fit = Literal["fits", "does not fit", "cannot tell"]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a published wheel would do on a machine."""

    fit: Fit
    why: str = ""  # a clause; "" where it fits


@dataclass(frozen=True, slots=True)
class PublishedWheel:
    """A wheel that upstream published."""

    package: str
    version: str  # "2.4.1+cu118"
    toolkit: Toolkit | None
    index: str  # that pip must be told; "": it asks there anyway
    pythons: tuple[str, ...]
    arch: str
    readings: tuple[WheelCode, ...] = ()  # of its files; (): nobody read them
    said: str = ""  # the compute capabilities that upstream's build script names
    verdict: Verdict = Verdict("cannot tell", "it was held against no machine")
    remarks: tuple[str, ...] = ()  # clauses

    @property
    def command(self) -> str:
        """Return the command that installs it."""
        return f"pip install {self.requirement}"

    @property
    def requirement(self) -> str:
        """Return the arguments of pip by which it finds the wheel."""
        return f"{self.package}=={self.version}" + (
            f" --extra-index-url {self.index}" * bool(self.index)
        )

    @property
    def would_do(self) -> bool:
        """Tell whether it was read, and fits."""
        return bool(self.readings) and self.verdict.fit == "fits"

    @property
    def code(self) -> str | None:
        """Return the compute capabilities that its own kernels have code for; None if it was not read."""
        return self.readings[0].own if self.readings else None

    @property
    def summary(self) -> str:
        """Return the command and the verdict without its reasons."""
        return (
            f"`{self.command}` would do as well"
            if self.would_do
            else f"`{self.command}`: {self._doubt}"
        )

    @property
    def _doubt(self) -> str:
        return (
            "does not fit" if self.verdict.fit == "does not fit" else "cannot tell whether it fits"
        )

    def as_data(self) -> dict[str, object]:
        """Return it as JSON-ready data."""
        return {
            "version": self.version,
            "cuda": self.toolkit and self.toolkit.version,
            "read": bool(self.readings),
            "capabilities": self.code,
            "capabilities_said": self.said,
            "verdict": self.verdict.fit,
            "why": self.verdict.why,
            "command": self.command,
            "remarks": list(self.remarks),
        }

    def __str__(self) -> str:
        """Return what a user who is about to build should know, as a clause."""
        cuda = f" with CUDA {self.toolkit.version}" if self.toolkit else ""
        name = f"the official wheel{cuda}, `{self.command}`"
        if self.would_do:
            return "; ".join((f"{name}, would do as well", *self.remarks))
        return "; ".join((f"{name}: {self._doubt}: {self.verdict.why}", *self.remarks))


@dataclass(frozen=True, slots=True)
class Plan:
    """All that will happen for one build, computed without touching anything."""

    build: Build
    identifier: str
    release: Release
    commit: (
        str | None
    )  # that the source is proven to be; where none is fetched yet, that which git would bring
    version: str  # with the local label
    set: Mapping[str, str]
    passed: tuple[
        str, ...
    ]  # patterns of the variables of the user's shell that the build sees, and no others
    requirements: tuple[str, ...]
    kit: tuple[str, ...]  # requirements that serve every interpreter: CMake, ninja
    patches: tuple[str, ...]
    prepare: tuple[Command, ...]
    compile: tuple[Command, ...]
    jobs: int
    wheel: str  # file name
    platform_tag: str
    reasons: tuple[str, ...]  # of the rules that shaped it
    lacks: tuple[Shortfall, ...]  # what the official wheel has and this one will not
    torch: str | None  # what a dependent package is built against: "torch==1.13.1+cpu"
    lender: Path | None = (
        None  # the folder of packages that lends that; None: it is installed for the build
    )
    toolkit: str | None = (
        None  # the version of CUDA that compiles it, "11.8"; None: a build without CUDA
    )
    libraries: Mapping[str, str] = no_entries()  # "cudnn" -> "8.5.0.96", where a kept one is taken
    kept: Mapping[str, str] = no_entries()  # how these are called where they are kept
    differs: tuple[Shortfall, ...] = ()  # where it is not as the official wheel on purpose, and why
    folders: tuple[str, ...] = ()  # of the source that may not be empty
    computed: bool = (
        False  # `platform_tag` is the newest that there can be: symbols say which it is
    )
    published: PublishedWheel | None = None  # the nearest to it, whether it would do or not
    processor: Processor | None = None  # that it is for; None: any
    given: Mapping[str, str] = no_entries()  # of the patches, the user's own, with their paths
    source: SourceName = UNFETCHED

    @property
    def switches(self) -> dict[str, str]:
        """Return the variables that can change what is made, not only how fast."""
        return {name: value for name, value in self.set.items() if name not in SPEED_ONLY_SWITCHES}

    @property
    def arch_list(self) -> str:
        """Return the compute capabilities that it has code for, "8.0;8.6+PTX"; "" where they are left to the build."""
        return self.set.get("TORCH_CUDA_ARCH_LIST", "")

    @property
    def torch_requirement(self) -> str | None:
        """Return what the wheel requires of torch: what it is built against, or all that its stable ABI serves."""
        served = self.release.stable_abi
        return f"{self.torch.partition('==')[0]}{served}" if self.torch and served else self.torch
