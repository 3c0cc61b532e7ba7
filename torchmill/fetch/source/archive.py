"""`--from PATH|URL`: copy a folder, or unpack an archive safely."""

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
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from torchmill.config.model import Source
from torchmill.core.errors import SourceError
from torchmill.core.files import hash_file, report_disk_full
from torchmill.core.process import CommandError
from torchmill.core.urls import hide_password
from torchmill.fetch.download import download_file
from torchmill.fetch.source.git_command import (
    GitFailure,
    complaint_gist,
    diagnose_git,
    foreign_owner_error,
    git_folder,
    read_head,
    run_git,
)
from torchmill.fetch.source.request import SourceRequest, is_commit, ways_out
from torchmill.fetch.source.source_dir import (
    SourceDir,
    describe_source,
    require_python_project,
    take_fingerprint,
)

if TYPE_CHECKING:
    from torchmill.core.console import ProgressBar, ProgressDisplay

SUFFIXES = (".tar.gz", ".tgz", ".tar.xz", ".tar.bz2", ".zip")
_LONGEST_PATH = 2000  # characters
_BROKEN = (tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, EOFError, OSError)


def fetch_local(request: SourceRequest, origin: str, slot: SourceDir, progress: ProgressDisplay) -> Source:
    """Copy, or download and unpack, `origin`. Raises SourceError, NetworkError or HostError."""
    commit = request.release.commit
    with contextlib.closing(progress.task(request.what)) as bar, slot.scratch() as tree:
        try:
            found = _bring(request, origin, slot, tree, bar)
            require_python_project(tree, found.origin)
            _confirm_commit(request, found)
        except SourceError:  # not what was wanted: the next try must not find it
            shutil.rmtree(slot.downloaded, ignore_errors=True)
            raise
        source = describe_source(
            request,
            tree,
            "path",
            found.origin,
            commit=found.commit or commit,  # as declared, if nothing in it tells
            verified=found.verified and commit is not None,
            submodules=found.submodules,
        )
        published = slot.publish(slot.unpacked, source, origin_record(origin))
    shutil.rmtree(slot.downloaded, ignore_errors=True)
    return published


def origin_record(origin: str) -> dict[str, str | None]:
    """Return what a record keeps of `--from`: where, and how it looked, so that a change is noticed."""
    path = _local_path(origin)
    state = None
    if path is not None and path.is_dir():
        state = str(take_fingerprint(path))
    elif path is not None and path.is_file():
        state = f"{path.stat().st_size} {path.stat().st_mtime_ns}"
    return {"ref": None, "origin": str(path) if path else origin, "state": state}


@dataclass(frozen=True, slots=True)
class LocalOrigin:
    """What a folder or an archive proved to be."""

    origin: str  # for people; another text for other content
    commit: str | None = None  # that it names itself
    verified: bool = False
    submodules: Mapping[str, str] = field(default_factory=dict)


def _bring(request: SourceRequest, origin: str, slot: SourceDir, tree: Path, bar: ProgressBar) -> LocalOrigin:
    """Make the tree of whatever `origin` is."""
    path = _local_path(origin)
    if path is None:
        refused = "check the address given to --from"
        file = download_file(origin, slot.downloaded, bar, otherwise=ways_out(request), refused=refused)
        return _from_archive(file, hide_password(origin), tree, bar)
    if path.is_file():
        return _from_archive(path, str(path), tree, bar)
    if not path.is_dir():
        raise SourceError(
            f"{path} is neither a folder nor an archive: check the path given to --from",
            code="no-such-origin",
        )
    if tree.is_relative_to(path):
        raise SourceError(
            f"{path} contains {slot.home}, where fetched sources go: give the source alone to --from",
            code="origin-contains-sources",
        )
    return _from_folder(path, tree, bar)


