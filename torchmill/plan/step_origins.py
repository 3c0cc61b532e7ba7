"""Where the steps on the way to a wheel take what they need from: providers, their addresses, and bytes."""

import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from packaging.requirements import Requirement

from torchmill.config import matrix
from torchmill.config.facts_model import CostRange, ToolkitSource
from torchmill.config.model import Facts, Host
from torchmill.core.urls import hide_password
from torchmill.fetch.package_index import DEFAULT_INDEX
from torchmill.fetch.source.apt import parse_suite
from torchmill.fetch.source.git_command import mirror_candidates
from torchmill.fetch.source.source_dir import DEBIAN, PYPI, SourceRequest
from torchmill.fetch.toolkit.conda import DEFAULT_ALIAS, SUBDIRS, channel_address
from torchmill.fetch.toolkit.request import ToolkitRequest, find_part_packages, remedy
from torchmill.fetch.toolkit.store import PACKAGES
from torchmill.fetch.user_packages import RATTLER, SCCACHE
from torchmill.host.provisioned import COMPILER, MAGMA, TOOLKIT
from torchmill.plan.doctor.finding import Finding
from torchmill.plan.providers import usable_sources
from torchmill.plan.system_packages import INSTALL_COMMANDS, NEEDS_ROOT
from torchmill.plan.walk import Origin, Place, Step, command_words, index_pages

INDEX = "the package index"
_PYTHONS = "https://github.com/astral-sh/python-build-standalone/releases"  # of which uv installs
_PYENV_PYTHONS = "https://www.python.org/ftp/python/"
_ROOT_PROGRAMS = frozenset(
    INSTALL_COMMANDS[manager][0] for manager in NEEDS_ROOT
)  # "apt-get", "dnf"
_LIBRARY = re.compile(r"(?P<name>[a-z]+)-cu(?P<cuda>\d+)(?:=(?P<version>[\d.]+))?")
_INDEX_WAY_OUT = "name a mirror of the package index in PIP_INDEX_URL, or a folder with the wheels in PIP_FIND_LINKS"


@dataclass(frozen=True, slots=True)
class Places:
    """Where a machine takes things from: what its user and its system have configured, and what is there already."""

    index: str = DEFAULT_INDEX
    beside_index: bool = False  # pip looks in other places, too
    channels: str = DEFAULT_ALIAS
    suites: Mapping[str, str] = field(
        default_factory=dict
    )  # "bookworm" -> the archive in which it is read
    pythons: str = _PYTHONS
    rattler: bool = False  # py-rattler can be imported, or was brought before
    sccache: bool = False  # it was brought before
    sources: Mapping[str, tuple[Origin, ...]] = field(
        default_factory=dict
    )  # package -> where its source may come from
    ways_to_sources: Mapping[str, str] = field(
        default_factory=dict
    )  # package -> what to do where none of them serves


