"""Unpack archives safely, and read each to its last byte, so that damage is noticed.

shutil.unpack_archive is not used, because it loses links and modes of a zip. The filters of tarfile
are not used, because in Pythons before 3.11.13, links that are longer than the system's longest
path lead out of the folder (CVE-2025-4517).
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
from torchmill.fetch.source.git_command import is_commit

if sys.version_info >= (3, 14):
    from compression import zstd
else:
    from backports import zstd

SUFFIXES = (".tar.gz", ".tgz", ".tar.xz", ".tar.bz2", ".tar.zst", ".tar", ".zip")
_LONGEST_PATH = 2000  # characters
# Characters of a link's target. A longer "target" is the content of a file whose type a flipped bit
# has changed.
_LONGEST_TARGET = 1000
_BLOCK_BYTES = 512  # unit of a tar archive, which ends with two blocks of zeros
_BUFFER_BYTES = 1 << 18
_COPY_BYTES = 1 << 20
_PROGRESS_MEMBERS = 64  # members of a tar archive between two updates of the progress bar
_ZIP_EPOCH = (1980, 1, 1, 0, 0, 0)  # the earliest date of the zip format; damaged ones have month 0
# Errors of the system that a name in a damaged archive can cause. The others come from the machine.
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
    archive: Path, folder: Path, bar: ProgressBar, *, has_known_digest: bool = False
) -> str | None:
    """Unpack an archive as `folder`, and return the commit that it names, or None.

    `folder` must not exist. After an error, what was unpacked before it stays beside `folder`, in
    "NAME.root". Archives made by `git archive` name their commit in a comment. If everything in the
    archive lies in one folder, that folder becomes `folder`.

    The checksums in the archive are compared. An archive without any is accepted only if the caller
    has compared its digest (`has_known_digest`). Raises SourceError for a damaged or hostile
    archive, HostError for a full disk.
    """
    # Beside `folder`, and so on the same disk: the tree is moved by a rename.
    root = folder.with_name(f"{folder.name}.root")
    root.mkdir(parents=True)
    with report_unwritable(folder), refuse_damage(archive):
        if archive.suffix == ".zip":
            comment = _unzip(archive, root, bar)
        else:
            comment = _untar(archive, root, bar, has_known_digest=has_known_digest)
    entries = list(root.iterdir())
    has_one_folder = len(entries) == 1 and entries[0].is_dir() and not entries[0].is_symlink()
    top = entries[0] if has_one_folder else root
    top.rename(folder)
    shutil.rmtree(root, ignore_errors=True)
    return comment if is_commit(comment) else None


@contextlib.contextmanager
def refuse_damage(archive: Path) -> Iterator[None]:
    """Raise SourceError if a library fails in the block because an archive is damaged.

    Damaged archives make the libraries raise almost any error: EOFError, struct.error, zlib.error,
    OverflowError, NotImplementedError. Not taken for damage are torchmill's own errors, lack of
    memory, and errors of the machine such as a full disk.
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
        """Return the next bytes, at most `size`; b"" at the end."""
        data = self._file.read(size)
        content_length = len(data.rstrip(b"\0"))
        if content_length:
            self.content_end = self.size + content_length
        self.size += len(data)
        return data


