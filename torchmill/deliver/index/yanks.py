"""The yanked versions of an index (PEP 592), and the options that change them.

Installers take a yanked version only if a requirement pins exactly that version. A pin here is
"torch==1.13.1+cpu", or without a label "torch==1.13.1", which means the wheels of all labels.
"""

import contextlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from torchmill.core.errors import ConfigError
from torchmill.deliver.index.entries import IndexEntry


@dataclass(frozen=True, slots=True)
class YankChange:
    """The versions that a user yanks and unyanks, each as "torch==1.13.1+cpu"."""

    yank: tuple[str, ...]
    unyank: tuple[str, ...]
    reason: str


def parse_yanked_version(option: str, text: str) -> str:
    """Return the normalised form of "torch==1.13.1+cpu", which `option` was given.

    Raises ConfigError if it does not name exactly one version.
    """
    # ValueError comes from the unpacking, unless there is one specifier, and from "1.*".
    with contextlib.suppress(InvalidRequirement, ValueError):
        requirement = Requirement(text)
        (specifier,) = requirement.specifier
        version = Version(specifier.version)
        is_plain = not (requirement.extras or requirement.marker or requirement.url)
        if specifier.operator == "==" and is_plain:
            return f"{canonicalize_name(requirement.name)}=={version}"
    raise ConfigError(
        f"{option} {text}: name one version, as torch==1.13.1+cpu", code="invalid-yank"
    )


def parse_yank_options(yank: Iterable[str], unyank: Iterable[str], reason: str) -> YankChange:
    """Return the change that the options ask for.

    Raises ConfigError for options that no index could fulfil.
    """
    change = YankChange(
        tuple(parse_yanked_version("--yank", text) for text in yank),
        tuple(parse_yanked_version("--unyank", text) for text in unyank),
        " ".join(reason.split()),
    )
    if change.reason and not change.yank:
        raise ConfigError("--reason needs --yank NAME==VERSION", code="invalid-yank")
    contradictory = set(change.yank).intersection(change.unyank)
    if contradictory:
        pin = min(contradictory)
        raise ConfigError(
            f"--yank {pin} and --unyank {pin} contradict each other: give one of them",
            code="invalid-yank",
        )
    return change


def apply_yanks(
    yanked: Mapping[str, str], change: YankChange, entries: Iterable[IndexEntry]
) -> dict[str, str]:
    """Return the yanked versions after a change, each with its reason.

    Raises ConfigError for a version to yank that the index does not have, and for a version to
    unyank that is not yanked.
    """
    entries = tuple(entries)
    for pin in change.yank:
        if not any(is_of_version(pin, entry) for entry in entries):
            raise _unknown_version(pin, entries)
    for pin in change.unyank:
        if pin not in yanked:
            versions = ", ".join(sorted(yanked)) or "none"
            raise ConfigError(
                f"--unyank {pin}: it is not yanked; yanked versions: {versions}",
                code="unknown-version",
            )
    result = {pin: reason for pin, reason in yanked.items() if pin not in change.unyank}
    for pin in change.yank:
        # Yanked again without a reason, a version keeps the one that it has.
        result[pin] = change.reason or result.get(pin, "")
    return result


def _unknown_version(pin: str, entries: Iterable[IndexEntry]) -> ConfigError:
    """Return the error for a version that the index does not have."""
    name, _, _ = pin.partition("==")
    versions = sorted({entry.version for entry in entries if entry.name == name})
    stock = f"it has no {name}"
    if versions:
        stock = f"of {name} it has {', '.join(map(str, versions))}"
    return ConfigError(
        f"--yank {pin}: the index has no such version; {stock}", code="unknown-version"
    )


def is_of_version(pin: str, entry: IndexEntry) -> bool:
    """Tell if a wheel is of a pinned version; one without a label means all labels, as for pip."""
    name, _, version = pin.partition("==")
    if name != entry.name:
        return False
    return _exact_specifier(version).contains(entry.version, prereleases=True)


@cache  # every yanked version is compared with every wheel
def _exact_specifier(version: str) -> SpecifierSet:
    return SpecifierSet(f"=={version}")


def yank_reason(yanked: Mapping[str, str], entry: IndexEntry) -> str | None:
    """Return the reason why a wheel is yanked, "" without a reason; None if it is not yanked."""
    reasons = [reason for pin, reason in sorted(yanked.items()) if is_of_version(pin, entry)]
    if not reasons:
        return None
    # Several pins can name the wheel: the first reason that is not empty counts.
    return next(filter(None, reasons), "")
