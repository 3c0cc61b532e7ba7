"""Look at places of this machine that a log names, without running anything that is there.

A log is written by others. Nothing that it names is run, only regular files are read, and paths are
looked at only below folders that the caller trusts: to look at a folder that is mounted when it is
looked at, such as /net/SERVER, would ask a server that the log names.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchmill.core.lenient_paths import exists, find_paths, is_file

_LONGEST_FILE = 1 << 16  # bytes that are read of one
_VERSION = re.compile(r"^__version__(?:: \w+)? *= *'(?P<version>[\w.+]+)'", re.MULTILINE)
_CUDA = re.compile(r"^cuda(?:: [\w\[\]]+)? *= *'(?P<cuda>\d+\.\d+)", re.MULTILINE)
_PYTHON = re.compile(r"/python(?P<python>3\.\d+)t?/")


@dataclass(frozen=True, slots=True)
class InstalledTorch:
    """A torch that is installed, as its own files say."""

    version: str  # "2.9.1+cu128"
    cuda: str | None  # "12.8"; None: without CUDA
    python: str  # "3.11", by the path; "" if that does not say it


def is_below(path: str, folders: Iterable[str]) -> bool:
    """Tell whether a path without ".." is one of some folders, or lies below one."""
    return any(path == folder or path.startswith(f"{folder.rstrip('/')}/") for folder in folders)


def first_existing(paths: Iterable[str], folders: Sequence[str]) -> str | None:
    """Return the first path that exists, of those below some folders; None if there is none."""
    for path in paths:
        if is_below(path, folders) and exists(Path(path)):
            return path
    return None


def find_torch(
    sites: Iterable[str], environments: Iterable[str], folders: Sequence[str]
) -> InstalledTorch | None:
    """Return the torch of the first folder of packages that has one; None if none has.

    `sites` are such folders, `environments` those of which they are a part. Others than those below
    `folders` are not looked at.
    """
    places = [Path(site) for site in sites if is_below(site, folders)]
    for environment in environments:
        if is_below(environment, folders):
            places += find_paths(Path(environment), "lib/python3*/site-packages")
    for place in places:
        torch = _read_torch(place)
        if torch is not None:
            return torch
    return None


def _read_torch(site: Path) -> InstalledTorch | None:
    """Return the torch in a folder of packages, by its file version.py; None if there is none."""
    file = site / "torch/version.py"
    if not is_file(file):
        return None
    try:
        with file.open(encoding="utf-8", errors="replace") as stream:
            text = stream.read(_LONGEST_FILE)
    except OSError:
        return None
    version = _VERSION.search(text)
    if version is None:
        return None
    cuda = _CUDA.search(text)
    python = _PYTHON.search(f"{site}/")
    return InstalledTorch(
        version["version"], cuda["cuda"] if cuda else None, python["python"] if python else ""
    )
