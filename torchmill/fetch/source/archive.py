"""Unpack archives safely, and read all of them, so that no damage stays unseen.

Not shutil.unpack_archive: of a zip it loses links and modes. Not tarfile's filters: Pythons before 3.11.13
let links longer than a path may be lead out of the folder (CVE-2025-4517).
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
from torchmill.core.files import is_of_system, report_unwritable

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

SUFFIXES = (".tar.gz", ".tgz", ".tar.xz", ".tar.bz2", ".tar.zst", ".tar", ".zip")
_LONGEST_PATH = 2000  # characters
_LONGEST_TARGET = (
    1000  # characters of a link; what is longer was a file, and one bit made it a link
)
_BLOCK_BYTES = 512  # of a tar archive, which ends with two blocks of zeros
_BUFFER_BYTES = 1 << 18
# why the system refuses a name, which is the archive's
_OF_NAMES = {
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
    """Unpack into `folder`, without the one folder around everything; return the commit the archive names.

    Archives that `git archive` made carry their commit. The archive is read to its last byte, so that its
    own checks are seen; one that has none is taken only if its digest was `proved`. Raises SourceError for a
    broken or hostile archive, HostError for a full disk.
    """
    root = folder.with_name(f"{folder.name}.root")
    root.mkdir(parents=True)
    with report_unwritable(folder), refuse_damage(archive):
        commit = (
            _unzip(archive, root, bar)
            if archive.suffix == ".zip"
            else _untar(archive, root, bar, proved=proved)
        )
    inside = list(root.iterdir())
    top = (
        inside[0]
        if len(inside) == 1 and inside[0].is_dir() and not inside[0].is_symlink()
        else root
    )
    top.rename(folder)
    shutil.rmtree(root, ignore_errors=True)
    return commit


@contextlib.contextmanager
def refuse_damage(archive: Path) -> Iterator[None]:
    """Raise SourceError for whatever a library raises that cannot make sense of an archive."""
    try:
        yield
    except Exception as error:
        ours = isinstance(error, TorchmillError | MemoryError)
        if ours or (is_of_system(error) and getattr(error, "errno", None) not in _OF_NAMES):
            raise
        raise SourceError(
            f"{archive} cannot be unpacked ({error}): it is damaged or no archive: get it again",
            code="damaged-archive",
        ) from None


class _WatchedEnd:
    """A file that is read to its end, and remembers where its last byte other than zero was."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self.size = self.written = 0  # bytes read; bytes up to the last that is no zero

    def read(self, size: int) -> bytes:
        data = self._file.read(size)
        if held := len(data.rstrip(b"\0")):
            self.written = self.size + held
        self.size += len(data)
        return data


def _decompress(archive: Path, raw: IO[bytes], *, proved: bool) -> IO[bytes]:
    """Return what an archive holds. These readers check all of it, unlike zlib's or zstandard's own.

    The first eight bytes tell whether its compression has a check of the content:
    https://tukaani.org/xz/xz-file-format.txt (2.1.1.2), RFC 8878 (3.1.1.1.1).
    """
    start = raw.read(8)
    raw.seek(0)
    decompress: Callable[[IO[bytes]], object] | None = None
    checks_itself = False
    if start.startswith(b"\x1f\x8b"):
        decompress, checks_itself = gzip.open, True
    elif start.startswith(b"BZh"):
        decompress, checks_itself = bz2.open, True
    elif start.startswith(b"\xfd7zXZ\x00"):
        decompress, checks_itself = lzma.open, start[7] & 0x0F != 0
    elif start.startswith(b"\x28\xb5\x2f\xfd"):
        decompress, checks_itself = zstd.open, start[4] & 0x04 != 0
    if not proved and not checks_itself:
        raise SourceError(
            f"nothing in {archive} shows whether it is complete: give its sha256 with --sha256, or an "
            "archive that checks itself (.tar.gz, .tar.xz and .zip do)",
            code="unproved-archive",
        )
    return cast("IO[bytes]", decompress(raw)) if decompress else raw


def _untar(archive: Path, root: Path, bar: ProgressBar, *, proved: bool) -> str | None:
    """Unpack a tar archive, compressed or not, and see that it is whole.

    tarfile stops at a damaged header, and never reads the checks at the end of a compressed file.
    """
    total = archive.stat().st_size
    with archive.open("rb") as raw, _decompress(archive, raw, proved=proved) as content:
        watched = _WatchedEnd(content)
        with tarfile.open(
            fileobj=cast("IO[bytes]", watched), mode="r|", bufsize=_BUFFER_BYTES
        ) as tar:
            for number, member in enumerate(tar):
                _write(member, partial(tar.extractfile, member), root)
                if number % 64 == 0:
                    bar.update(raw.tell(), total, "unpacking")
            end = tar.offset
        while watched.read(_BUFFER_BYTES):
            pass
    if watched.written > end or watched.size < end + 2 * _BLOCK_BYTES:
        raise tarfile.ReadError("its end is missing, or not where it should be")
    return tar.pax_headers.get("comment")


def _unzip(archive: Path, root: Path, bar: ProgressBar) -> str | None:
    with zipfile.ZipFile(archive) as packed:
        infos = packed.infolist()
        for number, info in enumerate(infos):
            member, mode = tarfile.TarInfo(info.filename), info.external_attr >> 16
            member.mode = stat.S_IMODE(mode) or 0o644
            member.mtime = calendar.timegm(
                (*map(max, info.date_time, (1980, 1, 1, 0, 0, 0)), 0, 0, 0)
            )
            if info.is_dir():
                member.type = tarfile.DIRTYPE
                packed.read(info)  # sees whether both places that name it agree
            elif stat.S_ISLNK(mode):
                member.type, member.linkname = tarfile.SYMTYPE, packed.read(info).decode()
            _write(member, partial(packed.open, info), root)
            bar.update(number + 1, len(infos), "unpacking")
        return packed.comment.decode("ascii", "replace") or None


def _write(member: tarfile.TarInfo, read: Callable[[], IO[bytes] | None], root: Path) -> None:
    target = root / member.name
    # devices and pipes have no business in a source
    if target == root or not (
        member.isfile() or member.isdir() or member.issym() or member.islnk()
    ):
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
        if len(member.linkname) > _LONGEST_TARGET or "\n" in member.linkname:
            raise tarfile.ReadError(f"{member.name} is not a link")
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
