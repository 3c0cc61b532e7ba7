"""`--from pypi`: the release as its project uploaded it to PyPI, the archive checked against the index."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import requests
from packaging.utils import canonicalize_name
from packaging.version import Version

from torchmill.errors import NetworkError, SourceError
from torchmill.model import Source
from torchmill.source.download import download
from torchmill.source.mirror import shown
from torchmill.source.network import ways_out
from torchmill.source.pyproject import assure_source, build_backend
from torchmill.source.request import PYPI, Bar, Progress, Request
from torchmill.source.slot import Slot
from torchmill.source.unpack import unpack
from torchmill.upstream import index
from torchmill.upstream.index import File

_NAMED = 8  # versions that a message names


def asked() -> dict[str, str | None]:
    """Return what a record keeps of `--from pypi`: a version, once there, is never another."""
    return {"ref": None, "origin": PYPI}


def fetch(request: Request, slot: Slot, where: str, progress: Progress) -> Source:
    """Download the archive of a release from the index `where`, check and unpack it.

    Raises SourceError for one that is not there, or not what the index or the facts say; NetworkError or
    HostError.
    """
    bar = progress.task(request.what)
    try:
        bar.update(0, None, "asking the index")
        file = _listed(request, where)
        archive = _whole(file, request, slot, bar)
        with _scratch(slot.unpacked):
            tree = slot.unpacked / "tree"
            unpack(archive, tree, bar)
            assure_source(tree, f"PyPI's {file.name}")
            published = slot.publish(slot.unpacked, _source(request, file, tree), asked())
    finally:
        bar.close()
    shutil.rmtree(slot.downloaded, ignore_errors=True)
    return published


def _listed(request: Request, where: str) -> File:
    """Return the source archive of the wanted release, which the index vouches for."""
    project = request.package.pypi
    if project is None:
        raise SourceError(
            f"no project on PyPI is known to carry the source of {request.package.name} ('pypi' in its file "
            f"in build_configs/packages): {ways_out(request)}"
        )
    try:
        with requests.Session() as session:
            files = index.files(session, where, canonicalize_name(project))
    except NetworkError as error:
        raise NetworkError(f"{error}, or {ways_out(request)}") from None
    found = dict(index.archives(files, project))
    file = found.get(Version(request.release.version))
    if file is None:
        newest = [str(version) for version in sorted(found, reverse=True)[:_NAMED]]
        raise SourceError(
            f"{shown(where)} has no source archive of {project} {request.release.version} (it has "
            f"{', '.join(newest) or 'none of any version'}): {ways_out(request)}"
        )
    if file.sha256 is None:
        raise SourceError(
            f"{shown(where)} does not say the sha256 of {file.name}, so nothing proves what comes: set "
            f"PIP_INDEX_URL to an index that does, or {ways_out(request)}"
        )
    if request.release.sha256 not in {None, file.sha256}:
        raise SourceError(
            f"{shown(where)} has another {file.name} (sha256 {file.sha256}) than build_configs knows "
            f"({request.release.sha256}): find out why before you use it"
        )
    return file


def _whole(file: File, request: Request, slot: Slot, bar: Bar) -> Path:
    """Return the downloaded archive, which is what the index says."""
    refused = "the index names a file that is not there, so run the command again later"
    return download(
        file.url,
        slot.downloaded,
        bar,
        otherwise=ways_out(request),
        refused=refused,
        sha256=file.sha256 or "",
    )


@contextlib.contextmanager
def _scratch(folder: Path) -> Iterator[None]:
    """Begin with an empty folder, and leave none behind."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    try:
        yield
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _source(request: Request, file: File, tree: Path) -> Source:
    recorded = ", as recorded" if request.release.sha256 else ""
    return Source(
        package=request.package.name,
        version=request.release.version,
        tag=request.release.tag,
        provider=PYPI,
        origin=f"PyPI's {file.name} (sha256 {file.sha256}{recorded})",
        commit=request.release.commit,  # declared, not proven
        path=tree,
        verified=False,
        build_backend=build_backend(tree),
    )
