"""Unpack archives safely.

Not shutil.unpack_archive: of a zip it loses links and modes. Not tarfile's filters: Pythons before 3.11.13
let links longer than a path may be lead out of the folder (CVE-2025-4517).
"""

from __future__ import annotations

import calendar
import lzma
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING

from torchmill.core.errors import SourceError
from torchmill.core.files import report_disk_full

if TYPE_CHECKING:
    from torchmill.core.console import ProgressBar

SUFFIXES = (".tar.gz", ".tgz", ".tar.xz", ".tar.bz2", ".zip")
_LONGEST_PATH = 2000  # characters
_BROKEN = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError)


def unpack_archive(archive: Path, folder: Path, bar: ProgressBar) -> str | None:
    """Unpack into `folder`, without the one folder around everything; return the commit the archive names.

    Archives that `git archive` made carry their commit. Raises SourceError for a broken or hostile archive,
    HostError for a full disk.
    """
    root = folder.with_name(f"{folder.name}.root")
    root.mkdir(parents=True)
    try:
        with report_disk_full(folder):
            commit = _unzip(archive, root, bar) if archive.suffix == ".zip" else _untar(archive, root, bar)
    except _BROKEN as error:
        raise SourceError(
            f"{archive} cannot be unpacked ({error}): it is damaged or no archive; get it again",
            code="damaged-archive",
        ) from None
    inside = list(root.iterdir())
    top = inside[0] if len(inside) == 1 and inside[0].is_dir() and not inside[0].is_symlink() else root
    top.rename(folder)
    shutil.rmtree(root, ignore_errors=True)
    return commit


def _untar(archive: Path, root: Path, bar: ProgressBar) -> str | None:
    with archive.open("rb") as raw, tarfile.open(fileobj=raw) as tar:
        total = archive.stat().st_size
        for number, member in enumerate(tar):
            _write(member, partial(tar.extractfile, member), root)
            if number % 64 == 0:
                bar.update(raw.tell(), total, "unpacking")
        return tar.pax_headers.get("comment")


def _unzip(archive: Path, root: Path, bar: ProgressBar) -> str | None:
    with zipfile.ZipFile(archive) as packed:
        infos = packed.infolist()
        for number, info in enumerate(infos):
            member, mode = tarfile.TarInfo(info.filename), info.external_attr >> 16
            member.mode = stat.S_IMODE(mode) or 0o644
            member.mtime = calendar.timegm((*info.date_time, 0, 0, 0))
            if info.is_dir():
                member.type = tarfile.DIRTYPE
            elif stat.S_ISLNK(mode):
                member.type, member.linkname = tarfile.SYMTYPE, packed.read(info).decode()
            _write(member, partial(packed.open, info), root)
            bar.update(number + 1, len(infos), "unpacking")
        return packed.comment.decode("ascii", "replace") or None


def _write(member: tarfile.TarInfo, read: Callable[[], IO[bytes] | None], root: Path) -> None:
    target = root / member.name
    # devices and pipes have no business in a source
    if target == root or not (member.isfile() or member.isdir() or member.issym() or member.islnk()):
        return
    _require_inside(target.parent, root, member.name)
    if member.isdir():
        _require_inside(target, root, member.name)
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_symlink() or target.is_file():
        target.unlink()
    if member.issym():
        _require_inside(target.parent / member.linkname, root, member.name)
        target.symlink_to(member.linkname)
    elif member.islnk():
        _require_inside(root / member.linkname, root, member.name)
        shutil.copy2(root / member.linkname, target)
    elif (content := read()) is not None:
        with content, target.open("xb") as file:
            shutil.copyfileobj(content, file, 1 << 20)
        # readable and writable to us whatever the archive says; never setuid, never writable to others
        target.chmod((member.mode | 0o600) & 0o755)
        os.utime(target, (member.mtime, member.mtime))


def _require_inside(path: Path, root: Path, name: str) -> None:
    """Raise SourceError where a path, its links followed, leaves the folder."""
    real, base = os.path.realpath(path), os.path.realpath(root)
    # a path too long for the system is not followed to its end, and could lead anywhere
    if len(real) > _LONGEST_PATH or (real != base and not real.startswith(base + os.sep)):
        raise SourceError(
            f"the archive would write or point outside its folder with '{name}': do not use it",
            code="hostile-archive",
        )
