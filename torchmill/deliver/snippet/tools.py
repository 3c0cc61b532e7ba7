"""Snippets for uv, Poetry, PDM, Hatch, pip, conda and pixi: requirements (PEP 508), sources, TOML.

A *pin* is the decision for one package on one platform; a *direct* pin names its wheels by their
URLs, and needs no *place*, the index or folder that a tool fetches wheels from. A *default* place
is one that tools ask anyway, PyPI; a *flat* place is a folder of wheels. `model` has the values.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple
from urllib.parse import unquote, urlsplit

from packaging.utils import canonicalize_name
from packaging.version import Version

from torchmill.config.build import Arch
from torchmill.config.facts import Facts
from torchmill.config.versions import python_key
from torchmill.core.errors import ConfigError
from torchmill.deliver.snippet.model import PlatformPin, SnippetDecision, WheelOffer, WheelPlace
from torchmill.deliver.snippet.platforms import platform_marker, platform_name, platforms_marker

# Returns the file of a tool for the decisions of a project, one for each variant.
Render = Callable[[Sequence[SnippetDecision]], str]

# The value of a package in pixi.toml: a version, or a table with the source of a version.
PixiValue = str | Mapping[str, str]

_GLIBC = re.compile(r"manylinux_2_(\d+)")

# The minor version of glibc 2 in the oldest tag that most wheels on PyPI have.
_OLDEST_GLIBC = 17


class SnippetTool(NamedTuple):
    """A tool that reads a snippet."""

    takes_several: bool  # variants in one project
    render: Render


def snippet_tools(facts: Facts) -> dict[str, SnippetTool]:
    """Return the tools by their names, without `pylock`, whose file another module has uv write."""
    subdirs = facts.conda.subdirs if facts.conda else {}
    return {
        # variants become extras that exclude each other
        "uv": SnippetTool(takes_several=True, render=render_uv),
        "poetry": SnippetTool(takes_several=False, render=render_poetry),
        "pdm": SnippetTool(takes_several=False, render=render_pdm),
        "hatch": SnippetTool(takes_several=False, render=render_hatch),
        "pip": SnippetTool(takes_several=False, render=partial(fill_snippet, "pip.txt")),
        "conda": SnippetTool(takes_several=False, render=partial(fill_snippet, "conda.yml")),
        # variants become environments
        "pixi": SnippetTool(takes_several=True, render=partial(render_pixi, subdirs=subdirs)),
    }


def requirement_lines(decision: SnippetDecision) -> tuple[str, ...]:
    """Return the lines of a project's dependencies, NumPy's at the end."""
    lines: list[str] = []
    for package in decision.packages:
        pins = decision.of_package(package)
        indexed = [pin for pin in pins if not pin.direct]
        for version in dict.fromkeys(pin.version for pin in indexed):
            same_version = [pin for pin in indexed if pin.version == version]
            marker = _pins_marker(decision, same_version)
            lines.append(_with_marker(f"{package}=={version}", marker))
        # A URL is that of a wheel for one platform, so each platform has a line of its own.
        for pin in pins:
            if pin.direct:
                lines += _url_lines(decision, pin)
    if decision.numpy:
        lines.append(decision.numpy)
    return tuple(lines)


def _url_lines(decision: SnippetDecision, pin: PlatformPin) -> list[str]:
    """Return a requirement for each wheel of a pin, by URL.

    If there are several wheels, a marker names the Pythons of each.
    """
    platform = platforms_marker([pin.arch], decision.platforms)
    lines = []
    for offer in pin.offers:
        markers = [platform] if platform else []
        if len(pin.offers) > 1:
            served = [python for python in pin.pythons if python in offer.pythons]
            numbers = sorted({python.rstrip("t") for python in served}, key=python_key)
            pythons = [f"python_version == '{number}'" for number in numbers]
            if pythons:
                markers.append(" or ".join(pythons))
        operands = [f"({marker})" if " or " in marker else marker for marker in markers]
        requirement = f"{pin.package} @ {wheel_url(offer)}"
        lines.append(_with_marker(requirement, " and ".join(operands)))
    return lines


def wheel_url(offer: WheelOffer) -> str:
    """Return the URL of a wheel with its hash, if that is known."""
    return f"{offer.url}#sha256={offer.sha256}" if offer.sha256 else offer.url


def _pins_marker(decision: SnippetDecision, pins: Sequence[PlatformPin]) -> str:
    """Return the marker that is true on the platforms of these pins; "" if these are all."""
    return platforms_marker([pin.arch for pin in pins], decision.platforms)


def _with_marker(requirement: str, marker: str) -> str:
    return f"{requirement} ; {marker}" if marker else requirement


class MarkedPlace(NamedTuple):
    """A place that a project has to name for a package, and the platforms that it is for."""

    place: WheelPlace
    marker: str  # "" on all platforms


def package_sources(decision: SnippetDecision, package: str) -> tuple[MarkedPlace, ...]:
    """Return the places that a project has to name for a package."""
    pins = [pin for pin in decision.of_package(package) if _needs_place(pin)]
    sources = []
    for place in dict.fromkeys(pin.place for pin in pins):
        same_place = [pin for pin in pins if pin.place == place]
        sources.append(MarkedPlace(place, _pins_marker(decision, same_place)))
    return tuple(sources)


def places_to_name(decisions: Sequence[SnippetDecision]) -> tuple[WheelPlace, ...]:
    """Return the places that a project has to name for any of its packages."""
    places = []
    for decision in decisions:
        places += [pin.place for pin in decision.pins if _needs_place(pin)]
    return tuple(dict.fromkeys(places))


def _needs_place(pin: PlatformPin) -> bool:
    """Tell if a project has to name the place of a pin."""
    return not pin.direct and not pin.place.default


def is_shadowed(decision: SnippetDecision, pin: PlatformPin) -> bool:
    """Tell if installers can take another wheel than that of a pin, whose version has no label.

    `==1.13.1` also takes `1.13.1+cpu` (PEP 440) if the same place has it, and there is no way to
    exclude that.
    """
    if Version(pin.version).local:
        return False
    same_place = [other for other in decision.of_package(pin.package) if other.place == pin.place]
    return any(Version(other.version).local for other in same_place)


def python_range(pythons: Sequence[str]) -> str:
    """Return requires-python for exactly these Pythons, at least one: ">=3.10,!=3.11.*,<3.13"."""
    numbers = [python.rstrip("t") for python in pythons]
    major = numbers[0].partition(".")[0]
    minors = sorted({int(number.partition(".")[2]) for number in numbers})
    first = minors[0]
    last = minors[-1]
    gaps = [f"!={major}.{minor}.*" for minor in range(first, last) if minor not in minors]
    return ",".join([f">={major}.{first}", *gaps, f"<{major}.{last + 1}"])


def render_uv(decisions: Sequence[SnippetDecision]) -> str:
    """Return pyproject.toml for uv."""
    platforms = decisions[0].platforms
    tables = {}
    for package in decisions[0].packages:
        sources = []
        for decision in decisions:
            for source in package_sources(decision, package):
                entry = {"index": source.place.name}
                if len(decisions) > 1:
                    entry["extra"] = canonicalize_name(decision.variant)
                if source.marker:
                    entry["marker"] = source.marker
                sources.append(entry)
        tables[package] = sources
    markers = [platform_marker(arch) for arch in platforms]
    return fill_snippet("uv.toml", decisions, tables=tables, markers=markers)


def render_poetry(decisions: Sequence[SnippetDecision]) -> str:
    """Return pyproject.toml for Poetry 2.

    Wheels that Poetry cannot find by their version, as in a local folder, or cannot tell from other
    wheels (`is_shadowed`) are named by their URLs.
    """
    requested = decisions[0]
    pins = []
    for pin in requested.pins:
        is_local = pin.place.url.startswith("file:")
        if pin.offers and (is_local or is_shadowed(requested, pin)):
            pins.append(replace(pin, direct=True))
        else:
            pins.append(pin)
    decision = replace(requested, pins=tuple(pins))
    tables = {}
    for package in decision.packages:
        sources = []
        for source in package_sources(decision, package):
            entry = {"markers": source.marker} if source.marker else {}
            entry["source"] = source.place.name
            sources.append(entry)
        tables[package] = sources
    named_by_url = decision != requested
    return fill_snippet("poetry.toml", [decision], tables=tables, named_by_url=named_by_url)


def render_pdm(decisions: Sequence[SnippetDecision]) -> str:
    """Return pyproject.toml for PDM."""
    decision = decisions[0]
    pins = [pin for pin in decision.pins if not pin.direct]
    places = list(places_to_name(decisions))
    packages = {pin.package for pin in pins if pin.place in places}
    # Once a place is named for a package, PDM asks PyPI for it only if PyPI is named for it, too.
    places += [pin.place for pin in decision.pins if pin.place.default and pin.package in packages]
    sources = {}
    for place in dict.fromkeys(places):
        placed_pins = [pin for pin in pins if pin.place == place and pin.package in packages]
        sources[place] = list(dict.fromkeys(pin.package for pin in placed_pins))
    commands = _lock_commands(decision)
    return fill_snippet("pdm.toml", decisions, locking=commands, sources=sources)


def render_hatch(decisions: Sequence[SnippetDecision]) -> str:
    """Return pyproject.toml for Hatch, which installs by uv.

    Hatch has no indexes of its own: uv reads them from variables of the environment. It takes a
    package from the first index that has it, and asks PyPI last.
    """
    decision = decisions[0]
    places = places_to_name(decisions)
    variables = {}
    indexes = [place.url for place in places if not place.flat]
    folders = [place.url for place in places if place.flat]
    if indexes:
        variables["UV_INDEX"] = " ".join(indexes)
    if folders:
        variables["UV_FIND_LINKS"] = " ".join(folders)
    if any(len({pin.place for pin in decision.of_package(name)}) > 1 for name in decision.packages):
        # Another platform's version of a package is at another place.
        variables["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    has_addresses = any(pin.direct for pin in decision.pins)
    return fill_snippet("hatch.toml", decisions, variables=variables, has_addresses=has_addresses)


def _lock_commands(decision: SnippetDecision) -> list[str]:
    """Return the commands of PDM that lock a project.

    One command locks for all platforms if the same lines are true for all of them. If platforms
    have different versions or URLs, each is locked by itself; if Pythons have different URLs, each
    Python is, too.
    """
    direct_pins = [pin for pin in decision.pins if pin.direct]
    versions_differ = False
    for package in decision.packages:
        versions = {pin.version for pin in decision.of_package(package)}
        versions_differ = versions_differ or len(versions) > 1
    by_platform = len(decision.platforms) > 1 and (versions_differ or bool(direct_pins))
    platforms = decision.platforms if by_platform else decision.platforms[:1]
    by_python = any(len(pin.offers) > 1 for pin in direct_pins)
    pythons = decision.pythons if by_python else ("",)
    commands: list[str] = []
    for arch in platforms:
        for python in pythons:
            command = "pdm lock --append" if commands else "pdm lock"
            if by_platform:
                command += f" --platform {_pdm_platform(decision, arch)}"
            if python:
                command += f' --python "=={python}.*"'
            commands.append(command)
    return commands


def _pdm_platform(decision: SnippetDecision, arch: Arch) -> str:
    """Return PDM's name of a platform: "manylinux_2_28_x86_64", "macos_arm64".

    For Linux it has the oldest glibc with which all wheels for the platform run.
    """
    if arch.system != "linux":
        return f"{arch.system}_{arch.name}"
    glibc = _newest_glibc(pin for pin in decision.pins if pin.arch == arch)
    return f"manylinux_2_{max(_OLDEST_GLIBC, glibc)}_{arch.name}"


def _newest_glibc(pins: Iterable[PlatformPin]) -> int:
    """Return the minor version of the newest glibc 2 in the tags of these pins' wheels, or 0."""
    minors = [0]
    for pin in pins:
        for offer in pin.offers:
            match = _GLIBC.search(offer.file)
            if match:
                minors.append(int(match[1]))
    return max(minors)


