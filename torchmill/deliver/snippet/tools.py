"""Snippets for uv, Poetry, PDM, pip, conda and pixi: requirements (PEP 508), sources and TOML."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from urllib.parse import unquote, urlsplit

from packaging.utils import canonicalize_name
from packaging.version import Version

from torchmill.config.build import Arch
from torchmill.config.facts import Facts
from torchmill.config.versions import python_key
from torchmill.core.errors import ConfigError
from torchmill.deliver.snippet import stock
from torchmill.deliver.snippet.stock import PlatformPin, SnippetDecision, WheelOffer, WheelPlace

Render = Callable[[Sequence[SnippetDecision]], str]
_GLIBC = re.compile(r"manylinux_2_(\d+)")
_OLDEST = 17  # of glibc 2: of the oldest tag that most wheels on PyPI have
PixiValue = str | Mapping[str, str]  # of a package: a version, or where a version comes from


def requirement_lines(decision: SnippetDecision) -> tuple[str, ...]:
    """Return the lines of a project's dependencies, NumPy's at the end."""
    found: list[str] = []
    for package in decision.packages:
        pins = decision.of_package(package)
        named = [pin for pin in pins if not pin.direct]
        for version in dict.fromkeys(pin.version for pin in named):
            marker = _marker(decision, [pin for pin in named if pin.version == version])
            found.append(_with(f"{package}=={version}", marker))
        for pin in pins:
            found += _addresses(decision, pin) if pin.direct else ()
    return (*found, decision.numpy) if decision.numpy else tuple(found)


def source_lines(decision: SnippetDecision, package: str) -> tuple[tuple[WheelPlace, str], ...]:
    """Return where a package comes from, each place with its marker, but for those that are asked anyway."""
    pins = [pin for pin in decision.of_package(package) if not pin.direct and not pin.place.default]
    return tuple(
        (place, _marker(decision, [pin for pin in pins if pin.place == place]))
        for place in dict.fromkeys(pin.place for pin in pins)
    )


def places_to_name(decisions: Sequence[SnippetDecision]) -> tuple[WheelPlace, ...]:
    """Return the places that a project has to name."""
    pins = (pin for decision in decisions for pin in decision.pins)
    return tuple(
        dict.fromkeys(pin.place for pin in pins if not pin.direct and not pin.place.default)
    )


def is_shadowed(decision: SnippetDecision, pin: PlatformPin) -> bool:
    """Tell whether what a pin asks for is also met by a labelled version of the same place.

    `==1.13.1` takes `1.13.1+cpu` too (PEP 440), and there is no way to say that it shall not.
    """
    if Version(pin.version).local:
        return False
    others = (one for one in decision.of_package(pin.package) if one.place == pin.place)
    return any(Version(one.version).local for one in others)


def python_range(pythons: Sequence[str]) -> str:
    """Return requires-python for exactly these: ">=3.10,<3.12", ">=3.10,!=3.11.*,<3.13"."""
    numbers = [python.rstrip("t") for python in pythons]
    major = numbers[0].partition(".")[0]
    minors = sorted({int(number.partition(".")[2]) for number in numbers})
    gaps = [f"!={major}.{one}.*" for one in range(minors[0], minors[-1]) if one not in minors]
    return ",".join([f">={major}.{minors[0]}", *gaps, f"<{major}.{minors[-1] + 1}"])


def _marker(decision: SnippetDecision, pins: Sequence[PlatformPin]) -> str:
    return stock.platforms_marker([pin.arch for pin in pins], decision.platforms)


def _addresses(decision: SnippetDecision, pin: PlatformPin) -> Iterator[str]:
    """Yield a line for each wheel of a pin; where there are several, the Python tells which."""
    here = stock.platforms_marker([pin.arch], decision.platforms)
    for offer in pin.offers:
        numbers = {
            python.rstrip("t")
            for python in pin.pythons
            if python in offer.pythons and len(pin.offers) > 1
        }
        pythons = " or ".join(
            f"python_version == '{number}'" for number in sorted(numbers, key=python_key)
        )
        both = " and ".join(f"({one})" if " or " in one else one for one in (here, pythons) if one)
        yield _with(f"{pin.package} @ {wheel_address(offer)}", both)


def wheel_address(offer: WheelOffer) -> str:
    """Return the address of a wheel with its hash, where that is known."""
    return f"{offer.url}#sha256={offer.sha256}" if offer.sha256 else offer.url


def _with(requirement: str, marker: str) -> str:
    return f"{requirement} ; {marker}" if marker else requirement


def snippet_tools(facts: Facts) -> dict[str, tuple[bool, Render]]:
    """Return, by tool, whether it keeps several variants apart in one project, and what renders for it."""
    pixi = partial(render_pixi, subdirs=facts.conda.subdirs if facts.conda else {})
    return {
        "uv": (True, render_uv),  # as extras that exclude each other
        "poetry": (False, render_poetry),
        "pdm": (False, render_pdm),
        "pip": (False, partial(_fill, "pip.txt")),
        "conda": (False, partial(_fill, "conda.yml")),
        "pixi": (True, pixi),  # as environments
    }


def _newest_glibc(offers: Iterable[WheelOffer]) -> int:
    """Return the minor version of glibc 2 that wheels need; 0 where none says so."""
    return max((int(minor) for one in offers for minor in _GLIBC.findall(one.file)[:1]), default=0)


def render_pdm(decisions: Sequence[SnippetDecision]) -> str:
    """Return pyproject.toml for PDM."""
    decision, *_ = decisions
    named = places_to_name(decisions)
    pins = [pin for pin in decision.pins if not pin.direct]
    ours = {pin.package for pin in pins if pin.place in named}
    # of PyPI those packages, too, that it must be asked for although a source of ours has them
    default = dict.fromkeys(
        pin.place for pin in decision.pins if pin.place.default and pin.package in ours
    )
    sources = {
        place: list(
            dict.fromkeys(pin.package for pin in pins if pin.place == place and pin.package in ours)
        )
        for place in (*named, *default)
    }
    return _fill("pdm.toml", decisions, locking=_locking(decision), sources=sources)


def _locking(decision: SnippetDecision) -> Iterator[str]:
    """Yield the commands that lock: for all platforms at once, or for one after the other."""
    pins = [pin for pin in decision.pins if pin.direct]
    mixed = any(
        len({pin.version for pin in decision.of_package(name)}) > 1 for name in decision.packages
    )
    several = len(decision.platforms) > 1 and (mixed or bool(pins))
    pythons = decision.pythons if any(len(pin.offers) > 1 for pin in pins) else ()
    targets = [
        (f" --platform {_target(decision, arch)}" if several else "")
        + (f' --python "=={python}.*"' if python else "")
        for arch in (decision.platforms if several else decision.platforms[:1])
        for python in (pythons or ("",))
    ]
    for number, target in enumerate(targets):
        yield f"pdm lock{' --append' if number else ''}{target}"


def _target(decision: SnippetDecision, arch: Arch) -> str:
    """Return how PDM calls a platform on which all of its wheels can be installed."""
    if arch.system != "linux":
        return f"{arch.system}_{arch.name}"
    needed = _newest_glibc(
        offer for pin in decision.pins if pin.arch == arch for offer in pin.offers
    )
    return f"manylinux_2_{max(_OLDEST, needed)}_{arch.name}"


def render_pixi(decisions: Sequence[SnippetDecision], subdirs: Mapping[str, str]) -> str:
    """Return pixi.toml; `subdirs` is how conda calls platforms.

    Raises ConfigError for a platform that has no such name, and where Pythons cannot be kept apart.
    """
    platforms = decisions[0].platforms
    if unknown := [arch for arch in platforms if arch.name not in subdirs]:
        known = ", ".join(subdirs) or "none"
        raise ConfigError(
            f"--platform {stock.platform_name(unknown[0])}: conda.toml has no pixi platform for it, only {known}",
            code="no-conda-platform",
        )
    names = {arch.name: subdirs[arch.name] for arch in platforms}
    tables: dict[str, Mapping[str, PixiValue]] = {}
    for one in decisions:
        tables |= _tables(
            one, names, f"feature.{canonicalize_name(one.variant)}." if len(decisions) > 1 else ""
        )
    return _fill(
        "pixi.toml",
        decisions,
        subdirs=names.values(),
        glibc=_newest_glibc(offer for one in decisions for pin in one.pins for offer in pin.offers),
        folders=[
            unquote(urlsplit(place.url).path) for place in places_to_name(decisions) if place.flat
        ],
        tables=tables,
    )


def _tables(
    decision: SnippetDecision, names: Mapping[str, str], prefix: str
) -> dict[str, dict[str, PixiValue]]:
    """Return what is the same everywhere, and a table for each platform of what is not."""
    common: dict[str, PixiValue] = {}
    own: dict[str, dict[str, PixiValue]] = {arch: {} for arch in names}
    for package in decision.packages:
        values = {pin.arch.name: _pixi_value(pin) for pin in decision.of_package(package)}
        first, *others = values.values()
        if all(other == first for other in others):
            common[package] = first
        else:
            for arch, value in values.items():
                own[arch][package] = value
    if decision.numpy:
        common["numpy"] = decision.numpy.removeprefix("numpy")
    found = {"": common} | {f"target.{subdir}.": own[arch] for arch, subdir in names.items()}
    return {f"{prefix}{where}pypi-dependencies": table for where, table in found.items() if table}


def _pixi_value(pin: PlatformPin) -> PixiValue:
    if pin.direct:
        if len(pin.offers) > 1:
            raise ConfigError(
                f"--direct: pixi has no markers, and {pin.package} has a separate wheel for each of Python "
                f"{', '.join(pin.pythons)}: leave --direct out, or use another tool",
                code="pixi-needs-one-wheel",
            )
        return {"url": wheel_address(pin.offers[0])}
    version = f"=={pin.version}"
    if pin.place.default or pin.place.flat:
        return version
    return {"version": version, "index": pin.place.url}


def render_poetry(decisions: Sequence[SnippetDecision]) -> str:
    """Return pyproject.toml for Poetry 2, which is given the address of what it could not find or tell apart."""
    asked, *_ = decisions
    unclear = [
        pin for pin in asked.pins if pin.place.url.startswith("file:") or is_shadowed(asked, pin)
    ]
    pins = (
        replace(pin, direct=True) if pin.offers and pin in unclear else pin for pin in asked.pins
    )
    decision = replace(asked, pins=tuple(pins))
    tables = {
        package: [
            ({"markers": marker} if marker else {}) | {"source": place.name}
            for place, marker in source_lines(decision, package)
        ]
        for package in decision.packages
    }
    return _fill("poetry.toml", [decision], tables=tables, by_address=decision != asked)


def render_uv(decisions: Sequence[SnippetDecision]) -> str:
    """Return pyproject.toml for uv."""
    tables = {
        package: [
            {"index": place.name}
            | ({"extra": canonicalize_name(one.variant)} if len(decisions) > 1 else {})
            | ({"marker": marker} if marker else {})
            for one in decisions
            for place, marker in source_lines(one, package)
        ]
        for package in decisions[0].packages
    }
    markers = [stock.platform_marker(arch) for arch in decisions[0].platforms]
    return _fill("uv.toml", decisions, tables=tables, markers=markers)


def _fill(file: str, decisions: Sequence[SnippetDecision], **values: object) -> str:
    """Return the file of a tool: its template with `values`, and with what all of them say."""
    from torchmill.deliver.templates import fill_template

    first, *_ = decisions
    text = fill_template(
        f"{file}.jinja",
        first=first,
        where=", ".join(stock.platform_name(arch) for arch in first.platforms),
        notes=dict.fromkeys(note for decision in decisions for note in decision.notes),
        python_range=python_range(
            [each for each in first.pythons if all(each in one.pythons for one in decisions)]
        ),
        requirements={canonicalize_name(one.variant): requirement_lines(one) for one in decisions},
        places=places_to_name(decisions),
        **values,
    )
    return text.rstrip("\n")
