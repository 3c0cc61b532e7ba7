"""The wheels on offer for a snippet: in a folder, in an index, or official ones."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import url2pathname

from millpress import wheel_file
from millpress.wheel_file import BuildTag
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

from torchmill.config.build import CPU, Arch
from torchmill.config.facts import Facts
from torchmill.config.official_wheels import platform_of_tag, wheel_places, wheel_pythons
from torchmill.config.release import Release
from torchmill.config.versions import python_key
from torchmill.core import urls
from torchmill.core.errors import ConfigError, DeliveryError
from torchmill.core.lenient_paths import real_path
from torchmill.core.paths import Layout
from torchmill.deliver.index.entries import make_entry, requirement_differences
from torchmill.wheel import finished_wheel

if TYPE_CHECKING:
    from torchmill.fetch.package_index import IndexFile

_SYS_PLATFORM = {"linux": "linux", "macos": "darwin", "windows": "win32"}
UNLABELLED = "unlabelled"  # the variant of a wheel that does not tell it
NAME = "torchmill"  # how a project calls the place
EXAMPLE = "https://wheels.example, file:///srv/wheels, or the path of a folder"


def platform_name(arch: Arch) -> str:
    """Return how a platform is called: "linux/x86_64"."""
    return f"{arch.system}/{arch.name}"


def find_platforms(facts: Facts, words: Sequence[str]) -> tuple[Arch, ...]:
    """Return the platforms with these names, in the order of the facts. Raises ConfigError for a name that none has."""
    known = {platform_name(arch): arch for arch in facts.arches.values()}
    if unknown := [word for word in words if word not in known]:
        raise ConfigError(
            f"unknown --platform {unknown[0]}: choose from {', '.join(known)}",
            code="unknown-platform",
        )
    return tuple(arch for title, arch in known.items() if title in words)


def platforms_marker(some: Collection[Arch], every: Collection[Arch]) -> str:
    """Return the marker that is true on some of a project's platforms; "" where it is true on all of them.

    A system stands by itself where all of its platforms are meant: so another machine of it finds out that
    there is no wheel, and does not simply go without.
    """
    if {arch.name for arch in every} <= {arch.name for arch in some}:
        return ""
    markers = []
    for system in dict.fromkeys(arch.system for arch in some):
        mine = [arch for arch in some if arch.system == system]
        whole = len(mine) == sum(arch.system == system for arch in every)
        markers += [_system(system)] if whole else [platform_marker(arch) for arch in mine]
    return (
        markers[0]
        if len(markers) == 1
        else " or ".join(f"({one})" if " and " in one else one for one in markers)
    )


def platform_marker(arch: Arch) -> str:
    """Return the marker that is true on one platform only."""
    machines = [f"platform_machine == '{machine}'" for machine in arch.machines]
    machine = machines[0] if len(machines) == 1 else f"({' or '.join(machines)})"
    return f"{_system(arch.system)} and {machine}"


def _system(system: str) -> str:
    return f"sys_platform == '{_SYS_PLATFORM.get(system, system)}'"


@dataclass(frozen=True, slots=True)
class WheelPlace:
    """Where installers find wheels."""

    name: str  # "torchmill"
    url: str
    flat: bool = False  # a folder of wheels without pages (PEP 503)
    default: bool = False  # installers look there anyway


@dataclass(frozen=True, slots=True)
class WheelOffer:
    """A wheel of a package for one platform."""

    package: str
    version: Version
    variant: str  # "cpu", "cu118"; another label where that is all there is
    paired: str  # what else stands in the label: "torch2.11.0"; ""
    arch: str
    pythons: tuple[str, ...]  # oldest first
    file: str
    url: str
    sha256: str | None
    build: BuildTag


def offers_of_index(facts: Facts, files: Iterable["IndexFile"]) -> tuple[WheelOffer, ...]:
    """Return what the files of an index are; those that are yanked are left out."""
    found = (_offers(facts, one.name, one.url, one.sha256, {}) for one in files if not one.yanked)
    return tuple(offer for offers in found for offer in offers)


def is_offer_of(facts: Facts, offer: WheelOffer, release: Release) -> bool:
    """Tell whether a wheel is of a release, and goes with the base that this release goes with."""
    after = (facts.packages[release.package].after or "").replace("-", ".")
    same = offer.package == release.package and Version(offer.version.public) == Version(
        release.version
    )
    return same and offer.paired in {"", f"{after}{release.torch}"}


def _offers(
    facts: Facts, file: str, url: str, sha256: str | None, manifest: Mapping[str, Any]
) -> Iterator[WheelOffer]:
    """Yield a wheel once for each platform it is for; manylinux has many names for one."""
    try:
        package, version, build, tags = parse_wheel_filename(file)
    except InvalidWheelFilename:
        return
    if package not in facts.packages:
        return
    arches = {arch.name: arch for tag in tags if (arch := platform_of_tag(facts, tag.platform))}
    pythons = _pythons(facts, package, version, tags)
    for name, arch in arches.items():
        variant, paired = _variant(facts, version, arch.system, manifest)
        yield WheelOffer(package, version, variant, paired, name, pythons, file, url, sha256, build)


def _variant(
    facts: Facts, version: Version, system: str, manifest: Mapping[str, Any]
) -> tuple[str, str]:
    """Return the variant of a wheel, by its label or its manifest, and the rest of its label."""
    variants = {CPU, *(toolkit.variant for toolkit in facts.toolkits)}
    labels = [
        label
        for label in (version.local or "").split(".")
        if not finished_wheel.SLIM_LABEL.fullmatch(label)
    ]
    first, rest = labels[0] if labels else "", ".".join(labels[1:])
    if first in variants:
        return first, rest
    if system == "macos" and not first:
        return CPU, ""
    if manifest:
        toolkit = facts.toolkit(manifest.get("toolkit"))
        return (toolkit.variant if toolkit else CPU), ""
    return version.local or UNLABELLED, ""


def _pythons(facts: Facts, package: str, version: Version, tags: Iterable[Tag]) -> tuple[str, ...]:
    """Return the Pythons of a wheel: "cp310-cp310" is for 3.10, "py3-none", "cp39-abi3" for several of its release."""
    found: set[str] = set()
    releases = [one for one in facts.releases[package] if one.version == version.base_version]
    for tag in tags:
        if python := wheel_file.tag_python(tag):
            found.add(python)
        else:
            found |= {python for one in releases for python in one.pythons if _takes(python, tag)}
    return tuple(sorted(found, key=python_key))


def _takes(python: str, tag: Tag) -> bool:
    """Tell whether a CPython takes a tag that is for several."""
    number, abi = (
        [int(part) for part in python.rstrip("t").split(".")],
        f"cp{python.replace('.', '')}",
    )
    return tag in {
        *cpython_tags(number, [abi], [tag.platform]),
        *compatible_tags(number, abi, [tag.platform]),
    }


@dataclass(frozen=True, slots=True)
class WheelStock:
    """What we have."""

    title: str  # for people: "/home/me/dist"
    place: WheelPlace
    offers: tuple[WheelOffer, ...]
    warnings: tuple[
        str, ...
    ] = ()  # about a version whose wheels do not go together: "torch 1.13.1+cpu: …"


@dataclass(frozen=True, slots=True)
class SnippetRequest:
    """What a project wants of one variant."""

    releases: tuple[Release, ...]  # the base first
    variant: str
    platforms: tuple[Arch, ...]
    native: str  # the arch whose sessions are named without it
    direct: bool = False  # our own wheels by their address and hash, not by name and version


@dataclass(frozen=True, slots=True)
class PlatformPin:
    """One version of a package on one platform."""

    package: str
    version: str  # "1.13.1+cpu"
    variant: str  # which may be another than was asked for
    arch: Arch
    pythons: tuple[str, ...]
    place: WheelPlace
    offers: tuple[WheelOffer, ...] = ()  # our wheels; none where they are somebody else's
    direct: bool = False  # they are named by their address and hash


def find_official(
    facts: Facts, release: Release, variant: str, arch: Arch, *, usual: bool = False
) -> PlatformPin | None:
    """Return the pin of a release's official wheels; None where none are known.

    Several indexes may have them: `usual` takes the one that installers ask anyway, for whose wheels extensions are
    built.
    """
    places = list(wheel_places(facts, release, variant, arch.name))
    if usual:
        places.sort(key=lambda place: not place.default)
    for offered in places[:1]:
        name, url, label = (
            text.format(variant=variant) for text in (offered.name, offered.url, offered.label)
        )
        place = WheelPlace(name, url, default=offered.default)
        pythons = wheel_pythons(facts, release, arch.name)
        return PlatformPin(release.package, release.version + label, variant, arch, pythons, place)
    return None


@dataclass(frozen=True, slots=True)
class SnippetDecision:
    """What a project declares for one variant."""

    variant: str
    platforms: tuple[Arch, ...]
    pins: tuple[PlatformPin, ...]  # by package, in the order of the platforms
    pythons: tuple[str, ...]  # for which there are all wheels, oldest first
    numpy: str | None  # "numpy<2"
    notes: tuple[str, ...]

    def of_package(self, package: str) -> tuple[PlatformPin, ...]:
        """Return the pins of a package."""
        return tuple(pin for pin in self.pins if pin.package == package)

    @property
    def packages(self) -> tuple[str, ...]:
        """Return the packages, the base first."""
        return tuple(dict.fromkeys(pin.package for pin in self.pins))


def read_stock(facts: Facts, layout: Layout, index: str, *, official: bool = False) -> WheelStock:
    """Return what an index (a URL or a folder) or, without one, dist/ has to offer.

    `official` tells that official wheels may be meant, so that dist/ need not have any.
    Raises ConfigError for what is no address, DeliveryError where there is nothing, NetworkError where no
    index answers.
    """
    path = index
    if "://" in index or index.startswith("file:"):
        parts = urls.validate_url("--index", index, ("https", "http", "file"), EXAMPLE)
        if parts.scheme != "file":
            return _served(facts, index)
        path = url2pathname(parts.path)
    folder = real_path(path) if index else layout.dist
    nothing = WheelStock(str(folder), WheelPlace(NAME, folder.as_uri(), flat=True), ())
    if official and not index and not folder.is_dir():
        return nothing
    if not folder.is_dir():
        raise DeliveryError(_nothing(folder, index, "no such folder"), code="no-wheels")
    pages = [
        page for package in facts.packages if (page := folder / package / "index.html").is_file()
    ]
    if pages:
        from torchmill.fetch.package_index import parse_html_page

        files = (
            each
            for page in pages
            for each in parse_html_page(page.read_text("utf-8", "replace"), page.as_uri())
        )
        return WheelStock(
            str(folder), WheelPlace(NAME, folder.as_uri()), offers_of_index(facts, files)
        )
    ours = (
        path
        for path in wheel_file.list_wheels(folder)
        if wheel_file.parse_file_name(path)[0] in facts.packages
    )
    wheels = finished_wheel.read_wheels(ours)
    offered = (
        _offers(facts, one.path.name, one.path.as_uri(), one.sha256, one.manifest) for one in wheels
    )
    found = tuple(offer for offers in offered for offer in offers)
    if not found and official and not index:
        return nothing
    if not found:
        raise DeliveryError(
            _nothing(folder, index, "it holds no wheel built here"), code="no-wheels"
        )
    warnings = tuple(requirement_differences(make_entry(wheel, "") for wheel in wheels))
    return WheelStock(str(folder), WheelPlace(NAME, folder.as_uri(), flat=True), found, warnings)


def _nothing(folder: Path, index: str, why: str) -> str:
    if index:
        return f"--index {index}: {why}: name a folder of wheels, or what `invoke index` wrote"
    return f"{folder}: {why}: build a wheel (`nox -l` lists the sessions), or name an index with --index"


def _served(facts: Facts, index: str) -> WheelStock:
    from torchmill.fetch.download import http_session
    from torchmill.fetch.package_index import find_project_files

    url = urls.strip_login(index).rstrip("/")
    cure = "check the address of --index, or serve it"
    with http_session() as session:
        pages = [
            find_project_files(session, index, package, cure) or () for package in facts.packages
        ]
    files = tuple(replace(one, url=urls.strip_login(one.url)) for page in pages for one in page)
    if not files:
        raise DeliveryError(
            f"--index {url}: it has no page of {' or '.join(facts.packages)}: give the address of the index itself",
            code="no-wheels",
        )
    return WheelStock(url, WheelPlace(NAME, url), offers_of_index(facts, files))
