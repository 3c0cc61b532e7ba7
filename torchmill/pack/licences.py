"""The licences of libraries that come along: found with who installed them, and carried in the wheel."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from torchmill.pack.bundling import Bundled
from torchmill.pack.stage import StagedWheel

FILE = re.compile(r"(licen[cs]e|copying|notice|copyright|eula)", re.IGNORECASE)
FOLDER = "licenses/bundled"  # below .dist-info; PEP 639 has the wheel's own in licenses/
PACKAGES = "lib/python*/site-packages"  # below a prefix, of which lib/ holds libraries that pip installed


@dataclass(frozen=True, slots=True)
class Owner:
    """The package that installed a library, and its licence files."""

    name: str  # "libopenblas0-pthread", "mkl-2022.2.1"
    files: tuple[Path, ...]


def carry(
    staged: StagedWheel, bundled: Iterable[Bundled], owner: Callable[[Path], Owner | None]
) -> tuple[str, ...]:
    """Copy the licence files of what came along into .dist-info, and return a note on what has none.

    `owner` finds the package of a library: see `owner_of`.
    """
    lacking = []
    for one in bundled:
        found = owner(one.source)
        if found is None or not found.files:
            lacking.append(one.source.name)
            continue
        folder = staged.dist_info / FOLDER / found.name
        folder.mkdir(parents=True, exist_ok=True)
        for file in found.files:
            shutil.copyfile(file, folder / file.name)
            (folder / file.name).chmod(0o644)
    if not lacking:
        return ()
    return (f"no licence file was found for {', '.join(sorted(set(lacking)))}: see to it before you publish",)


def owner_of(library: Path) -> Owner | None:
    """Return who installed a library of this machine: pip, or Debian; None where nobody knows."""
    return owners([library])(library)


def owners(libraries: Iterable[Path]) -> Callable[[Path], Owner | None]:
    """Return `owner_of` for these libraries; Debian, which takes a while, is asked once for all of them."""
    debian = of_debian(libraries)
    return lambda library: next(_of_pip(library), None) or debian.get(library)


def _of_pip(library: Path) -> Iterator[Owner]:
    for prefix in library.parents:
        sites = [prefix] if prefix.name == "site-packages" else prefix.glob(PACKAGES)
        for site in sites:
            for record in sorted(site.glob("*.dist-info/RECORD")):
                if re.search(rf"(^|/){re.escape(library.name)},", record.read_text("utf-8"), re.MULTILINE):
                    info = record.parent
                    files = (path for path in sorted(info.rglob("*")) if path.is_file())
                    yield Owner(info.name.removesuffix(".dist-info"), tuple(filter(_is_licence, files)))


def _is_licence(path: Path) -> bool:
    return FILE.search(path.name) is not None or path.parent.name == "licenses"


def of_debian(libraries: Iterable[Path]) -> dict[Path, Owner]:
    """Return the packages of dpkg's that libraries belong to; the answer to one question takes a while."""
    spelled = {str(path): library for library in libraries for path in _spellings(library)}
    if not spelled or shutil.which("dpkg-query") is None:
        return {}
    command = ["dpkg-query", "--search", *spelled]  # fails where a path is not known, and tells of the others
    done = subprocess.run(
        command, env={**os.environ, "LC_ALL": "C"}, capture_output=True, text=True, check=False
    )
    found: dict[Path, Owner] = {}
    for line in done.stdout.splitlines():
        packages, _, path = line.rpartition(": ")
        if path in spelled and not packages.startswith(("diversion by ", "local diversion ")):
            found.setdefault(spelled[path], _debian(packages.partition(",")[0].partition(":")[0]))
    return found


def _debian(name: str) -> Owner:
    copyright_ = Path("/usr/share/doc", name, "copyright")
    return Owner(name, (copyright_,) if copyright_.is_file() else ())


def _spellings(library: Path) -> Iterator[Path]:
    """Yield a path as packages may record it: with /usr, and as before /lib became a link to it."""
    yield library
    if library.is_relative_to("/usr"):
        yield Path("/") / library.relative_to("/usr")
