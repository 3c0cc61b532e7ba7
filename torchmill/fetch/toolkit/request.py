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
# Takes the capabilities that some GPU code is for, and those that are requested, both in the form
# "7.0;8.6". Returns the requested ones that the code does not serve. It is `unserved_capabilities`
# with the facts.
Unserved = Callable[[str, str], Sequence[str]]


@dataclass(frozen=True, slots=True)
class ToolkitRequest:
    """One toolkit, library or compiler to install into the cache."""

    kind: str  # TOOLKIT, COMPILER, or one of LIBRARIES
    # "11.8", "gcc-11"; for a library "8.5.0.96", its beginning "8.5", or "" for the newest.
    version: str
    # The version of the toolkits that a library goes with: "11", for MAGMA "11.8". None for all
    # that is not a library.
    cuda: str | None
    arch: str  # "x86_64", "aarch64"
    capabilities: str = ""  # for MAGMA: what its GPU code must serve, "7.0;8.6"; "": anything
    # The folder of a toolkit that lacks parts, of which a complete copy is requested; "": none.
    completes: str = ""
    # The arch of this machine if `completes` lends its programs alone, to a toolkit with headers
    # and libraries for another arch; "": it is completed.
    programs_of: str = ""

    @property
    def name(self) -> str:
        """Return the name of the folder in the cache: "11.8", "gcc-11", "cudnn-8.5.0.96-cu11".

        The arch is appended to it. For MAGMA it is only the beginning of the name,
        "magma-2.6.1-cu118": the capabilities of its GPU code follow.
        """
        if self.completes:
            digest = hashlib.sha256(self.completes.encode()).hexdigest()
            kind = "crossing" if self.programs_of else "completed"
            return f"{self.version}-{kind}-{digest[:_DIGEST_LENGTH]}"
        if self.cuda is None or self.kind not in LIBRARIES:
            return self.version
        return f"{self.kind}-{self.version}-cu{self.cuda.replace('.', '')}"

    def __str__(self) -> str:
        """Return the name in messages: "CUDA 11.8", "gcc-11", "cudnn 8.5.0.96 for CUDA 11"."""
        if self.programs_of:
            return f"CUDA {self.version} for {self.arch}, with the programs in {self.completes},"
        if self.completes:
            return f"the completion of CUDA {self.version} in {self.completes}"
        if self.kind in LIBRARIES:
            library = f"{self.kind} {self.version}".rstrip()  # the version may be ""
            return f"{library} for CUDA {self.cuda}"
        return f"CUDA {self.version}" if self.kind == TOOLKIT else self.version


@dataclass(frozen=True, slots=True)
class ProviderOffer:
    """The packages that a provider would install for a request.

    Only lists of packages are downloaded for an offer. `fill` downloads the packages, checks and
    unpacks them into an empty folder. It raises NetworkError, SourceError for a file that is not
    the listed one, and HostError if there is no room.
    """

    request: ToolkitRequest  # with its exact version
    provider: str
    full: str  # the provider's own version ("11.8.89"), or the requested one if it has none
    pieces: tuple[ProviderPackage, ...]  # the packages
    fill: Callable[[Path], None]


@dataclass(frozen=True, slots=True)
class ProviderRefusal:
    """Why a provider cannot serve a request: it lacks the packages, or cannot be reached."""

    provider: str
    reason: str  # a clause, without a full stop
    versions: tuple[str, ...] = ()  # those of the same kind that the provider has


# Asks a provider for a request: the `offer` of conda.py, debian.py or pypi.py. The other arguments
# are the sources of that provider in the facts, the user's cache, and a display of progress.
AskProvider = Callable[
    [ToolkitRequest, Sequence[ToolkitSource], Path, ProgressDisplay],
    ProviderOffer | ProviderRefusal,
]


