"""Where a file inside a wheel looks for libraries: nowhere outside the wheel's own folders."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from pathlib import Path

ORIGIN = "$ORIGIN"


def wanted(
    path: Path, present: Sequence[str], looks_inside: bool, root: Path, libraries: Sequence[Path]
) -> tuple[str, ...]:
    """Return the run path of the file `path` in a wheel unpacked at `root`.

    `present` is the one it has, `libraries` are the folders with the wheel's shared libraries. A file
    that has no run path and needs nothing of the wheel (`looks_inside`) gets none.
    """
    if not present and not looks_inside:
        return ()
    own = [ORIGIN, *(relative(path, folder) for folder in libraries)]
    folders = (_folder(entry, path) for entry in present)
    kept = [relative(path, each) for each in folders if each is not None and each.is_relative_to(root)]
    return tuple(dict.fromkeys([*own, *kept]))


def relative(path: Path, folder: Path) -> str:
    """Spell `folder` as seen from the file `path`."""
    step = posixpath.relpath(folder.as_posix(), path.parent.as_posix())
    return ORIGIN if step == "." else f"{ORIGIN}/{step}"


def _folder(entry: str, path: Path) -> Path | None:
    """Return the folder that an entry means in the file `path`, None for one that does not move along."""
    origin, slash, rest = entry.replace("${ORIGIN}", ORIGIN).partition("/")
    if origin != ORIGIN:
        return None
    return Path(posixpath.normpath(f"{path.parent.as_posix()}{slash}{rest}"))
