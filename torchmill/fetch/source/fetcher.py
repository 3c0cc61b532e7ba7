"""Fetch the source tree of a package, and hold a fetched one while it is copied."""

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
    """Fetch the requested source, complete, and return it; at once if it is there already.

    An interrupted fetch is resumed. Raises ConfigError, SourceError, NetworkError, HostError or
    BusyError.
    """
    request.validate()
    slot = SourceDir(layout.source(request.package.name), request.release.tag)
    try:
        # no waiting: the other fetch may take an hour, and the user should know of it
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
        # Of git in our own folder: errors about hosts have been explained before they come here.
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
    """Keep a source in place while it is copied: meanwhile no fetch or clean touches it.

    Waits for another copy or for a fetch. Raises SourceError if the source is gone, BusyError if
    another run holds it for long.
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
    message = f"{title} is being fetched by another run ({home}): wait for it, or stop it"
    return hold_folder(home, timeout_seconds, message, "source-busy")


def _intact_record(slot: SourceDir, cache: StatCache) -> FetchRecord | None:
    """Return the record of the slot if its tree is as it was fetched, else None.

    Raises SourceError for a tree with changes, which a fetch would destroy.
    """
    record: FetchRecord | None = None
    with contextlib.suppress(SourceError):  # a damaged record counts as none
        record = source_dir.read_record(slot.folder)
    if record is None:
        verification.refuse_unrecorded(slot)
        return None
    fingerprint = verification.refuse_changes(record)
    if not slot.tree.is_dir() or verification.moved_clause(record.source) is not None:
        return None
    # Git does not report a file that it was told to overlook, e.g. by skip-worktree: if the tree
    # looks different, its contents decide.
    looks_different = fingerprint != record.fingerprint
    if looks_different or verification.touched_since_check(slot.folder):
        verification.verify_source(record.source, cache, extras=True)
        cache.save()
    source_dir.refresh_record(slot.folder, record, fingerprint)
    return record


def _satisfies(record: FetchRecord, request: SourceRequest) -> bool:
    """Tell whether a fetched tree satisfies a request, without asking any host."""
    source = record.source
    if not _has_requested_commit(record, request):
        return False
    if request.origin is None:
        return request.mirror is None or source.provider == "git"
    if request.origin == DEBIAN:
        return source.provider == DEBIAN
    if request.origin == PYPI:
        # the facts may have added or corrected the digest of the release's archive
        return source.provider == PYPI and request.release.sha256 in {None, source.archive}
    from torchmill.fetch.source import local

    if dict(record.requested) != local.origin_record(request.origin):
        return False
    return request.sha256.lower() in {"", source.archive}


def _has_requested_commit(record: FetchRecord, request: SourceRequest) -> bool:
    """Tell whether the commit of a fetched tree is certainly still the requested one."""
    if record.requested.get("ref") != request.ref:
        return False
    if request.ref is not None:
        return is_commit(request.ref)  # a branch moves, so its host must be asked
    # the facts may have corrected the commit of the release since
    actual = record.source.commit or record.source.declared
    return request.release.commit is None or actual in {None, request.release.commit}


def _fetch(
    request: SourceRequest,
    slot: SourceDir,
    layout: Layout,
    current: FetchRecord | None,
    progress: ProgressDisplay,
) -> Source:
    """Fetch from the provider that the request names; each is loaded only if it is needed."""
    if request.origin is None:
        from torchmill.fetch.source import git_clone

        has_same_ref = current is not None and current.requested.get("ref") == request.ref
        current_source = current.source if current is not None and has_same_ref else None
        return git_clone.fetch_git(request, slot, current_source, progress)
    if request.origin == DEBIAN:
        from torchmill.fetch.source import debian

        return debian.fetch_debian(request, slot, layout.cache / DEBIAN, progress)
    if request.origin == PYPI:
        from torchmill.fetch.source import pypi

        return pypi.fetch_pypi(request, slot, progress)
    from torchmill.fetch.source import local

    return local.fetch_local(request, request.origin, slot, progress)
