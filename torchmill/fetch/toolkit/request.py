"""Requests to toolkit providers, their answers, and which providers may serve a request."""

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
_DIGEST_LENGTH = 8  # hexadecimal digits in the name of a folder
# Returns which of some capabilities ("7.0;8.6", the second argument) are not served by some GPU
# code (the first argument): `unserved_capabilities` with the facts.
Unserved = Callable[[str, str], Sequence[str]]


@dataclass(frozen=True, slots=True)
class ToolkitRequest:
    """One toolkit, library or compiler to install into the cache."""

    kind: str  # TOOLKIT, COMPILER, or one of LIBRARIES
    # "11.8", "gcc-11"; of a library "8.5.0.96", its beginning "8.5", or "" for the newest
    version: str
    # the toolkits that a library goes with: "11", of MAGMA "11.8"; None for everything else
    cuda: str | None
    arch: str  # "x86_64", "aarch64"
    capabilities: str = ""  # of MAGMA: what its code must serve, "7.0;8.6"; "": anything
    # the folder of a toolkit of this version that lacks parts, and is completed with them
    completes: str = ""

    @property
    def name(self) -> str:
        """Return the name of its folder, without the arch: "11.8", "gcc-11", "cudnn-8.5.0.96-cu11".

        For MAGMA it is the beginning of the name, "magma-2.6.1-cu118"; the capabilities of its code
        follow.
        """
        if self.completes:
            digest = hashlib.sha256(self.completes.encode()).hexdigest()
            return f"{self.version}-completed-{digest[:_DIGEST_LENGTH]}"
        if self.cuda is None or self.kind not in LIBRARIES:
            return self.version
        return f"{self.kind}-{self.version}-cu{self.cuda.replace('.', '')}"

    def __str__(self) -> str:
        """Return its name in messages: "CUDA 11.8", "gcc-11", "cudnn 8.5.0.96 for CUDA 11"."""
        if self.completes:
            return f"the completion of CUDA {self.version} in {self.completes}"
        if self.kind in LIBRARIES:
            library = f"{self.kind} {self.version}".rstrip()  # the version may be ""
            return f"{library} for CUDA {self.cuda}"
        return f"CUDA {self.version}" if self.kind == TOOLKIT else self.version


@dataclass(frozen=True, slots=True)
class ProviderOffer:
    """The packages that a provider would install for a request; only lists were downloaded so far.

    `fill` downloads them (earlier downloads are used), checks and unpacks them into an empty
    folder. It raises NetworkError, SourceError for a file that is not what the index says, and
    HostError if there is no room.
    """

    request: ToolkitRequest  # with its exact version
    provider: str
    full: str  # the provider's own version ("11.8.89"), or the requested one if it has none
    pieces: tuple[ProviderPackage, ...]  # all that would be downloaded
    fill: Callable[[Path], None]


@dataclass(frozen=True, slots=True)
class ProviderRefusal:
    """Why a provider cannot serve a request: it does not have it, or cannot be reached."""

    provider: str
    reason: str  # a clause, without a full stop
    versions: tuple[str, ...] = ()  # that it has of the same kind


# Asks conda, debian or pypi for a request, with the facts' sources of that provider and the user's
# cache. A provider that cannot be reached is a refusal too.
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
    """Return the sources of a provider that may serve a request, or a refusal if none does.

    The facts decide. They do not list all versions of libraries, because new ones appear all the
    time; nor the GPU code of all of them.
    """
    of_kind = [
        source for source in sources if source.provider == provider and source.kind == request.kind
    ]
    for_arch = [source for source in of_kind if request.arch in source.arches]
    for_cuda = [source for source in for_arch if source.cuda in {None, request.cuda}]
    any_version = request.kind in LIBRARIES
    fitting = [
        source
        for source in for_cuda
        if any_version or not source.versions or request.version in source.versions
    ]
    if fitting:
        return _serving_sources(request, provider, fitting, unserved)
    if for_cuda:
        versions = dict.fromkeys(version for source in for_cuda for version in source.versions)
        prefix = "CUDA " if request.kind == TOOLKIT else ""
        return ProviderRefusal(provider, f"it has {prefix}{', '.join(versions)}", tuple(versions))
    if for_arch:
        return ProviderRefusal(provider, f"it has no {request.kind} for CUDA {request.cuda}")
    if of_kind:
        return ProviderRefusal(provider, f"it has no {request.kind} for {request.arch}")
    return ProviderRefusal(provider, f"it has no {request.kind}")


