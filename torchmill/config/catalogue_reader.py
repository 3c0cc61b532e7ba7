"""Read packages and releases; a file with mistakes is left out, and does not stop the others."""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from packaging.version import Version

from torchmill.config.build import CPU
from torchmill.config.editions import pair_editions
from torchmill.config.facts import BrokenFile
from torchmill.config.package import Package
from torchmill.config.package_reader import PackageFile, blame_dependents, read_package_files
from torchmill.config.release import Release
from torchmill.config.release_reader import ReleaseReader
from torchmill.config.toolkit import Toolkit
from torchmill.config.versions import version_key
from torchmill.core.stat_cache import StatCache

# Fields of UpstreamWheels that are written only once for a release that goes with several torch: at
# the oldest torch.
_WRITTEN_ONCE = ("date", "built_from", "wheels", "explained")


@dataclass(frozen=True)
class PackagesAndReleases:
    """The packages and releases that can be used, and the files that are left out."""

    packages: Mapping[str, Package]
    releases: Mapping[str, tuple[Release, ...]]  # by package, oldest first
    left_out: tuple[BrokenFile, ...]


def read_packages_and_releases(
    folder: Path,
    arches: Collection[str],
    toolkits: Iterable[Toolkit],
    cache: StatCache | None,
) -> PackagesAndReleases:
    """Read packages/*.toml and releases/*.toml below `folder`.

    A file with a mistake is left out. With a package, the packages that are built on it are left
    out too.
    """
    files = read_package_files(folder, cache)
    variants = {CPU, *(toolkit.variant for toolkit in toolkits)}
    tried_keys = set(variants)
    for arch in arches:
        tried_keys.update(f"{variant}-{arch}" for variant in variants)
    reader = ReleaseReader(files, arches, tried_keys, cache)
    broken_releases = reader.read_files(folder / "releases")
    # An edition without a torch is a mistake, unless its torch may be in a file that is left out.
    _add_editions(reader, files, blame_unpaired=not broken_releases)
    broken_packages = blame_dependents(files)
    usable = {file.package.name: file.package for file in files if not file.problems}
    releases = {
        name: _complete_releases(sorted(reader.releases[name], key=_release_key)) for name in usable
    }
    return PackagesAndReleases(usable, releases, (*broken_packages, *broken_releases))


def _add_editions(
    reader: ReleaseReader, files: Iterable[PackageFile], *, blame_unpaired: bool
) -> None:
    """Add the releases that packages declare themselves to those of a reader, and note problems.

    Packages whose file or base package cannot be read are passed over. An edition that goes with no
    torch is a problem only if `blame_unpaired`.
    """
    for file in files:
        package = file.package
        if not package.name or not package.editions or package.after not in reader.releases:
            continue
        releases = reader.releases[package.name]
        bases = reader.releases[package.after]
        file.problems.extend(
            f"{file.name}: {release} stands in releases/ too; say it in one place"
            for release in releases
        )
        declared, problems = pair_editions(package, bases)
        releases.extend(declared)
        for release in declared:
            file.problems.extend(reader.unknown_targets(release))
        if blame_unpaired:
            file.problems.extend(problems)


def _release_key(release: Release) -> tuple[Version, Version]:
    """Return a key that orders releases by their version, then by their torch."""
    return version_key(release.version), version_key(release.torch or "0")


def _complete_releases(releases: Iterable[Release]) -> tuple[Release, ...]:
    """Return the releases of a package with all their fields.

    A release that goes with several torch is here once for each, the oldest first. What is written
    at that one counts for the others.
    """
    first_by_version: dict[str, Release] = {}
    completed: list[Release] = []
    for release in releases:
        first = first_by_version.setdefault(release.version, release)
        fields: dict[str, Any] = {}
        for name in _WRITTEN_ONCE:
            fields[name] = getattr(release.upstream, name) or getattr(first.upstream, name)
        commit = release.proof.commit or first.proof.commit
        completed.append(
            replace(
                release,
                proof=replace(release.proof, commit=commit),
                upstream=replace(release.upstream, **fields),
            )
        )
    return tuple(completed)
