"""`--from pypi`: fetch the source archive of a release from the package index."""

import contextlib

from packaging.utils import canonicalize_name
from packaging.version import Version

from torchmill.core.console import ProgressDisplay
from torchmill.core.errors import NetworkError, SourceError
from torchmill.core.urls import hide_password
from torchmill.fetch import package_index
from torchmill.fetch.download import download_file, http_session
from torchmill.fetch.package_index import IndexFile
from torchmill.fetch.source.archive import unpack_archive
from torchmill.fetch.source.request import PYPI, SourceRequest
from torchmill.fetch.source.source import Source
from torchmill.fetch.source.source_dir import SourceDir, SourceProof
from torchmill.fetch.source.tree import remove_repositories, require_python_project

_LISTED_VERSIONS = 8  # in a message
_REFUSAL_HINT = "the index lists a file that is not there: run the command again later"


def fetch_pypi(request: SourceRequest, slot: SourceDir, progress: ProgressDisplay) -> Source:
    """Download the archive of a release from the index that pip uses, check it and unpack it.

    Raises SourceError if there is no archive, or if it is not the one that the index lists and the
    facts record; NetworkError or HostError if it cannot be downloaded or stored.
    """
    with contextlib.closing(progress.start_bar(request.title)) as bar, slot.scratch() as tree:
        bar.update(0, None, "asking the index")
        file = _find_archive(request)
        archive = download_file(
            file.url,
            slot.downloaded,
            bar,
            network_hint=request.alternatives(),
            refusal_hint=_REFUSAL_HINT,
            sha256=file.sha256,
            size=file.size,
        )
        unpack_archive(archive, tree, bar, has_known_digest=True)
        require_python_project(tree, f"PyPI's {file.name}")
        remove_repositories(tree)
        # The digest counts as verified only if the facts record it. That of the index may change.
        is_recorded = request.release.proof.sha256 is not None
        note = ", as recorded" if is_recorded else ""
        origin = f"PyPI's {file.name} (sha256 {file.sha256}{note})"
        proof = SourceProof(
            verified=is_recorded, archive=file.sha256, unproven="an archive of PyPI names no commit"
        )
        return slot.publish(slot.unpacked, request, PYPI, origin, proof=proof)


def _find_archive(request: SourceRequest) -> IndexFile:
    """Return the source archive of the requested release, with its sha256.

    Raises SourceError if the index has no such archive, lists no sha256 of it, or another one than
    the facts record; NetworkError if the index cannot be read.
    """
    index = package_index.configured_index()
    shown_index = hide_password(index)
    project = request.package.source.pypi
    version = request.release.version
    recorded = request.release.proof.sha256
    if project is None:
        raise SourceError(
            f"{request.package.name} has no project on PyPI that its source could come from "
            f"('pypi' in its file in build_configs/packages): {request.alternatives()}",
            code="no-pypi-project",
        )
    try:
        with http_session() as session:
            files = package_index.project_files(session, index, canonicalize_name(project))
    except NetworkError as error:
        raise NetworkError(f"{error}, or {request.alternatives()}", code=error.code) from None
    archives: dict[Version, IndexFile] = {}
    for listed_version, listed_file in package_index.source_archives(files, project):
        # A version may have several archives, .tar.gz and .zip: the recorded one counts.
        earlier = archives.get(listed_version)
        if earlier is None or earlier.sha256 != recorded:
            archives[listed_version] = listed_file
    file = archives.get(Version(version))  # as versions, 1.0 and 1.0.0 are equal
    if file is None:
        newest = sorted(archives, reverse=True)[:_LISTED_VERSIONS]
        listed = ", ".join(map(str, newest)) or "none of any version"
        raise SourceError(
            f"{shown_index} has no source archive of {project} {version} (it has {listed}): "
            f"{request.alternatives()}",
            code="release-not-on-index",
        )
    if file.sha256 is None:
        raise SourceError(
            f"{shown_index} lists no sha256 of {file.name}, so the download could not be checked: "
            f"set PIP_INDEX_URL to an index that does, or {request.alternatives()}",
            code="no-digest-on-index",
        )
    if recorded not in {None, file.sha256}:
        raise SourceError(
            f"{shown_index} lists another {file.name} (sha256 {file.sha256}) than build_configs "
            f"records ({recorded}): find out why before you use it",
            code="digest-differs-from-facts",
        )
    return file