def _serving_sources(
    request: ToolkitRequest, provider: str, sources: Sequence[ToolkitSource], unserved: Unserved
) -> tuple[ToolkitSource, ...] | ProviderRefusal:
    """Return the sources whose GPU code serves the requested capabilities, or a refusal."""
    serving = []
    refusals = []
    for source in sources:
        code = ";".join(source.capabilities)
        missing = unserved(code, request.capabilities) if code else ()
        if missing:
            reason = f"it has code for {code}, but none for {', '.join(missing)}"
            refusals.append(ProviderRefusal(provider, reason))
        else:
            serving.append(source)
    return tuple(serving) if serving else refusals[0]


def find_part_packages(
    version: str, arch: str, parts: Sequence[ToolkitPart], sources: Iterable[ToolkitSource]
) -> tuple[tuple[str, ...], tuple[ToolkitPart, ...]]:
    """Return the packages with some parts of a toolkit, and the parts that are in no package.

    Packages are requirements of PyPI ("nvidia-cublas-cu11==11.11.3.6"); a part names its package
    without the major version of the toolkit.
    """
    suffix = f"-cu{version.partition('.')[0]}"
    part_names = {part.package for part in parts}
    packages = {}
    for source in sources:
        if source.kind != "parts" or version not in source.versions or arch not in source.arches:
            continue
        for line in source.packages:
            name = Requirement(line).name.removesuffix(suffix)
            if name in part_names:
                packages[name] = line
    missing = tuple(part for part in parts if part.package not in packages)
    return tuple(packages.values()), missing


def version_begins(version: str, beginning: str) -> bool:
    """Tell whether a version is equal to, or more exact than, another: "8.5.0.96" and "8.5".

    Every version begins with "".
    """
    return not beginning or f"{version}.".startswith(f"{beginning}.")


def refusal_message(request: ToolkitRequest, refusals: Sequence[ProviderRefusal]) -> str:
    """Return the message if no provider serves a request: the reason of each, and what to do."""
    lines = [f"{request} is not available for {request.arch}:"]
    lines += [f"  {refusal.provider}: {refusal.reason}" for refusal in refusals]
    versions = {version for refusal in refusals for version in refusal.versions}
    advice = remedy(request, sorted(versions, key=version_key))
    return "\n".join([*lines, f"  {advice}"])


def remedy(request: ToolkitRequest, versions: Sequence[str]) -> str:
    """Return what to do if no provider serves a request; `versions` are those they have instead."""
    if request.completes:
        return f"install a complete one: `invoke toolkit --cuda {request.version}`"
    if request.kind == COMPILER:
        return (
            "install it with the system's package manager, or name another that nvcc takes in "
            "CUDAHOSTCXX"
        )
    if request.kind == MAGMA:
        return (
            "build with one that you have for this toolkit (`-- --set MAGMA_HOME=FOLDER`), or "
            "without it (`-- --set USE_MAGMA=0`)"
        )
    if request.kind in LIBRARIES:
        command = f"`invoke toolkit --library {request.kind}-cu{request.cuda}=VERSION`"
        return (
            f"install another version ({command}), or install it with the system's package manager"
        )
    by_hand = "install it by other means, and set CUDA_HOME to its folder"
    newer = _first_newer(request.version, versions)
    if newer is None:
        return by_hand
    return (
        f"install a newer one of the same major version (`invoke toolkit --cuda {newer}`) and "
        f"build with it (`-- --toolkit {newer}`), or {by_hand}"
    )


def _first_newer(version: str, versions: Sequence[str]) -> str | None:
    """Return the first of some versions that is newer, and of the same major version; or None."""
    major = version.partition(".")[0]
    for candidate in versions:
        same_major = candidate.partition(".")[0] == major
        if same_major and version_key(candidate) > version_key(version):
            return candidate
    return None


def version_key(version: str) -> Version:
    """Return the key that sorts versions of toolkits, libraries and compilers ("gcc-11")."""
    return Version(version.rpartition("-")[2])
