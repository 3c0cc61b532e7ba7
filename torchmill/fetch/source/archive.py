"""Unpack archives safely; `--from pypi`: a release's source archive from the package index.

Not shutil.unpack_archive: of a zip it loses links and modes. Not tarfile's filters: Pythons before 3.11.13
let links longer than a path may be lead out of the folder (CVE-2025-4517).
"""

from __future__ import annotations

import calendar
import contextlib
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

import requests
from packaging.utils import canonicalize_name
from packaging.version import Version

from torchmill.config.model import Source
from torchmill.core.errors import NetworkError, SourceError
from torchmill.core.files import report_disk_full
from torchmill.core.urls import hide_password
from torchmill.fetch import package_index
from torchmill.fetch.download import download_file
from torchmill.fetch.package_index import IndexFile
from torchmill.fetch.source.request import PYPI, SourceRequest
from torchmill.fetch.source.source_dir import SourceDir, require_python_project

if TYPE_CHECKING:
    from torchmill.core.console import ProgressBar, ProgressDisplay

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


_LISTED_VERSIONS = 8  # in a message


def fetch_pypi(request: SourceRequest, slot: SourceDir, progress: ProgressDisplay) -> Source:
    """Download the archive of a release from the index that pip uses, check and unpack it.

    Raises SourceError if it is missing, or not what the index or the facts say; NetworkError or HostError.
    """
    with contextlib.closing(progress.task(request.what)) as bar, slot.scratch() as tree:
        bar.update(0, None, "asking the index")
        file = _find_archive(request)
        archive = download_file(
            file.url,
            slot.downloaded,
            bar,
            otherwise=request.ways_out(),
            refused="the index lists a file that is not there: run the command again later",
            sha256=file.sha256,
        )
        unpack_archive(archive, tree, bar)
        require_python_project(tree, f"PyPI's {file.name}")
        recorded = ", as recorded" if request.release.sha256 else ""
        origin = f"PyPI's {file.name} (sha256 {file.sha256}{recorded})"
        return slot.publish(slot.unpacked, request, PYPI, origin, commit=request.release.commit)


def _find_archive(request: SourceRequest) -> IndexFile:
    """Return the source archive of the requested release, with a digest."""
    index = package_index.configured_index()
    project, version, host = request.package.pypi, request.release.version, hide_password(index)
    if project is None:
        raise SourceError(
            f"{request.package.name} has no project on PyPI that its source could come from ('pypi' in "
            f"its file in build_configs/packages): {request.ways_out()}",
            code="no-pypi-project",
        )
    try:
        with requests.Session() as session:
            files = package_index.project_files(session, index, canonicalize_name(project))
    except NetworkError as error:
        raise NetworkError(f"{error}, or {request.ways_out()}", code=error.code) from None
    archives = dict(package_index.source_archives(files, project))
    file = archives.get(Version(version))
    if file is None:
        newest = ", ".join(map(str, sorted(archives, reverse=True)[:_LISTED_VERSIONS]))
        raise SourceError(
            f"{host} has no source archive of {project} {version} (it has "
            f"{newest or 'none of any version'}): {request.ways_out()}",
            code="release-not-on-index",
        )
    if file.sha256 is None:
        raise SourceError(
            f"{host} lists no sha256 of {file.name}, so the download could not be checked: set PIP_INDEX_URL "
            f"to an index that does, or {request.ways_out()}",
            code="no-digest-on-index",
        )
    if request.release.sha256 not in {None, file.sha256}:
        raise SourceError(
            f"{host} lists another {file.name} (sha256 {file.sha256}) than build_configs records "
            f"({request.release.sha256}): find out why before you use it",
            code="digest-differs-from-facts",
        )
    return file
