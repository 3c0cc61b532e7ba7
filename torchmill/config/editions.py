"""Pair the releases that a package's own file declares with releases of torch.

Such a release is an *edition*: it goes with every torch in bounds. The upper bound of the newest
edition is mostly the first torch that did not exist yet, so it says of a newer torch only that
nobody tried. A *drafted* torch, whose facts a program wrote on the day it appeared, is therefore
paired with that edition, too.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from torchmill.config.package import Edition, Package
from torchmill.config.release import Release, ReleaseProof, UpstreamWheels, WheelTraits
from torchmill.config.versions import is_within, version_key


def pair_editions(package: Package, bases: Iterable[Release]) -> tuple[list[Release], list[str]]:
    """Return a release of a package for each torch, and a problem for each edition without one.

    Each release of torch (`bases`) goes with the newest edition that takes it.
    """
    newest_first = sorted(
        package.editions, key=lambda edition: version_key(edition.version), reverse=True
    )
    bases = tuple(bases)
    releases: list[Release] = []
    for base in bases:
        edition = _edition_for(newest_first, base, bases)
        if edition is not None:
            releases.append(_pair_edition(package, edition, base))
    paired_versions = {release.version for release in releases}
    unpaired = [edition for edition in newest_first if edition.version not in paired_versions]
    problems = [
        f"{package.name}.toml: release {edition.version}: {package.after} '{edition.torch}' leaves "
        f"it no release of {package.after} that goes with no newer one"
        for edition in unpaired
    ]
    return releases, problems


def _edition_for(
    newest_first: Sequence[Edition], base: Release, bases: Sequence[Release]
) -> Edition | None:
    """Return the edition that goes with a torch, `base`; None if none does.

    A drafted torch that is newer than all completed ones gets the newest edition even beyond its
    bounds, unless they leave out the newest completed torch: such a bound was set on purpose.
    """
    for edition in newest_first:
        if is_within(edition.torch, base.version):
            return edition
    completed = [other.version for other in bases if not other.drafted]
    if not base.drafted or not newest_first or not completed:
        return None
    newest_completed = max(completed, key=version_key)
    is_newer = version_key(base.version) > version_key(newest_completed)
    if is_newer and is_within(newest_first[0].torch, newest_completed):
        return newest_first[0]
    return None


def _pair_edition(package: Package, edition: Edition, base: Release) -> Release:
    """Return an edition as the release of a package for one torch, `base`."""
    cuda = base.cuda
    if edition.cuda is not None:
        cuda = replace(cuda, range=edition.cuda)
    tried: Mapping[str, str] = {}
    # Nobody's report is about a torch that has just appeared, whatever the bounds include.
    if not base.drafted and is_within(edition.built_against, base.version):
        tried = dict.fromkeys(edition.built, edition.source)
    return Release(
        package=package.name,
        version=edition.version,
        tag=package.source.tag.format(version=edition.version),
        torch=base.version,
        pythons=tuple(
            python for python in base.pythons if is_within(edition.python, python.rstrip("t"))
        ),
        arches=tuple(arch for arch in base.arches if arch in (edition.arches or base.arches)),
        source=edition.source,
        cuda=cuda,
        proof=ReleaseProof(edition.commit, edition.sha256),
        wheel=WheelTraits(edition.wheel_tag, edition.stable_abi),
        upstream=UpstreamWheels(edition.date),
        tried=tried,
    )
