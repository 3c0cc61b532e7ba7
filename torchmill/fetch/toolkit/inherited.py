"""The files that a completed toolkit takes over from the one that lacks parts."""

import os
import shutil
from collections.abc import Container, Iterator
from pathlib import Path

from torchmill.core.lenient_paths import link_file, real_path
from torchmill.core.strict_json import load_object
from torchmill.fetch.toolkit import conda
from torchmill.fetch.toolkit.layout import TARGETS, placer

_FOLDERS = ("bin", "nvvm", "include", "lib64", "lib")
_CUPTI = "extras/CUPTI"
_VERSION_FILES = ("version.json", "version.txt")


def inherited_files(home: Path, arch: str) -> Iterator[tuple[str, Path]]:
    """Yield the files of a toolkit as pairs: its place below CUDA_HOME, and its path in `home`.

    If two files have the same place, only the first is yielded. A conda environment yields only the
    files of NVIDIA's packages, and a toolkit for several machines only the files for `arch`.
    """
    # NVIDIA's packages for conda have the folders of its other toolkits, so one table places both.
    place = placer(conda.PROVIDER)
    is_environment = (home / "conda-meta").is_dir()
    paths = _environment_files(home) if is_environment else _toolkit_files(home, arch)
    seen = set()
    for path in paths:
        if path in _VERSION_FILES:
            target: str | None = path
        else:
            # the profiling interface becomes a part of the usual folders
            target = place(path.removeprefix(f"{_CUPTI}/"))
        if target is not None and target not in seen and (home / path).is_file():
            seen.add(target)
            yield target, home / path


def place_inherited(home: Path, folder: Path, arch: str) -> None:
    """Put the files of the toolkit in `home` into a folder, as hard links if possible.

    Links between files of one folder remain links.
    """
    files = dict(inherited_files(home, arch))
    for place, file in files.items():
        target = folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        destination = _sibling(place, file, files)
        if destination is not None:
            target.symlink_to(destination)
        elif not link_file(real_path(file), target):
            shutil.copy(file, target)  # on another disk, or another user's


def copied_bytes(home: Path, folder: Path, arch: str) -> int:
    """Return the bytes that `place_inherited` must copy if it fills a folder on `folder`'s disk.

    Files of the same disk and this user can be linked.
    """
    # toolkits are completed on Linux alone, so there is a geteuid
    linkable = (folder.stat().st_dev, os.geteuid())
    files = dict(inherited_files(home, arch))
    total = 0
    for place, file in files.items():
        if _sibling(place, file, files) is not None:
            continue
        status = file.stat()  # a link to another folder counts as the file that it leads to
        if (status.st_dev, status.st_uid) != linkable:
            total += status.st_size
    return total


def _sibling(place: str, file: Path, places: Container[str]) -> str | None:
    """Return the name that a link leads to, if that file has a place in the same folder.

    That of "libcudart.so.12" is "libcudart.so.12.4.127". A link to anything else, or a file that is
    no link, has none.
    """
    if not file.is_symlink():
        return None
    destination = file.readlink()
    if len(destination.parts) != 1:
        return None
    if Path(place).with_name(destination.name).as_posix() not in places:
        return None
    return destination.name


def _toolkit_files(home: Path, arch: str) -> Iterator[str]:
    """Yield the paths of a toolkit's files, relative to its folder."""
    tops = list(_FOLDERS)
    for base in (f"targets/{TARGETS[arch]}", _CUPTI):
        tops += [f"{base}/{name}" for name in _FOLDERS]
    seen: set[Path] = set()
    for top in tops:
        # links are followed, because `include` may be one to targets/MACHINE/include
        for folder, folders, names in os.walk(home / top, followlinks=True):
            real = real_path(folder)
            if real in seen:  # the folders of a toolkit are linked to each other, even in circles
                folders.clear()
                continue
            seen.add(real)
            folders.sort()  # the order decides which of two files with one place counts
            for name in sorted(names):
                yield Path(folder, name).relative_to(home).as_posix()
    yield from _VERSION_FILES


def _environment_files(prefix: Path) -> Iterator[str]:
    """Yield the paths of the files that NVIDIA's packages have put into a conda environment."""
    for file in sorted((prefix / "conda-meta").glob("*.json")):
        package = load_object(file)  # empty if conda was interrupted while it wrote the file
        if conda.is_toolkit_package(package.get("name", "")):
            yield from package.get("files", ())
