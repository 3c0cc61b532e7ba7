"""A snippet for pixi: Python from conda, our wheels beside it, a table for each platform that differs.

Written by pixi's documentation and never run here. https://pixi.sh/latest/reference/pixi_manifest/
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import unquote, urlsplit

from torchmill.deliver.snippet import platforms, project, toml
from torchmill.deliver.snippet.lines import Direct, address, flat, header, places, python_range
from torchmill.deliver.snippet.offers import Place
from torchmill.deliver.snippet.words import Decision, Pin
from torchmill.errors import ConfigError
from torchmill.model import Arch, Facts

SEVERAL = True  # variants, as environments
_GLIBC = re.compile(r"manylinux_2_(\d+)")
_PROMISED = 28  # of glibc 2: what pixi takes for granted on Linux


def render(decisions: Sequence[Decision], direct: Direct, subdirs: Mapping[str, str]) -> str:
    """Return pixi.toml; `subdirs` is how conda calls platforms.

    Raises ConfigError for a platform that has no such name, and where Pythons cannot be told apart.
    """
    first, *_ = decisions
    names = {arch.name: _subdir(subdirs, arch) for arch in first.platforms}
    shell = project.extra_words(decisions, "pixi shell -e")
    lines = [*header(decisions, ["pixi.toml; then `pixi install`" + shell]), "", "[workspace]"]
    lines += ['name = "my-project"', 'channels = ["conda-forge"]']
    lines.append(f"platforms = [{', '.join(toml.text(name) for name in names.values())}]")
    lines += ["", "[dependencies]", f"python = {toml.text(python_range(first.pythons))}"]
    if needed := _glibc(decisions):
        lines += ["", "[system-requirements]", f'libc = "2.{needed}"']
    if folders := [place for place in places(decisions, direct) if flat(place)]:
        found = ", ".join(toml.inline({"path": _path(place)}) for place in folders)
        lines += ["", "[pypi-options]", f"find-links = [{found}]"]
    for one in decisions:
        lines += _tables(one, direct, names, f"feature.{one.variant}." if len(decisions) > 1 else "")
    if len(decisions) > 1:
        lines += ["", "[environments]", *(f'{one.variant} = ["{one.variant}"]' for one in decisions)]
    return "\n".join(lines)


def _tables(decision: Decision, direct: Direct, names: Mapping[str, str], prefix: str) -> Iterator[str]:
    """Yield what is the same everywhere, and a table for each platform of what is not."""
    by_package = {name: decision.of(name) for name in decision.packages}
    told = {name: {pin.arch.name: _told(pin, direct) for pin in pins} for name, pins in by_package.items()}
    everywhere = {name for name, values in told.items() if len(set(values.values())) == 1}
    common = [f"{name} = {next(iter(told[name].values()))}" for name in told if name in everywhere]
    if decision.numpy:
        common.append(f"numpy = {toml.text(decision.numpy.removeprefix('numpy'))}")
    if common:
        yield from ("", f"[{prefix}pypi-dependencies]", *common)
    for arch, subdir in names.items():
        if own := [f"{name} = {told[name][arch]}" for name in told if name not in everywhere]:
            yield from ("", f"[{prefix}target.{subdir}.pypi-dependencies]", *own)


def _told(pin: Pin, direct: Direct) -> str:
    if direct(pin):
        if len(pin.offers) > 1:
            raise ConfigError(
                f"--direct: pixi has no markers, and {pin.package} has a wheel for each of Python "
                f"{', '.join(pin.pythons)}: leave --direct out, or use another tool"
            )
        return toml.inline({"url": address(pin.offers[0])})
    version = f"=={pin.version}"
    if pin.place.default or flat(pin.place):
        return toml.text(version)
    return toml.inline({"version": version, "index": pin.place.url})


def _glibc(decisions: Sequence[Decision]) -> int | None:
    """Return the minor version of glibc 2 that our wheels need, where pixi would not expect it."""
    offers = (offer for one in decisions for pin in one.pins for offer in pin.offers)
    needed = [int(found) for offer in offers for found in _GLIBC.findall(offer.file)[:1]]
    return max(needed, default=0) if max(needed, default=0) > _PROMISED else None


def _path(place: Place) -> str:
    return unquote(urlsplit(place.url).path)


def _subdir(subdirs: Mapping[str, str], arch: Arch) -> str:
    if arch.name not in subdirs:
        raise ConfigError(
            f"--platform {platforms.name(arch)}: how pixi calls it is not known; conda.toml has "
            f"{', '.join(subdirs) or 'none'}"
        )
    return subdirs[arch.name]


def subdirs_of(facts: Facts) -> Mapping[str, str]:
    """Return how conda calls platforms."""
    return facts.conda.subdirs if facts.conda else {}
