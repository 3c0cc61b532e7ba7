"""`invoke toolkit`: list or install CUDA toolkits, libraries and host compilers, without root.

They come from *providers* (conda, Debian's archive, PyPI) and are kept in the user's cache. A toolkit
of the system may lack *parts* that torch's build uses, such as cuFFT: it is *completed* by a copy
in the cache that has them.
"""

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
from torchmill.config.toolkit import Toolkit, ToolkitPart, ToolkitSource
from torchmill.core import console
from torchmill.core.errors import ConfigError, require_choice
from torchmill.core.paths import Layout
from torchmill.fetch.toolkit import completion, crossing
from torchmill.fetch.toolkit.provision import ProvisionContext, install_from_providers
from torchmill.fetch.toolkit.request import LIBRARIES, AskProvider, ToolkitRequest, version_key
from torchmill.host import cuda_toolkits
from torchmill.host.crossing import crossed_arches
from torchmill.host.cuda_toolkits import FoundToolkit, format_part_names, lacking_toolkit_parts
from torchmill.host.native import native_arch
from torchmill.host.programs import make_runner
from torchmill.host.provisioned import COMPILER, MAGMA, ProvisionedFolder, list_provisioned
from torchmill.host.provisioned import TOOLKIT as TOOLKIT_KIND
from torchmill.plan.arch_choice import check_arch_list
from torchmill.plan.arch_toolkits import find_toolkit

# The value of --library: "cudnn-cu11=8.5.0.96", of which only the name is always needed.
_LIBRARY = re.compile(r"(?P<name>[a-z]+)(?:-cu(?P<major>\d+))?(?:=(?P<version>\d+(?:\.\d+)*))?")
_COMPILER = re.compile(r"(?:gcc|clang)-\d+")
_MOST_VERSIONS = 24  # a row with more shows a range


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
    arch: str = ""  # of another machine, for which a toolkit is to compile; "": of this one

    @property
    def installs(self) -> bool:
        """Tell whether the options name something to install."""
        return bool(self.cuda or self.libraries or self.compiler)


def _contradiction(reason: str) -> ConfigError:
    """Return the error for options that do not go together."""
    return ConfigError(f"invoke toolkit: {reason}", code="contradictory-options")


def requested_items(options: ToolkitOptions, facts: Facts, arch: str) -> tuple[ToolkitRequest, ...]:
    """Return what to install from providers; () if the options ask for something else.

    That is a list, a completed toolkit, or one that compiles for another machine. Raises
    ConfigError for options that contradict each other or cannot be read.
    """
    if options.arch:
        _check_crossing(options, facts, arch)
        return ()
    if options.complete:
        if replace(options, complete="") != ToolkitOptions():
            raise _contradiction("--complete takes no other options: leave them out")
        _require_toolkit("--complete", options.complete, facts, arch)
    if options.listing and options.installs:
        raise _contradiction("--list only shows: leave it out to install something")
    if (options.provider or options.channel) and not options.installs:
        raise _contradiction(
            "name what to install: --cuda VERSION, --library NAME=VERSION or --compiler NAME"
        )
    requests = []
    # With --library, a major version alone ("--cuda 11") requests no toolkit: it is the CUDA that
    # the libraries are for.
    names_libraries_cuda = bool(options.libraries) and options.cuda.isdecimal()
    if options.cuda and not names_libraries_cuda:
        toolkit = _require_toolkit("--cuda", options.cuda, facts, arch)
        requests.append(ToolkitRequest(TOOLKIT_KIND, toolkit.version, cuda=None, arch=arch))
        options = replace(options, cuda=toolkit.version)  # "11.8" of "cu118"
    requests += [_library_request(text, options, facts, arch) for text in options.libraries]
    if options.arch_list and not any(request.kind == MAGMA for request in requests):
        raise _contradiction(
            "--arch-list says what MAGMA must have code for: give --library magma, too"
        )
    if options.compiler:
        requests.append(_compiler_request(options.compiler, facts, arch))
    return tuple(requests)


def _check_crossing(options: ToolkitOptions, facts: Facts, native: str) -> None:
    """Raise ConfigError for options that do not go with --arch, and for an arch that has no use."""
    if replace(options, arch="", cuda="") != ToolkitOptions() or not options.cuda:
        raise _contradiction("--arch goes with --cuda VERSION alone: leave out the others")
    known = [arch for arch in crossed_arches() if arch != native]
    require_choice("--arch", options.arch, known, "not-crossed")
    _require_toolkit("--cuda", options.cuda, facts, options.arch)


