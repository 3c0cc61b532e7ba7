"""`invoke toolkit`: list CUDA toolkits, libraries and host compilers, or install them without root."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from torchmill.commands.command import CommandOutput
from torchmill.config.arch_list import format_arch_list
from torchmill.config.facts import Facts
from torchmill.config.served_gpus import unserved_capabilities
from torchmill.config.toolkit import ToolkitPart, ToolkitSource
from torchmill.core import console
from torchmill.core.errors import ConfigError, require_choice
from torchmill.core.paths import Layout
from torchmill.fetch.toolkit import completion
from torchmill.fetch.toolkit.provision import ProvisionContext, install_from_providers
from torchmill.fetch.toolkit.request import LIBRARIES, AskProvider, ToolkitRequest, version_key
from torchmill.host import cuda_toolkits
from torchmill.host.cuda_toolkits import FoundToolkit, format_part_names, lacking_toolkit_parts
from torchmill.host.native import native_arch
from torchmill.host.programs import make_runner
from torchmill.host.provisioned import COMPILER, MAGMA, ProvisionedFolder, list_provisioned
from torchmill.host.provisioned import TOOLKIT as TOOLKIT_KIND
from torchmill.plan.arch_choice import check_arch_list
from torchmill.plan.arch_toolkits import find_toolkit

_LIBRARY = re.compile(r"(?P<name>[a-z]+)(?:-cu(?P<major>\d+))?(?:=(?P<version>\d+(?:\.\d+)*))?")
_COMPILER = re.compile(r"(?:gcc|clang)-\d+")
_MOST = 24  # versions that are listed one by one


@dataclass(frozen=True, slots=True)
class ToolkitOptions:
    """The options of `invoke toolkit`."""

    listing: bool = False
    cuda: str = ""
    libraries: tuple[str, ...] = ()
    compiler: str = ""
    provider: str = ""
    channel: str = ""
    complete: str = ""
    arch_list: str = ""


def _refuse(reason: str) -> ConfigError:
    return ConfigError(f"invoke toolkit: {reason}", code="contradictory-options")


def requested_items(options: ToolkitOptions, facts: Facts, arch: str) -> tuple[ToolkitRequest, ...]:
    """Return what to install; nothing for a list, or if a toolkit is to be completed.

    Raises ConfigError for options that contradict each other or cannot be read.
    """
    asked = bool(options.cuda or options.libraries or options.compiler)
    if options.complete:
        if asked or options.listing or options.provider or options.channel:
            raise _refuse("--complete takes no other options: leave them out")
        _toolkit_request("--complete", options.complete, facts, arch)
    if options.listing and asked:
        raise _refuse("--list only shows: leave it out to install something")
    if (options.provider or options.channel) and not asked:
        raise _refuse(
            "name what to install: --cuda VERSION, --library NAME=VERSION or --compiler NAME"
        )
    major_only = (
        options.cuda.isdecimal() and options.libraries
    )  # says which CUDA the libraries are for
    requests = []
    if options.cuda and not major_only:
        requests.append(_toolkit_request("--cuda", options.cuda, facts, arch))
        options = replace(options, cuda=requests[0].version)  # of "cu118"
    requests += [_library_request(text, options, facts, arch) for text in options.libraries]
    if options.arch_list and not any(one.kind == MAGMA for one in requests):
        raise _refuse("--arch-list says what MAGMA must have code for: give --library magma, too")
    if options.compiler:
        requests.append(_compiler_request(options.compiler, facts, arch))
    return tuple(requests)


def _toolkit_request(option: str, version: str, facts: Facts, arch: str) -> ToolkitRequest:
    toolkit = find_toolkit(facts, option, version)
    if arch not in toolkit.arches:
        raise ConfigError(
            f"{option} {version}: NVIDIA makes it for {', '.join(toolkit.arches)}, not for {arch}",
            code="no-such-toolkit-for-arch",
        )
    return ToolkitRequest(TOOLKIT_KIND, toolkit.version, None, arch)


def _library_request(text: str, options: ToolkitOptions, facts: Facts, arch: str) -> ToolkitRequest:
    match = _LIBRARY.fullmatch(text)
    if match is None or match["name"] not in LIBRARIES:
        raise ConfigError(
            f"--library {text}: write it as NAME-cuMAJOR=VERSION, such as cudnn-cu11=8.5.0.96, where NAME is "
            f"one of {', '.join(LIBRARIES)}",
            code="invalid-library",
        )
    name, version = match["name"], match["version"] or ""
    if name == MAGMA:  # it goes with one toolkit, and its code is for what that makes code for
        variant = f"cu{match['major']}"
        named = (one for one in facts.toolkits if one.variant == variant)
        toolkit = next(named, None) if match["major"] else facts.toolkit(options.cuda)
        if toolkit is None:
            raise ConfigError(
                f"--library {text}: MAGMA goes with one toolkit: write which, as in magma-cu118, or give "
                "--cuda 11.8, too; `invoke toolkit --list` shows them",
                code="library-without-cuda",
            )
        listed = (
            check_arch_list(facts, options.arch_list, toolkit, None, ())
            if options.arch_list
            else ()
        )
        return ToolkitRequest(MAGMA, version, toolkit.version, arch, format_arch_list(listed))
    major = match["major"] or options.cuda.partition(".")[0]
    if not major:
        raise ConfigError(
            f"--library {text}: for which CUDA? Write {name}-cu11{text.removeprefix(name)}, or give --cuda 11, too",
            code="library-without-cuda",
        )
    return ToolkitRequest(name, version, major, arch)


def _compiler_request(name: str, facts: Facts, arch: str) -> ToolkitRequest:
    if not _COMPILER.fullmatch(name):
        sources = [source for source in facts.toolkit_sources if source.kind == COMPILER]
        names = (
            ", ".join(dict.fromkeys(name for one in sources for name in one.versions)) or "gcc-11"
        )
        raise ConfigError(
            f"unknown --compiler {name}: name family and major version, one of {names}",
            code="unknown-compiler",
        )
    return ToolkitRequest(COMPILER, name, None, arch)


def ordered_providers(options: ToolkitOptions) -> Mapping[str, AskProvider]:
    """Return the providers to ask, in their order. Raises ConfigError for an unknown one."""
    from torchmill.fetch.toolkit import conda, debian, pypi

    providers: dict[str, AskProvider] = {
        "conda": conda.offer,
        "debian": debian.offer,
        "pypi": pypi.offer,
    }
    name = options.provider or ("conda" if options.channel else "")
    if options.channel and name != "conda":
        raise _refuse(f"--channel names a conda channel, which --from {name} does not use")
    return (
        {name: providers[require_choice("--from", name, providers, "unknown-provider")]}
        if name
        else providers
    )


def provider_sources(options: ToolkitOptions, facts: Facts) -> Sequence[ToolkitSource]:
    """Return what the providers have; a channel that the user names stands for conda's own."""
    if not options.channel:
        return facts.toolkit_sources
    return [
        replace(one, where=(options.channel,))
        for one in facts.toolkit_sources
        if one.provider == "conda"
    ]


