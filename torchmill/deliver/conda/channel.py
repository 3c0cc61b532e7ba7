"""Write a conda channel from the packages in dist/conda/."""

import asyncio
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

from torchmill.config.model import Facts
from torchmill.core import files, locks
from torchmill.core.errors import DeliveryError, require_package
from torchmill.core.paths import Layout
from torchmill.core.stat_cache import StatCache
from torchmill.deliver.conda import requirements
from torchmill.deliver.conda.package import NOARCH

MARKER = "torchmill-channel.json"  # tells what we put there: sha256 by path, "linux-64/pytorch-1.13.1-….conda"
SUFFIXES = (".conda", ".tar.bz2")


def write_channel(facts: Facts, layout: Layout, out: Path) -> str:
    """Write or bring up to date the channel in the folder `out`, and return what to print.

    Packages appear whole, and the index that names them after them; what is indexed is not read again. Raises
    DeliveryError for a package that is not what it says, for another one of the same name in the channel, and for a
    folder that somebody else wrote into; HostError where py-rattler is missing or the disk refuses.
    """
    with require_package("indexing a channel", "py-rattler", "conda-tools-missing"):
        import rattler  # noqa: F401 - before anything is written
    stat_cache, folder = StatCache(layout.stat_cache), layout.conda
    with files.report_unwritable(out), locks.hold_lock(layout.state / "channel", "the channel"):
        made = _made(facts, folder, stat_cache)
        there = _ours(out)
        _refuse_others(made, folder, there, out, stat_cache)
        fresh = {name: digest for name, digest in made.items() if name not in there}
        _publish(out, folder, fresh, there)
        stat_cache.save()
    names = sorted(
        {Path(one).name.rsplit("-", 2)[0] for one in made if not one.startswith(f"{NOARCH}/")}
    )
    total = len({*there, *made})
    return (
        f"{out}: a channel of {total} package{'s' * (total != 1)}, {len(fresh)} of them new\n"
        f"conda install -c {out.resolve().as_uri()} -c conda-forge {' '.join(names)}"
    )


def _made(facts: Facts, folder: Path, stat_cache: StatCache) -> dict[str, str]:
    """Return the packages in dist/conda/, each checked against its own name and folder: sha256 by path."""
    found = [one for one in sorted(_packages(folder)) if not one.startswith(".")]
    if not found:
        raise DeliveryError(
            f"{folder} holds no conda packages: make one (`nox -s conda-3.10-cpu`), `nox -l` lists them",
            code="no-conda-packages",
        )
    subdirs = {*requirements.conda_facts(facts).subdirs.values(), NOARCH}
    for one in found:
        _examine(folder / one, subdirs)
    return {one: stat_cache.digest(folder / one) or "" for one in found}


def _examine(path: Path, subdirs: set[str]) -> None:
    """Refuse a package that is not what its place says."""
    from rattler.exceptions import ExtractError, InvalidPackageNameError
    from rattler.package import IndexJson

    try:
        index = IndexJson.from_package_archive(path)
    except (ExtractError, InvalidPackageNameError, OSError, ValueError) as error:
        if files.is_of_system(error):
            raise
        gist = " ".join(str(error).split())[:200]
        raise DeliveryError(
            f"{path} is not a valid conda package ({gist}): make it again",
            code="conda-package-damaged",
        ) from None
    suffix = next(one for one in SUFFIXES if path.name.endswith(one))
    called = f"{index.name.normalized}-{index.version}-{index.build}{suffix}"
    if (called, index.subdir) != (path.name, path.parent.name) or index.subdir not in subdirs:
        raise DeliveryError(
            f"{path} is named {index.subdir}/{called} inside: make it again, and do not rename it",
            code="conda-package-renamed",
        )


def _ours(out: Path) -> dict[str, str]:
    """Return the packages that we put into a channel and that are there: sha256 by path.

    Refuse a folder of somebody else's.
    """
    if not out.exists() or (out.is_dir() and not any(out.iterdir())):
        return {}
    try:
        listed = files.read_json_object(out / MARKER)
    except (OSError, ValueError):
        raise DeliveryError(
            f"{out} is not a channel that torchmill wrote: name an empty or a new folder",
            code="foreign-channel",
        ) from None
    there = set(_packages(out))
    return {name: str(digest) for name, digest in listed.items() if name in there}


def _refuse_others(
    made: Mapping[str, str], folder: Path, there: Mapping[str, str], out: Path, cache: StatCache
) -> None:
    """Refuse to replace a package by another of the same name, and packages that came from elsewhere."""
    if strangers := sorted(name for name in _packages(out) if name not in there):
        raise DeliveryError(
            f"{out / strangers[0]} was not written by torchmill: move it away, or write another channel",
            code="foreign-package",
        )
    if changed := [name for name, digest in there.items() if cache.digest(out / name) != digest]:
        raise DeliveryError(
            f"{out / changed[0]} has changed since it was written: remove it, and write the channel again",
            code="channel-changed",
        )
    if others := [name for name, digest in made.items() if there.get(name, digest) != digest]:
        raise DeliveryError(
            f"{out / others[0]} exists and differs from {folder / others[0]}; whoever has installed it would not get "
            "the new one: remove it from the channel, or write another channel",
            code="package-exists",
        )


def _packages(out: Path) -> Iterator[str]:
    for path in out.glob("*/*"):
        if path.name.endswith(SUFFIXES) and not path.name.startswith("."):
            yield f"{path.parent.name}/{path.name}"


def _publish(out: Path, folder: Path, fresh: Mapping[str, str], there: Mapping[str, str]) -> None:
    """Index all packages in a folder of the channel's, and bring over what is new, the indexes last."""
    from rattler.index import index_fs

    with files.fresh_path(out / "stage") as stage:
        (stage / NOARCH).mkdir(parents=True)
        for name in there:
            (stage / name).parent.mkdir(exist_ok=True)
            if not files.link_file(out / name, stage / name):
                shutil.copyfile(out / name, stage / name)
        for index in out.glob("*/repodata.json"):  # no link: it is written to
            (stage / index.parent.name).mkdir(exist_ok=True)
            shutil.copyfile(index, stage / index.parent.name / index.name)
        for name in fresh:  # no link either: who writes to dist/ leaves the channel alone
            (stage / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(folder / name, stage / name)
        asyncio.run(index_fs(stage, write_zst=True, write_shards=True))
        listed = dict(sorted({**there, **fresh}.items()))
        # first: who is stopped goes on later
        files.write_atomically(out / MARKER, json.dumps(listed, indent=1) + "\n")
        # packages first, then shards, then the files that name them
        every = (
            (not one.name.endswith(SUFFIXES), "repodata" in one.name, one)
            for one in stage.rglob("*")
        )
        for _, _, path in sorted(each for each in every if each[-1].is_file()):
            place = out / path.relative_to(stage)
            if not (place.name.endswith(SUFFIXES) and place.is_file()):
                place.parent.mkdir(parents=True, exist_ok=True)
                path.replace(place)
