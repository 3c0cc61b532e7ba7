"""`--from PATH|URL`: a folder that is copied, or an archive that is unpacked."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import unquote, urlsplit

from torchmill.digests import sha256
from torchmill.errors import SourceError
from torchmill.model import Source
from torchmill.source.disk import disk_full_told
from torchmill.source.download import download
from torchmill.source.mirror import shown
from torchmill.source.network import ways_out
from torchmill.source.pyproject import assure_source, build_backend
from torchmill.source.request import Bar, Progress, Request, is_commit
from torchmill.source.slot import Slot, fingerprint
from torchmill.source.unpack import SUFFIXES, unpack
from torchmill.source.worktree import inspect


@dataclass(frozen=True, slots=True)
class Taken:
    """What a folder or an archive proved to be."""

    origin: str  # for people; another text for other content
    commit: str | None = None  # that it names itself
    verified: bool = False
    submodules: Mapping[str, str] = field(default_factory=dict)


def fetch(request: Request, origin: str, slot: Slot, progress: Progress) -> Source:
    """Copy, or download and unpack, `origin`. Raises SourceError, NetworkError or HostError."""
    shutil.rmtree(slot.unpacked, ignore_errors=True)
    slot.unpacked.mkdir(parents=True)
    tree = slot.unpacked / "tree"
    bar = progress.task(request.what)
    try:
        taken = _take(request, origin, slot, bar)
        assure_source(tree, taken.origin)
        _confirm(request, taken)
    except SourceError:  # not what was wanted: the next try must not find it
        shutil.rmtree(slot.downloaded, ignore_errors=True)
        raise
    finally:
        bar.close()
    published = slot.publish(slot.unpacked, _source(request, taken, tree), asked(origin))
    shutil.rmtree(slot.downloaded, ignore_errors=True)
    return published


def _take(request: Request, origin: str, slot: Slot, bar: Bar) -> Taken:
    """Make the tree in the slot's unpacked folder, whatever `origin` is."""
    tree = slot.unpacked / "tree"
    path = _local(origin)
    if path is None:
        refused = "check what you gave to --from"
        file = download(origin, slot.downloaded, bar, otherwise=ways_out(request), refused=refused)
        return _from_archive(file, shown(origin), tree, bar)
    if path.is_file():
        return _from_archive(path, str(path), tree, bar)
    if not path.is_dir():
        raise SourceError(f"{path} is neither a folder nor an archive: check what you gave to --from")
    if tree.is_relative_to(path):
        raise SourceError(f"{path} holds {slot.home} of this suite itself: give the source alone to --from")
    return _from_folder(path, tree, bar)


def asked(origin: str) -> dict[str, str | None]:
    """Return what a record keeps of `--from`: where, and how it looked, so that a change is noticed."""
    path = _local(origin)
    state = None
    if path is not None and path.is_dir():
        state = str(fingerprint(path))
    elif path is not None and path.is_file():
        state = f"{path.stat().st_size} {path.stat().st_mtime_ns}"
    return {"ref": None, "origin": str(path) if path else origin, "state": state}


def _local(origin: str) -> Path | None:
    """Return the path that `--from` names, or None for a URL to download."""
    scheme = urlsplit(origin).scheme if "://" in origin else ""
    if scheme in {"http", "https"}:
        if origin.rstrip("/").endswith(".git"):
            raise SourceError(
                f"{shown(origin)} is a git repository: give where it lies with --mirror, not --from"
            )
        return None
    if scheme not in {"", "file"}:
        raise SourceError(
            f"--from {shown(origin)}: give a path, or a URL that begins with https:// or file://"
        )
    return Path(unquote(urlsplit(origin).path) if scheme else origin).expanduser().resolve()


def _from_archive(archive: Path, name: str, tree: Path, bar: Bar) -> Taken:
    if not archive.name.endswith(SUFFIXES):
        raise SourceError(f"{name} is no archive that can be unpacked: give one of {', '.join(SUFFIXES)}")
    commit = unpack(archive, tree, bar)
    return Taken(f"{name} (sha256 {sha256(archive)})", commit if is_commit(commit) else None)


def _from_folder(folder: Path, tree: Path, bar: Bar) -> Taken:
    """Copy a folder without git's own and what git ignores: an old build must not leak into a new one."""
    found = inspect(folder)
    done = 0

    def left_out(visited: str, names: list[str]) -> set[str]:
        nonlocal done
        done += len(names)
        bar.update(done, None, "copying")
        return {name for name in names if name == ".git" or Path(visited, name) in found.ignored}

    with disk_full_told(tree):
        shutil.copytree(folder, tree, symlinks=True, ignore=left_out)
    if found.commit is None or found.changed:
        seen = fingerprint(tree)
        changed = ", with local changes" if found.commit else ""
        origin = f"{folder} ({seen.files} files, {seen.size} bytes, newest {seen.newest}{changed})"
        return Taken(origin, found.commit, verified=False, submodules=found.submodules)
    return Taken(str(folder), found.commit, verified=True, submodules=found.submodules)


def _confirm(request: Request, taken: Taken) -> None:
    known = request.release.commit
    if taken.commit is not None and known is not None and taken.commit != known:
        raise SourceError(
            f"{taken.origin} is the commit {taken.commit}, but {request.package.name} "
            f"{request.release.version} was released from {known}: check out or get the right one"
        )


def _source(request: Request, taken: Taken, tree: Path) -> Source:
    known = request.release.commit
    return Source(
        package=request.package.name,
        version=request.release.version,
        tag=request.release.tag,
        provider="path",
        origin=taken.origin,
        commit=taken.commit or known,  # as declared, where nothing in it says so
        path=tree,
        verified=taken.verified and known is not None,
        submodules=taken.submodules,
        build_backend=build_backend(tree),
    )