def show_or_install(  # noqa: PLR0917 - every one is an option
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
) -> CommandOutput:
    """List or install CUDA toolkits, libraries, compilers, without root."""
    options = ToolkitOptions(
        list_, cuda, tuple(library or ()), compiler, from_, channel, complete, arch_list
    )
    arch, run = native_arch(), make_runner(os.environ)
    requests = requested_items(options, facts, arch)
    machine = (os.environ, Path("/"), Path.home(), run)
    with console.show_progress() as progress:
        context = ProvisionContext(
            ordered_providers(options),
            provider_sources(options, facts),
            layout.cache,
            run,
            progress,
            facts.toolkit_parts,
            partial(unserved_capabilities, facts),
        )
        if requests:
            return describe_installed([install_from_providers(one, context) for one in requests])
        if complete:
            installed = tuple(cuda_toolkits.toolkits_with_compiler(*machine))
            version = find_toolkit(facts, "--complete", complete).version
            return complete_toolkit(completion.base_toolkit(version, installed), arch, context)
    toolkits = {
        one: lacking_toolkit_parts(one.home, one.version, facts.toolkit_parts)
        for one in cuda_toolkits.complete_toolkits(*machine)
    }
    others = [
        one
        for one in list_provisioned(layout.cache, arch).values()
        if one.record.kind != TOOLKIT_KIND
    ]
    return list_toolkits(toolkits, others, facts.toolkit_sources, arch)


