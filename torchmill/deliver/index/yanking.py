"""Versions that are withdrawn (PEP 592): installed only by those who ask for exactly them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from torchmill.deliver.index.entry import Entry
from torchmill.errors import ConfigError


def version(option: str, text: str) -> str:
    """Return "torch==1.13.1+cpu" as the index keeps it; raise ConfigError where one version is not named."""
    try:
        asked = Requirement(text)
        (one,) = asked.specifier
        exact = Version(one.version)
    except (InvalidRequirement, ValueError):
        asked, one, exact = None, None, None
    if asked is None or one is None or one.operator != "==" or asked.extras or asked.marker or asked.url:
        raise ConfigError(f"{option} {text}: name one version, as torch==1.13.1+cpu")
    return f"{canonicalize_name(asked.name)}=={exact}"


def meant(named: str, entry: Entry) -> bool:
    """Tell whether a wheel is of a version; one without a label means all labels, as for pip."""
    name, _, exact = named.partition("==")
    return name == entry.name and SpecifierSet(f"=={exact}").contains(entry.version, prereleases=True)


def reason(yanked: Mapping[str, str], entry: Entry) -> str | None:
    """Return why a wheel is yanked, "" where nobody said why; None where it is not."""
    reasons = [why for named, why in sorted(yanked.items()) if meant(named, entry)]
    return next((why for why in reasons if why), reasons[0]) if reasons else None


@dataclass(frozen=True, slots=True)
class Change:
    """What a user wants to be yanked, and no more; versions as the index keeps them."""

    yank: tuple[str, ...] = ()
    unyank: tuple[str, ...] = ()
    why: str = ""


def asked(yank: Iterable[str], unyank: Iterable[str], why: str) -> Change:
    """Return what is meant by options. Raises ConfigError for what makes no sense, whatever there is."""
    change = Change(
        tuple(version("--yank", text) for text in yank),
        tuple(version("--unyank", text) for text in unyank),
        " ".join(why.split()),
    )
    if change.why and not change.yank:
        raise ConfigError("--reason says why something is yanked: say what with --yank NAME==VERSION")
    if both := set(change.yank).intersection(change.unyank):
        raise ConfigError(f"--yank {min(both)} and --unyank {min(both)}: say one of them")
    return change


def changed(before: Mapping[str, str], change: Change, entries: Iterable[Entry]) -> dict[str, str]:
    """Return what is yanked now. Raises ConfigError for a version that is not there, or not yanked."""
    entries = tuple(entries)
    for named in change.yank:
        if not any(meant(named, entry) for entry in entries):
            name = named.partition("==")[0]
            there = sorted({entry.version for entry in entries if entry.name == name})
            has = f"of {name} it has {', '.join(map(str, there))}" if there else f"it has no {name}"
            raise ConfigError(f"--yank {named}: the index has no such version; {has}")
    for named in change.unyank:
        if named not in before:
            raise ConfigError(f"--unyank {named}: yanked is {', '.join(sorted(before)) or 'nothing'}")
    kept = {named: said for named, said in before.items() if named not in change.unyank}
    return kept | dict.fromkeys(change.yank, change.why)
