"""Unpack archives safely, and read all of them, so that no damage stays unseen.

Not shutil.unpack_archive: it loses links and modes of a zip. Not tarfile's filters: in Pythons
before 3.11.13, links longer than a path may be lead out of the folder (CVE-2025-4517).
"""

import bz2
import calendar
import contextlib
import errno
import gzip
import lzma
import os
import shutil
import stat
import sys
import tarfile
import zipfile
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import IO, cast

from torchmill.core.console import ProgressBar
from torchmill.core.errors import SourceError, TorchmillError
from torchmill.core.system_errors import is_of_system, report_unwritable

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

SUFFIXES = (".tar.gz", ".tgz", ".tar.xz", ".tar.bz2", ".tar.zst", ".tar", ".zip")
_LONGEST_PATH = 2000  # characters
# Characters of a link's target. A longer "target" is the content of a file whose type a flipped bit
# has changed.
_LONGEST_TARGET = 1000
_BLOCK_BYTES = 512  # of a tar archive, which ends with two blocks of zeros
_BUFFER_BYTES = 1 << 18
_COPY_BYTES = 1 << 20
_PROGRESS_MEMBERS = 64  # members of a tar archive between two updates of the progress bar
_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest date of the zip format; damaged ones have less
# Errors of the system that a name in the archive causes, not the state of the machine.
_NAME_ERRORS = {
    errno.ENAMETOOLONG,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.EEXIST,
    errno.EINVAL,
    errno.ELOOP,
    errno.ENOENT,
}


def unpack_archive(
    archive: Path, folder: Path, bar: ProgressBar, *, proved: bool = False
) -> str | None:
    """Unpack an archive into `folder`, and return the commit that it names, or None.

    Archives made by `git archive` name their commit in a comment. If everything lies in one folder,
    that folder is left out.

    The archive is read to its last byte, so that its own checksums are compared. An archive without
    checksums is accepted only if its digest was `proved`. Raises SourceError for a broken or
    hostile archive, HostError for a full disk.
    """
    # on the same disk, so that the tree can be moved by a rename
    root = folder.with_name(f"{folder.name}.root")
    root.mkdir(parents=True)
    with report_unwritable(folder), refuse_damage(archive):
        if archive.suffix == ".zip":
            commit = _unzip(archive, root, bar)
        else:
            commit = _untar(archive, root, bar, proved=proved)
    entries = list(root.iterdir())
    has_one_folder = len(entries) == 1 and entries[0].is_dir() and not entries[0].is_symlink()
    top = entries[0] if has_one_folder else root
    top.rename(folder)
    shutil.rmtree(root, ignore_errors=True)
    return commit


@contextlib.contextmanager
def refuse_damage(archive: Path) -> Iterator[None]:
    """Raise SourceError if a library cannot make sense of an archive, whatever the library raises.

    Broken archives make these libraries raise almost anything: EOFError, struct.error, zlib.error,
    OverflowError, NotImplementedError. Our own errors, lack of memory, and errors of the machine
    (a full disk) pass through.
    """
    try:
        yield
    except Exception as error:
        if isinstance(error, TorchmillError | MemoryError):
            raise
        if is_of_system(error) and getattr(error, "errno", None) not in _NAME_ERRORS:
            raise
        raise SourceError(
            f"{archive} cannot be unpacked ({error}): it is damaged or no archive: get it again",
            code="damaged-archive",
        ) from None