def _require_toolkit(option: str, version: str, facts: Facts, arch: str) -> Toolkit:
    """Return a toolkit. Raises ConfigError if there is none of that version for an architecture."""
    toolkit = find_toolkit(facts, option, version)
    _require_arch(f"{option} {version}", toolkit, arch)
    return toolkit


def _require_arch(words: str, toolkit: Toolkit, arch: str) -> None:
    """Raise ConfigError if NVIDIA makes a toolkit, which `words` of the user name, for others."""
    if arch not in toolkit.arches:
        raise ConfigError(
            f"{words}: NVIDIA makes it for {', '.join(toolkit.arches)}, not for {arch}",
            code="no-such-toolkit-for-arch",
        )


def _library_request(text: str, options: ToolkitOptions, facts: Facts, arch: str) -> ToolkitRequest:
    """Return the request of a value of --library, such as "cudnn-cu11=8.5.0.96"."""
    match = _LIBRARY.fullmatch(text)
    if match is None or match["name"] not in LIBRARIES:
        raise ConfigError(
            f"--library {text}: write it as NAME-cuMAJOR=VERSION, such as cudnn-cu11=8.5.0.96, "
            f"where NAME is one of {', '.join(LIBRARIES)}",
            code="invalid-library",
        )
    name = match["name"]
    version = match["version"] or ""
    if name == MAGMA:
        return _magma_request(text, match, options, facts, arch)
    major = match["major"] or options.cuda.partition(".")[0]
    if not major:
        raise ConfigError(
            f"--library {text}: for which CUDA? Write {name}-cu11{text.removeprefix(name)}, or "
            "give --cuda 11, too",
            code="library-without-cuda",
        )
    majors = {toolkit.version.partition(".")[0] for toolkit in facts.toolkits}
    if major not in majors:  # "118" of a variant
        raise ConfigError(
            f"--library {text}: CUDA {major} is unknown: name a major version, one of "
            f"{', '.join(sorted(majors, key=int))}",
            code="library-without-cuda",
        )
    return ToolkitRequest(name, version, major, arch)


def _magma_request(
    text: str, match: re.Match[str], options: ToolkitOptions, facts: Facts, arch: str
) -> ToolkitRequest:
    """Return the request of MAGMA, which goes with one toolkit: "magma-cu118".

    It has code for the GPUs of --arch-list, by default for those that the toolkit makes code for.
    """
    if match["major"]:
        variant = f"cu{match['major']}"  # here the digits are those of a variant: "cu118"
        toolkits = {toolkit.variant: toolkit for toolkit in facts.toolkits}
        toolkit = toolkits.get(variant)
    else:
        toolkit = facts.toolkit(options.cuda)
    if toolkit is None:
        raise ConfigError(
            f"--library {text}: MAGMA goes with one toolkit: write which, as in magma-cu118, or "
            "give --cuda 11.8, too; `invoke toolkit --list` shows them",
            code="library-without-cuda",
        )
    _require_arch(f"--library {text}", toolkit, arch)
    arch_list = ""
    if options.arch_list:
        # MAGMA serves any release. The GPUs here are not measured, so that "native" is refused.
        targets = check_arch_list(facts, options.arch_list, toolkit, release=None, gpus=())
        arch_list = format_arch_list(targets)
    return ToolkitRequest(MAGMA, match["version"] or "", toolkit.version, arch, arch_list)


def _compiler_request(name: str, facts: Facts, arch: str) -> ToolkitRequest:
    """Return the request of --compiler, such as "gcc-11". Raises ConfigError for another name."""
    if _COMPILER.fullmatch(name):
        return ToolkitRequest(COMPILER, name, None, arch)
    names: dict[str, None] = {}
    for source in facts.toolkit_sources:
        if source.kind == COMPILER:
            names.update(dict.fromkeys(source.versions))
    raise ConfigError(
        f"unknown --compiler {name}: name family and major version, one of "
        f"{', '.join(names) or 'gcc-11'}",
        code="unknown-compiler",
    )


def ordered_providers(options: ToolkitOptions) -> Mapping[str, AskProvider]:
    """Return the functions that ask the providers, by name, in the order in which to ask them.

    Raises ConfigError for an unknown --from.
    """
    from torchmill.fetch.toolkit import conda, debian, pypi

    providers: dict[str, AskProvider] = {
        "conda": conda.offer,
        "debian": debian.offer,
        "pypi": pypi.offer,
    }
    name = options.provider or ("conda" if options.channel else "")
    if options.channel and name != "conda":
        raise _contradiction(f"--channel names a conda channel, which --from {name} does not use")
    if not name:
        return providers
    require_choice("--from", name, providers, "unknown-provider")
    return {name: providers[name]}