def _decompress(archive: Path, raw: IO[bytes], *, has_known_digest: bool) -> IO[bytes]:
    """Return a file with the decompressed content of an archive.

    The first bytes decide how it is compressed, and not its name. The readers verify the checksum
    at the end of the stream. xz and zstd may be written without a checksum, which their eighth and
    fifth byte tell: https://tukaani.org/xz/xz-file-format.txt (2.1.1.2), RFC 8878 (3.1.1.1.1).
    Raises SourceError if there is no checksum and no known digest either, tarfile.ReadError if the
    name promises a compression and there is none.
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
    if decompress is None and not archive.name.endswith(".tar"):
        raise tarfile.ReadError("it is not compressed, as its name says")
    if not has_known_digest and not has_checksum:
        raise SourceError(
            f"nothing in {archive} shows whether it is complete: give an archive that checks itself "
            "(.tar.gz, .tar.xz and .zip do), or to `invoke fetch` its sha256 with --sha256",
            code="unproved-archive",
        )
    if decompress is None:
        return raw
    return cast("IO[bytes]", decompress(raw))


def _untar(archive: Path, root: Path, bar: ProgressBar, *, has_known_digest: bool) -> str | None:
    """Unpack a tar archive, compressed or not, and return its comment; None if it has none.

    tarfile takes a damaged header for the end of the archive, and then reads no further, so that
    the checksum behind a compressed stream is never compared. So the rest is read here. Raises
    tarfile.ReadError unless it is as it should be: at least two blocks, and nothing but zeros.
    """
    total = archive.stat().st_size
    with (
        archive.open("rb") as raw,
        _decompress(archive, raw, has_known_digest=has_known_digest) as content,
    ):
        reader = _CountingReader(content)
        stream = cast("IO[bytes]", reader)
        # In the mode "r|", tarfile only reads forward: the reader cannot seek.
        with tarfile.open(fileobj=stream, mode="r|", bufsize=_BUFFER_BYTES) as tar:
            for number, member in enumerate(tar):
                _write_member(member, partial(tar.extractfile, member), root)
                if number % _PROGRESS_MEMBERS == 0:
                    bar.update(raw.tell(), total, "unpacking")
            end = tar.offset  # of the last member that tarfile has read
        while reader.read(_BUFFER_BYTES):
            pass
    if reader.content_end > end or reader.size < end + 2 * _BLOCK_BYTES:
        raise tarfile.ReadError("its end is missing, or not where it should be")
    return tar.pax_headers.get("comment")


def _unzip(archive: Path, root: Path, bar: ProgressBar) -> str | None:
    """Unpack a zip archive, and return its comment; None if it has none."""
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
                # A zip has each name twice. To read the member, though it is empty, compares them.
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
    """Write one member of an archive below `root`.

    `read` opens the content of the member, and returns None if it has none. Devices and pipes are
    skipped: a source has none. Raises SourceError if the member, or its target if it is a link, is
    outside of `root`.
    """
    target = root / member.name
    is_known_type = member.isfile() or member.isdir() or member.issym() or member.islnk()
    if target == root or not is_known_type:
        return
    # A folder above the target may be a link that an earlier member has made.
    _require_inside(target.parent, root, member.name)
    if member.isdir():
        _require_inside(target, root, member.name)
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_symlink() or target.is_file():
        # An earlier member has this name. It is removed and not opened, because it may be a link.
        target.unlink()
    if member.issym():
        if len(member.linkname) > _LONGEST_TARGET or "\n" in member.linkname:
            raise tarfile.ReadError(f"{member.name} is not a link")
        _require_inside(target.parent / member.linkname, root, member.name)
        target.symlink_to(member.linkname)
        return
    if member.islnk():
        # A hard link is replaced by a copy, because not every disk has hard links.
        _require_inside(root / member.linkname, root, member.name)
        shutil.copy2(root / member.linkname, target)
        return
    content = read()
    if content is None:
        return
    with content, target.open("xb") as file:
        shutil.copyfileobj(content, file, _COPY_BYTES)
    # The user can always read and write the file; others can never write it; it is never setuid.
    target.chmod((member.mode | 0o600) & 0o755)
    os.utime(target, (member.mtime, member.mtime))


def _require_inside(path: Path, root: Path, name: str) -> None:
    """Raise SourceError if a path, with its links followed, is outside of `root`.

    `name` is the member's, for the message. A path that is too long for the system is refused
    as well: realpath does not follow it to its end, so it could lead anywhere (CVE-2025-4517).
    """
    real = os.path.realpath(path)
    base = os.path.realpath(root)
    is_inside = real == base or real.startswith(base + os.sep)
    if len(real) > _LONGEST_PATH or not is_inside:
        raise SourceError(
            f"the archive would write or point outside its folder with '{name}': do not use it",
            code="hostile-archive",
        )
