"""`invoke toolkit`: list CUDA toolkits, libraries and host compilers, or install them without root."""

from __future__ import annotations

import json as json_
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from typing import Any

from packaging.version import Version

from torchmill.commands.command import TaskCommand
from torchmill.config.arch_list import format_arch_list, unserved_capabilities
from torchmill.config.arch_list_check import check_arch_list
from torchmill.config.delivery_model import ToolkitPart, ToolkitSource
from torchmill.config.model import Facts
from torchmill.core import console
from torchmill.core.console import ProgressDisplay
from torchmill.core.errors import ConfigError
from torchmill.core.paths import Layout
from torchmill.fetch.toolkit import provision
from torchmill.fetch.toolkit.provision import ProvisionContext, install_from_providers
from torchmill.fetch.toolkit.request import LIBRARIES, MAGMA, ToolkitProvider, ToolkitRequest, version_key
from torchmill.host import cuda_toolkits, provisioned
from torchmill.host.cuda_toolkits import format_part_names, lacking_toolkit_parts
from torchmill.host.native import native_arch
from torchmill.host.programs import make_runner
from torchmill.host.provisioned import COMPILER, ProvisionedFolder, list_provisioned

_LIBRARY = re.compile(r"(?P<name>[a-z]+)(?:-cu(?P<major>\d+))?(?:=(?P<version>\d+(?:\.\d+)*))?")
_COMPILER = re.compile(r"(?:gcc|clang)-\d+")
# MAGMA that the user names the place of: whether it is for the machine, its library says.
GIVEN = ToolkitSource("given", MAGMA, (), (), ("x86_64", "aarch64"), (), None, "the user")


@dataclass(frozen=True, slots=True)
class ToolkitOptions:
    """What a user said to `invoke toolkit`."""

    listing: bool = False
    cuda: str = ""
    libraries: tuple[str, ...] = ()
    compiler: str = ""
    provider: str = ""
    channel: str = ""
    complete: str = ""
    arch_list: str = ""


def requested_items(said: ToolkitOptions, facts: Facts, arch: str) -> tuple[ToolkitRequest, ...]:
    """Return what shall be brought; nothing where a list is asked for, or a toolkit is to be completed.

    Raises ConfigError for what has no sense.
    """
    asked = bool(said.cuda or said.libraries or said.compiler)
    if said.complete and (asked or said.listing or said.provider or said.channel):
        raise ConfigError("invoke toolkit: --complete stands alone: leave out the other options")
    if said.complete:
        _toolkit_request("--complete", said.complete, facts, arch)
    if said.listing and asked:
        raise ConfigError("invoke toolkit: --list only shows: leave it out to bring something")
    if (said.provider or said.channel) and not asked:
        raise ConfigError(
            "invoke toolkit: say what shall be brought: --cuda VERSION, --library NAME=VERSION or "
            "--compiler NAME"
        )
    major_only = said.cuda.isdecimal() and said.libraries  # says which CUDA the libraries are for
    found = [_toolkit_request("--cuda", said.cuda, facts, arch)] if said.cuda and not major_only else []
    found += [_library_request(text, said, facts, arch) for text in said.libraries]
    if said.arch_list and not any(one.kind == MAGMA for one in found):
        raise ConfigError("--arch-list says what MAGMA's code must be for: give --library magma, too")
    if said.compiler:
        found.append(_compiler_request(said.compiler, facts, arch))
    return tuple(found)


def _toolkit_request(option: str, version: str, facts: Facts, arch: str) -> ToolkitRequest:
    toolkit = facts.toolkit(version)
    if toolkit is None:
        names = {one.version: one.version for one in facts.toolkits}
        names |= {one.variant: one.version for one in facts.toolkits}
        near = [names[name] for name in get_close_matches(version.lower(), names, 3)]
        whole = f"{facts.toolkits[0].version} to {facts.toolkits[-1].version}"
        there = ", ".join(sorted(set(near), key=Version)) or whole
        raise ConfigError(f"{option} {version}: no such toolkit is known; near it there is {there}")
    if arch not in toolkit.arches:
        there = ", ".join(toolkit.arches)
        raise ConfigError(f"{option} {version}: NVIDIA makes it for {there}, not for {arch}")
    return ToolkitRequest(provisioned.TOOLKIT, version, None, arch)


def _library_request(text: str, said: ToolkitOptions, facts: Facts, arch: str) -> ToolkitRequest:
    match = _LIBRARY.fullmatch(text)
    if match is None or match["name"] not in LIBRARIES:
        raise ConfigError(
            f"--library {text}: write it as NAME-cuMAJOR=VERSION, such as cudnn-cu11=8.5.0.96, where NAME is "
            f"one of {', '.join(LIBRARIES)}"
        )
    if match["name"] == MAGMA:
        return _magma_request(text, match, said, facts, arch)
    major = match["major"] or said.cuda.partition(".")[0]
    if not major:
        raise ConfigError(
            f"--library {text}: say for which CUDA: {match['name']}-cu11{text.removeprefix(match['name'])}, "
            "or give --cuda 11, too"
        )
    return ToolkitRequest(match["name"], match["version"] or "", major, arch)