def _confirm_commit(request: SourceRequest, found: LocalOrigin) -> None:
    commit = request.release.commit
    if found.commit is not None and commit is not None and found.commit != commit:
        raise SourceError(
            f"{found.origin} is the commit {found.commit}, but {request.package.name} "
            f"{request.release.version} was released from {commit}: check out or get the right one",
            code="wrong-commit",
        )


def _local_path(origin: str) -> Path | None:
    """Return the path that `--from` names, or None for a URL to download."""
    scheme = urlsplit(origin).scheme if "://" in origin else ""
    if scheme in {"http", "https"}:
        if origin.rstrip("/").endswith(".git"):
            raise SourceError(
                f"{hide_password(origin)} is a git repository: give its host with --mirror instead of --from",
                code="origin-is-repository",
            )
        return None
    if scheme not in {"", "file"}:
        raise SourceError(
            f"--from {hide_password(origin)}: give a path, or a URL that begins with https:// or file://",
            code="unsupported-origin",
        )
    return Path(unquote(urlsplit(origin).path) if scheme else origin).expanduser().resolve()


def _from_archive(archive: Path, name: str, tree: Path, bar: ProgressBar) -> LocalOrigin:
    if not archive.name.endswith(SUFFIXES):
        raise SourceError(
            f"{name} is no archive that can be unpacked: give one of {', '.join(SUFFIXES)}",
            code="unknown-archive-type",
        )
    commit = unpack_archive(archive, tree, bar)
    return LocalOrigin(f"{name} (sha256 {hash_file(archive)})", commit if is_commit(commit) else None)


def _from_folder(folder: Path, tree: Path, bar: ProgressBar) -> LocalOrigin:
    """Copy a folder without .git and what git ignores: an old build must not leak into a new one."""
    found = inspect_folder(folder)
    done = 0

    def left_out(visited: str, names: list[str]) -> set[str]:
        nonlocal done
        done += len(names)
        bar.update(done, None, "copying")
        return {name for name in names if name == ".git" or Path(visited, name) in found.ignored}

    with report_disk_full(tree):
        shutil.copytree(folder, tree, symlinks=True, ignore=left_out)
    verified = found.commit is not None and not found.changed
    origin = str(folder)
    if not verified:
        seen = take_fingerprint(tree)
        changed = ", with local changes" if found.commit else ""
        origin += f" ({seen.files} files, {seen.size} bytes, newest {seen.newest}{changed})"
    return LocalOrigin(origin, found.commit, verified, found.submodules)


@dataclass(frozen=True, slots=True)
class InspectedFolder:
    """A folder as git sees it; one without git has no commit."""

    commit: str | None = None
    changed: bool = False
    submodules: Mapping[str, str] = field(default_factory=dict)
    ignored: frozenset[Path] = frozenset()


def inspect_folder(folder: Path) -> InspectedFolder:
    """Return what git knows of a folder.

    Raises SourceError where its submodules are not there, or git does not work in it.
    """
    if git_folder(folder) is None:
        return InspectedFolder()
    try:
        status = run_git(
            folder, "status", "--porcelain", "-z", "--no-renames", "--ignored", "--ignore-submodules=none"
        )
        submodules = run_git(folder, "submodule", "status", "--recursive")
    except CommandError as error:
        if diagnose_git(error.output) is GitFailure.FOREIGN:
            raise foreign_owner_error(folder) from None
        raise SourceError(
            f"git cannot read {folder} ({complaint_gist(error.output)}): repair it, or give another folder",
            code="unreadable-repository",
        ) from None
    entries = [entry for entry in status.split("\0") if entry]
    pins = parse_submodules(submodules, folder)
    return InspectedFolder(
        commit=read_head(folder),
        changed=any(not entry.startswith("!!") for entry in entries),
        submodules=pins,
        ignored=frozenset(folder / entry[3:].rstrip("/") for entry in entries if entry.startswith("!!")),
    )


