"""The wheels on offer for a snippet: in a folder, in an index, or official wheels.

The stock is the wheels that torchmill built: in dist/, in another folder, or in an index. Official
wheels are those that the facts list for a release; their files are not known.
"""

import contextlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import url2pathname

from millpress import file_names, wheel_file
from packaging.tags import Tag, compatible_tags, cpython_tags
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

from torchmill.config.build import CPU, Arch
from torchmill.config.facts import Facts
from torchmill.config.official_wheels import platform_of_tag, wheel_places, wheel_pythons
from torchmill.config.release import Release
from torchmill.config.versions import python_key
from torchmill.core import urls
from torchmill.core.errors import DeliveryError
from torchmill.core.lenient_paths import real_path
from torchmill.core.paths import Layout
from torchmill.deliver.index.entries import make_entry, requirement_differences
from torchmill.deliver.snippet.model import PlatformPin, WheelOffer, WheelPlace, WheelStock
from torchmill.wheel import finished_wheel

if TYPE_CHECKING:
    from torchmill.fetch.package_index import IndexFile

UNLABELLED = "unlabelled"  # the variant of a wheel without a label and a manifest
PLACE_NAME = "torchmill"  # the name of our wheels' place in a project
EXAMPLE = "https://wheels.example, file:///srv/wheels, or the path of a folder"


def offers_of_index(facts: Facts, files: Iterable["IndexFile"]) -> tuple[WheelOffer, ...]:
    """Return the offers among the files of an index; yanked files are left out."""
    offers: list[WheelOffer] = []
    for file in files:
        if not file.yanked:
            offers += _offers_of_file(facts, file.name, file.url, file.sha256, {})
    return tuple(offers)


def listed_variants(names: Iterable[str]) -> frozenset[str]:
    """Return the versions with wheel variants among the names of files: "torch==2.15.0"."""
    pins = set()
    for name in names:
        _, label = file_names.split_label(name)
        if label:
            with contextlib.suppress(InvalidWheelFilename):
                parsed = file_names.parse_name(name)
                pins.add(f"{parsed.project}=={parsed.version}")
    return frozenset(pins)


def is_offer_of(facts: Facts, offer: WheelOffer, release: Release) -> bool:
    """Tell if a wheel is of a release, and built against the base that goes with the release.

    A wheel whose label names no base counts as built against that one.
    """
    if offer.package != release.package:
        return False
    if Version(offer.version.public) != Version(release.version):
        return False
    # A local label cannot have hyphens: packaging writes dots instead.
    base = (facts.packages[release.package].after or "").replace("-", ".")
    return offer.paired in {"", f"{base}{release.torch}"}


def _offers_of_file(
    facts: Facts, file: str, url: str, sha256: str | None, manifest: Mapping[str, Any]
) -> Iterator[WheelOffer]:
    """Yield a wheel once for each platform that it is for; nothing for other files and packages."""
    try:
        package, version, build, tags = parse_wheel_filename(file)
    except InvalidWheelFilename:
        return
    if package not in facts.packages:
        return
    # a platform has several tags: manylinux2014_x86_64, manylinux_2_17_x86_64
    arches: dict[str, Arch] = {}
    for tag in tags:
        arch = platform_of_tag(facts, tag.platform)
        if arch:
            arches[arch.name] = arch
    pythons = _wheel_pythons(facts, package, version, tags)
    for name, arch in arches.items():
        variant, paired = _wheel_variant(facts, version, arch.system, manifest)
        yield WheelOffer(
            package=package,
            version=version,
            variant=variant,
            paired=paired,
            arch=name,
            pythons=pythons,
            file=file,
            url=url,
            sha256=sha256,
            build=build,
        )


def _wheel_variant(
    facts: Facts, version: Version, system: str, manifest: Mapping[str, Any]
) -> tuple[str, str]:
    """Return the variant of a wheel, and the rest of its label, which names its base.

    The variant is told by the label of the version, or else by the manifest.
    """
    variants = {CPU, *(toolkit.variant for toolkit in facts.toolkits)}
    # A wheel that was slimmed for some GPUs serves the same projects as its original.
    labels = [
        label
        for label in (version.local or "").split(".")
        if not finished_wheel.SLIM_LABEL.fullmatch(label)
    ]
    first = labels[0] if labels else ""
    if first in variants:
        return first, ".".join(labels[1:])
    # Wheels for macOS have no labels, because there is no other variant.
    if system == "macos" and not first:
        return CPU, ""
    # A build with another label, or with none, has its toolkit in the manifest.
    if manifest:
        toolkit = facts.toolkit(manifest.get("toolkit"))
        return (toolkit.variant if toolkit else CPU), ""
    return version.local or UNLABELLED, ""


def _wheel_pythons(
    facts: Facts, package: str, version: Version, tags: Iterable[Tag]
) -> tuple[str, ...]:
    """Return the Pythons of a wheel, oldest first.

    "cp310-cp310" is for 3.10. "py3-none" and "cp39-abi3" are for several Pythons: those of the
    release that take such a tag.
    """
    candidates: set[str] = set()
    for release in facts.releases[package]:
        if release.version == version.base_version:
            candidates.update(release.pythons)
    pythons: set[str] = set()
    for tag in tags:
        python = wheel_file.tag_python(tag)
        if python:
            pythons.add(python)
        else:
            pythons.update(python for python in candidates if _takes_tag(python, tag))
    return tuple(sorted(pythons, key=python_key))


