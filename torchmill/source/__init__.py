"""Source trees of packages: fetched by one of several providers, recorded, checked before use."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

from torchmill.errors import BusyError, InterruptedBuildError, SourceError
from torchmill.layout import Layout
from torchmill.model import Source
from torchmill.source.checking import assure, check, cure, moved, refuse_changes, refuse_unrecorded
from torchmill.source.request import (
    DEBIAN,
    PYPI,
    Bar,
    Progress,
    Request,
    Silent,
    SilentBar,
    is_commit,
    requests,
    validate,
)
from torchmill.source.slot import Record, Slot, latest, read, refresh

__all__ = [
    "Bar",
    "Progress",
    "Request",
    "Silent",
    "SilentBar",
    "assure",
    "check",
    "fetch",
    "kept",
    "load",
    "requests",
]

_PATIENCE = 600.0  # seconds for another run to be done with a source


def fetch(request: Request, layout: Layout, progress: Progress) -> Source:
    """Bring the wanted source into its place, whole, and return it; at once if it is there.

    An interrupted fetch is gone on with. Raises ConfigError, SourceError, NetworkError,
    HostError or BusyError.
    """
    validate(request)
    slot = Slot(layout.source(request.package.name), request.release.tag)
    with _alone(slot.home, request.what), _interruption_told(request.what):
        slot.recover()
        current = _whole(slot)
        if current is not None and _serves(current, request):
            return current.source
        return _provide(request, slot, layout, current, progress)


def load(layout: Layout, package: str, tag: str | None = None) -> Source | None:
    """Return the package's fetched source of `tag`, or the one fetched last; None where there is none.

    Raises SourceError for a record that cannot be read.
    """
    home = layout.source(package)
    folder = Slot(home, tag).folder if tag else latest(home)
    record = read(folder) if folder else None
    return record.source if record else None


@contextlib.contextmanager
def kept(layout: Layout, source: Source) -> Iterator[None]:
    """Keep a source in its place while it is copied: no fetch replaces it meanwhile and no clean removes it.

    Waits for another copy, or for a fetch. Raises SourceError where the source is gone, BusyError where
    somebody keeps it for long.
    """
    from filelock import FileLock, Timeout  # noqa: PLC0415 (checking a source needs no lock)

    home = layout.source(source.package)
    lock = FileLock(home / "lock", timeout=_PATIENCE)
    try:
        lock.acquire()
    except (Timeout, FileNotFoundError):
        what = f"{source.package} {source.tag}"
        raise BusyError(f"{what} is being fetched by another run ({home}): wait for it, or stop it") from None
    try:
        if not source.path.is_dir():
            raise SourceError(f"{source.path} is gone since this run began: run {cure(source)}")
        yield
    finally:
        lock.release()


def _whole(slot: Slot) -> Record | None:
    """Return the slot's record if its tree is as it was fetched; refuse one that holds changes."""
    record = read(slot.folder)
    if record is None:
        refuse_unrecorded(slot)
        return None
    seen = refuse_changes(record)
    if not slot.tree.is_dir() or moved(record.source) is not None:
        return None
    refresh(slot.folder, record, seen)
    return record


def _serves(record: Record, request: Request) -> bool:
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
    from torchmill.source import local  # noqa: PLC0415 (loaded only for --from)

    return dict(record.asked) == local.asked(request.origin)


def _provide(
    request: Request, slot: Slot, layout: Layout, current: Record | None, progress: Progress
) -> Source:
    """Fetch from the provider that the request names; each is loaded only when it is needed."""
    slot.home.mkdir(parents=True, exist_ok=True)
    if request.origin is None:
        from torchmill.source import git  # noqa: PLC0415

        same = current is not None and current.asked.get("ref") == request.ref
        return git.fetch(request, slot, current.source if current and same else None, progress)
    if request.origin == DEBIAN:
        from torchmill.source import debian  # noqa: PLC0415

        return debian.fetch(request, slot, layout.cache / DEBIAN, progress)
    if request.origin == PYPI:
        from torchmill.source import pypi  # noqa: PLC0415
        from torchmill.upstream import index  # noqa: PLC0415

        return pypi.fetch(request, slot, index.configured(), progress)
    from torchmill.source import local  # noqa: PLC0415

    return local.fetch(request, request.origin, slot, progress)


@contextlib.contextmanager
def _alone(home: Path, what: str) -> Iterator[None]:
    """Hold a package's sources for this process. Raises BusyError where another run does."""
    from filelock import FileLock, Timeout  # noqa: PLC0415 (checking a source needs no lock)

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