class _CountingReader:
    """A file for reading that counts its bytes and notes where the last nonzero byte is."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.size = 0  # bytes read so far
        self.content_end = 0  # bytes up to the last one that is not zero

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        content_length = len(data.rstrip(b"\0"))
        if content_length:
            self.content_end = self.size + content_length
        self.size += len(data)
        return data


def _decompress(archive: Path, raw: IO[bytes], *, proved: bool) -> IO[bytes]:
    """Return the decompressed content of an archive, by its first bytes, whatever its name is.

    These readers verify the checksum at the end of the stream, which zlib's and zstandard's own
    objects do not. xz and zstd may be written without one, which their eighth and fifth byte tell:
    https://tukaani.org/xz/xz-file-format.txt (2.1.1.2), RFC 8878 (3.1.1.1.1).
    """
    start = raw.read(8)
    raw.seek(0)
    decompress: Callable[[IO[bytes]], object] | None = None
    has_checksum = False
    if start.startswith(b"\x1f\x8b"):
        decompress = gzip.open
        has_checksum = True
    elif start.startswith(b"BZh"):
        decompress = bz2.open
        has_checksum = True
    elif start.startswith(b"\xfd7zXZ\x00"):
        decompress = lzma.open
        has_checksum = start[7] & 0x0F != 0
    elif start.startswith(b"\x28\xb5\x2f\xfd"):
        decompress = zstd.open
        has_checksum = start[4] & 0x04 != 0
    if not proved and not has_checksum:
        raise SourceError(
            f"nothing in {archive} shows whether it is complete: give its sha256 with --sha256, or "
            "an archive that checks itself (.tar.gz, .tar.xz and .zip do)",
            code="unproved-archive",
        )
    return cast("IO[bytes]", decompress(raw)) if decompress else raw


def _untar(archive: Path, root: Path, bar: ProgressBar, *, proved: bool) -> str | None:
    """Unpack a tar archive, compressed or not, and return the commit in its comment.

    tarfile takes a damaged header for the end of the archive, and never reads the checksum behind
    a compressed stream. So the rest is read here, and tarfile.ReadError raised unless the archive
    ends as it should: with two blocks of zeros behind the last member, and nothing else.
    """
    total = archive.stat().st_size
    with archive.open("rb") as raw, _decompress(archive, raw, proved=proved) as content:
        reader = _CountingReader(content)
        stream = cast("IO[bytes]", reader)
        # "r|": forward only, because the reader cannot seek
        with tarfile.open(fileobj=stream, mode="r|", bufsize=_BUFFER_BYTES) as tar:
            for number, member in enumerate(tar):
                _write_member(member, partial(tar.extractfile, member), root)
                if number % _PROGRESS_MEMBERS == 0:
                    bar.update(raw.tell(), total, "unpacking")
            end = tar.offset  # behind the last member that tarfile has found
        while reader.read(_BUFFER_BYTES):
            pass
    if reader.content_end > end or reader.size < end + 2 * _BLOCK_BYTES:
        raise tarfile.ReadError("its end is missing, or not where it should be")
    return tar.pax_headers.get("comment")  # `git archive` writes the commit there


def _unzip(archive: Path, root: Path, bar: ProgressBar) -> str | None:
    """Unpack a zip archive, and return its comment, in which git writes the commit."""
    with zipfile.ZipFile(archive) as packed:
        infos = packed.infolist()
        for number, info in enumerate(infos, start=1):
            mode = info.external_attr >> 16  # of Unix, in the upper half
            date = map(max, info.date_time, _ZIP_EPOCH)
            member = tarfile.TarInfo(info.filename)
            member.mode = stat.S_IMODE(mode) or 0o644
            member.mtime = calendar.timegm((*date, 0, 0, 0))
            if info.is_dir():
                member.type = tarfile.DIRTYPE
                # compares the name in the member's own header with the one in the directory
                packed.read(info)
            elif stat.S_ISLNK(mode):
                member.type = tarfile.SYMTYPE
                member.linkname = packed.read(info).decode()
            _write_member(member, partial(packed.open, info), root)
            bar.update(number, len(infos), "unpacking")
        return packed.comment.decode("ascii", "replace") or None


def _write_member(
    member: tarfile.TarInfo, read: Callable[[], IO[bytes] | None], root: Path
) -> None:
    """Write one member of an archive below `root`; `read` opens its content.

    Devices and pipes are skipped: a source has none. Raises SourceError if the member, or a link,
    would lead outside of `root`.
    """
    target = root / member.name
    is_known_type = member.isfile() or member.isdir() or member.issym() or member.islnk()
    if target == root or not is_known_type:
        return
    # The parents may be links that an earlier member made, so their real path is judged each time.
    _require_inside(target.parent, root, member.name)
    if member.isdir():
        _require_inside(target, root, member.name)
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_symlink() or target.is_file():
        # An earlier member of that name. It is not opened: it may be a link.
        target.unlink()
    if member.issym():
        if len(member.linkname) > _LONGEST_TARGET or "\n" in member.linkname:
            raise tarfile.ReadError(f"{member.name} is not a link")
        _require_inside(target.parent / member.linkname, root, member.name)
        target.symlink_to(member.linkname)
        return
    if member.islnk():
        # copied, not linked: not every disk has hard links
        _require_inside(root / member.linkname, root, member.name)
        shutil.copy2(root / member.linkname, target)
        return
    content = read()
    if content is None:
        return
    with content, target.open("xb") as file:
        shutil.copyfileobj(content, file, _COPY_BYTES)
    # Always readable and writable to us; never setuid, never writable to others.
    target.chmod((member.mode | 0o600) & 0o755)
    os.utime(target, (member.mtime, member.mtime))


def _require_inside(path: Path, root: Path, name: str) -> None:
    """Raise SourceError if a path, with its links followed, leaves `root`.

    A path that is too long for the system is not followed to its end by realpath, so it could lead
    anywhere (CVE-2025-4517).
    """
    real = os.path.realpath(path)
    base = os.path.realpath(root)
    is_inside = real == base or real.startswith(base + os.sep)
    if len(real) > _LONGEST_PATH or not is_inside:
        raise SourceError(
            f"the archive would write or point outside its folder with '{name}': do not use it",
            code="hostile-archive",
        )