def render_pixi(decisions: Sequence[SnippetDecision], subdirs: Mapping[str, str]) -> str:
    """Return pixi.toml; `subdirs` are conda's names of platforms ("linux-64"), by arch.

    Raises ConfigError for a platform without such a name. Raises it also for a direct pin with a
    separate wheel for each Python, because pixi has no markers to choose among them.
    """
    names = {}
    for arch in decisions[0].platforms:
        if arch.name not in subdirs:
            raise ConfigError(
                f"--platform {platform_name(arch)}: conda.toml has no pixi platform for it, only "
                f"{', '.join(subdirs) or 'none'}",
                code="no-conda-platform",
            )
        names[arch.name] = subdirs[arch.name]
    tables: dict[str, Mapping[str, PixiValue]] = {}
    pins: list[PlatformPin] = []
    for decision in decisions:
        prefix = ""
        if len(decisions) > 1:
            prefix = f"feature.{canonicalize_name(decision.variant)}."
        tables |= _pixi_tables(decision, names, prefix)
        pins += decision.pins
    folder_urls = [place.url for place in places_to_name(decisions) if place.flat]
    return fill_snippet(
        "pixi.toml",
        decisions,
        subdirs=names.values(),
        glibc=_newest_glibc(pins),
        folders=[unquote(urlsplit(url).path) for url in folder_urls],
        tables=tables,
    )