def _magma_request(
    text: str, match: re.Match[str], said: ToolkitOptions, facts: Facts, arch: str
) -> ToolkitRequest:
    """Return which MAGMA is wanted: one of one toolkit, whose code is for what that makes code for."""
    variant = f"cu{match['major']}"
    named = (one for one in facts.toolkits if one.variant == variant)
    toolkit = next(named, None) if match["major"] else facts.toolkit(said.cuda)
    if toolkit is None:
        raise ConfigError(
            f"--library {text}: MAGMA goes with one toolkit: write which, as in magma-cu118, or give "
            "--cuda 11.8, too; `invoke toolkit --list` shows them"
        )
    listed = check_arch_list(facts, said.arch_list, toolkit, None, ()) if said.arch_list else ()
    return ToolkitRequest(MAGMA, match["version"] or "", toolkit.version, arch, format_arch_list(listed))


def _compiler_request(name: str, facts: Facts, arch: str) -> ToolkitRequest:
    if not _COMPILER.fullmatch(name):
        compilers = [source for source in facts.toolkit_sources if source.kind == COMPILER]
        there = ", ".join(dict.fromkeys(name for one in compilers for name in one.versions)) or "gcc-11"
        raise ConfigError(f"--compiler {name}: name its family and major version; there is {there}")
    return ToolkitRequest(COMPILER, name, None, arch)


def ordered_providers(said: ToolkitOptions) -> Mapping[str, ToolkitProvider]:
    """Return the providers to ask, in their order. Raises ConfigError for one that there is not."""
    from torchmill.fetch.toolkit import conda, debian, magma, pypi

    if magma.is_place(said.provider):
        return {magma.PROVIDER: magma.user_magma(said.provider, said.libraries)}
    known: dict[str, ToolkitProvider] = {"conda": conda, "debian": debian, "pypi": pypi}
    named = said.provider or ("conda" if said.channel else "")
    if said.channel and named != "conda":
        raise ConfigError(f"--channel names a channel of conda, which --from {said.provider} does not ask")
    if named and named not in known:
        raise ConfigError(f"--from {named}: there is no such provider; it is one of {', '.join(known)}")
    return {named: known[named]} if named else known


def provider_sources(said: ToolkitOptions, facts: Facts) -> Sequence[ToolkitSource]:
    """Return what the providers have; a channel that the user names stands for conda's own."""
    if not said.channel:
        return (*facts.toolkit_sources, GIVEN)
    return [replace(one, where=(said.channel,)) for one in facts.toolkit_sources if one.provider == "conda"]


_MOST = 24  # versions that are listed one by one


@dataclass(frozen=True, slots=True)
class ToolkitAnswer:
    """An answer."""

    text: str
    data: dict[str, Any]