def complete_toolkit(toolkit: FoundToolkit, arch: str, context: ProvisionContext) -> CommandOutput:
    """Install the parts that a toolkit lacks."""
    name = f"CUDA {toolkit.version} in {toolkit.home}"
    lacks = lacking_toolkit_parts(toolkit.home, toolkit.version, context.parts)
    if not lacks:
        return CommandOutput(f"{name} lacks nothing that torch's build uses", {"kept": []})
    made = completion.complete_lacking(toolkit, lacks, arch, context)
    left = lacking_toolkit_parts(made.home, toolkit.version, context.parts)
    got = format_part_names(part for part in lacks if part not in left)
    lines = [
        f"{name} had no {got}: it is complete in {made.home}, and builds take it from there",
        *(f"{part.called} is not available: {part.without}" for part in left),
    ]
    return CommandOutput(
        "\n".join(lines), {"kept": [_folder_as_data(made)], "lacks": [part.name for part in left]}
    )


def describe_installed(folders: Iterable[ProvisionedFolder]) -> CommandOutput:
    """Describe what was installed, or had been before."""
    entries = [_folder_as_data(one) for one in folders]
    lines = [
        f"{one['name']} is in {one['home']} ({one['full']} from {one['provider']})"
        for one in entries
    ]
    return CommandOutput("\n".join(lines), {"kept": entries})


def list_toolkits(
    toolkits: Mapping[FoundToolkit, Sequence[ToolkitPart]],
    others: Sequence[ProvisionedFolder],
    sources: Iterable[ToolkitSource],
    arch: str,
) -> CommandOutput:
    """List what is installed, toolkits with the parts that they lack, and what the providers have."""
    available, entries = _available(sources, arch), [_folder_as_data(one) for one in others]
    data = {
        "toolkits": [
            {
                "version": one.version,
                "home": str(one.home),
                "by": one.found_by,
                "lacks": [part.name for part in lacks],
            }
            for one, lacks in toolkits.items()
        ],
        "kept": entries,
        "available": available,
    }
    rows = [(one.version, one.found_by, str(one.home)) for one in toolkits]
    none = "no CUDA toolkit was found on this machine"
    parts = [console.format_table(("CUDA", "found by", "folder"), rows) if rows else none]
    used = {
        one.version: one for one in reversed(list(toolkits))
    }  # the first of a version, which builds take
    if lines := [
        f"{one.home} has no {format_part_names(lacks)}: `invoke toolkit --complete {one.version}`"
        for one, lacks in toolkits.items()
        if lacks and used[one.version] is one
    ]:
        parts.append("\n".join(lines))
    if entries:
        rows = [(one["name"], one["provider"], one["home"]) for one in entries]
        parts.append(console.format_table(("library or compiler", "from", "folder"), rows))
    rows = [(one["what"], one["provider"], _short_list(one["versions"])) for one in available]
    table = console.format_table(("available", "provider", "versions"), rows)
    parts.append(table if rows else f"no provider is known to have anything for {arch}")
    return CommandOutput("\n\n".join(parts), data)


def _folder_as_data(folder: ProvisionedFolder) -> dict[str, Any]:
    record = folder.record
    names = ("kind", "version", "full", "provider", "completes")
    return {"name": folder.name, "home": str(folder.home)} | {
        name: getattr(record, name) for name in names
    }


def _available(sources: Iterable[ToolkitSource], arch: str) -> list[dict[str, Any]]:
    """Return what each provider has, its sources of one kind together."""
    versions: dict[str, dict[str, list[str]]] = {}
    for one in sources:
        if arch in one.arches:
            what = f"{one.kind}-cu{one.cuda.replace('.', '')}" if one.cuda else one.kind
            versions.setdefault(what, {}).setdefault(one.provider, []).extend(one.versions)
    return [
        {"what": what, "provider": provider, "versions": sorted(set(listed), key=version_key)}
        for what, providers in versions.items()
        for provider, listed in sorted(providers.items())
    ]


def _short_list(versions: Sequence[str]) -> str:
    """Return versions as people read them: libraries have dozens."""
    if len(versions) > _MOST:
        return f"{versions[0]} to {versions[-1]} ({len(versions)} versions)"
    return ", ".join(versions) or "any"
