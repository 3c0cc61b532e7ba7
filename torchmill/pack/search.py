"""Find the shared library that the loader of this machine would take."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from torchmill.pack import elf
from torchmill.process import capture

CACHED = re.compile(r"\s*(?P<name>\S+) \(.*\) => (?P<path>/.+)")
LDCONFIG = ("/sbin/ldconfig", "/usr/sbin/ldconfig", "/usr/bin/ldconfig")
STANDARD = ("/usr/local/lib", "/lib64", "/usr/lib64", "/lib", "/usr/lib")
MULTIARCH = ("/usr/local/lib/*-linux-*", "/usr/lib/*-linux-*", "/lib/*-linux-*")


@dataclass(frozen=True, slots=True)
class Search:
    """Where libraries are looked for once a file's own run path has not found them."""

    folders: tuple[Path, ...]  # named by the caller, tried first
    cached: tuple[tuple[str, Path], ...]  # the loader's cache, in its order
    standard: tuple[Path, ...]

    def find(self, needed: str, user: Path, rpath: Iterable[str], machine: str) -> Path | None:
        """Return the library that `user` needs, made for `machine`, or None where there is none."""
        return _first(self._candidates(needed, user, rpath), machine)

    def by_itself(self, name: str, machine: str | None) -> Path | None:
        """Return the library that the loader finds with no run path and no folder named; None where none."""
        return _first(self._by_itself(name), machine)

    def _candidates(self, needed: str, user: Path, rpath: Iterable[str]) -> Iterator[Path]:
        if needed.startswith("/"):  # from anywhere else the way would begin where this program was started
            yield Path(needed)
        name = Path(needed).name
        for entry in rpath:
            if (folder := expand(entry, user)).is_absolute():
                yield folder / name
        for folder in self.folders:
            yield folder / name
        yield from self._by_itself(name)

    def _by_itself(self, name: str) -> Iterator[Path]:
        for cached, path in self.cached:
            if cached == name:
                yield path
        for folder in self.standard:
            yield folder / name


def _first(candidates: Iterable[Path], machine: str | None) -> Path | None:
    """Return the first that is a library made for `machine`."""
    for path in candidates:
        if elf.is_elf(path.resolve()):
            found = elf.read(path.resolve())
            if found is not None and machine in {None, found.machine}:
                return path
    return None


def system(folders: Iterable[Path] = ()) -> Search:
    """Return this machine's search order, with `folders` before everything but run paths."""
    root = Path("/")
    multiarch = [path for pattern in MULTIARCH for path in sorted(root.glob(pattern.lstrip("/")))]
    return Search(tuple(folders), tuple(_cache()), (*map(Path, STANDARD), *multiarch))


def expand(entry: str, user: Path) -> Path:
    """Return the folder that a run path's entry means in the file `user`."""
    origin = str(user.parent)
    return Path(entry.replace("${ORIGIN}", origin).replace("$ORIGIN", origin))


def parse_cache(listing: str) -> Iterator[tuple[str, Path]]:
    """Yield name and path of each library that `ldconfig -p` lists."""
    for line in listing.splitlines():
        if match := CACHED.fullmatch(line):
            yield match["name"], Path(match["path"])


def _cache() -> Iterator[tuple[str, Path]]:
    program = next((path for path in LDCONFIG if Path(path).exists()), None)
    if program is None:  # musl has no such cache
        return
    yield from parse_cache(capture([program, "-p"]))