def show_or_bring(  # noqa: PLR0917 - every one is an option
    facts: Facts,
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
    said = ToolkitOptions(list_, cuda, tuple(library or ()), compiler, from_, channel, complete, arch_list)
    with console.show_progress() as progress:
        found = answer_request(said, facts, layout, progress)
    return json_.dumps(found.data, indent=1) if json else found.text


def answer_request(
    said: ToolkitOptions, facts: Facts, layout: Layout, progress: ProgressDisplay
) -> ToolkitAnswer:
    """Bring what is asked for, or say what is here and what can be had.

    Raises ConfigError for orders that have no sense, and as `provision.bring` does.
    """
    arch = native_arch()
    asked = requested_items(said, facts, arch)
    run = make_runner(os.environ)
    shop = ProvisionContext(
        ordered_providers(said),
        provider_sources(said, facts),
        layout.cache,
        run,
        progress,
        facts.toolkit_parts,
        partial(unserved_capabilities, facts),
    )
    if asked:
        return describe_brought([install_from_providers(one, shop) for one in asked])
    machine = (os.environ, Path("/"), Path.home(), run)
    if said.complete:
        return describe_completion(
            provision.base_toolkit(said.complete, tuple(cuda_toolkits.toolkits_with_compiler(*machine))),
            arch,
            shop,
        )
    here = {
        one: lacking_toolkit_parts(one.home, one.version, facts.toolkit_parts)
        for one in cuda_toolkits.complete_toolkits(*machine)
    }
    beside = [
        one for one in list_provisioned(layout.cache, arch).values() if one.record.kind != provisioned.TOOLKIT
    ]
    return list_toolkits(here, beside, facts.toolkit_sources, arch)


def describe_completion(
    found: cuda_toolkits.FoundToolkit, arch: str, shop: ProvisionContext
) -> ToolkitAnswer:
    """Complete a toolkit where it lacks parts, and tell what it has got."""
    what, lacks = (
        f"CUDA {found.version} in {found.home}",
        lacking_toolkit_parts(found.home, found.version, shop.parts),
    )
    if not lacks:
        return ToolkitAnswer(f"{what} lacks nothing that torch's build uses", {"kept": []})
    made = provision.complete_lacking(found, lacks, arch, shop)
    left = lacking_toolkit_parts(made.home, found.version, shop.parts)
    got = format_part_names(part for part in lacks if part not in left)
    lines = [
        f"{what} had no {got}: it is whole in {made.home}, and builds take it from there",
        *(f"{part.called} cannot be had: {part.without}" for part in left),
    ]
    return ToolkitAnswer("\n".join(lines), {"kept": [_entry(made)], "lacks": _names(left)})


def describe_brought(things: Iterable[ProvisionedFolder]) -> ToolkitAnswer:
    """Tell what was brought, or was there already."""
    entries = [_entry(one) for one in things]
    lines = [f"{one['name']} is in {one['home']} ({one['full']} from {one['provider']})" for one in entries]
    return ToolkitAnswer("\n".join(lines), {"kept": entries})


def list_toolkits(
    here: Mapping[cuda_toolkits.FoundToolkit, Sequence[ToolkitPart]],
    beside: Sequence[ProvisionedFolder],
    known: Iterable[ToolkitSource],
    arch: str,
) -> ToolkitAnswer:
    """Tell what is here, with the parts that it lacks, and what the providers are known to have."""
    to_have = _to_have(known, arch)
    entries = [_entry(one) for one in beside]
    data = {
        "toolkits": [
            {"version": one.version, "home": str(one.home), "by": one.found_by, "lacks": _names(lacks)}
            for one, lacks in here.items()
        ],
        "kept": entries,
        "available": to_have,
    }
    parts = [
        console.format_table(
            ("CUDA", "found by", "folder"), [(one.version, one.found_by, str(one.home)) for one in here]
        )
        if here
        else "no CUDA toolkit was found on this machine"
    ]
    used: dict[str, cuda_toolkits.FoundToolkit] = {}
    for one in here:
        used.setdefault(one.version, one)
    if lines := [_incomplete(one, here[one]) for one in used.values() if here[one]]:
        parts.append("\n".join(lines))
    if entries:
        rows = [(one["name"], one["provider"], one["home"]) for one in entries]
        parts.append(console.format_table(("library or compiler", "from", "folder"), rows))
    if to_have:
        rows = [(one["what"], one["provider"], _shown(one["versions"])) for one in to_have]
        parts.append(console.format_table(("can be had", "from", "versions"), rows))
    else:
        parts.append(f"no provider is known to have anything for {arch}")
    return ToolkitAnswer("\n\n".join(parts), data)


def _names(parts: Iterable[ToolkitPart]) -> list[str]:
    return [part.name for part in parts]


def _incomplete(one: cuda_toolkits.FoundToolkit, lacks: Sequence[ToolkitPart]) -> str:
    return f"{one.home} has no {format_part_names(lacks)}: `invoke toolkit --complete {one.version}`"


def _entry(one: ProvisionedFolder) -> dict[str, Any]:
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
        {"what": what, "provider": provider, "versions": sorted(set(versions), key=version_key)}
        for (what, provider), versions in sorted(found.items(), key=lambda one: whats.index(one[0][0]))
    ]


def _shown(versions: Sequence[str]) -> str:
    """Return versions as people read them: libraries have dozens."""
    if not versions:
        return "any"
    if len(versions) > _MOST:
        return f"{versions[0]} to {versions[-1]} ({len(versions)} versions)"
    return ", ".join(versions)


TOOLKIT = TaskCommand(
    show_or_bring,
    {
        "list_": "show what is here and what can be had; so does no option at all",
        "cuda": "bring this toolkit, such as 11.8",
        "complete": "make the toolkit of this version whole that is here and lacks parts, by "
        "NVIDIA's packages",
        "library": f"bring {', '.join(LIBRARIES)}, as cudnn-cu11=8.5.0.96, or cudnn=8.5.0.96 with "
        f"--cuda 11; the "
        "newest without a version; may be repeated",
        "compiler": "bring a host compiler, such as gcc-11",
        "arch_list": "what MAGMA's code must be for, as '7.0;8.6'",
        "from_": "only from this provider: conda, debian, pypi; of MAGMA also a folder, an archive "
        "or its URL",
        "channel": "take it from this conda channel",
        "json": "print JSON",
    },
    repeated=("library",),
    short_flags=False,
)
