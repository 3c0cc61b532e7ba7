"""Write a conda channel from the packages in dist/conda/.

The place of a package is its path in the channel: "linux-64/pytorch-1.13.1-….conda".
"""

import asyncio
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from torchmill.config.facts import Facts
from torchmill.core import locks
from torchmill.core.atomic_writes import fresh_path, write_atomically
from torchmill.core.errors import DeliveryError
from torchmill.core.lenient_paths import link_file
from torchmill.core.optional_libraries import require_library
from torchmill.core.paths import Layout
from torchmill.core.stat_cache import StatCache
from torchmill.core.strict_json import read_json_object
from torchmill.core.system_errors import is_of_system, report_unwritable
from torchmill.deliver.conda import requirements
from torchmill.deliver.conda.recipe import NOARCH

# The file in a channel that lists the packages that torchmill put there: their sha256 by place.
MARKER = "torchmill-channel.json"

SUFFIXES = (".conda", ".tar.bz2")


def write_channel(facts: Facts, layout: Layout, out: Path) -> str:
    """Write or update the channel in the folder `out`; return the lines to print about it.

    A package appears by rename, and before the index that names it. Packages that are in the index
    already are not read again. Raises DeliveryError for a package that is not what its name says,
    for a different package of the same name in the channel, and for a folder that somebody else
    wrote into; HostError if py-rattler is missing or the disk refuses.
    """
    with require_library("py-rattler"):
        import rattler  # noqa: F401 - refused before anything is written
    stat_cache = StatCache(layout.stat_cache)
    with report_unwritable(out), locks.hold_work_folder(layout.state / "channel", "the channel"):
        packages = _checked_packages(facts, layout.conda, stat_cache)
        published = _published_packages(out)
        _refuse_conflicts(packages, layout.conda, published, out, stat_cache)
        added = {place: digest for place, digest in packages.items() if place not in published}
        _publish(out, layout.conda, added, published)
        stat_cache.save()
    names = set()
    for place in packages:
        if not place.startswith(f"{NOARCH}/"):
            names.add(Path(place).name.rsplit("-", 2)[0])
    total = len({*published, *packages})
    plural = "" if total == 1 else "s"
    return (
        f"{out}: a channel of {total} package{plural}, {len(added)} of them new\n"
        f"conda install -c {out.resolve().as_uri()} -c conda-forge {' '.join(sorted(names))}"
    )


def _checked_packages(facts: Facts, folder: Path, stat_cache: StatCache) -> dict[str, str]:
    """Return the sha256 of each package in dist/conda/ by its place; each one is checked.

    Raises DeliveryError if there are none.
    """
    # A place that begins with a dot is of a package that is just being made.
    places = [place for place in sorted(_list_packages(folder)) if not place.startswith(".")]
    if not places:
        raise DeliveryError(
            f"{folder} holds no conda packages: make one (`nox -s conda-3.10-cpu`), `nox -l` lists "
            "them",
            code="no-conda-packages",
        )
    subdirs = {*requirements.conda_facts(facts).subdirs.values(), NOARCH}
    for place in places:
        _check_package(folder / place, subdirs)
    return {place: stat_cache.digest(folder / place) or "" for place in places}


def _check_package(path: Path, subdirs: set[str]) -> None:
    """Raise DeliveryError if a package's own name and folder are not those of its file."""
    from rattler.exceptions import ExtractError, InvalidPackageNameError
    from rattler.package import IndexJson

    try:
        index = IndexJson.from_package_archive(path)
    except (ExtractError, InvalidPackageNameError, OSError, ValueError) as error:
        if is_of_system(error):  # the machine is to blame, not the package
            raise
        reason = " ".join(str(error).split())[:200]
        raise DeliveryError(
            f"{path} is not a valid conda package ({reason}): make it again",
            code="conda-package-damaged",
        ) from None
    suffix = next(suffix for suffix in SUFFIXES if path.name.endswith(suffix))
    name = f"{index.name.normalized}-{index.version}-{index.build}{suffix}"
    if (name, index.subdir) != (path.name, path.parent.name) or index.subdir not in subdirs:
        raise DeliveryError(
            f"{path} is named {index.subdir}/{name} inside: make it again, and do not rename it",
            code="conda-package-renamed",
        )


