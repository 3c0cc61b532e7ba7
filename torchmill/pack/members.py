"""The names of an archive's members: whether each stays where the archive is unpacked."""

from __future__ import annotations

import stat
from zipfile import ZipInfo


def leaves(name: str) -> bool:
    """Tell whether a member's name leads out of the folder that it is unpacked into, on any system."""
    first, *_ = parts = name.split("/")
    return first == "" or ".." in parts or ":" in first or "\\" in name or "\0" in name


def trick(info: ZipInfo) -> str:
    """Return a clause about a member of a zip archive that must not be unpacked; "" for all others."""
    name = info.orig_filename  # `filename` is cut at a NUL, and has slashes as this system has them
    if leaves(name):
        return f"the member {name!r} leaves the wheel"
    if not name.isprintable():  # it could move the cursor of who reads of it
        return f"the member {name!r} has a name that cannot be printed"
    return f"the member {name!r} is a link" if stat.S_ISLNK(info.external_attr >> 16) else ""