@dataclass(frozen=True, slots=True)
class Session:
    """One session of the way: what builds a wheel."""

    command: str
    lines: tuple[str, ...]  # what it builds, and how long that takes
    requirements: tuple[str, ...]  # that pip installs for it
    needs: Mapping[Place, CostRange]  # bytes


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a way leads through."""

    facts: Facts
    arch: str  # of the wheels
    host: Host
    places: Places


def source_origins(request: SourceRequest, places: Places) -> tuple[Origin, ...]:
    """Return where a source may come from. Raises SourceError for an address that git must not be given."""
    if request.origin is None:
        urls = mirror_candidates(request.package.repository, request.mirror)
        return tuple(Origin("git", (_git_address(url),)) for url in urls)
    if request.origin == DEBIAN:
        suite = request.package.debian.get(request.release.version, "").partition("/")[0]
        return (Origin(DEBIAN, _suite_address(suite, places)),)
    if request.origin == PYPI:
        return (
            Origin(
                INDEX, index_pages(places.index, [request.package.pypi or request.package.name])
            ),
        )
    return (Origin(hide_password(request.origin), (request.origin,)),)


def _git_address(url: str) -> str:
    """Return what is asked for in place of a repository: what git asks for first."""
    return (
        f"{url}/info/refs?service=git-upload-pack"
        if url.startswith(("http://", "https://"))
        else url
    )


def _suite_address(suite: str, places: Places) -> tuple[str, ...]:
    archive = places.suites.get(suite)
    return (f"{archive.rstrip('/')}/dists/{suite}/InRelease",) if archive else ()


def command_step(around: Surroundings, command: str, finding: Finding) -> Step:
    """Return the step that a command is."""
    facts, host, places = around.facts, around.host, around.places
    purpose = f"{finding.subject}: {finding.found}"
    words = command_words(command)
    vital = finding.verdict == "failure" or words[:2] == ["invoke", "fetch"]
    if words[:2] == ["invoke", "fetch"]:
        package = _value(words, "--package") or matrix.base_package(facts).name
        way_out = places.ways_to_sources.get(package, "")
        return Step(
            command, purpose, places.sources.get(package, ()), way_out, "checkout", vital=vital
        )
    if words[:2] == ["invoke", "toolkit"]:
        origins, way_out = _toolkit_origins(around, words[2:])
        return Step(command, purpose, origins, way_out, vital=vital)
    if words[:2] == ["uv", "python"]:
        way_out = "install it in another way, or name a mirror in UV_PYTHON_INSTALL_MIRROR"
        return Step(command, purpose, (Origin("uv", (places.pythons,)),), way_out, vital=vital)
    if words[:1] == ["pyenv"]:
        return Step(
            command,
            purpose,
            (Origin("python.org", (_PYENV_PYTHONS,)),),
            "install it in another way",
            vital=vital,
        )
    if words[:2] == ["pip", "install"]:
        pages = index_pages(places.index, [word for word in words[2:] if not word.startswith("-")])
        return Step(command, purpose, _index_origin(pages, places), _INDEX_WAY_OUT, vital=vital)
    root = words[:1] == ["sudo"] or (words[:2] == ["invoke", "deps"] and host.manager in NEEDS_ROOT)
    root = root or (bool(words) and words[0] in _ROOT_PROGRAMS)
    return Step(command, purpose, vital=vital, root=root)


def _value(words: Sequence[str], option: str) -> str:
    return next((value for name, value in itertools.pairwise(words) if name == option), "")


def _index_origin(
    pages: tuple[str, ...], places: Places, size: CostRange | None = None
) -> tuple[Origin, ...]:
    """Return the package index as an origin; one that is not alone stops nothing by not answering."""
    beside = (Origin("the other places that pip is told of"),) if places.beside_index else ()
    return (Origin(INDEX, pages, size=size), *beside)


def session_steps(session: Session, around: Surroundings) -> tuple[Step, ...]:
    """Return the steps of a session: what it brings by itself, and the session."""
    host, places = around.host, around.places
    pages = index_pages(places.index, session.requirements)
    origins = _index_origin(pages, places) if pages else ()
    steps = [
        Step(
            session.command,
            session.lines[0],
            origins,
            _INDEX_WAY_OUT,
            "environments",
            session.needs,
        )
    ]
    cached = places.sccache or not {"ccache", "sccache"}.isdisjoint(host.tools)
    if host.complete and not cached:
        page = index_pages(places.index, [SCCACHE.requirement])
        size = CostRange(SCCACHE.size, 2 * SCCACHE.size)
        steps.append(
            Step("", "compiler cache: sccache", (Origin(INDEX, page, size=size),), vital=False)
        )
    return tuple(steps)


def requested_item(words: Sequence[str], arch: str) -> ToolkitRequest | None:
    """Return what `invoke toolkit` is asked for by its options; None for what they do not name alone."""
    if version := _value(words, "--cuda"):
        return ToolkitRequest(TOOLKIT, version, None, arch)
    if name := _value(words, "--compiler"):
        return ToolkitRequest(COMPILER, name, None, arch)
    if match := _LIBRARY.fullmatch(_value(words, "--library")):
        major = match["cuda"]
        named = (
            f"{major[:-1]}.{major[-1]}" if match["name"] == MAGMA else major
        )  # "118" of MAGMA is 11.8
        return ToolkitRequest(match["name"], match["version"] or "", named, arch)
    return None


def _toolkit_origins(around: Surroundings, words: Sequence[str]) -> tuple[tuple[Origin, ...], str]:
    """Return where `invoke toolkit` may take what its options name, and the way out where none serves."""
    facts, arch, host, places = around.facts, around.arch, around.host, around.places
    if version := _value(words, "--complete"):
        names = host.lacking.get(version, "").split(", ")
        lacks = [part for part in facts.toolkit_parts if part.name in names]
        packages, _ = find_part_packages(version, arch, lacks, facts.toolkit_sources)
        pages = index_pages(places.index, [Requirement(line).name for line in packages])
        return (Origin(INDEX, pages),), f"install a complete one: `invoke toolkit --cuda {version}`"
    request = requested_item(words, arch)
    if request is None:
        return (), ""
    usable, refusals = usable_sources(facts, request, host)
    refused = tuple(Origin(one.provider, obstacle=one.reason) for one in refusals)
    origins = tuple(
        _provider_origin(facts, provider, source, arch, places)
        for provider, found in usable.items()
        for source in found
    )
    has = sorted({version for refusal in refusals for version in refusal.versions})
    way_out = remedy(request, has)
    if usable:
        way_out = f"name a mirror ({_mirrors(usable)}), or {way_out}"
    return (*origins, *refused), way_out


def _mirrors(providers: Iterable[str]) -> str:
    variables = {
        "conda": "CONDA_CHANNEL_ALIAS",
        "pypi": "PIP_INDEX_URL",
        "debian": "a line of /etc/apt/sources.list",
    }
    return " or ".join(variables[provider] for provider in providers)


def _provider_origin(
    facts: Facts, provider: str, source: ToolkitSource, arch: str, places: Places
) -> Origin:
    size = _unpacked_bytes(facts, source)
    if provider == "conda":
        variables = {"CONDA_CHANNEL_ALIAS": places.channels}
        channels = (channel_address(name, variables) for name in source.where)
        addresses = tuple(f"{channel}/{SUBDIRS[arch]}/repodata.json" for channel in channels)
        if places.rattler:
            return Origin(provider, addresses, size=size)
        return Origin(
            f"{provider}, read by py-rattler from {INDEX}",
            (*addresses, *_rattler_page(places)),
            size=size,
        )
    if provider == DEBIAN:
        suite = parse_suite(source.where)
        return Origin(str(suite), _suite_address(suite.name, places), size=size)
    pages = index_pages(places.index, [Requirement(line).name for line in source.packages])
    return Origin(INDEX, pages, size=size)


def _rattler_page(places: Places) -> tuple[str, ...]:
    return index_pages(places.index, [RATTLER.requirement])


def _unpacked_bytes(facts: Facts, source: ToolkitSource) -> CostRange | None:
    """Return the bytes of packages and their content, as far as they were counted.

    A library has at most those of its largest version. A toolkit that nobody counted has those of the others.
    """
    if source.kind != TOOLKIT:
        return CostRange(0, _with_content(source)) if source.download else None
    known = (
        [source]
        if source.download
        else [one for one in facts.toolkit_sources if one.kind == TOOLKIT]
    )
    sizes = [_with_content(one) for one in known if one.download]
    return CostRange(min(sizes, default=0), max(sizes, default=0))


def _with_content(source: ToolkitSource) -> float:
    """Return the bytes that packages take while they are unpacked."""
    return (source.download or 0) * float(1 + PACKAGES["unpacked"][source.provider])
