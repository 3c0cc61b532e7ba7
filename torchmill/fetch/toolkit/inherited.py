"""The files of an incomplete toolkit that its complete copy inherits.

A toolkit of the machine that lacks parts is not changed. A complete copy is made in the cache, with
its files and the missing ones. A file's "place" is its path in a toolkit, below CUDA_HOME.
"""

import os
import shutil
from collections.abc import Container, Iterator, Mapping
from pathlib import Path

from torchmill.core.lenient_paths import link_file, real_path
from torchmill.core.strict_json import load_object
from torchmill.fetch.toolkit import conda
from torchmill.fetch.toolkit.layout import TARGETS, placer

_FOLDERS = ("bin", "nvvm", "include", "lib64", "lib")
_PROGRAM_FOLDERS = ("bin/", "nvvm/", "include/")  # what a toolkit lends to one for another machine
_CUPTI = "extras/CUPTI"
_VERSION_FILES = ("version.json", "version.txt")


def inherited_files(home: Path, arch: str) -> Iterator[tuple[str, Path]]:
    """Yield the place of each file of a toolkit, and its path in the toolkit's folder `home`.

    If two files have the same place, only the first is yielded. From a conda environment, only the
    files of NVIDIA's packages are yielded, and from a toolkit for several machines, only those for
    `arch`.
    """
    # NVIDIA's packages for conda have the same folders as its installers, so one table places both.
    place = placer(conda.PROVIDER)
    is_environment = (home / "conda-meta").is_dir()
    paths = _environment_files(home) if is_environment else _toolkit_files(home, arch)
    seen = set()
    for path in paths:
        if path in _VERSION_FILES:
            target: str | None = path
        else:
            # The files of the profiling interface get places in the usual folders.
            target = place(path.removeprefix(f"{_CUPTI}/"))
        if target is not None and target not in seen and (home / path).is_file():
            seen.add(target)
            yield target, home / path


def place_inherited(home: Path, folder: Path, arch: str) -> None:
    """Put the files of the toolkit in `home` into a folder, as hard links if possible.

    A symbolic link to a file of the same folder remains one.
    """
    _place_files(dict(inherited_files(home, arch)), folder)


def place_programs(home: Path, folder: Path, arch: str) -> None:
    """Put the programs and headers of a toolkit into a folder, and none of its libraries.

    `arch` is that of the toolkit. The headers are the same for all machines, and those of nvcc are
    in no other package.
    """
    _place_files(_program_files(home, arch), folder)


def _program_files(home: Path, arch: str) -> dict[str, Path]:
    """Return the paths of a toolkit's programs and headers by their places."""
    files = {}
    for place, file in inherited_files(home, arch):
        if place.startswith(_PROGRAM_FOLDERS) or place in _VERSION_FILES:
            files[place] = file
    return files


def _place_files(files: Mapping[str, Path], folder: Path) -> None:
    """Put files at their places in a folder, as hard links if possible."""
    for place, file in files.items():
        target = folder / place
        target.parent.mkdir(parents=True, exist_ok=True)
        linked_name = _linked_name(place, file, files)
        if linked_name is not None:
            target.symlink_to(linked_name)
        elif not link_file(real_path(file), target):
            shutil.copy(file, target)  # the file is on another disk, or another user's


def copied_bytes(home: Path, folder: Path, arch: str, *, programs_only: bool = False) -> int:
    """Return the bytes that `place_inherited` must copy into a folder on the disk of `folder`.

    With `programs_only`, those that `place_programs` must copy. Files of this user on the same disk
    are linked, and need no room.
    """
    # Toolkits are completed on Linux only, so os.geteuid exists.
    linkable = (folder.stat().st_dev, os.geteuid())
    files = _program_files(home, arch) if programs_only else dict(inherited_files(home, arch))
    total = 0
    for place, file in files.items():
        if _linked_name(place, file, files) is not None:
            continue
        status = file.stat()  # of the file that a link leads to, because that is copied
        if (status.st_dev, status.st_uid) != linkable:
            total += status.st_size
    return total


def _linked_name(place: str, file: Path, places: Container[str]) -> str | None:
    """Return the target of a symbolic link if it is inherited, too, and gets a place beside it.

    "libcudart.so.12" leads to "libcudart.so.12.4.127". None if the file is no link, or leads to any
    other file: then the content of that file is inherited. `place` is the link's, `places` are
    those of all inherited files.
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
        # Links are followed, because `include` may be a link to targets/MACHINE/include.
        for folder, folders, names in os.walk(home / top, followlinks=True):
            real = real_path(folder)
            if real in seen:  # folders of a toolkit are linked to each other, even in circles
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
