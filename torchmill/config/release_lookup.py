"""Find releases in the facts: by tag, by the torch that they go with, the newest."""

import re
from collections.abc import Collection, Iterator
from difflib import get_close_matches

from torchmill.config.facts import Facts
from torchmill.config.package import Package
from torchmill.config.release import Release
from torchmill.config.versions import python_key
from torchmill.core.errors import ConfigError, UnknownReleaseError

_SUGGESTIONS = 3  # tags that a message names


def base_package(facts: Facts) -> Package:
    """Return the package that the others are built against."""
    return next(package for package in facts.packages.values() if package.after is None)


def base_release(facts: Facts, release: Release) -> Release:
    """Return the release of the base package that a release goes with."""
    return find_release(facts, base_package(facts).name, release.torch_version)


def selecting_tag(facts: Facts, release: Release) -> str:
    """Return the value of `--tag` that selects a release: the tag of its base release."""
    return base_release(facts, release).tag


def newest_release(facts: Facts) -> Release:
    """Return the newest release of the base package."""
    return facts.releases[base_package(facts).name][-1]


def all_pythons(facts: Facts) -> tuple[str, ...]:
    """Return every CPython that any release supports, oldest first."""
    pythons: set[str] = set()
    for releases in facts.releases.values():
        for release in releases:
            pythons.update(release.pythons)
    return tuple(sorted(pythons, key=python_key))


def find_release(facts: Facts, package: str, version: str) -> Release:
    """Return a package's release by version or tag; of one that goes with several torch, the first.

    That is the entry for the oldest of these torch. `package` must be one of the facts. Raises
    UnknownReleaseError, with near matches; ConfigError if the release is left out of the facts
    because its file has mistakes.
    """
    for release in facts.releases[package]:
        if version in (release.version, release.tag):
            return release
    refuse_left_out(facts, version)
    tags = [release.tag for release in facts.releases[package]]
    tag = re.sub(r"^\D*", "v", version)  # "release/2.4" and "V2.4.1" as tags are written
    # "2.4" means the newest of 2.4.0, 2.4.1, …
    similar = [other for other in reversed(tags) if other.startswith(f"{tag}.")][:_SUGGESTIONS]
    if not similar:
        similar = get_close_matches(tag, tags, _SUGGESTIONS)
    choices = ", ".join(similar) if similar else f"{tags[0]} to {tags[-1]}"
    raise UnknownReleaseError(
        f"no release of {package} is called '{version}'; there is {choices} "
        "(build_configs/releases has them all)",
        code="unknown-release",
    )


def refuse_left_out(facts: Facts, *names: str) -> None:
    """Raise ConfigError, with the mistakes, if a name is of a package or release left out."""
    for file in facts.left_out:
        if not set(names).isdisjoint(file.names):
            lines = "\n".join(f"  {problem}" for problem in file.problems)
            raise ConfigError(
                f"build_configs/{file.name} has problems:\n{lines}", code="facts-invalid"
            )


def paired_release(facts: Facts, package: str, torch: Release) -> Release | None:
    """Return the release of `package` that goes with a release of torch; None if there is none.

    Of torch itself that is `torch`. Of several, it is the oldest.
    """
    if package == torch.package:
        return torch
    for release in facts.releases[package]:
        if release.torch == torch.version:
            return release
    return None


def partner_releases(facts: Facts, release: Release, names: Collection[str]) -> tuple[Release, ...]:
    """Return the releases of the named packages that go with a release of torch.

    Without names, the release itself. A name is that of a package or of its sessions: "torchvision"
    or "vision".
    Raises ConfigError for a name that is not a package, UnknownReleaseError if a package has no
    release that goes with it.
    """
    # Users may write the name of a package, "torchvision", or the word of its sessions, "vision".
    packages: dict[str, Package] = {}
    for package in facts.packages.values():
        packages[package.session] = package
        packages[package.name] = package
    unknown = sorted(set(names) - packages.keys())
    if unknown:
        refuse_left_out(facts, *unknown)
        choices = ", ".join(f"{pkg.name} ({pkg.session})" for pkg in facts.packages.values())
        raise ConfigError(
            f"unknown package {', '.join(unknown)}: choose from {choices}", code="unknown-package"
        )
    partners: dict[str, Release] = {}  # a package may be named twice
    missing: list[str] = []
    for word in names or (release.package,):
        name = packages[word].name
        partner = paired_release(facts, name, release)
        if partner is not None:
            partners[name] = partner
        elif name not in missing:
            missing.append(name)
    if missing:
        raise UnknownReleaseError(
            f"no release of {', '.join(missing)} is known to fit {release.tag}",
            code="no-partner-release",
        )
    return tuple(partners.values())


def releases_of(facts: Facts, selected: Release | None) -> Iterator[Release]:
    """Yield the selected release and its partners; without one, every release.

    Those of one package follow one another, in the second case the newest first.
    """
    for package in facts.packages:
        if selected is None:
            yield from reversed(facts.releases[package])
            continue
        partner = paired_release(facts, package, selected)
        if partner is not None:
            yield partner
