"""`--from pypi`: a release's source archive from the package index."""

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import requests
from packaging.utils import canonicalize_name
from packaging.version import Version

from torchmill.config.model import Source
from torchmill.core.errors import NetworkError, SourceError
from torchmill.fetch import package_index
from torchmill.fetch.download import download_file
from torchmill.fetch.package_index import IndexFile
from torchmill.fetch.source.archive import unpack_archive
from torchmill.fetch.source.request import (
    PYPI,
    FetchBar,
    FetchProgress,
    SourceRequest,
    hide_password,
    ways_out,
)
from torchmill.fetch.source.source_dir import SourceDir, build_backend, require_python_project

_NAMED = 8  # versions that a message names


def pypi_origin_record() -> dict[str, str | None]:
    """Return what a record keeps of `--from pypi`: a version, once there, is never another."""
    return {"ref": None, "origin": PYPI}


def fetch_pypi(request: SourceRequest, slot: SourceDir, where: str, progress: FetchProgress) -> Source:
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
            unpack_archive(archive, tree, bar)
            require_python_project(tree, f"PyPI's {file.name}")
            published = slot.publish(slot.unpacked, _source(request, file, tree), pypi_origin_record())
    finally:
        bar.close()
    shutil.rmtree(slot.downloaded, ignore_errors=True)
    return published


def _listed(request: SourceRequest, where: str) -> IndexFile:
    """Return the source archive of the wanted release, which the index vouches for."""
    project = request.package.pypi
    if project is None:
        raise SourceError(
            f"no project on PyPI is known to carry the source of {request.package.name} ('pypi' in its file "
            f"in build_configs/packages): {ways_out(request)}"
        )
    try:
        with requests.Session() as session:
            files = package_index.project_files(session, where, canonicalize_name(project))
    except NetworkError as error:
        raise NetworkError(f"{error}, or {ways_out(request)}") from None
    found = dict(package_index.source_archives(files, project))
    file = found.get(Version(request.release.version))
    if file is None:
        newest = [str(version) for version in sorted(found, reverse=True)[:_NAMED]]
        raise SourceError(
            f"{hide_password(where)} has no source archive of {project} {request.release.version} (it has "
            f"{', '.join(newest) or 'none of any version'}): {ways_out(request)}"
        )
    if file.sha256 is None:
        raise SourceError(
            f"{hide_password(where)} does not say the sha256 of {file.name}, so nothing proves what "
            f"comes: set "
            f"PIP_INDEX_URL to an index that does, or {ways_out(request)}"
        )
    if request.release.sha256 not in {None, file.sha256}:
        raise SourceError(
            f"{hide_password(where)} has another {file.name} (sha256 {file.sha256}) than build_configs knows "
            f"({request.release.sha256}): find out why before you use it"
        )
    return file


def _whole(file: IndexFile, request: SourceRequest, slot: SourceDir, bar: FetchBar) -> Path:
    """Return the downloaded archive, which is what the index says."""
    refused = "the index names a file that is not there, so run the command again later"
    return download_file(
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


def _source(request: SourceRequest, file: IndexFile, tree: Path) -> Source:
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
