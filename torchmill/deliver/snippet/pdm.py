"""A snippet for PDM: a source for our packages alone, and none of the others.

PDM joins `==1.13.1` and `==1.13.1+cpu` into the labelled version where it locks for all platforms at once,
and takes one address only: where either differs, it locks for one platform after the other.
https://pdm-project.org/latest/usage/config/, https://pdm-project.org/latest/usage/lock-targets/
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from torchmill.deliver.snippet import project, toml
from torchmill.deliver.snippet.lines import Direct, flat, header, mixed, places
from torchmill.deliver.snippet.offers import Place
from torchmill.deliver.snippet.words import Decision
from torchmill.model import Arch

SEVERAL = False
_GLIBC = re.compile(r"manylinux_2_(\d+)")
_OLDEST = 17  # of glibc 2: of the oldest tag that most wheels on PyPI have


def render(decisions: Sequence[Decision], direct: Direct) -> str:
    """Return pyproject.toml for PDM."""
    decision, *_ = decisions
    words = ["pyproject.toml; then", *(f"    {line}" for line in _locking(decision, direct)), "    pdm sync"]
    lines = [*header(decisions, words), "", *project.table(decisions, direct)]
    lines += ["", "[tool.pdm]", "distribution = false"]
    named = {place: _packages(decision, place, direct) for place in places(decisions, direct)}
    for place, packages in (named | _default(decision, named)).items():
        lines += [
            "",
            "[[tool.pdm.source]]",
            f"name = {toml.text(place.name)}",
            f"url = {toml.text(place.url)}",
        ]
        lines += [f"type = {toml.text('find_links' if flat(place) else 'index')}"]
        lines += [f"include_packages = [{', '.join(toml.text(one) for one in packages)}]"]
        # without this the source would be asked for all other packages too
        lines += ['exclude_packages = ["*"]'] if not place.default else []
    return "\n".join(lines)


def _packages(decision: Decision, place: Place, direct: Direct) -> list[str]:
    mine = (pin.package for pin in decision.pins if pin.place == place and not direct(pin))
    return list(dict.fromkeys(mine))


def _default(decision: Decision, named: dict[Place, list[str]]) -> dict[Place, list[str]]:
    """Return PyPI with those packages that it must be asked for although a source of ours has them."""
    elsewhere = {package for packages in named.values() for package in packages}
    found: dict[Place, list[str]] = {}
    for pin in decision.pins:
        if pin.place.default and pin.package in elsewhere:
            found.setdefault(pin.place, [])
            if pin.package not in found[pin.place]:
                found[pin.place].append(pin.package)
    return found


def _locking(decision: Decision, direct: Direct) -> Iterator[str]:
    """Yield the commands that lock: for all platforms at once, or for one after the other."""
    pins = [pin for pin in decision.pins if direct(pin)]
    several = len(decision.platforms) > 1 and (mixed(decision) or bool(pins))
    pythons = decision.pythons if any(len(pin.offers) > 1 for pin in pins) else ()
    targets = [
        (f" --platform {_target(decision, arch)}" if several else "")
        + (f' --python "=={python}.*"' if python else "")
        for arch in (decision.platforms if several else decision.platforms[:1])
        for python in (pythons or ("",))
    ]
    for number, target in enumerate(targets):
        yield f"pdm lock{' --append' if number else ''}{target}"


def _target(decision: Decision, arch: Arch) -> str:
    """Return how PDM calls a platform on which all of its wheels can be installed."""
    if arch.system != "linux":
        return f"{arch.system}_{arch.name}"
    files = (offer.file for pin in decision.pins if pin.arch == arch for offer in pin.offers)
    needed = [int(found) for file in files for found in _GLIBC.findall(file)[:1]]
    return f"manylinux_2_{max([_OLDEST, *needed])}_{arch.name}"
