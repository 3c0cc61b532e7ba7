"""`invoke snippet`: what a project declares to use the wheels, for uv, Poetry, PDM, pip, conda or pixi."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

from packaging.utils import canonicalize_name

from torchmill.config import selection
from torchmill.config.build import CPU, Arch
from torchmill.config.facts import Facts
from torchmill.config.official_wheels import wheel_places
from torchmill.config.release import Release
from torchmill.config.release_lookup import base_package, paired_release, partner_releases
from torchmill.core.errors import ConfigError, DeliveryError, parse_option
from torchmill.core.paths import Layout
from torchmill.deliver.snippet import project_file
from torchmill.deliver.snippet.decision import decide
from torchmill.deliver.snippet.stock import (
    SnippetRequest,
    WheelOffer,
    WheelStock,
    find_platforms,
    is_offer_of,
    read_stock,
)
from torchmill.deliver.snippet.tools import snippet_tools
from torchmill.host import native

_OF_PYPROJECT = ("uv", "poetry", "pdm")


def write_snippet(  # noqa: PLR0917 - every one is an option
    facts: Facts,
    layout: Layout,
    tool: str = "",
    package: list[str] | None = None,
    tag: str = "",
    variant: list[str] | None = None,
    platform: list[str] | None = None,
    index: str = "",
    direct: bool = False,
    into: str = "",
    extra: str = "",
) -> str:
    """Print what a project needs to use the wheels, for uv, pip, others."""
    tools = snippet_tools(facts)
    if tool not in tools:
        raise ConfigError(
            f"--tool {tool or 'is missing'}: choose from {', '.join(tools)}", code="unknown-tool"
        )
    several, render = tools[tool]
    variants = tuple(dict.fromkeys(variant or ()))
    if len(variants) > 1 and not several:
        raise ConfigError(
            f"--variant {' --variant '.join(variants)}: {tool} cannot keep two apart in one project: name "
            "one, or use uv or pixi",
            code="several-variants",
        )
    if (into and tool not in _OF_PYPROJECT) or (extra and (not into or len(variants) > 1)):
        raise ConfigError(
            f"--into edits the pyproject.toml of {', '.join(_OF_PYPROJECT)}; --extra needs it, and only one --variant",
            code="contradictory-options",
        )
    if extra:
        parse_option("--extra", extra, partial(canonicalize_name, validate=True), "invalid-extra")
    wanted = find_platforms(facts, platform or ())
    chosen = selection.selected_release(facts, layout, tag)
    stock = read_stock(facts, layout, index, official=chosen is not None)
    base = _release(facts, chosen, stock)
    ours = _base_offers(facts, stock, base)
    there = tuple(sorted({one.variant for one in ours}))
    if len(there) > 1 and not variants:
        raise ConfigError(
            f"{stock.title} has {base} as {', '.join(there)}: name one with --variant (uv and pixi take several)",
            code="several-variants",
        )
    variants = variants or there or _require_variant(facts, base)
    wanted = wanted or _served(facts, ours, variants, base, stock)
    names = package or ()
    if into and not package:  # a project gets the packages that it names, and the base
        names = [
            name for name in project_file.declared_packages(Path(into)) if name in facts.packages
        ] or [base.package]
    releases = _releases(facts, stock, base, variants, names)
    requests = [
        SnippetRequest(releases, one, wanted, native.native_arch(), direct) for one in variants
    ]
    decisions = [decide(facts, stock, request) for request in requests]
    if not set.intersection(*(set(one.pythons) for one in decisions)):
        pythons = "; ".join(f"{one.variant}: {', '.join(one.pythons)}" for one in decisions)
        raise DeliveryError(
            f"no Python has wheels of all variants ({pythons}): name one", code="no-common-python"
        )
    text = render(decisions)
    if not into:
        return text
    told = (
        line.removeprefix("# ") for line in text.partition("\n\n")[0].splitlines()
    )  # at the snippet's top
    return "\n".join([project_file.edit_project(Path(into), text, tool, extra), *told])


def _release(facts: Facts, chosen: Release | None, stock: WheelStock) -> Release:
    """Return the selected release, or the newest with a wheel, or with an extension built against it.

    Raises DeliveryError if there is none.
    """
    package = base_package(facts).name
    if chosen and not stock.offers:
        return chosen  # of which the official wheels are meant
    for release in [chosen] if chosen else reversed(facts.releases[package]):
        if _base_offers(facts, stock, release):
            return release
    has = (
        ", ".join(sorted({str(one.version) for one in stock.offers if one.package == package}))
        or "none"
    )
    wanted = chosen or f"a known release of {package}"
    raise DeliveryError(
        f"{stock.title} has no wheel of {wanted} (of {package}: {has}): build it, name another release with "
        "--tag, or another index with --index",
        code="no-such-wheel",
    )


def _base_offers(facts: Facts, stock: WheelStock, base: Release) -> list[WheelOffer]:
    """Return the wheels of a release of the base; if there are none, those of extensions that were built against it."""
    ours = [offer for offer in stock.offers if is_offer_of(facts, offer, base)]
    paired = [offer for offer in stock.offers if offer.paired == f"{base.package}{base.version}"]
    return ours or paired


def _require_variant(facts: Facts, base: Release) -> tuple[str, ...]:
    """Raise DeliveryError: nothing says which official wheel is meant."""
    named = [CPU, *(toolkit.variant for toolkit in facts.toolkits)]
    known = ", ".join(variant for variant in named if _is_official(facts, base, variant))
    raise DeliveryError(
        f"there is no wheel of ours, and {base} has official ones as {known}: name one with --variant",
        code="no-wheels",
    )


def _is_official(facts: Facts, base: Release, variant: str) -> bool:
    """Tell whether there are official wheels of a variant for any machine."""
    places = [place for arch in facts.arches for place in wheel_places(facts, base, variant, arch)]
    return bool(places)


def _served(
    facts: Facts,
    ours: Sequence[WheelOffer],
    variants: Sequence[str],
    base: Release,
    stock: WheelStock,
) -> tuple[Arch, ...]:
    """Return the platforms that have wheels; without any of ours, this machine. Raises DeliveryError for none."""
    if not stock.offers:
        return tuple(arch for arch in facts.arches.values() if arch.name == native.native_arch())
    names = {one.arch for one in ours if one.variant in variants}
    if not names:
        has = ", ".join(sorted({one.variant for one in ours}))
        raise DeliveryError(
            f"{stock.title} has no wheel of {base} as {', '.join(variants)}, but as {has}: name one of "
            "these, or name with --platform what the official wheels are to be taken for",
            code="no-such-wheel",
        )
    return tuple(arch for arch in facts.arches.values() if arch.name in names)


def _releases(
    facts: Facts, stock: WheelStock, base: Release, variants: Sequence[str], names: Sequence[str]
) -> tuple[Release, ...]:
    """Return the base and the releases of the named packages, or of all that there are such wheels of.

    Raises ConfigError for a name that is no package, UnknownReleaseError where none goes with the base.
    """
    if names:
        asked = partner_releases(facts, base, names)
    else:
        paired = (paired_release(facts, name, base) for name in facts.packages)
        offers = [one for one in stock.offers if one.variant in variants]
        asked = tuple(
            one for one in paired if one and any(is_offer_of(facts, each, one) for each in offers)
        )
    return (base, *(one for one in asked if one != base))
