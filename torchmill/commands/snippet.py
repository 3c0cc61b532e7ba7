"""`invoke snippet`: the declarations of a project that uses the wheels, for uv, pip and others.

The *stock* is the wheels of dist/ or of an index; an *offer* is one wheel of it. The *base* is the
release of torch that the project gets; extensions are built against it.
"""

from collections.abc import Sequence
from dataclasses import replace
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
from torchmill.deliver.snippet.model import (
    SnippetDecision,
    SnippetRequest,
    WheelOffer,
    WheelStock,
)
from torchmill.deliver.snippet.platforms import find_platforms
from torchmill.deliver.snippet.stock import is_offer_of, read_stock
from torchmill.deliver.snippet.tools import Render, SnippetTool, snippet_tools
from torchmill.host import native

_PYPROJECT_TOOLS = ("uv", "poetry", "pdm")  # whose settings --into edits


def write_snippet(
    facts: Facts,
    layout: Layout,
    *,
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
    """Return the declarations of a project that uses the wheels; with `into`, edit its file.

    Raises ConfigError for options that do not go together, DeliveryError if there are no such
    wheels.
    """
    variants = list(dict.fromkeys(variant or ()))
    render = _renderer(facts, tool, variants)
    _refuse_edit_options(tool, variants, into, extra)
    platforms = find_platforms(facts, platform or ())
    selected = selection.selected_release(facts, layout, tag)
    stock = read_stock(facts, layout, index, official=selected is not None)
    base = _base_release(facts, selected, stock)
    offers = _base_offers(facts, stock, base)
    variants = variants or _only_variant(facts, stock, base, offers)
    platforms = platforms or _served_platforms(facts, offers, variants, base, stock)
    names: Sequence[str] = package or ()
    if into and not package:
        # The file gets sources for the packages that it depends on, or else for torch.
        declared = project_file.declared_packages(Path(into))
        names = [name for name in declared if name in facts.packages] or [base.package]
    releases = _releases(facts, stock, base, variants, names)
    decisions = []
    for variant_name in variants:
        request = SnippetRequest(releases, variant_name, platforms, native.native_arch(), direct)
        decisions.append(decide(facts, stock, request))
    if tool == "uv":
        decisions = [with_variant_notes(decision, stock) for decision in decisions]
    # All variants are declared in one project, which has one range of Pythons.
    common = set.intersection(*(set(decision.pythons) for decision in decisions))
    if not common:
        pythons = "; ".join(
            f"{decision.variant}: {', '.join(decision.pythons)}" for decision in decisions
        )
        raise DeliveryError(
            f"no Python has wheels of all variants ({pythons}): name one", code="no-common-python"
        )
    snippet = render(decisions)
    if not into:
        return snippet
    # The comments at the top of a snippet are notes for whoever uses it.
    notes = snippet.partition("\n\n")[0].splitlines()
    lines = [project_file.edit_project(Path(into), snippet, tool, extra)]
    lines += [note.removeprefix("# ") for note in notes]
    return "\n".join(lines)


def with_variant_notes(decision: SnippetDecision, stock: WheelStock) -> SnippetDecision:
    """Return a decision for uv with notes on the wheel variants of its pins, if there are any."""
    pins = {f"{pin.package}=={pin.version}" for pin in decision.pins if pin.offers}
    chosen = sorted(pins.intersection(stock.variants))
    if not chosen:
        return decision
    from torchmill.deliver import variant_resolver

    notes = (
        f"{', '.join(chosen)}: its variants are a draft. uv chooses by GPU and processor with",
        f"  uv pip install --preview-features {variant_resolver.PREVIEW} -r pyproject.toml",
        f"from {variant_resolver.OLDEST_UV} on; `uv lock` and `uv sync` take the plain wheel.",
    )
    return replace(decision, notes=(*decision.notes, *notes))


def _renderer(facts: Facts, tool: str, variants: Sequence[str]) -> Render:
    """Return the function that writes the snippet of a tool.

    Raises ConfigError for an unknown tool, and for several variants if the tool cannot have them.
    """
    tools = snippet_tools(facts)
    tools["pylock"] = SnippetTool(takes_several=False, render=_render_pylock)
    if tool not in tools:
        raise ConfigError(
            f"--tool {tool or 'is missing'}: choose from {', '.join(tools)}", code="unknown-tool"
        )
    takes_several, render = tools[tool]
    if len(variants) > 1 and not takes_several:
        raise ConfigError(
            f"--variant {' --variant '.join(variants)}: {tool} cannot keep two apart in one "
            "project: name one, or use uv or pixi",
            code="several-variants",
        )
    return render


def _render_pylock(decisions: Sequence[SnippetDecision]) -> str:
    """Return pylock.toml, which uv writes: the module that runs uv is loaded for it alone."""
    from torchmill.deliver.snippet import lock_file

    return lock_file.render_pylock(decisions)


def _refuse_edit_options(tool: str, variants: Sequence[str], into: str, extra: str) -> None:
    """Raise ConfigError if --into or --extra does not go with the other options."""
    cannot_edit = into and tool not in _PYPROJECT_TOOLS
    cannot_be_extra = extra and (not into or len(variants) > 1)
    if cannot_edit or cannot_be_extra:
        raise ConfigError(
            f"--into edits the pyproject.toml of {', '.join(_PYPROJECT_TOOLS)}; --extra needs it, "
            "and only one --variant",
            code="contradictory-options",
        )
    if extra:
        parse_option("--extra", extra, partial(canonicalize_name, validate=True), "invalid-extra")


def _base_release(facts: Facts, selected: Release | None, stock: WheelStock) -> Release:
    """Return the selected release, or the newest one that has an offer (`_base_offers`).

    Raises DeliveryError if there is none, or if the stock has wheels but none of the selected one.
    """
    package = base_package(facts).name
    if selected and not stock.offers:
        return selected  # the project will get its official wheels
    candidates = [selected] if selected else reversed(facts.releases[package])
    for release in candidates:
        if _base_offers(facts, stock, release):
            return release
    versions = {str(offer.version) for offer in stock.offers if offer.package == package}
    listed = ", ".join(sorted(versions)) or "none"
    raise DeliveryError(
        f"{stock.title} has no wheel of {selected or f'a known release of {package}'} "
        f"(of {package}: {listed}): build it, name another release with --tag, or another index "
        "with --index",
        code="no-such-wheel",
    )


def _base_offers(facts: Facts, stock: WheelStock, base: Release) -> list[WheelOffer]:
    """Return the wheels of a release of torch, or else of the extensions that are built against it.

    An index may have extensions alone: the torch for them is the official wheel.
    """
    offers = [offer for offer in stock.offers if is_offer_of(facts, offer, base)]
    if offers:
        return offers
    return [offer for offer in stock.offers if offer.paired == f"{base.package}{base.version}"]


def _only_variant(
    facts: Facts, stock: WheelStock, base: Release, offers: Sequence[WheelOffer]
) -> list[str]:
    """Return the one variant that all of some wheels have, as a list of one.

    Raises ConfigError if they have several, DeliveryError if there are no wheels: then there may be
    official wheels of several variants, and the user has to name one.
    """
    variants = sorted({offer.variant for offer in offers})
    if len(variants) > 1:
        raise ConfigError(
            f"{stock.title} has {base} as {', '.join(variants)}: name one with --variant (uv and "
            "pixi take several)",
            code="several-variants",
        )
    if variants:
        return variants
    candidates = [CPU, *(toolkit.variant for toolkit in facts.toolkits)]
    official = [name for name in candidates if _is_official(facts, base, name)]
    raise DeliveryError(
        f"there is no wheel of ours, and {base} has official ones as {', '.join(official)}: name "
        "one with --variant",
        code="no-wheels",
    )


def _is_official(facts: Facts, base: Release, variant: str) -> bool:
    """Tell whether there are official wheels of a variant for any machine."""
    return any(any(wheel_places(facts, base, variant, arch)) for arch in facts.arches)


def _served_platforms(
    facts: Facts,
    offers: Sequence[WheelOffer],
    variants: Sequence[str],
    base: Release,
    stock: WheelStock,
) -> tuple[Arch, ...]:
    """Return the platforms that have wheels of some variants; this machine without any stock.

    Raises DeliveryError if the stock has wheels, but none of these variants.
    """
    if not stock.offers:
        names = {native.native_arch()}
    else:
        names = {offer.arch for offer in offers if offer.variant in variants}
    if not names:
        present = ", ".join(sorted({offer.variant for offer in offers}))
        raise DeliveryError(
            f"{stock.title} has no wheel of {base} as {', '.join(variants)}, but as {present}: "
            "name one of these, or name with --platform what the official wheels are to be taken "
            "for",
            code="no-such-wheel",
        )
    return tuple(arch for arch in facts.arches.values() if arch.name in names)


def _releases(
    facts: Facts, stock: WheelStock, base: Release, variants: Sequence[str], names: Sequence[str]
) -> tuple[Release, ...]:
    """Return the base and the releases of packages that go with it.

    They are the named packages, or all that have a wheel of some variants. Raises ConfigError for a
    name that is no package, UnknownReleaseError if no release of it goes with the base.
    """
    if names:
        partners = list(partner_releases(facts, base, names))
    else:
        offers = [offer for offer in stock.offers if offer.variant in variants]
        partners = []
        for name in facts.packages:
            release = paired_release(facts, name, base)
            if release and any(is_offer_of(facts, offer, release) for offer in offers):
                partners.append(release)
    return (base, *(release for release in partners if release != base))
