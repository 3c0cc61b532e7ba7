"""Hide nvcc from a build without CUDA."""

import os
import shutil
import sys
from pathlib import Path

_NAMES = {"nvcc", "nvcc.exe"}


def hide_nvcc(path: str, links: Path) -> str:
    """Return a PATH with all programs of `path` but nvcc.

    A folder that has an nvcc is replaced by one below `links`, which is made and has links to its
    other programs. Empty entries are left out. On Windows, where not everybody may make links, the
    folder is left out. Raises OSError if `links` cannot be written.
    """
    folders = []
    for folder in filter(None, path.split(os.pathsep)):
        if shutil.which("nvcc", path=folder) is None:
            folders.append(folder)
        elif sys.platform != "win32":
            # Doubled hyphens keep the names of /opt/cuda/11 and /opt/cuda-11 apart.
            name = folder.strip(os.sep).replace("-", "--").replace(os.sep, "-")
            replacement = links / name
            _link_programs(Path(folder), replacement)
            folders.append(str(replacement))
    return os.pathsep.join(folders)


def _link_programs(folder: Path, replacement: Path) -> None:
    """Fill `replacement` with links to everything in `folder` but nvcc; delete links that are stale."""
    replacement.mkdir(parents=True, exist_ok=True)
    programs = {path.name for path in folder.iterdir()} - _NAMES
    links = {path.name for path in replacement.iterdir()}
    for name in links - programs:
        (replacement / name).unlink()
    for name in programs - links:
        (replacement / name).symlink_to(folder.absolute() / name)
