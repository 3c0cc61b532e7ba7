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
    kept = [entry for entry in map(_normal, present) if _stays_within(entry, path, root)]
    return tuple(dict.fromkeys([*own, *kept]))


def relative(path: Path, folder: Path) -> str:
    """Spell `folder` as seen from the file `path`."""
    step = posixpath.relpath(folder.as_posix(), path.parent.as_posix())
    return ORIGIN if step == "." else f"{ORIGIN}/{step}"


def _normal(entry: str) -> str:
    return posixpath.normpath(entry.replace("${ORIGIN}", ORIGIN))


def _stays_within(entry: str, path: Path, root: Path) -> bool:
    """Say whether the entry moves with the wheel and leads to no place above site-packages."""
    if entry != ORIGIN and not entry.startswith(f"{ORIGIN}/"):
        return False
    folder = Path(posixpath.normpath(entry.replace(ORIGIN, path.parent.as_posix())))
    return folder.is_relative_to(root)
