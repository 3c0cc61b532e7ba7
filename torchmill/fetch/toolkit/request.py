"""What is requested of a toolkit provider, what it answers, and which providers may have it."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.requirements import Requirement
from packaging.version import Version

from torchmill.config.toolkit import ProviderPackage, ToolkitPart, ToolkitSource
from torchmill.core.console import ProgressDisplay
from torchmill.host.provisioned import COMPILER, MAGMA, TOOLKIT

LIBRARIES = ("cudnn", "nccl", "cusparselt", "nvshmem", MAGMA)
# Which of some capabilities, "7.0;8.6", some code does not serve: `unserved_capabilities` with the facts.
Unserved = Callable[[str, str], Sequence[str]]


@dataclass(frozen=True, slots=True)
class ToolkitRequest:
    """One toolkit, library or compiler to install into the cache."""

    kind: str  # TOOLKIT, COMPILER, or one of LIBRARIES
    version: (
        str  # "11.8"; "gcc-11"; of a library "8.5.0.96", its beginning "8.5", or "" for the newest
    )
    cuda: (
        str | None
    )  # "11": the toolkits that a library goes with, of MAGMA "11.8"; None of all else
    arch: str  # "x86_64", "aarch64"
    capabilities: str = ""  # of MAGMA: what its code must serve, "7.0;8.6"; "": whatever it is for
    completes: str = (
        ""  # the folder of a toolkit of this version that lacks parts: these are brought
    )

    @property
    def name(self) -> str:
        """Return the name of its folder, without the arch: "11.8", "gcc-11", "cudnn-8.5.0.96-cu11".

        Of MAGMA it is the beginning, "magma-2.6.1-cu118": what its code is for follows.
        """
        if self.completes:
            return f"{self.version}-completed-{hashlib.sha256(self.completes.encode()).hexdigest()[:8]}"
        if self.cuda is None or self.kind not in LIBRARIES:
            return self.version
        return f"{self.kind}-{self.version}-cu{self.cuda.replace('.', '')}"

    def __str__(self) -> str:
        """Return its name in messages: "CUDA 11.8", "gcc-11", "cudnn 8.5.0.96 for CUDA 11"."""
        if self.completes:
            return f"what CUDA {self.version} in {self.completes} lacks"
        if self.kind in LIBRARIES:
            return f"{self.kind} {self.version} for CUDA {self.cuda}".replace("  ", " ")
        return f"CUDA {self.version}" if self.kind == TOOLKIT else self.version


@dataclass(frozen=True, slots=True)
class ProviderOffer:
    """What a provider would download to install a request; only lists were downloaded so far.

    `fill` downloads (what was downloaded before is used), checks and unpacks it into an empty folder. It
    raises NetworkError, SourceError for a file that is not what the index says, HostError for no room.
    """

    request: ToolkitRequest  # its version written out
    provider: str
    full: str  # the provider's own version ("11.8.89"), or the requested one if it has none
    pieces: tuple[ProviderPackage, ...]  # all that would be downloaded
    fill: Callable[[Path], None]


@dataclass(frozen=True, slots=True)
class ProviderRefusal:
    """Why a provider cannot serve a request: it lacks it, or cannot be asked."""

    provider: str
    reason: str  # what it lacks, or why it cannot be asked: a clause, without a full stop
    versions: tuple[str, ...] = ()  # of the same kind that it does have


# What asks conda, debian or pypi for something, by its facts on that kind, and the user's folder. A provider
# that cannot be reached is a refusal, too.
AskProvider = Callable[
    [ToolkitRequest, Sequence[ToolkitSource], Path, ProgressDisplay],
    ProviderOffer | ProviderRefusal,
]


def candidate_sources(
    request: ToolkitRequest,
    provider: str,
    sources: Sequence[ToolkitSource],
    unserved: Unserved = lambda *_: (),
) -> tuple[ToolkitSource, ...] | ProviderRefusal:
    """Return the sources of a provider that may have it; a refusal if, by the facts, none has.

    New versions of libraries appear all the time, so the facts do not list them all; nor all GPU code.
    """
    kind = [one for one in sources if one.provider == provider and one.kind == request.kind]
    here = [one for one in kind if request.arch in one.arches]
    fitting = [one for one in here if one.cuda in {None, request.cuda}]
    any_version = request.kind in LIBRARIES
    named = tuple(
        one for one in fitting if any_version or not one.versions or request.version in one.versions
    )
    if named:
        codes = [";".join(one.capabilities) for one in named]
        missed = [unserved(code, request.capabilities) if code else () for code in codes]
        serving = tuple(one for one, lacks in zip(named, missed, strict=True) if not lacks)
        return serving or ProviderRefusal(
            provider, f"it has code for {codes[0]}, but none for {', '.join(missed[0])}"
        )
    if fitting:
        has = tuple(dict.fromkeys(version for one in fitting for version in one.versions))
        return ProviderRefusal(
            provider, f"it has {'CUDA ' * (request.kind == TOOLKIT)}{', '.join(has)}", has
        )
    what = f"{request.kind} for CUDA {request.cuda}" if here else request.kind
    return ProviderRefusal(
        provider, f"it has no {what}" + (f" for {request.arch}" if kind and not here else "")
    )


def find_part_packages(
    version: str, arch: str, lacks: Sequence[ToolkitPart], sources: Iterable[ToolkitSource]
) -> tuple[tuple[str, ...], tuple[ToolkitPart, ...]]:
    """Return the packages of some parts of a toolkit, and those parts that have none."""
    known = [
        one
        for one in sources
        if one.kind == "parts" and version in one.versions and arch in one.arches
    ]
    lines = [(Requirement(line).name, line) for one in known for line in one.packages]
    major = f"-cu{version.partition('.')[0]}"
    names = {part.package for part in lacks}
    found = {
        name.removesuffix(major): line for name, line in lines if name.removesuffix(major) in names
    }
    return tuple(found.values()), tuple(part for part in lacks if part.package not in found)


def version_begins(version: str, beginning: str) -> bool:
    """Tell whether a version is another, or a more exact one: "8.5.0.96" of "8.5"; any of ""."""
    return not beginning or f"{version}.".startswith(f"{beginning}.")


def refusal_message(request: ToolkitRequest, lacking: Sequence[ProviderRefusal]) -> str:
    """Return the message for what no provider has: the reason of each, and what to do."""
    lines = [f"{request} is not available for {request.arch}:"]
    lines += [f"  {one.provider}: {one.reason}" for one in lacking]
    has = sorted({version for one in lacking for version in one.versions}, key=version_key)
    return "\n".join([*lines, f"  {remedy(request, has)}"])


def remedy(request: ToolkitRequest, has: Sequence[str]) -> str:
    """Return what to do where no provider serves a request; `has` are the versions that providers have instead."""
    if request.completes:
        return f"install a complete one: `invoke toolkit --cuda {request.version}`"
    if request.kind == COMPILER:
        return "install it with the system's package manager, or name another that nvcc takes in CUDAHOSTCXX"
    if request.kind == MAGMA:
        return (
            "build with one that you have for this toolkit (`-- --set MAGMA_HOME=FOLDER`), or without it "
            "(`-- --set USE_MAGMA=0`)"
        )
    if request.kind in LIBRARIES:
        another = f"`invoke toolkit --library {request.kind}-cu{request.cuda}=VERSION`"
        return (
            f"install another version ({another}), or install it with the system's package manager"
        )
    installed = "install it by other means, and set CUDA_HOME to its folder"
    newer = [one for one in has if one.partition(".")[0] == request.version.partition(".")[0]]
    newer = [one for one in newer if version_key(one) > version_key(request.version)]
    if not newer:
        return installed
    return (
        f"install a newer one of the same major version (`invoke toolkit --cuda {newer[0]}`) and build with "
        f"it (`-- --toolkit {newer[0]}`), or {installed}"
    )


def version_key(version: str) -> Version:
    """Return the key that sorts versions of toolkits, libraries and compilers."""
    return Version(version.rpartition("-")[2])  # of "gcc-11", too
