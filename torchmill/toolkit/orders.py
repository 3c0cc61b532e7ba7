"""What `invoke toolkit` does: show what is here and what can be had, or bring it."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches

from packaging.version import Version

from torchmill.capabilities.choosing import judged
from torchmill.capabilities.targets import canonical
from torchmill.errors import ConfigError
from torchmill.host.kept import COMPILER, TOOLKIT
from torchmill.model import Facts, ToolkitSource
from torchmill.toolkit.wanted import LIBRARIES, MAGMA, Provider, Wanted

HELP = {
    "list_": "show what is here and what can be had; so does no option at all",
    "cuda": "bring this toolkit, such as 11.8",
    "complete": "make the toolkit of this version whole that is here and lacks parts, by NVIDIA's packages",
    "library": f"bring {', '.join(LIBRARIES)}, as cudnn-cu11=8.5.0.96, or cudnn=8.5.0.96 with --cuda 11; the "
    "newest without a version; may be repeated",
    "compiler": "bring a host compiler, such as gcc-11",
    "arch_list": "what MAGMA's code must be for, as '7.0;8.6'",
    "from_": "only from this provider: conda, debian, pypi; of MAGMA also a folder, an archive or its URL",
    "channel": "take it from this conda channel",
    "json": "print JSON",
}
_LIBRARY = re.compile(r"(?P<name>[a-z]+)(?:-cu(?P<major>\d+))?(?:=(?P<version>\d+(?:\.\d+)*))?")
_COMPILER = re.compile(r"(?:gcc|clang)-\d+")
# MAGMA that the user names the place of: whether it is for the machine, its library says.
GIVEN = ToolkitSource("given", MAGMA, (), (), ("x86_64", "aarch64"), (), None, "the user")


@dataclass(frozen=True, slots=True)
class Orders:
    """What a user said to `invoke toolkit`."""

    listing: bool = False
    cuda: str = ""
    libraries: tuple[str, ...] = ()
    compiler: str = ""
    provider: str = ""
    channel: str = ""
    complete: str = ""
    arch_list: str = ""


def wanted(said: Orders, facts: Facts, arch: str) -> tuple[Wanted, ...]:
    """Return what shall be brought; nothing where a list is asked for, or a toolkit is to be completed.

    Raises ConfigError for what has no sense.
    """
    asked = bool(said.cuda or said.libraries or said.compiler)
    if said.complete and (asked or said.listing or said.provider or said.channel):
        raise ConfigError("invoke toolkit: --complete stands alone: leave out the other options")
    if said.complete:
        _toolkit("--complete", said.complete, facts, arch)
    if said.listing and asked:
        raise ConfigError("invoke toolkit: --list only shows: leave it out to bring something")
    if (said.provider or said.channel) and not asked:
        raise ConfigError(
            "invoke toolkit: say what shall be brought: --cuda VERSION, --library NAME=VERSION or "
            "--compiler NAME"
        )
    major_only = said.cuda.isdecimal() and said.libraries  # says which CUDA the libraries are for
    found = [_toolkit("--cuda", said.cuda, facts, arch)] if said.cuda and not major_only else []
    found += [_library(text, said, facts, arch) for text in said.libraries]
    if said.arch_list and not any(one.kind == MAGMA for one in found):
        raise ConfigError("--arch-list says what MAGMA's code must be for: give --library magma, too")
    if said.compiler:
        found.append(_compiler(said.compiler, facts, arch))
    return tuple(found)


def _toolkit(option: str, version: str, facts: Facts, arch: str) -> Wanted:
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
    return Wanted(TOOLKIT, version, None, arch)


def _library(text: str, said: Orders, facts: Facts, arch: str) -> Wanted:
    match = _LIBRARY.fullmatch(text)
    if match is None or match["name"] not in LIBRARIES:
        raise ConfigError(
            f"--library {text}: write it as NAME-cuMAJOR=VERSION, such as cudnn-cu11=8.5.0.96, where NAME is "
            f"one of {', '.join(LIBRARIES)}"
        )
    if match["name"] == MAGMA:
        return _magma(text, match, said, facts, arch)
    major = match["major"] or said.cuda.partition(".")[0]
    if not major:
        raise ConfigError(
            f"--library {text}: say for which CUDA: {match['name']}-cu11{text.removeprefix(match['name'])}, "
            "or give --cuda 11, too"
        )
    return Wanted(match["name"], match["version"] or "", major, arch)


def _magma(text: str, match: re.Match[str], said: Orders, facts: Facts, arch: str) -> Wanted:
    """Return which MAGMA is wanted: one of one toolkit, whose code is for what that makes code for."""
    variant = f"cu{match['major']}"
    named = (one for one in facts.toolkits if one.variant == variant)
    toolkit = next(named, None) if match["major"] else facts.toolkit(said.cuda)
    if toolkit is None:
        raise ConfigError(
            f"--library {text}: MAGMA goes with one toolkit: write which, as in magma-cu118, or give "
            "--cuda 11.8, too; `invoke toolkit --list` shows them"
        )
    listed = judged(facts, said.arch_list, toolkit, None, ()) if said.arch_list else ()
    return Wanted(MAGMA, match["version"] or "", toolkit.version, arch, canonical(listed))


def _compiler(name: str, facts: Facts, arch: str) -> Wanted:
    if not _COMPILER.fullmatch(name):
        compilers = [source for source in facts.toolkit_sources if source.kind == COMPILER]
        there = ", ".join(dict.fromkeys(name for one in compilers for name in one.versions)) or "gcc-11"
        raise ConfigError(f"--compiler {name}: name its family and major version; there is {there}")
    return Wanted(COMPILER, name, None, arch)


def providers(said: Orders) -> Mapping[str, Provider]:
    """Return the providers to ask, in their order. Raises ConfigError for one that there is not."""
    from torchmill.toolkit import conda, debian, given, pypi  # noqa: PLC0415 (each loads much)

    if given.is_place(said.provider):
        return {given.PROVIDER: given.at(said.provider, said.libraries)}
    known: dict[str, Provider] = {"conda": conda, "debian": debian, "pypi": pypi}
    named = said.provider or ("conda" if said.channel else "")
    if said.channel and named != "conda":
        raise ConfigError(f"--channel names a channel of conda, which --from {said.provider} does not ask")
    if named and named not in known:
        raise ConfigError(f"--from {named}: there is no such provider; it is one of {', '.join(known)}")
    return {named: known[named]} if named else known


def sources(said: Orders, facts: Facts) -> Sequence[ToolkitSource]:
    """Return what the providers have; a channel that the user names stands for conda's own."""
    if not said.channel:
        return (*facts.toolkit_sources, GIVEN)
    return [replace(one, where=(said.channel,)) for one in facts.toolkit_sources if one.provider == "conda"]