def provider_sources(options: ToolkitOptions, facts: Facts) -> Sequence[ToolkitSource]:
    """Return the recorded offers of the providers.

    With --channel, only those of conda, and that channel takes the place of their own.
    """
    if not options.channel:
        return facts.toolkit_sources
    sources = []
    for source in facts.toolkit_sources:
        if source.provider == "conda":
            sources.append(replace(source, places=(options.channel,)))
    return sources


def show_or_install(
    facts: Facts,
    layout: Layout,
    *,
    list_: bool = False,
    cuda: str = "",
    library: list[str] | None = None,
    compiler: str = "",
    from_: str = "",
    channel: str = "",
    complete: str = "",
    arch_list: str = "",
    arch: str = "",
) -> CommandOutput:
    """List toolkits, libraries and host compilers, or install those that the options name.

    Returns the command's output: text for people, and data for --json.
    """
    options = ToolkitOptions(
        listing=list_,
        cuda=cuda,
        libraries=tuple(library or ()),
        compiler=compiler,
        provider=from_,
        channel=channel,
        complete=complete,
        arch_list=arch_list,
        arch=arch,
    )
    arch = native_arch()
    run = make_runner(os.environ)
    requests = requested_items(options, facts, arch)
    machine = (os.environ, Path("/"), Path.home(), run)
    with console.show_progress() as progress:
        context = ProvisionContext(
            providers=ordered_providers(options),
            sources=provider_sources(options, facts),
            cache=layout.cache,
            run=run,
            progress=progress,
            parts=facts.toolkit_parts,
            find_unserved=partial(unserved_capabilities, facts),
        )
        if requests:
            folders = [install_from_providers(request, context) for request in requests]
            return describe_installed(folders)
        if options.arch:
            version = find_toolkit(facts, "--cuda", cuda).version
            return _install_crossing(version, options.arch, facts, context)
        if complete:
            installed = tuple(cuda_toolkits.toolkits_with_compiler(*machine))
            version = find_toolkit(facts, "--complete", complete).version
            return complete_toolkit(completion.base_toolkit(version, installed), arch, context)
    # Nothing is to be installed: the answer is the list.
    toolkits = {}
    for toolkit in cuda_toolkits.usable_toolkits(*machine):
        toolkits[toolkit] = lacking_toolkit_parts(
            toolkit.home, toolkit.version, facts.toolkit_parts
        )
    provisioned = list_provisioned(layout.cache, arch).values()
    other_folders = [folder for folder in provisioned if folder.record.kind != TOOLKIT_KIND]
    return list_toolkits(toolkits, other_folders, facts.toolkit_sources, arch)


def _install_crossing(
    version: str, arch: str, facts: Facts, context: ProvisionContext
) -> CommandOutput:
    """Install a toolkit that compiles for another arch, and return the command's output.

    If this machine has no toolkit of that version, one is installed first, for its programs.
    """
    machine = (os.environ, Path("/"), Path.home(), context.run)
    installed = cuda_toolkits.toolkits_with_compiler(*machine)
    toolkit = next((found for found in installed if found.version == version), None)
    if toolkit is None:
        request = ToolkitRequest(TOOLKIT_KIND, version, cuda=None, arch=native_arch())
        folder = install_from_providers(request, context)
        toolkit = FoundToolkit(version, folder.home, folder.record.origin)
    sources = [source for source in facts.toolkit_sources if source.provider == "pypi"]
    crossing_context = replace(context, sources=sources)
    folder = crossing.make_crossing_toolkit(toolkit, arch, crossing_context)
    return describe_installed([folder])


def complete_toolkit(toolkit: FoundToolkit, arch: str, context: ProvisionContext) -> CommandOutput:
    """Install a copy of a toolkit with the parts that it lacks, and return the command's output.

    Raises HostError if nothing could be added, or if a part that every build needs is missing.
    """
    name = f"CUDA {toolkit.version} in {toolkit.home}"
    missing = lacking_toolkit_parts(toolkit.home, toolkit.version, context.parts)
    if not missing:
        return CommandOutput(
            f"{name} lacks nothing that torch's build uses", {"kept": [], "lacks": []}
        )
    folder = completion.make_complete_copy(toolkit, missing, arch, context)
    still_missing = lacking_toolkit_parts(folder.home, toolkit.version, context.parts)
    installed = format_part_names(part for part in missing if part not in still_missing)
    state = "has them" if still_missing else "is complete"
    lines = [
        f"{name} had no {installed}: the copy in {folder.home} {state}, and builds take it from there"
    ]
    lines += [f"{part.called} is not available: {part.without}" for part in still_missing]
    data = {
        "kept": [_folder_as_data(folder)],
        "lacks": [part.name for part in still_missing],
    }
    return CommandOutput("\n".join(lines), data)


