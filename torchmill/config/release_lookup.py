"""Find releases in the facts: by tag, by the torch that they go with, the newest."""

import re
from collections.abc import Collection, Iterator
from difflib import get_close_matches

from torchmill.config.facts import Facts
from torchmill.config.package import Package
from torchmill.config.release import Release
from torchmill.config.versions import python_key
from torchmill.core.errors import ConfigError, UnknownReleaseError


def base_release(facts: Facts, release: Release) -> Release:
    """Return the release of the base that a release goes with."""
    return find_release(facts, base_package(facts).name, release.torch_version)


def selecting_tag(facts: Facts, release: Release) -> str:
    """Return what `--tag` takes to select a release: the tag of the base that it goes with."""
    return base_release(facts, release).tag


def all_pythons(facts: Facts) -> tuple[str, ...]:
    """Return every CPython that any release supports, oldest first."""
    known = {
        python for releases in facts.releases.values() for one in releases for python in one.pythons
    }
    return tuple(sorted(known, key=python_key))


def base_package(facts: Facts) -> Package:
    """Return the package that the others are built against."""
    return next(package for package in facts.packages.values() if package.after is None)


def refuse_left_out(facts: Facts, *names: str) -> None:
    """Raise ConfigError, with the mistakes, if a name means a package or release that is left out."""
    for file in facts.left_out:
        if not set(names).isdisjoint(file.names):
            lines = "\n".join(f"  {problem}" for problem in file.problems)
            raise ConfigError(
                f"build_configs/{file.name} has problems:\n{lines}", code="facts-invalid"
            )


def find_release(facts: Facts, package: str, version: str) -> Release:
    """Return a package's release by version or tag.

    Raises UnknownReleaseError, with near matches, ConfigError if its file has mistakes.
    """
    for release in facts.releases[package]:
        if version in (release.version, release.tag):
            return release
    refuse_left_out(facts, version)
    known = [release.tag for release in facts.releases[package]]
    named = re.sub(r"^\D*", "v", version)  # "release/2.4", "V2.4.1"
    near = [tag for tag in reversed(known) if tag.startswith(f"{named}.")][:3] or get_close_matches(
        named, known, 3
    )
    there = ", ".join(near) if near else f"{known[0]} to {known[-1]}"
    raise UnknownReleaseError(
        f"no release of {package} is called '{version}'; there is {there} (build_configs/releases has them all)",
        code="unknown-release",
    )


def paired_release(facts: Facts, package: str, torch: Release) -> Release | None:
    """Return the release of `package` that goes with a torch release, or None."""
    if package == torch.package:
        return torch
    return next((one for one in facts.releases[package] if one.torch == torch.version), None)


def newest_release(facts: Facts) -> Release:
    """Return the newest release of the base package."""
    return facts.releases[base_package(facts).name][-1]


def partner_releases(facts: Facts, release: Release, names: Collection[str]) -> tuple[Release, ...]:
    """Return the releases of the named packages that go with a release; without a name, itself.

    Raises ConfigError for a name that is no package, UnknownReleaseError where a package has no such release.
    """
    words = {word: one for one in facts.packages.values() for word in (one.session, one.name)}
    if unknown := sorted(set(names) - words.keys()):
        refuse_left_out(facts, *unknown)
        there = ", ".join(f"{one.name} ({one.session})" for one in facts.packages.values())
        raise ConfigError(
            f"unknown package {', '.join(unknown)}: choose from {there}", code="unknown-package"
        )
    wanted = dict.fromkeys(words[name].name for name in names or (release.package,))
    found = {name: partner for name in wanted if (partner := paired_release(facts, name, release))}
    if missing := ", ".join(name for name in wanted if name not in found):
        raise UnknownReleaseError(
            f"no release of {missing} is known to fit {release.tag}", code="no-partner-release"
        )
    return tuple(found.values())


def releases_of(facts: Facts, selected: Release | None) -> Iterator[Release]:
    """Yield what a selection stands for: the release and its partners, or every release, newest first."""
    for package in facts.packages:
        if selected is None:
            yield from reversed(facts.releases[package])
        elif (partner := paired_release(facts, package, selected)) is not None:
            yield partner
