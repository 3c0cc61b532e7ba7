"""Follow what the libraries of an installed wheel need: all of it must be found, and none be of the driver.

Nor may it be newer than the platform tag says.

A machine without a GPU has no libcuda. What needs it may be in a wheel, but must not be loaded by an import.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from torchmill.pack import elf, policy
from torchmill.pack.elf import Elf
from torchmill.pack.policy import DRIVER, INTERPRETER, Target
from torchmill.pack.search import expand
from torchmill.verify import tagged

ENTRY = "PyInit_"  # by which the interpreter enters an extension module
REQUIRED = "nvidia"  # the folder of site-packages that all packages of NVIDIA's share


def problems(site: Path, names: Iterable[str], platform_tag: str) -> list[str]:
    """Return what is wrong with the libraries of one wheel, `names` in the folder `site`.

    `site` is the site-packages of an environment that holds what the wheel requires, too. Of platforms
    other than Linux with a known C library nothing is said.
    """
    if not policy.TAG.fullmatch(platform_tag):
        return []
    own = [site / name for name in names if elf.is_elf(site / name)]
    read = {path: facts for path in own if (facts := elf.read(path)) is not None}
    known = _by_name(site, own)
    target = policy.target(platform_tag)
    return [
        *(clause for path, facts in read.items() for clause in _unfound(site, path, facts, known, target)),
        *_driven(site, read, known),
        *tagged.contradictions(site, read, target),
    ]


def _by_name(site: Path, own: Iterable[Path]) -> dict[str, Path]:
    """Return the libraries that are loaded, or can be, when the wheel is: its own, and other packages'."""
    others = (
        path for path in site.rglob("*.so*") if path.relative_to(site).parts[0] != REQUIRED and path.is_file()
    )
    return {path.name: path for path in (*others, *own)}


def _unfound(site: Path, path: Path, facts: Elf, known: Mapping[str, Path], target: Target) -> Iterator[str]:
    """Yield a clause for each folder that is not there, and for each library that is nowhere."""
    name = path.relative_to(site).as_posix()
    folders = [expand(entry, path) for entry in facts.rpath]
    for entry, folder in zip(facts.rpath, folders, strict=True):
        if f"/{REQUIRED}/" in entry and not folder.is_dir():
            yield f"{name} looks in {entry}, which nothing that the wheel requires brings"
    for needed in facts.needed:
        there = needed in known or any((folder / needed).is_file() for folder in folders)
        if not there and not target.on_system(needed) and not INTERPRETER.fullmatch(needed):
            yield f"{name} needs {needed}, which is neither in the wheel nor in what it requires"


def _driven(site: Path, read: Mapping[Path, Elf], known: Mapping[str, Path]) -> Iterator[str]:
    """Yield a clause for each library of the driver's that an import of the wheel loads."""
    for path in read:
        if any(name.startswith(ENTRY) for name in elf.exports(path)):
            for way in _ways(path, known):
                yield (
                    f"importing {path.relative_to(site).as_posix()} loads {way[-1]} of the driver, "
                    f"by way of {' and '.join(way[:-1]) or 'itself'}: it fails where there is no GPU"
                )


def _ways(start: Path, known: Mapping[str, Path]) -> Iterator[tuple[str, ...]]:
    """Yield the names that lead from a library to each of the driver's."""
    waiting: list[tuple[Path, tuple[str, ...]]] = [(start, ())]
    seen = {start.name}
    while waiting:
        path, way = waiting.pop()
        facts = elf.read(path) if elf.is_elf(path.resolve()) else None
        for needed in facts.needed if facts else ():
            if needed in seen:
                continue
            seen.add(needed)
            if DRIVER.fullmatch(needed):
                yield (*way, needed)
            elif needed in known:
                waiting.append((known[needed], (*way, needed)))
