"""Wheels that an index lists by reference: they stay at another index, under its address.

So official wheels stand beside one's own, on one page, and nothing is copied: a client takes them
from where they are, by the digest on the page. Their METADATA is read there, too (PEP 658).
"""

from collections.abc import Iterable, Sequence
from pathlib import Path
from zipfile import BadZipFile

import requests
from millpress import file_names, wheel_file
from packaging.utils import InvalidWheelFilename, canonicalize_name
from packaging.version import Version

from torchmill.core import retries
from torchmill.core.errors import DeliveryError, NetworkError
from torchmill.core.silence import silence_limit
from torchmill.core.urls import hide_password
from torchmill.deliver.index.entries import ReferredWheel, entry_of_metadata
from torchmill.fetch import package_index
from torchmill.fetch.download import read_body
from torchmill.fetch.http_failures import describe_http_error, judge_remote_zip
from torchmill.fetch.package_index import READ_ERRORS, IndexFile

METADATA_SUFFIX = ".metadata"


def read_references(
    session: requests.Session, index: str, pins: Iterable[str]
) -> list[ReferredWheel]:
    """Return the wheels of some versions, "torchvision==0.30.0", at an index.

    Raises NetworkError if the index cannot be read, DeliveryError if it has no such wheel, or not
    what a page needs of it.
    """
    referred = []
    for pin in pins:
        project, _, version = pin.partition("==")
        files = package_index.project_files(session, index, project)
        wheels = _wheels_of(files, project, Version(version))
        if not wheels:
            raise DeliveryError(
                f"--official {pin}: {index} has no wheel of that version: name another one",
                code="no-such-wheel",
            )
        referred += [_read_reference(session, file) for file in wheels]
    return referred


def _wheels_of(files: Iterable[IndexFile], project: str, version: Version) -> Sequence[IndexFile]:
    """Return the plain wheels of a version that are not withdrawn."""
    wheels = []
    for file in files:
        try:
            name = file_names.parse_name(file.name)
        except InvalidWheelFilename:
            continue
        is_wanted = (name.project, name.version) == (canonicalize_name(project), version)
        if is_wanted and not name.variant and not file.yanked:
            wheels.append(file)
    return wheels


def _read_reference(session: requests.Session, file: IndexFile) -> ReferredWheel:
    """Return a wheel of an index, with what its METADATA says."""
    if not file.sha256 or not file.size or not file.url.startswith(("https://", "http://")):
        raise DeliveryError(
            f"{file.name}: its index does not say its digest and size: download it to dist/, so "
            "that the index has a copy",
            code="no-digest",
        )
    metadata = _read_metadata_beside(session, file)
    is_beside = metadata is not None
    if metadata is None:
        metadata = _read_metadata_inside(session, file)
    wheel_file.require_same_project(Path(file.name), wheel_file.parse_headers(metadata))
    entry = entry_of_metadata(file.name, metadata, file.sha256, file.size, file.uploaded or "")
    return ReferredWheel(entry, file.url, file.provenance or "", metadata=is_beside)


def _read_metadata_beside(session: requests.Session, file: IndexFile) -> bytes | None:
    """Return METADATA that lies beside a wheel (PEP 658); None if it does not."""
    url = f"{file.url}{METADATA_SUFFIX}"
    try:
        _, metadata = read_body(session, url, {})
    except READ_ERRORS as error:
        response = getattr(error, "response", None)
        if getattr(response, "status_code", None) == requests.codes.not_found:
            return None
        raise _unreadable(url, describe_http_error(error)) from None
    return metadata


def _read_metadata_inside(session: requests.Session, file: IndexFile) -> bytes:
    """Return METADATA out of a wheel, of which only the ends are fetched."""
    from remotezip import RemoteZip, RemoteZipError

    def read() -> bytes:
        with RemoteZip(file.url, session=session, timeout=silence_limit()) as archive:
            folders = wheel_file.dist_info_folders(archive.namelist())
            member = archive.getinfo(f"{folders[0] if folders else ''}/METADATA")
            if member.file_size > wheel_file.LARGEST_METADATA_BYTES:
                raise _unreadable(file.url, "its METADATA is too large")
            content: bytes = archive.read(member)
            return content

    try:
        return retries.repeat(read, judge_remote_zip, hide_password(file.url))
    except (RemoteZipError, KeyError, BadZipFile, *READ_ERRORS) as error:
        raise _unreadable(file.url, str(error)) from None


def _unreadable(url: str, reason: str) -> NetworkError:
    """Return the error for METADATA that cannot be read."""
    return NetworkError(
        f"{url}: its METADATA cannot be read ({reason}): run the command again, or download the "
        "wheel to dist/",
        code="index-unreadable",
    )