def parse_submodules(listing: str, folder: Path) -> dict[str, str]:
    """Return path -> commit of what `git submodule status` lists; raise SourceError where one is empty."""
    found = {}
    for line in listing.splitlines():
        commit, path = line[1:].split(" ", 1)
        if line.startswith("-"):
            raise SourceError(
                f"{folder}: the submodule {path} is not checked out: "
                f"run `git -C {folder} submodule update --init --recursive`",
                code="submodule-missing",
            )
        found[path.rpartition(" (")[0] or path] = commit
    return found


@dataclass(frozen=True, slots=True)
class ArchiveEntry:
    """One thing in an archive."""

    name: str
    mode: int  # permissions, with the kind of file in them
    time: float
    link: str | None  # where a symbolic link points to
    copy_of: str | None  # the name of the entry that a hard link repeats
    read: Callable[[], IO[bytes]]


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
            entry = _tar_entry(tar, member)
            if entry is not None:
                _write(entry, root)
            if number % 64 == 0:
                bar.update(raw.tell(), total, "unpacking")
        return tar.pax_headers.get("comment")


def _tar_entry(tar: tarfile.TarFile, member: tarfile.TarInfo) -> ArchiveEntry | None:
    if not (member.isfile() or member.isdir() or member.issym() or member.islnk()):
        return None  # devices and pipes have no business in a source

    def read() -> IO[bytes]:
        content = tar.extractfile(member)
        if content is None:
            raise tarfile.ReadError(f"{member.name} has no content")
        return content

    return ArchiveEntry(
        member.name,
        member.mode | (stat.S_IFDIR if member.isdir() else stat.S_IFREG),
        member.mtime,
        member.linkname if member.issym() else None,
        member.linkname if member.islnk() else None,
        read,
    )


def _unzip(archive: Path, root: Path, bar: ProgressBar) -> str | None:
    with zipfile.ZipFile(archive) as packed:
        infos = packed.infolist()
        for number, info in enumerate(infos):
            _write(_zip_entry(packed, info), root)
            bar.update(number + 1, len(infos), "unpacking")
        return packed.comment.decode("ascii", "replace") or None


def _zip_entry(packed: zipfile.ZipFile, info: zipfile.ZipInfo) -> ArchiveEntry:
    mode = info.external_attr >> 16
    link = packed.read(info).decode() if stat.S_ISLNK(mode) else None
    kind = stat.S_IFDIR if info.is_dir() else stat.S_IFREG
    permissions = stat.S_IMODE(mode) or 0o644
    time = float(calendar.timegm((*info.date_time, 0, 0, 0)))
    return ArchiveEntry(info.filename, permissions | kind, time, link, None, lambda: packed.open(info))


def _write(entry: ArchiveEntry, root: Path) -> None:
    target = root / entry.name
    if target == root:
        return
    _require_inside(target.parent, root, entry.name)
    if stat.S_ISDIR(entry.mode):
        _require_inside(target, root, entry.name)
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_symlink() or target.is_file():
        target.unlink()
    if entry.link is not None:
        _require_inside(target.parent / entry.link, root, entry.name)
        target.symlink_to(entry.link)
        return
    if entry.copy_of is not None:
        _require_inside(root / entry.copy_of, root, entry.name)
        shutil.copy2(root / entry.copy_of, target)
        return
    with entry.read() as content, target.open("xb") as file:
        shutil.copyfileobj(content, file, 1 << 20)
    # readable and writable to us whatever the archive says; never setuid, never writable to others
    target.chmod((stat.S_IMODE(entry.mode) | 0o600) & 0o755)
    os.utime(target, (entry.time, entry.time))


def _require_inside(path: Path, root: Path, name: str) -> None:
    """Raise SourceError where a path, its links followed, leaves the folder."""
    real, base = os.path.realpath(path), os.path.realpath(root)
    # a path too long for the system is not followed to its end, and could lead anywhere
    if len(real) > _LONGEST_PATH or (real != base and not real.startswith(base + os.sep)):
        raise SourceError(
            f"the archive would write or point outside its folder with '{name}': do not use it",
            code="hostile-archive",
        )
