"""What `invoke snippet` does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torchmill import host, matrix, selection
from torchmill.deliver.snippet import pdm, pip, pixi, platforms, poetry, shelf, uv
from torchmill.deliver.snippet.deciding import decide
from torchmill.deliver.snippet.lines import Direct, by_address, by_name
from torchmill.deliver.snippet.offers import Offer, is_of
from torchmill.deliver.snippet.words import Decision, Request, Stock
from torchmill.errors import ConfigError, DeliveryError
from torchmill.layout import Layout
from torchmill.model import Arch, Facts, Release

Render = Callable[[Sequence[Decision], Direct], str]

HELP = {
    "tool": "uv, poetry, pdm, pip or pixi",
    "package": "a package (torchvision, or vision); may be repeated; by default all that there are wheels of",
    "tag": "a release other than the selected one",
    "variant": "cpu, cu118, …, where there are wheels of several; may be repeated for uv and pixi",
    "platform": "where the project shall be installed, such as linux/aarch64; may be repeated; by default "
    "wherever there are wheels for",
    "index": "the folder or URL of an index or of wheels; by default dist/",
    "direct": "name each wheel by its address and hash, without an index",
}
# how invoke takes the options
OPTIONS: dict[str, Any] = {
    "help": HELP,
    "iterable": ["package", "variant", "platform"],
    "auto_shortflags": False,
}


def snippet(  # noqa: PLR0917 - every one is an option
    known: Facts,
    layout: Layout,
    tool: str = "",
    package: list[str] | None = None,
    tag: str = "",
    variant: list[str] | None = None,
    platform: list[str] | None = None,
    index: str = "",
    direct: bool = False,
) -> str:
    """Print what a project needs to use the wheels: for uv, Poetry, PDM, pip or pixi."""
    several, render = _tool(known, tool)
    variants = tuple(dict.fromkeys(variant or ()))
    if len(variants) > 1 and not several:
        raise ConfigError(
            f"--variant {' --variant '.join(variants)}: {tool} cannot keep two apart in one project: name "
            "one, or use uv or pixi"
        )
    wanted = platforms.chosen(known, platform or ())
    stock = shelf.stock(known, layout, index)
    base = _release(known, layout, tag, stock)
    ours = [one for one in stock.offers if is_of(known, one, base)]
    variants = variants or _only(ours, base, stock)
    wanted = wanted or _served(known, ours, variants, base, stock)
    releases = _releases(known, stock, base, variants, package or ())
    requests = [Request(releases, one, wanted, host.native_arch()) for one in variants]
    decisions = [decide(known, stock, request) for request in requests]
    _require_common(decisions)
    return render(decisions, by_address if direct else by_name)


def _tool(known: Facts, name: str) -> tuple[bool, Render]:
    """Return whether a tool keeps several variants apart, and what renders for it. Raises ConfigError."""

    def for_pixi(decisions: Sequence[Decision], direct: Direct) -> str:
        return pixi.render(decisions, direct, pixi.subdirs_of(known))

    tools: dict[str, tuple[bool, Render]] = {
        "uv": (uv.SEVERAL, uv.render),
        "poetry": (poetry.SEVERAL, poetry.render),
        "pdm": (pdm.SEVERAL, pdm.render),
        "pip": (pip.SEVERAL, pip.render),
        "pixi": (pixi.SEVERAL, for_pixi),
    }
    if name not in tools:
        raise ConfigError(f"--tool {name or 'is missing'}: there is {', '.join(tools)}")
    return tools[name]


def _release(known: Facts, layout: Layout, tag: str, stock: Stock) -> Release:
    """Return the release that is meant: the selected one, or the newest that there is a wheel of.

    Raises UnknownReleaseError for a tag that none has, DeliveryError where there is no wheel of it.
    """
    package = matrix.base_package(known).name
    there = [one for one in stock.offers if one.package == package]
    chosen = selection.selected(known, layout, tag)
    releases = [chosen] if chosen else reversed(known.releases[package])
    for release in releases:
        if any(is_of(known, one, release) for one in there):
            return release
    has = ", ".join(sorted({str(one.version) for one in there})) or "none"
    wanted = chosen or f"a release of {package} that we know"
    raise DeliveryError(
        f"{stock.where} has no wheel of {wanted} (of {package}: {has}): build it, name another release with "
        "--tag, or another index with --index"
    )


def _only(ours: Sequence[Offer], base: Release, stock: Stock) -> tuple[str]:
    """Return the one variant that there are wheels of. Raises ConfigError where there are several."""
    variants = sorted({one.variant for one in ours})
    if len(variants) > 1:
        raise ConfigError(
            f"{stock.where} has {base} as {', '.join(variants)}: name one with --variant (uv and pixi take "
            "several)"
        )
    return (variants[0],)


def _served(
    known: Facts, ours: Sequence[Offer], variants: Sequence[str], base: Release, stock: Stock
) -> tuple[Arch, ...]:
    """Return the platforms that there are wheels for. Raises DeliveryError where there are none."""
    names = {one.arch for one in ours if one.variant in variants}
    if not names:
        has = ", ".join(sorted({one.variant for one in ours}))
        raise DeliveryError(
            f"{stock.where} has no wheel of {base} as {', '.join(variants)}, but as {has}: name one of "
            "these, or say for which --platform the official wheels shall be taken"
        )
    return tuple(arch for arch in known.arches.values() if arch.name in names)


def _releases(
    known: Facts, stock: Stock, base: Release, variants: Sequence[str], names: Sequence[str]
) -> tuple[Release, ...]:
    """Return the base and the releases of the named packages, or of all that there are such wheels of.

    Raises ConfigError for a name that is no package, UnknownReleaseError where none goes with the base.
    """
    if names:
        asked = matrix.partners(known, base, names)
    else:
        paired = (matrix.paired(known, name, base) for name in known.packages)
        there = [one for one in stock.offers if one.variant in variants]
        asked = tuple(one for one in paired if one and any(is_of(known, each, one) for each in there))
    return (base, *(one for one in asked if one != base))


def _require_common(decisions: Sequence[Decision]) -> None:
    """Refuse variants that no Python has all of."""
    if not set.intersection(*(set(one.pythons) for one in decisions)):
        said = "; ".join(f"{one.variant}: {', '.join(one.pythons)}" for one in decisions)
        raise DeliveryError(f"no Python has wheels of all variants ({said}): ask for one of them")
