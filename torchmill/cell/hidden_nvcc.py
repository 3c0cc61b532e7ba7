"""Hide nvcc from a build without CUDA."""

import os
import shutil
import sys
from pathlib import Path

_NAMES = {"nvcc", "nvcc.exe"}


def hide_nvcc(path: str, links: Path) -> str:
    """Return a PATH on which no nvcc is found, and everything else that is on `path`.

    Each folder that has an nvcc is replaced by one below `links`, which has links to its other programs. On Windows,
    where links are not everyone's to make, the folder is left out. Raises OSError if `links` cannot be written.
    """
    folders = []
    for folder in filter(None, path.split(os.pathsep)):
        if shutil.which("nvcc", path=folder) is None:
            folders.append(folder)
        elif sys.platform != "win32":
            replacement = links / folder.strip(os.sep).replace(os.sep, "-")
            _link_programs(Path(folder), replacement)
            folders.append(str(replacement))
    return os.pathsep.join(folders)


def _link_programs(folder: Path, replacement: Path) -> None:
    """Fill a folder with links to all that another holds but nvcc, and remove links to what is gone."""
    replacement.mkdir(parents=True, exist_ok=True)
    programs = {path.name for path in folder.iterdir()} - _NAMES
    links = {path.name for path in replacement.iterdir()}
    for name in links - programs:
        (replacement / name).unlink()
    for name in programs - links:
        (replacement / name).symlink_to(folder.absolute() / name)
