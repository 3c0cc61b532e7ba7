"""What a wheel's files want from the system, read off their headers, for a platform's policy to judge."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping
from pathlib import Path

from torchmill.pack import elf
from torchmill.pack.elf import Elf
from torchmill.pack.policy import DRIVER, Needs, Target


def needs(root: Path, files: Mapping[Path, Elf], target: Target, own: Container[str]) -> Iterator[Needs]:
    """Yield what each file below `root` wants of those libraries that `target` has.

    `own` are the names of the libraries that the wheel has itself.
    """
    watched = target.policy.blacklist
    for path, facts in files.items():
        libraries = frozenset(_from_system(target, facts.needed, own))
        symbols = elf.imports(path) if libraries & set(watched) else frozenset()
        versions = {name: facts.versions[name] for name in libraries & set(facts.versions)}
        yield Needs(path.relative_to(root).as_posix(), libraries, versions, symbols)


def _from_system(target: Target, needed: Iterable[str], own: Container[str]) -> Iterator[str]:
    for name in needed:
        if target.on_system(name) and name not in own and not DRIVER.fullmatch(name):
            yield name