def _takes_tag(python: str, tag: Tag) -> bool:
    """Tell if a CPython installs wheels with a tag that is for several Pythons."""
    number = [int(part) for part in python.rstrip("t").split(".")]
    abi = f"cp{python.replace('.', '')}"
    if tag in set(cpython_tags(number, [abi], [tag.platform])):
        return True
    return tag in set(compatible_tags(number, abi, [tag.platform]))


def find_official(
    facts: Facts, release: Release, variant: str, arch: Arch, *, prefer_default: bool = False
) -> PlatformPin | None:
    """Return the pin of a release's official wheels; None if the facts know no such wheels.

    If several indexes have them, `prefer_default` prefers the index that installers ask by
    themselves, PyPI: extensions are built for its wheels.
    """
    offered_places = list(wheel_places(facts, release, variant, arch.name))
    if not offered_places:
        return None
    if prefer_default:
        offered_places.sort(key=lambda offered: not offered.default)
    offered = offered_places[0]
    place = WheelPlace(
        offered.name.format(variant=variant),
        offered.url.format(variant=variant),
        default=offered.default,
    )
    version = release.version + offered.label.format(variant=variant)
    pythons = wheel_pythons(facts, release, arch.name)
    return PlatformPin(
        package=release.package,
        version=version,
        variant=variant,
        arch=arch,
        pythons=pythons,
        place=place,
    )


def read_stock(facts: Facts, layout: Layout, index: str, *, official: bool = False) -> WheelStock:
    """Return the wheels of an index (a URL or a folder), or without one, those in dist/.

    `official` says that official wheels may be used, so that dist/ may have none. Raises
    ConfigError for an invalid URL, DeliveryError if there are no wheels, NetworkError if the index
    does not answer.
    """
    path = index
    if "://" in index or index.startswith("file:"):
        parts = urls.validate_url("--index", index, ("https", "http", "file"), EXAMPLE)
        if parts.scheme != "file":
            return _read_index(facts, index)
        path = url2pathname(parts.path)
    folder = real_path(path) if index else layout.dist
    if folder.is_dir():
        pages = [folder / package / "index.html" for package in facts.packages]
        pages = [page for page in pages if page.is_file()]
        if pages:
            return _read_pages(facts, folder, pages)
        stock = _read_folder(facts, folder)
        problem = "it holds no wheel built here"
    else:
        stock = WheelStock(str(folder), WheelPlace(PLACE_NAME, folder.as_uri(), flat=True), ())
        problem = "no such folder"
    may_be_empty = official and not index
    if not stock.offers and not may_be_empty:
        raise _no_wheels(folder, index, problem)
    return stock


def _no_wheels(folder: Path, index: str, problem: str) -> DeliveryError:
    """Return the error for a folder without wheels."""
    if index:
        return DeliveryError(
            f"--index {index}: {problem}: name a folder of wheels, or what `invoke index` wrote",
            code="no-wheels",
        )
    return DeliveryError(
        f"{folder}: {problem}: build a wheel (`nox -l` lists the sessions), or name an index with "
        "--index",
        code="no-wheels",
    )


def _read_folder(facts: Facts, folder: Path) -> WheelStock:
    """Return the wheels in a folder without pages, which are read for their digests."""
    paths = []
    names = []
    for path in wheel_file.list_wheels(folder):
        file_name = wheel_file.parse_file_name(path)
        names.append(path.name)
        # A variant has the requirements of its plain wheel.
        if file_name.project in facts.packages and not file_name.variant:
            paths.append(path)
    wheels = finished_wheel.read_wheels(paths)
    offers: list[WheelOffer] = []
    for wheel in wheels:
        url = wheel.path.as_uri()
        offers += _offers_of_file(facts, wheel.path.name, url, wheel.sha256, wheel.manifest)
    warnings = requirement_differences(make_entry(wheel, "") for wheel in wheels)
    place = WheelPlace(PLACE_NAME, folder.as_uri(), flat=True)
    return WheelStock(
        str(folder), place, tuple(offers), tuple(warnings), variants=listed_variants(names)
    )


def _read_pages(facts: Facts, folder: Path, pages: Sequence[Path]) -> WheelStock:
    """Return the wheels on the pages of an index in a folder."""
    from torchmill.fetch.package_index import parse_html_page

    files: list[IndexFile] = []
    for page in pages:
        files += parse_html_page(page.read_text("utf-8", "replace"), page.as_uri())
    place = WheelPlace(PLACE_NAME, folder.as_uri())
    variants = listed_variants(file.name for file in files)
    return WheelStock(str(folder), place, offers_of_index(facts, files), variants=variants)


def _read_index(facts: Facts, index: str) -> WheelStock:
    """Return the wheels of an index on a server.

    A login in the URL is used to read the index, and does not get into the snippet.
    """
    from torchmill.fetch.download import http_session
    from torchmill.fetch.package_index import find_project_files

    url = urls.strip_login(index).rstrip("/")
    hint = "check the address of --index, or serve it"
    listed: list[IndexFile] = []
    with http_session() as session:
        for package in facts.packages:
            listed += find_project_files(session, index, package, hint) or ()
    if not listed:
        raise DeliveryError(
            f"--index {url}: it has no page of {' or '.join(facts.packages)}: give the address of "
            "the index itself",
            code="no-wheels",
        )
    files = [replace(file, url=urls.strip_login(file.url)) for file in listed]
    variants = listed_variants(file.name for file in files)
    place = WheelPlace(PLACE_NAME, url)
    return WheelStock(url, place, offers_of_index(facts, files), variants=variants)