def _pixi_tables(
    decision: SnippetDecision, subdirs: Mapping[str, str], prefix: str
) -> dict[str, dict[str, PixiValue]]:
    """Return the tables of dependencies by their headings: one for all platforms, and one for each.

    pixi has no markers: a package that has not the same value on all platforms goes into the tables
    of the platforms. The keys of `subdirs` are arches. Headings begin with `prefix`.
    """
    common: dict[str, PixiValue] = {}
    by_arch: dict[str, dict[str, PixiValue]] = {arch: {} for arch in subdirs}
    for package in decision.packages:
        values = {pin.arch.name: _pixi_value(pin) for pin in decision.of_package(package)}
        first = next(iter(values.values()))
        if all(value == first for value in values.values()):
            common[package] = first
        else:
            for arch, value in values.items():
                by_arch[arch][package] = value
    if decision.numpy:
        common["numpy"] = decision.numpy.removeprefix("numpy")
    tables = {f"{prefix}pypi-dependencies": common}
    for arch, subdir in subdirs.items():
        tables[f"{prefix}target.{subdir}.pypi-dependencies"] = by_arch[arch]
    return {heading: table for heading, table in tables.items() if table}


def _pixi_value(pin: PlatformPin) -> PixiValue:
    """Return the value of a pinned package in pixi.toml."""
    if pin.direct:
        if len(pin.offers) > 1:
            raise ConfigError(
                f"--direct: pixi has no markers, and {pin.package} has a separate wheel for each "
                f"of Python {', '.join(pin.pythons)}: leave --direct out, or use another tool",
                code="pixi-needs-one-wheel",
            )
        return {"url": wheel_url(pin.offers[0])}
    version = f"=={pin.version}"
    # pixi takes no folder as an index: it is among the find-links of the whole project.
    if pin.place.default or pin.place.flat:
        return version
    return {"version": version, "index": pin.place.url}


def fill_snippet(file: str, decisions: Sequence[SnippetDecision], **values: object) -> str:
    """Return the file of a tool: its template with `values`, and with the values of all tools."""
    from torchmill.deliver.templates import fill_template

    first = decisions[0]
    notes: dict[str, None] = {}
    requirements = {}
    pythons = list(first.pythons)
    # One project has one requires-python: the Pythons that all its variants have.
    for decision in decisions:
        notes |= dict.fromkeys(decision.notes)
        requirements[canonicalize_name(decision.variant)] = requirement_lines(decision)
        pythons = [python for python in pythons if python in decision.pythons]
    text = fill_template(
        f"{file}.jinja",
        first=first,
        platforms=", ".join(platform_name(arch) for arch in first.platforms),
        notes=notes,
        python_range=python_range(pythons),
        requirements=requirements,
        places=places_to_name(decisions),
        **values,
    )
    return text.rstrip("\n")