def candidate_sources(
    request: ToolkitRequest,
    provider: str,
    sources: Sequence[ToolkitSource],
    find_unserved: Unserved = lambda *_: (),
) -> tuple[ToolkitSource, ...] | ProviderRefusal:
    """Return the sources of a provider that may serve a request, or a refusal if none can.

    The facts decide. For a library, any version may be at a source, because facts do not list the
    versions of libraries: new ones appear all the time.
    """
    of_provider = [source for source in sources if source.provider == provider]
    of_kind = [source for source in of_provider if source.kind == request.kind]
    for_arch = [source for source in of_kind if request.arch in source.arches]
    for_cuda = [source for source in for_arch if source.cuda in {None, request.cuda}]
    fitting = [source for source in for_cuda if _may_have_version(source, request)]
    if fitting:
        return _serving_sources(request, provider, fitting, find_unserved)
    if for_cuda:
        versions: dict[str, None] = {}  # an ordered set
        for source in for_cuda:
            versions |= dict.fromkeys(source.versions)
        prefix = "CUDA " if request.kind == TOOLKIT else ""
        return ProviderRefusal(provider, f"it has {prefix}{', '.join(versions)}", tuple(versions))
    if for_arch:
        return ProviderRefusal(provider, f"it has no {request.kind} for CUDA {request.cuda}")
    if of_kind:
        return ProviderRefusal(provider, f"it has no {request.kind} for {request.arch}")
    return ProviderRefusal(provider, f"it has no {request.kind}")


def _may_have_version(source: ToolkitSource, request: ToolkitRequest) -> bool:
    """Tell whether a source may have the requested version; it may if the facts name none."""
    if request.kind in LIBRARIES or not source.versions:
        return True
    return request.version in source.versions


def _serving_sources(
    request: ToolkitRequest,
    provider: str,
    sources: Sequence[ToolkitSource],
    find_unserved: Unserved,
) -> tuple[ToolkitSource, ...] | ProviderRefusal:
    """Return the sources whose GPU code serves the requested capabilities, or a refusal.

    A source of which the facts name no GPU code may serve any.
    """
    serving = []
    refusals = []
    for source in sources:
        code = ";".join(source.capabilities)
        missing: Sequence[str] = ()
        if code:
            missing = find_unserved(code, request.capabilities)
        if missing:
            reason = f"it has code for {code}, but none for {', '.join(missing)}"
            refusals.append(ProviderRefusal(provider, reason))
        else:
            serving.append(source)
    if not serving:
        return refusals[0]
    return tuple(serving)


def find_part_packages(
    version: str, arch: str, parts: Sequence[ToolkitPart], sources: Iterable[ToolkitSource]
) -> tuple[tuple[str, ...], tuple[ToolkitPart, ...]]:
    """Return the packages that have some parts of a toolkit, and the parts that no package has.

    Packages are requirements of PyPI ("nvidia-cublas-cu11==11.11.3.6"). A part names its package
    without the major version of the toolkit ("nvidia-cublas").
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
    """Tell whether a version begins with the components of another: "8.5.0.96" with "8.5".

    Every version begins with "".
    """
    return not beginning or f"{version}.".startswith(f"{beginning}.")


def refusal_message(request: ToolkitRequest, refusals: Sequence[ProviderRefusal]) -> str:
    """Return the message if no provider serves a request: the reason of each, and what to do."""
    lines = [f"{request} is not available for {request.arch}:"]
    lines += [f"  {refusal.provider}: {refusal.reason}" for refusal in refusals]
    versions: set[str] = set()
    for refusal in refusals:
        versions.update(refusal.versions)
    advice = remedy(request, versions)
    return "\n".join([*lines, f"  {advice}"])


def remedy(request: ToolkitRequest, versions: Iterable[str]) -> str:
    """Return what the user can do if no provider serves a request, as a clause.

    `versions` are those that the providers have instead.
    """
    if request.completes:
        complete = f"install a complete one: `invoke toolkit --cuda {request.version}`"
        elsewhere = f"build for another CUDA, or on a machine that is {request.arch}"
        return elsewhere if request.programs_of else complete
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


def _first_newer(version: str, versions: Iterable[str]) -> str | None:
    """Return the oldest of some versions that is newer than `version`, within its major version."""
    major = version.partition(".")[0]
    for candidate in sorted(versions, key=version_key):
        same_major = candidate.partition(".")[0] == major
        if same_major and version_key(candidate) > version_key(version):
            return candidate
    return None


def version_key(version: str) -> Version:
    """Return the key that sorts versions of toolkits, libraries and compilers ("gcc-11")."""
    return Version(version.rpartition("-")[2])
