"""Beginning with what is already on the disk."""

import contextlib
import os
import shutil
from pathlib import Path

from torchmill.source.disk import disk_full_told
from torchmill.source.slot import RECORD, Slot

# The index and the locks belong to the work tree that stays behind.
_LEFT_BEHIND = shutil.ignore_patterns("index", "*.lock", "FETCH_HEAD", "hooks", "worktrees", "tmp_*")


def seed(slot: Slot) -> bool:
    """Give the partial folder the history of a tree that was fetched before, and tell whether there was one.

    Commits, branches and stashes of that tree come along, and git then fetches only what is new. Objects
    never change, so they are linked where the disk allows it.
    """
    origin = _nearest(slot)
    if origin is None:
        return False
    fresh = slot.partial.with_name(f".seeding-{slot.tag}")
    shutil.rmtree(fresh, ignore_errors=True)
    with disk_full_told(fresh):
        shutil.copytree(
            origin, fresh / "tree" / ".git", symlinks=True, ignore=_LEFT_BEHIND, copy_function=_link_objects
        )
    fresh.rename(slot.partial)
    return True


def tidy(folder: Path) -> None:
    """Remove what a killed git leaves in its folder and would stumble over."""
    for pattern in ("*.lock", "tmp_pack_*", "tmp_idx_*", "tmp_obj_*"):
        for left in folder.rglob(pattern):
            left.unlink(missing_ok=True)


def _nearest(slot: Slot) -> Path | None:
    """Return the git folder of the slot's own tree, else of the one fetched last."""
    if (slot.tree / ".git").is_dir():
        return slot.tree / ".git"
    others = [
        record
        for record in slot.home.glob(f"*/{RECORD}")
        if not record.parent.name.startswith(".") and (record.parent / "tree" / ".git").is_dir()
    ]
    if not others:
        return None
    return max(others, key=lambda record: record.stat().st_mtime_ns).parent / "tree" / ".git"


def _link_objects(origin: str, copy: str) -> str:
    if f"{os.sep}objects{os.sep}" in origin:
        with contextlib.suppress(OSError):
            os.link(origin, copy, follow_symlinks=False)
            return copy
    return str(shutil.copy2(origin, copy, follow_symlinks=False))