def describe_installed(folders: Iterable[ProvisionedFolder]) -> CommandOutput:
    """Return the output on folders of toolkits, libraries or compilers that are installed."""
    entries = [_folder_as_data(folder) for folder in folders]
    lines = [
        f"{entry['name']} is in {entry['home']} ({entry['full']} from {entry['provider']})"
        for entry in entries
    ]
    return CommandOutput("\n".join(lines), {"kept": entries})


def list_toolkits(
    toolkits: Mapping[FoundToolkit, Sequence[ToolkitPart]],
    other_folders: Sequence[ProvisionedFolder],
    sources: Iterable[ToolkitSource],
    arch: str,
) -> CommandOutput:
    """Return the command's output on the installed toolkits and the offers of the providers.

    `toolkits` come with the parts that they lack; `other_folders` are libraries and compilers.
    """
    available = _available(sources, arch)
    entries = [_folder_as_data(folder) for folder in other_folders]
    paragraphs = ["no CUDA toolkit was found on this machine"]
    if toolkits:
        rows = [(toolkit.version, toolkit.found_by, str(toolkit.home)) for toolkit in toolkits]
        paragraphs = [console.format_table(("CUDA", "found by", "folder"), rows)]
    lines = _incomplete_toolkits(toolkits)
    if lines:
        paragraphs.append("\n".join(lines))
    if entries:
        rows = [(entry["name"], entry["provider"], entry["home"]) for entry in entries]
        paragraphs.append(console.format_table(("library or compiler", "from", "folder"), rows))
    if available:
        rows = []
        for entry in available:
            rows.append((entry["what"], entry["provider"], _short_list(entry["versions"])))
        paragraphs.append(console.format_table(("available", "provider", "versions"), rows))
    else:
        paragraphs.append(f"no provider is known to have anything for {arch}")
    data = {
        "toolkits": [_toolkit_as_data(*item) for item in toolkits.items()],
        "kept": entries,
        "available": available,
    }
    return CommandOutput("\n\n".join(paragraphs), data)


def _incomplete_toolkits(toolkits: Mapping[FoundToolkit, Sequence[ToolkitPart]]) -> list[str]:
    """Return a line for each toolkit that builds use and that lacks parts.

    Of the toolkits of one version, builds use the first.
    """
    lines = []
    versions = set()
    for toolkit, missing in toolkits.items():
        if missing and toolkit.version not in versions:
            command = f"invoke toolkit --complete {toolkit.version}"
            lines.append(f"{toolkit.home} has no {format_part_names(missing)}: `{command}`")
        versions.add(toolkit.version)
    return lines


def _toolkit_as_data(toolkit: FoundToolkit, missing: Sequence[ToolkitPart]) -> dict[str, Any]:
    """Return a toolkit as JSON-ready data."""
    return {
        "version": toolkit.version,
        "home": str(toolkit.home),
        "by": toolkit.found_by,
        "lacks": [part.name for part in missing],
    }


def _folder_as_data(folder: ProvisionedFolder) -> dict[str, Any]:
    """Return an installed folder as JSON-ready data."""
    record = folder.record
    return {
        "name": folder.name,
        "home": str(folder.home),
        "kind": record.kind,
        "version": record.version,
        "full": record.full,
        "provider": record.provider,
        "completes": record.completes,
    }


def _available(sources: Iterable[ToolkitSource], arch: str) -> list[dict[str, Any]]:
    """Return what providers offer for an architecture: an entry for each kind and provider."""
    versions: dict[str, dict[str, list[str]]] = {}  # by name, "cudnn-cu11", then by provider
    for source in sources:
        if arch in source.arches:
            name: str = source.kind
            if source.cuda:
                name = f"{name}-cu{source.cuda.replace('.', '')}"
            by_provider = versions.setdefault(name, {})
            by_provider.setdefault(source.provider, []).extend(source.versions)
    entries = []
    for name, providers in versions.items():
        for provider in sorted(providers):
            listed = sorted(set(providers[provider]), key=version_key)
            entries.append({"what": name, "provider": provider, "versions": listed})
    return entries


def _short_list(versions: Sequence[str]) -> str:
    """Return versions as a list, or as a range if there are dozens, as libraries often have.

    Returns "any" if there are none: a provider has all of them.
    """
    if len(versions) > _MOST_VERSIONS:
        return f"{versions[0]} to {versions[-1]} ({len(versions)} versions)"
    return ", ".join(versions) or "any"
