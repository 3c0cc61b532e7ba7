"""`--from pypi`: a release's source archive from the package index."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import requests
from packaging.utils import canonicalize_name
from packaging.version import Version

from torchmill.config.model import Source
from torchmill.core.errors import NetworkError, SourceError
from torchmill.core.urls import hide_password
from torchmill.fetch import package_index
from torchmill.fetch.download import download_file
from torchmill.fetch.package_index import IndexFile
from torchmill.fetch.source.archive import unpack_archive
from torchmill.fetch.source.source_dir import PYPI, SourceDir, SourceRequest, require_python_project

if TYPE_CHECKING:
    from torchmill.core.console import ProgressDisplay

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
        unpack_archive(archive, tree, bar, proved=True)
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
