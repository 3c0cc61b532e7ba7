"""A torch that has appeared on the package index, and that the facts do not know yet.

Facts are *completed* if a person has filled in what no index tells; a file that a program drafted is
not. A torch is new if it is newer than every completed release.
"""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from packaging.tags import Tag
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from torchmill.config.facts import Facts
from torchmill.config.official_wheels import platform_of_tag
from torchmill.config.release import Release
from torchmill.config.release_lookup import base_package
from torchmill.config.versions import python_key
from torchmill.core.errors import ConfigError, UnknownReleaseError

if TYPE_CHECKING:
    from torchmill.fetch.package_index import IndexFile


@dataclass(frozen=True, slots=True)
class IndexTorch:
    """A release of torch on an index."""

    version: str
    pythons: tuple[str, ...]  # for which it has wheels for the machine, oldest first

    def serves(self, pythons: Collection[str]) -> bool:
        """Tell whether it has a wheel for one of some Pythons, or, without any, for some Python."""
        return bool(self.pythons) and (not pythons or not set(pythons).isdisjoint(self.pythons))


def newest_completed(facts: Facts) -> Release:
    """Return the newest release of torch whose facts are completed; if none are, the newest."""
    releases = facts.releases[base_package(facts).name]
    completed = [release for release in releases if not release.drafted]
    return (completed or releases)[-1]


def torches_on_index(facts: Facts, files: "Iterable[IndexFile]", arch: str) -> list[IndexTorch]:
    """Return the releases of torch among the files of an index, with wheels for an arch or not.

    The newest is first. Pre-releases, source archives and withdrawn files do not count.
    """
    pythons: dict[Version, set[str]] = {}
    for file in files:
        if file.yanked:
            continue
        try:
            _, version, _, tags = parse_wheel_filename(file.name)
        except (InvalidWheelFilename, InvalidVersion):
            continue
        if not version.is_prerelease and version.local is None:
            pythons.setdefault(version, set()).update(_pythons_of_tags(facts, tags, arch))
    torches = []
    for version in sorted(pythons, reverse=True):
        sorted_pythons = tuple(sorted(pythons[version], key=python_key))
        torches.append(IndexTorch(str(version), sorted_pythons))
    return torches


def _pythons_of_tags(facts: Facts, tags: Iterable[Tag], arch: str) -> set[str]:
    """Return the CPythons ("3.13t") that tags of a wheel are for, on an arch."""
    pythons = set()
    for tag in tags:
        platform = platform_of_tag(facts, tag.platform)
        number = tag.interpreter.removeprefix("cp")
        if platform is None or platform.name != arch or not number.isdecimal():
            continue
        free_threaded = "t" if tag.abi.endswith("t") else ""
        pythons.add(f"{number[0]}.{number[1:]}{free_threaded}")
    return pythons


def new_torches(facts: Facts, torches: Sequence[IndexTorch]) -> list[IndexTorch]:
    """Return the torches that are newer than every completed release, the newest first."""
    newest = Version(newest_completed(facts).version)
    return [torch for torch in torches if Version(torch.version) > newest]


def choose_torch(torches: Sequence[IndexTorch], pythons: Collection[str]) -> IndexTorch | None:
    """Return the first torch with a wheel for one of some Pythons, or any; None without one.

    `torches` are the newest first.
    """
    for torch in torches:
        if torch.serves(pythons):
            return torch
    return None


def torch_of_tag(facts: Facts, torches: Sequence[IndexTorch], tag: str) -> IndexTorch:
    """Return the new torch that the user names by its tag or version.

    Raises ConfigError for a torch with completed facts, UnknownReleaseError for one that the index
    does not have.
    """
    base = base_package(facts)
    for release in facts.releases[base.name]:
        if tag in {release.version, release.tag} and not release.drafted:
            raise ConfigError(
                f"{release} is not new, its facts are complete: "
                f"`invoke build NAME --tag {release.tag} --torch PyPI` builds packages against it",
                code="torch-not-new",
            )
    for torch in torches:
        if tag in {torch.version, base.source.tag.format(version=torch.version)}:
            return torch
    newest = torches[0].version if torches else "nothing"
    raise UnknownReleaseError(
        f"the index has no release '{tag}' of {base.name}: the newest that counts is {newest} "
        "(pre-releases and withdrawn files do not)",
        code="unknown-release",
    )


def describe_no_news(
    facts: Facts, news: Sequence[IndexTorch], pythons: Sequence[str], arch: str, index: str
) -> str:
    """Return why there is nothing to build, as a sentence.

    `news` are new torches none of which has a wheel for one of the Pythons.
    """
    newest = newest_completed(facts)
    if not news:
        return (
            f"nothing is new: {index} has no {newest.package} that is newer than {newest.version}"
        )
    torch = news[0]
    target = f"Python {' or '.join(pythons)} on {arch}" if pythons else arch
    has = f"it has wheels for {', '.join(torch.pythons)}" if torch.pythons else "it has none yet"
    return (
        f"nothing to build: {newest.package} {torch.version} is on {index}, but without a wheel for "
        f"{target} ({has})"
    )
