"""Answer `invoke toolkit`, for people and for programs."""

from __future__ import annotations

import json as json_
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from torchmill import console
from torchmill.capabilities.serving import unserved
from torchmill.host import cuda as cudas
from torchmill.host import native_arch
from torchmill.host.kept import TOOLKIT, Kept, kept
from torchmill.host.parts import called, lacking
from torchmill.host.programs import runner
from torchmill.layout import Layout
from torchmill.model import Facts, Part, ToolkitSource
from torchmill.source.request import Progress
from torchmill.toolkit import completing
from torchmill.toolkit.choosing import numbers
from torchmill.toolkit.orders import Orders, providers, sources, wanted
from torchmill.toolkit.provision import Shop, bring

_MOST = 24  # versions that are listed one by one


@dataclass(frozen=True, slots=True)
class Told:
    """An answer."""

    text: str
    data: dict[str, Any]


def toolkit(  # noqa: PLR0917 - every one is an option
    known: Facts,
    layout: Layout,
    list_: bool = False,
    cuda: str = "",
    library: list[str] | None = None,
    compiler: str = "",
    from_: str = "",
    channel: str = "",
    complete: str = "",
    arch_list: str = "",
    json: bool = False,
) -> str:
    """Show CUDA toolkits, here and to be had; bring one, a library or a host compiler, without root."""
    said = Orders(list_, cuda, tuple(library or ()), compiler, from_, channel, complete, arch_list)
    with console.progress() as progress:
        found = carry_out(said, known, layout, progress)
    return json_.dumps(found.data, indent=1) if json else found.text


def carry_out(said: Orders, facts: Facts, layout: Layout, progress: Progress) -> Told:
    """Bring what is asked for, or say what is here and what can be had.

    Raises ConfigError for orders that have no sense, and as `provision.bring` does.
    """
    arch = native_arch()
    asked = wanted(said, facts, arch)
    run = runner(os.environ)
    shop = Shop(
        providers(said),
        sources(said, facts),
        layout.cache,
        run,
        progress,
        facts.toolkit_parts,
        partial(unserved, facts),
    )
    if asked:
        return brought([bring(one, shop) for one in asked])
    machine = (os.environ, Path("/"), Path.home(), run)
    if said.complete:
        return completed(completing.base(said.complete, tuple(cudas.begun(*machine))), arch, shop)
    here = {one: lacking(one.home, one.version, facts.toolkit_parts) for one in cudas.found(*machine)}
    beside = [one for one in kept(layout.cache, arch).values() if one.record.kind != TOOLKIT]
    return listed(here, beside, facts.toolkit_sources, arch)


def completed(found: cudas.Found, arch: str, shop: Shop) -> Told:
    """Complete a toolkit where it lacks parts, and tell what it has got."""
    what, lacks = f"CUDA {found.version} in {found.home}", lacking(found.home, found.version, shop.parts)
    if not lacks:
        return Told(f"{what} lacks nothing that torch's build uses", {"kept": []})
    made = completing.complete(found, lacks, arch, shop)
    left = lacking(made.home, found.version, shop.parts)
    got = called(part for part in lacks if part not in left)
    lines = [
        f"{what} had no {got}: it is whole in {made.home}, and builds take it from there",
        *(f"{part.called} cannot be had: {part.without}" for part in left),
    ]
    return Told("\n".join(lines), {"kept": [_entry(made)], "lacks": _names(left)})


def brought(things: Iterable[Kept]) -> Told:
    """Tell what was brought, or was there already."""
    entries = [_entry(one) for one in things]
    lines = [f"{one['name']} is in {one['home']} ({one['full']} from {one['provider']})" for one in entries]
    return Told("\n".join(lines), {"kept": entries})


def listed(
    here: Mapping[cudas.Found, Sequence[Part]],
    beside: Sequence[Kept],
    known: Iterable[ToolkitSource],
    arch: str,
) -> Told:
    """Tell what is here, with the parts that it lacks, and what the providers are known to have."""
    to_have = _to_have(known, arch)
    entries = [_entry(one) for one in beside]
    data = {
        "toolkits": [
            {"version": one.version, "home": str(one.home), "by": one.by, "lacks": _names(lacks)}
            for one, lacks in here.items()
        ],
        "kept": entries,
        "available": to_have,
    }
    parts = [
        console.table(("CUDA", "found by", "folder"), [(one.version, one.by, str(one.home)) for one in here])
        if here
        else "no CUDA toolkit was found on this machine"
    ]
    used: dict[str, cudas.Found] = {}
    for one in here:
        used.setdefault(one.version, one)
    if lines := [_incomplete(one, here[one]) for one in used.values() if here[one]]:
        parts.append("\n".join(lines))
    if entries:
        rows = [(one["name"], one["provider"], one["home"]) for one in entries]
        parts.append(console.table(("library or compiler", "from", "folder"), rows))
    if to_have:
        rows = [(one["what"], one["provider"], _shown(one["versions"])) for one in to_have]
        parts.append(console.table(("can be had", "from", "versions"), rows))
    else:
        parts.append(f"no provider is known to have anything for {arch}")
    return Told("\n\n".join(parts), data)


def _names(parts: Iterable[Part]) -> list[str]:
    return [part.name for part in parts]


def _incomplete(one: cudas.Found, lacks: Sequence[Part]) -> str:
    return f"{one.home} has no {called(lacks)}: `invoke toolkit --complete {one.version}`"


def _entry(one: Kept) -> dict[str, Any]:
    record = one.record
    return {
        "name": one.name,
        "kind": record.kind,
        "version": record.version,
        "full": record.full,
        "provider": record.provider,
        "completes": record.completes,
        "home": str(one.home),
    }


def _to_have(known: Iterable[ToolkitSource], arch: str) -> list[dict[str, Any]]:
    """Return what each provider has, its sources of one kind together."""
    found: dict[tuple[str, str], list[str]] = {}
    for one in known:
        if arch in one.arches:
            what = f"{one.kind}-cu{one.cuda.replace('.', '')}" if one.cuda else one.kind
            found.setdefault((what, one.provider), []).extend(one.versions)
    whats = list(dict.fromkeys(what for what, _ in found))
    return [
        {"what": what, "provider": provider, "versions": sorted(set(versions), key=numbers)}
        for (what, provider), versions in sorted(found.items(), key=lambda one: whats.index(one[0][0]))
    ]


def _shown(versions: Sequence[str]) -> str:
    """Return versions as people read them: libraries have dozens."""
    if not versions:
        return "any"
    if len(versions) > _MOST:
        return f"{versions[0]} to {versions[-1]} ({len(versions)} versions)"
    return ", ".join(versions)
