"""A conda package of a verified wheel: what `nox -s conda-3.10-cpu` does."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from torchmill import digests
from torchmill.deliver import distributions, made
from torchmill.deliver.conda import naming, package, recipe, runpaths, tree
from torchmill.deliver.conda.recipe import Recipe
from torchmill.deliver.distributions import Distribution
from torchmill.deliver.made import Product
from torchmill.deliver.verified import Verified
from torchmill.errors import DeliveryError
from torchmill.layout import Layout
from torchmill.ledger import digest
from torchmill.pack import elf
from torchmill.pack.stage import StagedWheel
from torchmill.recall import Recall

_TOLD = 3  # things that are wrong, of all that there are
_LICENSES = ("LICENSE*", "LICENCE*", "NOTICE*", "licenses/**/*")


def folder(layout: Layout) -> Path:
    """Return where packages lie, in a folder for each kind of machine."""
    return layout.dist / "conda"


def make(found: Verified, number: int | None = None) -> Product:
    """Make the package of a verified wheel in dist/conda/, unless it is there and would be the same.

    `number` is its build number, by default the wheel's. Raises DeliveryError where the wheel is not what it
    says, ImpossibleBuildError for a machine that conda has no name for, HostError where this one lacks
    rattler-build or room, ConfigError for a variable without sense.
    """
    layout, recall = found.layout, Recall(found.layout.cache / "recall.json")
    wheel = distributions.read(found.wheel)
    planned = recipe.compose(found.facts, found.cell, wheel, (), os.environ, number=number)
    parts = _parts(found, planned, recall)
    there = made.kept([folder(layout) / planned.subdir / planned.file], parts, recall)
    recall.save()
    if there is not None:
        return Product(there, kept=True)
    package = _made(found, wheel, number)
    made.note(package, parts, digests.sha256(package), {})
    return Product(package, kept=False)


def _parts(found: Verified, planned: Recipe, recall: Recall) -> dict[str, str]:
    """Return all that can change a package; what the wheel's symbols add to the recipe follows from these."""
    return {
        **made.of_wheel(found.wheel, recall),
        "recipe": digest(asdict(planned)),
        "facts": digest(asdict(naming.known(found.facts))),
        "code": made.code(recall, "deliver/conda", "deliver/distributions.py", "pack"),
        "tools": digest([made.version(name) for name in package.TOOLS]),
    }


def _made(found: Verified, wheel: Distribution, number: int | None) -> Path:
    layout, build = found.layout, found.cell.build
    if wrong := list(distributions.examine(found.wheel)):
        told = "; ".join(wrong[:_TOLD]) + (f"; and {len(wrong) - _TOLD} more" if len(wrong) > _TOLD else "")
        raise DeliveryError(f"{found.wheel}: {told}: build it again")
    layout.state.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="conda-", dir=layout.state) as scratch:
        prefix = Path(scratch, "prefix")
        staged = tree.lay(found.wheel, prefix, build.python)
        symbols = wanted_of_libstdcxx(staged)
        described = recipe.compose(found.facts, found.cell, wheel, symbols, os.environ, number=number)
        if found.facts.arches[build.arch].system == "linux":
            runpaths.apply(staged, prefix / "lib")
        tree.settle(staged, prefix)
        return package.write(described, prefix, dict(licenses(staged)), folder(layout))


def wanted_of_libstdcxx(staged: StagedWheel) -> frozenset[str]:
    """Return the versions of its symbols that the wheel's libraries want of libstdc++."""
    files = elf.dynamic_files(staged.root).values()
    return frozenset(one for facts in files for one in facts.versions.get("libstdc++.so.6", ()))


def licenses(staged: StagedWheel) -> Iterator[tuple[str, bytes]]:
    """Yield the texts of licences, by their paths in the package's own folder of them."""
    for pattern in _LICENSES:
        for path in sorted(staged.dist_info.glob(pattern)):
            if path.is_file():
                name = path.relative_to(staged.dist_info).as_posix()
                yield name.removeprefix("licenses/"), path.read_bytes()
