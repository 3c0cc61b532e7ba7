"""What was made of verified wheels for others: packages of conda and archives of libraries, in dist/."""

from collections.abc import Iterator

from torchmill.artifact import manifest_of
from torchmill.housekeeping.items import Item, Place, just
from torchmill.housekeeping.usage import newest


def packages(place: Place) -> Iterator[Item]:
    """Yield packages of conda, and archives with their records; an archive without one is not ours."""
    dist = place.layout.dist
    for package in sorted(dist.glob("conda/*/*.conda")):
        name = package.relative_to(dist).as_posix()
        told = [path for path in (manifest_of(package),) if path.is_file()]
        yield Item("packages", name, just(*told, package), newest((package,)))
    for archive in sorted(dist.glob("lib*.zip")):
        record = manifest_of(archive)
        if record.is_file():
            yield Item("packages", archive.name, just(record, archive), newest((archive,)))
