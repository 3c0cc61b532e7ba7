"""Fetch the source tree of a package, load a fetched one, and hold it while it is copied."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from torchmill.config.model import Source
from torchmill.core.errors import BusyError, InterruptedBuildError, SourceError
from torchmill.core.paths import Layout
from torchmill.fetch.source.request import (
    DEBIAN,
    PYPI,
    FetchProgress,
    SourceRequest,
    is_commit,
    validate_request,
)
from torchmill.fetch.source.source_dir import (
    FetchRecord,
    SourceDir,
    latest_source_dir,
    moved_clause,
    read_record,
    refetch_command,
    refresh_record,
    refuse_changes,
    refuse_unrecorded,
)

_PATIENCE = 600.0  # seconds for another run to be done with a source


def fetch_source(request: SourceRequest, layout: Layout, progress: FetchProgress) -> Source:
    """Bring the wanted source into its place, whole, and return it; at once if it is there.

    An interrupted fetch is gone on with. Raises ConfigError, SourceError, NetworkError,
    HostError or BusyError.
    """
    validate_request(request)
    slot = SourceDir(layout.source(request.package.name), request.release.tag)
    with _alone(slot.home, request.what), _interruption_told(request.what):
        slot.recover()
        current = _whole(slot)
        if current is not None and _serves(current, request):
            return current.source
        return _provide(request, slot, layout, current, progress)


def load_source(layout: Layout, package: str, tag: str | None = None) -> Source | None:
    """Return the package's fetched source of `tag`, or the one fetched last; None where there is none.

    Raises SourceError for a record that cannot be read.
    """
    home = layout.source(package)
    folder = SourceDir(home, tag).folder if tag else latest_source_dir(home)
    record = read_record(folder) if folder else None
    return record.source if record else None


@contextlib.contextmanager
def hold_source(layout: Layout, source: Source) -> Iterator[None]:
    """Keep a source in its place while it is copied: no fetch replaces it meanwhile and no clean removes it.

    Waits for another copy, or for a fetch. Raises SourceError where the source is gone, BusyError where
    somebody keeps it for long.
    """
    from filelock import FileLock, Timeout

    home = layout.source(source.package)
    lock = FileLock(home / "lock", timeout=_PATIENCE)
    try:
        lock.acquire()
    except (Timeout, FileNotFoundError):
        what = f"{source.package} {source.tag}"
        raise BusyError(f"{what} is being fetched by another run ({home}): wait for it, or stop it") from None
    try:
        if not source.path.is_dir():
            raise SourceError(f"{source.path} is gone since this run began: run {refetch_command(source)}")
        yield
    finally:
        lock.release()


def _whole(slot: SourceDir) -> FetchRecord | None:
    """Return the slot's record if its tree is as it was fetched; refuse one that holds changes."""
    record = read_record(slot.folder)
    if record is None:
        refuse_unrecorded(slot)
        return None
    seen = refuse_changes(record)
    if not slot.tree.is_dir() or moved_clause(record.source) is not None:
        return None
    refresh_record(slot.folder, record, seen)
    return record


def _serves(record: FetchRecord, request: SourceRequest) -> bool:
    """Tell whether what is there is what is asked for, without asking anybody."""
    source, known = record.source, request.release.commit
    if record.asked.get("ref") != request.ref or (request.ref is not None and not is_commit(request.ref)):
        return False  # a branch moves: its host must be asked
    if request.ref is None and known is not None and source.commit != known:
        return False  # the recorded commit was corrected
    if request.origin is None:
        return request.mirror is None or source.provider == "git"
    if request.origin == DEBIAN:
        return source.provider == DEBIAN
    if request.origin == PYPI:  # its archive may be recorded since, or corrected
        return source.provider == PYPI and (request.release.sha256 or "") in source.origin
    from torchmill.fetch.source import archive

    return dict(record.asked) == archive.origin_record(request.origin)


def _provide(
    request: SourceRequest,
    slot: SourceDir,
    layout: Layout,
    current: FetchRecord | None,
    progress: FetchProgress,
) -> Source:
    """Fetch from the provider that the request names; each is loaded only when it is needed."""
    slot.home.mkdir(parents=True, exist_ok=True)
    if request.origin is None:
        from torchmill.fetch.source import git_clone

        same = current is not None and current.asked.get("ref") == request.ref
        return git_clone.fetch_git(request, slot, current.source if current and same else None, progress)
    if request.origin == DEBIAN:
        from torchmill.fetch.source import debian

        return debian.fetch_debian(request, slot, layout.cache / DEBIAN, progress)
    if request.origin == PYPI:
        from torchmill.fetch import package_index
        from torchmill.fetch.source import pypi

        return pypi.fetch_pypi(request, slot, package_index.configured_index(), progress)
    from torchmill.fetch.source import archive

    return archive.fetch_local(request, request.origin, slot, progress)


@contextlib.contextmanager
def _alone(home: Path, what: str) -> Iterator[None]:
    """Hold a package's sources for this process. Raises BusyError where another run does."""
    from filelock import FileLock, Timeout

    home.mkdir(parents=True, exist_ok=True)
    lock = FileLock(home / "lock", timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise BusyError(f"{what} is being fetched by another run ({home}): wait for it, or stop it") from None
    try:
        yield
    finally:
        lock.release()


@contextlib.contextmanager
def _interruption_told(what: str) -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        raise InterruptedBuildError(
            f"fetching {what} was interrupted: run the same command to go on from where it stopped"
        ) from None
