"""Unpacking an archive that nobody vouches for: nothing is written outside, no owner is kept."""

import calendar
import lzma
import os
import shutil
import stat
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from torchmill.errors import SourceError
from torchmill.source.disk import disk_full_told
from torchmill.source.request import Bar

SUFFIXES = (".tar.gz", ".tgz", ".tar.xz", ".tar.bz2", ".zip")
_LONGEST = 2000  # letters of a path
_BROKEN = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError)


@dataclass(frozen=True, slots=True)
class Entry:
    """One thing in an archive."""

    name: str
    mode: int  # permissions, with the kind of file in them
    time: float
    link: str | None  # where a symbolic link points to
    copy_of: str | None  # the name of the entry that a hard link repeats
    read: Callable[[], IO[bytes]]


def unpack(archive: Path, folder: Path, bar: Bar) -> str | None:
    """Unpack into `folder`, without the one folder around everything; return the commit the archive names.

    Archives that `git archive` made carry their commit. Raises SourceError for a broken or hostile archive,
    HostError for a full disk.
    """
    root = folder.with_name(f"{folder.name}.root")
    root.mkdir(parents=True)
    try:
        with disk_full_told(folder):
            commit = _unzip(archive, root, bar) if archive.suffix == ".zip" else _untar(archive, root, bar)
    except _BROKEN as error:
        raise SourceError(
            f"{archive} cannot be unpacked ({error}): it is broken or no archive; get it again"
        ) from None
    inside = list(root.iterdir())
    top = inside[0] if len(inside) == 1 and inside[0].is_dir() and not inside[0].is_symlink() else root
    top.rename(folder)
    shutil.rmtree(root, ignore_errors=True)
    return commit


def _untar(archive: Path, root: Path, bar: Bar) -> str | None:
    with archive.open("rb") as raw, tarfile.open(fileobj=raw) as tar:
        total = archive.stat().st_size
        for number, member in enumerate(tar):
            entry = _tar_entry(tar, member)
            if entry is not None:
                _write(entry, root)
            if number % 64 == 0:
                bar.update(raw.tell(), total, "unpacking")
        return tar.pax_headers.get("comment")


def _tar_entry(tar: tarfile.TarFile, member: tarfile.TarInfo) -> Entry | None:
    if not (member.isfile() or member.isdir() or member.issym() or member.islnk()):
        return None  # devices and pipes have no business in a source

    def read() -> IO[bytes]:
        content = tar.extractfile(member)
        if content is None:
            raise tarfile.ReadError(f"{member.name} has no content")
        return content

    return Entry(
        member.name,
        member.mode | (stat.S_IFDIR if member.isdir() else stat.S_IFREG),
        member.mtime,
        member.linkname if member.issym() else None,
        member.linkname if member.islnk() else None,
        read,
    )


def _unzip(archive: Path, root: Path, bar: Bar) -> str | None:
    with zipfile.ZipFile(archive) as packed:
        infos = packed.infolist()
        for number, info in enumerate(infos):
            _write(_zip_entry(packed, info), root)
            bar.update(number + 1, len(infos), "unpacking")
        return packed.comment.decode("ascii", "replace") or None


def _zip_entry(packed: zipfile.ZipFile, info: zipfile.ZipInfo) -> Entry:
    mode = info.external_attr >> 16
    link = packed.read(info).decode() if stat.S_ISLNK(mode) else None
    kind = stat.S_IFDIR if info.is_dir() else stat.S_IFREG
    permissions = stat.S_IMODE(mode) or 0o644
    return Entry(info.filename, permissions | kind, _zip_time(info), link, None, lambda: packed.open(info))


def _zip_time(info: zipfile.ZipInfo) -> float:
    return float(calendar.timegm((*info.date_time, 0, 0, 0)))


def _write(entry: Entry, root: Path) -> None:
    target = root / entry.name
    if target == root:
        return
    _assure_inside(target.parent, root, entry.name)
    if stat.S_ISDIR(entry.mode):
        _assure_inside(target, root, entry.name)
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_symlink() or target.is_file():
        target.unlink()
    if entry.link is not None:
        _assure_inside(target.parent / entry.link, root, entry.name)
        target.symlink_to(entry.link)
        return
    if entry.copy_of is not None:
        _assure_inside(root / entry.copy_of, root, entry.name)
        shutil.copy2(root / entry.copy_of, target)
        return
    with entry.read() as content, target.open("xb") as file:
        shutil.copyfileobj(content, file, 1 << 20)
    # readable and writable to us whatever the archive says; never setuid, never writable to others
    target.chmod((stat.S_IMODE(entry.mode) | 0o600) & 0o755)
    os.utime(target, (entry.time, entry.time))


def _assure_inside(path: Path, root: Path, name: str) -> None:
    """Raise SourceError where a path, its links followed, leaves the folder."""
    real, base = os.path.realpath(path), os.path.realpath(root)
    # a path too long for the system is not followed to its end, and could lead anywhere
    if len(real) > _LONGEST or (real != base and not real.startswith(base + os.sep)):
        raise SourceError(f"the archive would write or point outside its folder with '{name}': do not use it")