def _published_packages(out: Path) -> dict[str, str]:
    """Return the sha256 of each package in a channel that torchmill put there, by its place.

    Raises DeliveryError if the folder is neither empty nor a channel that torchmill wrote.
    """
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return {}
    try:
        listed = read_json_object(out / MARKER)
    except (OSError, ValueError):
        raise DeliveryError(
            f"{out} is not a channel that torchmill wrote: name an empty or a new folder",
            code="foreign-channel",
        ) from None
    present = set(_list_packages(out))
    return {place: str(digest) for place, digest in listed.items() if place in present}


def _refuse_conflicts(
    packages: Mapping[str, str],
    folder: Path,
    published: Mapping[str, str],
    out: Path,
    stat_cache: StatCache,
) -> None:
    """Raise DeliveryError if a channel has foreign or changed packages, or would replace a package.

    `packages` are those in `folder`, `published` those that torchmill put into the channel `out`;
    both are sha256 by place.
    """
    foreign = sorted(place for place in _list_packages(out) if place not in published)
    if foreign:
        raise DeliveryError(
            f"{out / foreign[0]} was not written by torchmill: move it away, or write another "
            "channel",
            code="foreign-package",
        )
    # The index of the channel has the recorded digests: clients would refuse the changed files.
    for place, digest in published.items():
        if stat_cache.digest(out / place) != digest:
            raise DeliveryError(
                f"{out / place} has changed since it was written: remove it, and write the channel "
                "again",
                code="channel-changed",
            )
    for place, digest in packages.items():
        if published.get(place, digest) != digest:
            raise DeliveryError(
                f"{out / place} exists and differs from {folder / place}; whoever has installed it "
                "would not get the new one: remove it from the channel, or write another channel",
                code="package-exists",
            )


def _list_packages(channel: Path) -> Iterator[str]:
    """Yield the places of the packages in a channel."""
    for path in channel.glob("*/*"):
        if path.name.endswith(SUFFIXES) and not path.name.startswith("."):
            yield f"{path.parent.name}/{path.name}"


def _publish(
    out: Path, folder: Path, added: Mapping[str, str], published: Mapping[str, str]
) -> None:
    """Index all packages in a hidden folder, and move the results into the channel."""
    from rattler.index import index_fs

    with fresh_path(out / "stage") as stage:
        (stage / NOARCH).mkdir(parents=True)  # a channel must have this folder, even if it is empty
        for place in published:
            (stage / place).parent.mkdir(exist_ok=True)
            if not link_file(out / place, stage / place):
                shutil.copyfile(out / place, stage / place)
        # Copies, because the index is written in place: through a link, it would be changed in the
        # channel before its packages are there.
        for index in out.glob("*/repodata.json"):
            (stage / index.parent.name).mkdir(exist_ok=True)
            shutil.copyfile(index, stage / index.parent.name / index.name)
        # A link would let whoever writes to dist/ change the channel.
        for place in added:
            (stage / place).parent.mkdir(exist_ok=True)
            shutil.copyfile(folder / place, stage / place)
        asyncio.run(index_fs(stage, write_zst=True, write_shards=True))
        # The marker comes first, so that the next run continues one that was stopped.
        listed = dict(sorted({**published, **added}.items()))
        write_atomically(out / MARKER, json.dumps(listed, indent=1) + "\n")
        results = [path for path in stage.rglob("*") if path.is_file()]
        for path in sorted(results, key=_publishing_order):
            target = out / path.relative_to(stage)
            if target.name.endswith(SUFFIXES) and target.is_file():
                continue
            target.parent.mkdir(parents=True, exist_ok=True)
            path.replace(target)


def _publishing_order(path: Path) -> tuple[bool, bool, Path]:
    """Return the key that sorts packages first, then their shards, then the indexes."""
    return (not path.name.endswith(SUFFIXES), "repodata" in path.name, path)
