"""Fetch the source tree of a release, and keep a fetched tree in place while it is copied.

Each release of a package has a folder for its source, the "slot" (`SourceDir`).
"""

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from torchmill.core.console import ProgressDisplay
from torchmill.core.errors import InterruptedBuildError, SourceError
from torchmill.core.locks import hold_folder
from torchmill.core.paths import Layout
from torchmill.core.process import CommandError
from torchmill.core.stat_cache import StatCache
from torchmill.core.system_errors import blame_disk
from torchmill.fetch.source import source_dir, verification
from torchmill.fetch.source.git_command import is_commit
from torchmill.fetch.source.request import DEBIAN, PYPI, SourceRequest
from torchmill.fetch.source.source import Source
from torchmill.fetch.source.source_dir import FetchRecord, SourceDir


def fetch_source(request: SourceRequest, layout: Layout, progress: ProgressDisplay) -> Source:
    """Return the requested source, and fetch it first unless it is there already.

    An interrupted fetch is resumed. Raises ConfigError for options that are wrong; SourceError,
    NetworkError or HostError if the source cannot be fetched, or has changes that a fetch would
    destroy; BusyError if another run fetches it; InterruptedBuildError if the user stops it.
    """
    request.validate()
    slot = SourceDir(layout.source(request.package.name), request.release.tag)
    try:
        # Without waiting: another fetch may take an hour, and the user should know of it.
        with _lock_sources(slot.home, request.title, 0):
            slot.recover()
            if request.discard:
                slot.discard()
            current = _intact_record(slot, StatCache(layout.stat_cache))
            if current is not None and _satisfies(current, request):
                return current.source
            return _fetch(request, slot, layout, current, progress)
    except KeyboardInterrupt:
        raise InterruptedBuildError(
            f"fetching {request.title} was interrupted: run the same command to resume it",
            code="interrupted",
        ) from None
    except CommandError as error:
        # git failed in the folder of the source. Errors about hosts were explained before, and are
        # no CommandErrors.
        disk_error = blame_disk(error.output, slot.home)
        if disk_error is not None:
            raise disk_error from None
        raise SourceError(
            f"{request.title}: {error}: run the command again; if that does not help, add "
            "--discard to start over",
            code="git-failed",
        ) from None


@contextlib.contextmanager
def hold_source(layout: Layout, source: Source) -> Iterator[None]:
    """Keep a source in place while the block copies it: no fetch and no clean touches it.

    Waits until other runs have ended their copying or fetching. Raises SourceError if the source is
    gone by then, BusyError if another run holds it for over ten minutes.
    """
    home = layout.source(source.package)
    title = f"{source.package} {source.tag}"
    with _lock_sources(home, title, source_dir.WAIT_TIMEOUT_SECONDS):
        if not source.path.is_dir():
            command = verification.refetch_command(source)
            raise SourceError(
                f"{source.path} was removed during this run: run {command}", code="source-gone"
            )
        yield


def _lock_sources(home: Path, title: str, timeout_seconds: float) -> AbstractContextManager[None]:
    """Hold the folder of a package's sources; raise BusyError after `timeout_seconds`."""
    message = f"{title} is being fetched by another run ({home}): wait for it, or stop it"
    return hold_folder(home, timeout_seconds, message=message, code="source-busy")


def _intact_record(slot: SourceDir, cache: StatCache) -> FetchRecord | None:
    """Return the record of a slot if its tree is complete and as it was fetched, else None.

    Raises SourceError for a tree with changes that a fetch would destroy. The record is renewed.
    """
    record: FetchRecord | None = None
    with contextlib.suppress(SourceError):  # a damaged record counts as a missing one
        record = source_dir.read_record(slot.folder)
    if record is None:
        verification.refuse_unrecorded(slot)
        return None
    fingerprint = verification.refuse_changes(record)
    if not slot.tree.is_dir() or verification.moved_clause(record.source) is not None:
        return None
    # refuse_changes asked git, which overlooks files that somebody has marked, as by skip-worktree.
    # So if the tree does not look as it did, the contents of all files are compared.
    looks_different = fingerprint != record.fingerprint
    if looks_different or verification.touched_since_check(slot.folder):
        verification.verify_source(record.source, cache, allow_ignored=True)
        cache.save()
    source_dir.refresh_record(slot.folder, record, fingerprint)
    return record


def _satisfies(record: FetchRecord, request: SourceRequest) -> bool:
    """Tell whether a fetched tree certainly satisfies a request; no host is asked.

    A request that names neither an origin nor a mirror is satisfied by a tree from anywhere.
    """
    source = record.source
    if not _has_requested_commit(record, request):
        return False
    if request.origin is None:
        return request.mirror is None or source.provider == "git"
    if request.origin == DEBIAN:
        return source.provider == DEBIAN
    if request.origin == PYPI:
        # The facts may have got, or corrected, the digest of the release's archive since the fetch.
        return source.provider == PYPI and request.release.proof.sha256 in {None, source.archive}
    from torchmill.fetch.source import local

    if dict(record.requested) != local.origin_record(request.origin):
        return False
    return request.sha256.lower() in {"", source.archive}


def _has_requested_commit(record: FetchRecord, request: SourceRequest) -> bool:
    """Tell whether the commit of a fetched tree is certainly still the requested one.

    A tree that names no commit has that of the release.
    """
    if record.requested.get("ref") != request.ref:
        return False
    if request.ref is not None:
        return is_commit(request.ref)  # a branch moves, so its host must be asked
    # The facts may have corrected the commit of the release since the fetch.
    actual = record.source.commit or record.source.declared
    return request.release.proof.commit is None or actual in {None, request.release.proof.commit}


def _fetch(
    request: SourceRequest,
    slot: SourceDir,
    layout: Layout,
    current: FetchRecord | None,
    progress: ProgressDisplay,
) -> Source:
    """Fetch from the provider that the request names; `current` is the record of the intact tree.

    The modules of providers load slowly, and only one of them is needed.
    """
    if request.origin is None:
        from torchmill.fetch.source import git_clone

        current_source = None
        if current is not None and current.requested.get("ref") == request.ref:
            current_source = current.source
        return git_clone.fetch_git(request, slot, current_source, progress)
    if request.origin == DEBIAN:
        from torchmill.fetch.source import debian

        return debian.fetch_debian(request, slot, layout.cache / DEBIAN, progress)
    if request.origin == PYPI:
        from torchmill.fetch.source import pypi

        return pypi.fetch_pypi(request, slot, progress)
    from torchmill.fetch.source import local

    return local.fetch_local(request, request.origin, slot, progress)
