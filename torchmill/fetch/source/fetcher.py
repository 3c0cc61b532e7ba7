"""Fetch the source tree of a package, and hold a fetched one while it is copied."""

import contextlib
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path

from torchmill.config.model import Source
from torchmill.core.console import ProgressDisplay
from torchmill.core.errors import InterruptedBuildError, SourceError
from torchmill.core.files import blame_disk
from torchmill.core.locks import hold_folder
from torchmill.core.paths import Layout
from torchmill.core.process import CommandError
from torchmill.core.stat_cache import StatCache
from torchmill.fetch.source import source_dir
from torchmill.fetch.source.git_command import is_commit
from torchmill.fetch.source.source_dir import DEBIAN, PYPI, FetchRecord, SourceDir, SourceRequest


def fetch_source(request: SourceRequest, layout: Layout, progress: ProgressDisplay) -> Source:
    """Fetch the requested source, complete, and return it; at once if it is there already.

    An interrupted fetch is resumed. Raises ConfigError, SourceError, NetworkError, HostError or BusyError.
    """
    request.validate()
    slot = SourceDir(layout.source(request.package.name), request.release.tag)
    try:
        with _lock_sources(slot.home, request.what, 0):
            slot.recover()
            if request.discard:
                slot.discard()
            current = _whole_record(slot, StatCache(layout.stat_cache))
            if current is not None and _serves(current, request):
                return current.source
            return _fetch(request, slot, layout, current, progress)
    except KeyboardInterrupt:
        raise InterruptedBuildError(
            f"fetching {request.what} was interrupted: run the same command to resume it",
            code="interrupted",
        ) from None
    except (
        CommandError
    ) as error:  # of git in our own folder: what hosts say of it was explained before
        told = f"{request.what}: {error}: run the command again; if that does not help, add --discard to start over"
        raise blame_disk(error.output, slot.home) or SourceError(told, code="git-failed") from None


@contextlib.contextmanager
def hold_source(layout: Layout, source: Source) -> Iterator[None]:
    """Keep a source in place while it is copied: no fetch replaces it and no clean removes it meanwhile.

    Waits for another copy or for a fetch. Raises SourceError if the source is gone, BusyError if another run
    holds it for long.
    """
    what = f"{source.package} {source.tag}"
    with _lock_sources(layout.source(source.package), what, source_dir.WAIT_TIMEOUT_SECONDS):
        if not source.path.is_dir():
            raise SourceError(
                f"{source.path} was removed during this run: run {source_dir.refetch_command(source)}",
                code="source-gone",
            )
        yield


def _lock_sources(home: Path, what: str, timeout_seconds: float) -> AbstractContextManager[None]:
    message = f"{what} is being fetched by another run ({home}): wait for it, or stop it"
    return hold_folder(home, timeout_seconds, message, "source-busy")


def _whole_record(slot: SourceDir, cache: StatCache) -> FetchRecord | None:
    """Return the slot's record if its tree is as it was fetched; refuse one that holds changes."""
    record: FetchRecord | None = None
    with contextlib.suppress(SourceError):  # damaged: as if there were none
        record = source_dir.read_record(slot.folder)
    if record is None:
        source_dir.refuse_unrecorded(slot)
        return None
    seen = source_dir.refuse_changes(record)
    if not slot.tree.is_dir() or source_dir.moved_clause(record.source) is not None:
        return None
    looks_other = (
        seen != record.fingerprint
    )  # also where git was told to overlook a file that is missing
    if looks_other or source_dir.touched_since_check(slot.folder):
        source_dir.verify_source(record.source, cache, extras=True)
        cache.save()
    source_dir.refresh_record(slot.folder, record, seen)
    return record


def _serves(record: FetchRecord, request: SourceRequest) -> bool:
    """Tell whether the fetched tree is what is requested, without asking any host."""
    source, commit = record.source, request.release.commit
    named = source.commit or source.declared
    if record.asked.get("ref") != request.ref or (
        request.ref is not None and not is_commit(request.ref)
    ):
        return False  # a branch moves: its host must be asked
    if request.ref is None and commit is not None and named not in {None, commit}:
        return False  # the recorded commit was corrected
    if request.origin is None:
        return request.mirror is None or source.provider == "git"
    if request.origin == DEBIAN:
        return source.provider == DEBIAN
    if request.origin == PYPI:  # the digest of its archive may be recorded since, or corrected
        return source.provider == PYPI and request.release.sha256 in {None, source.archive}
    from torchmill.fetch.source import local

    wanted = request.sha256.lower()
    return dict(record.asked) == local.origin_record(request.origin) and wanted in {
        "",
        source.archive,
    }


def _fetch(
    request: SourceRequest,
    slot: SourceDir,
    layout: Layout,
    current: FetchRecord | None,
    progress: ProgressDisplay,
) -> Source:
    """Fetch from the provider that the request names; each is loaded only when it is needed."""
    if request.origin is None:
        from torchmill.fetch.source import git_clone

        kept = current.source if current and current.asked.get("ref") == request.ref else None
        return git_clone.fetch_git(request, slot, kept, progress)
    if request.origin == DEBIAN:
        from torchmill.fetch.source import apt

        return apt.fetch_debian(request, slot, layout.cache / DEBIAN, progress)
    from torchmill.fetch.source import local

    if request.origin == PYPI:
        return local.fetch_pypi(request, slot, progress)
    return local.fetch_local(request, request.origin, slot, progress)
