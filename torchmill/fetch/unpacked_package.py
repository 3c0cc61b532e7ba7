"""Bring the source of any package, by its name on the index, a path or a URL.

Nothing here is compared with facts, because there are none: the digest of an archive is that which
the index lists, or is merely noted.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from packaging.specifiers import InvalidSpecifier, Specifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from torchmill.core.console import ProgressBar
from torchmill.core.digests import hash_file
from torchmill.core.errors import (
    ConfigError,
    SourceError,
    UnknownReleaseError,
    WheelsOnlyError,
    did_you_mean,
)
from torchmill.core.lenient_paths import real_path
from torchmill.core.system_errors import report_unwritable
from torchmill.core.urls import hide_password, host_of
from torchmill.fetch import package_index
from torchmill.fetch.download import download_file, http_session
from torchmill.fetch.package_index import IndexFile
from torchmill.fetch.source.archive import SUFFIXES, unpack_archive
from torchmill.fetch.source.tree import remove_repositories, require_python_project

_LONGEST_NAME = 1000  # characters, with bounds of versions
_NAME = re.compile(r"([A-Za-z0-9](?:[\w.-]*[A-Za-z0-9])?)\s*(.*)", re.DOTALL)
# As pip and git write the addresses of repositories: https://git-scm.com/docs/git-clone#_git_urls
_REPOSITORY = re.compile(r"(git\+|git://|ssh://|[\w.-]+@[\w.-]+:|https?://\S+\.git/?$)")
_HINT = "check the network, or set PIP_INDEX_URL to another index"
_REFUSAL_HINT = "the index lists a file that is not there: run the command again later"
# Folders at the top of a user's source that a build has made, and that are no part of it.
_PRODUCTS = {"build", "dist", ".venv", ".torchmill", ".nox"}


@dataclass(frozen=True, slots=True)
class UnpackedPackage:
    """The source of a package in a folder."""

    tree: Path
    origin: str  # "PyPI's gsplat-1.5.3.tar.gz", a path or a URL
    on_index: bool
    sha256: str | None = None  # of the archive; None for a folder


def named_project(text: str) -> str:
    """Return the project of the index that a text names, in PyPI's normal form; "" if it names none."""
    if "://" in text or _is_path(text):
        return ""
    match = _NAME.fullmatch(text.strip())
    return canonicalize_name(match[1]) if match else ""


@dataclass(frozen=True, slots=True)
class LocatedPackage:
    """The place of a package's source, before anything is brought from there."""

    text: str  # as the user gave it
    path: Path | None = None  # of a folder or an archive
    file: IndexFile | None = None  # of the index; neither: the text is a URL


def locate_package(text: str, near_names: Iterable[str] = ()) -> LocatedPackage:
    """Return the place of the source that a user names.

    `text` is a name on the index ("gsplat", "gsplat==1.5.3"), a folder, an archive, or a URL of
    one. `near_names` are names that a misspelling may mean. Raises UnknownReleaseError for a name
    that the index does not have, WheelsOnlyError if it has no source archive, SourceError for a
    path without one and for a repository, ConfigError for what is no name, NetworkError if the
    index cannot be read.
    """
    if _REPOSITORY.match(text):
        address = hide_password(text.removeprefix("git+"))
        raise SourceError(
            f"{hide_password(text)} is a repository: `git clone --recurse-submodules {address}`, and "
            "give the folder",
            code="origin-is-repository",
        )
    if "://" in text:
        host_of(text)  # raises ConfigError for http://[bad/
        if not text.lower().startswith(("https://", "http://")):
            raise SourceError(
                f"{hide_password(text)}: give a URL that begins with https://, a path, or a name",
                code="unsupported-origin",
            )
        return LocatedPackage(text)
    if _is_path(text):
        path = real_path(os.path.expanduser(text))  # noqa: PTH111 - Path's raises for "~nobody"
        if not path.exists():
            raise SourceError(
                f"{text} is neither a folder nor an archive: check the path", code="no-such-origin"
            )
        return LocatedPackage(text, path)
    project, bounds = _parse_name(text)
    return LocatedPackage(text, file=_newest_archive(project, bounds, near_names))


def unpack_package(located: LocatedPackage, folder: Path, bar: ProgressBar) -> UnpackedPackage:
    """Return a source, unpacked to `folder`/source, which must not exist.

    Raises SourceError for a damaged or hostile archive and for what is no source of a Python
    package, NetworkError or HostError if the source cannot be brought or stored.
    """
    tree = folder / "source"
    if located.file is not None:
        package = _unpack_from_index(located.file, folder, tree, bar)
    elif located.path is None:
        package = _unpack_url(located.text, folder, tree, bar)
    elif located.path.is_dir():
        package = _copy_folder(located.path, tree)
    else:
        package = _unpack_file(located.path, tree, bar)
    require_python_project(tree, package.origin)
    return package


def _is_path(text: str) -> bool:
    """Tell whether a text is a path: as for pip, a word without a slash is a name."""
    has_separator = "/" in text or os.sep in text
    return has_separator or text in {".", ".."} or text.endswith(SUFFIXES)


def _copy_folder(path: Path, tree: Path) -> UnpackedPackage:
    """Copy a folder without its repositories, and without what a build has left there."""

    def select_left_out(visited: str, _: list[str]) -> set[str]:
        """Return which names in a folder `copytree` leaves out."""
        return {".git", "__pycache__"} | (_PRODUCTS if Path(visited) == path else set())

    with report_unwritable(tree):
        try:
            shutil.copytree(path, tree, symlinks=True, ignore=select_left_out)
        except shutil.Error as error:
            file, _, reason = error.args[0][0]
            raise SourceError(
                f"{file} cannot be copied ({reason}): let your user read all of the folder",
                code="unreadable-origin",
            ) from None
    return UnpackedPackage(tree, str(path), on_index=False)


def _unpack_file(path: Path, tree: Path, bar: ProgressBar) -> UnpackedPackage:
    """Unpack an archive of the disk."""
    if not path.name.endswith(SUFFIXES):
        raise SourceError(
            f"{path} is not an archive that can be unpacked: give one of {', '.join(SUFFIXES)}",
            code="unknown-archive-type",
        )
    unpack_archive(path, tree, bar)
    remove_repositories(tree)
    return UnpackedPackage(tree, str(path), on_index=False, sha256=hash_file(path))


def _unpack_url(text: str, folder: Path, tree: Path, bar: ProgressBar) -> UnpackedPackage:
    """Download an archive, and unpack it."""
    shown = hide_password(text)
    archive = download_file(
        text, folder, bar, network_hint="check the network", refusal_hint="check the address"
    )
    if not archive.name.endswith(SUFFIXES):
        raise SourceError(
            f"{shown} is not an archive that can be unpacked: give the address of one of "
            f"{', '.join(SUFFIXES)}",
            code="unknown-archive-type",
        )
    unpack_archive(archive, tree, bar)
    remove_repositories(tree)
    return UnpackedPackage(tree, shown, on_index=False, sha256=hash_file(archive))


def _unpack_from_index(
    file: IndexFile, folder: Path, tree: Path, bar: ProgressBar
) -> UnpackedPackage:
    """Download a source archive of the index, and unpack it."""
    archive = download_file(
        file.url,
        folder,
        bar,
        network_hint=_HINT,
        refusal_hint=_REFUSAL_HINT,
        sha256=file.sha256,
        size=file.size,
    )
    unpack_archive(archive, tree, bar, has_known_digest=file.sha256 is not None)
    remove_repositories(tree)
    return UnpackedPackage(
        tree,
        f"PyPI's {file.name}",
        on_index=True,
        sha256=file.sha256 or hash_file(archive),
    )


def _parse_name(text: str) -> tuple[str, SpecifierSet]:
    """Return the project and the versions that a text names, such as "gsplat==1.5.3"."""
    match = _NAME.fullmatch(text.strip())
    try:
        if match is not None and len(text) <= _LONGEST_NAME:
            return canonicalize_name(match[1]), SpecifierSet(match[2])
    except InvalidSpecifier:
        pass
    raise ConfigError(
        f"'{text}' is no name of a package: give one as PyPI has it, a folder, an archive or its URL",
        code="no-package-name",
    )


def _names_one_version(bound: Specifier) -> bool:
    """Tell whether a bound allows one version only: "==1.5.3", and not "==1.5.*"."""
    return bound.operator == "===" or (bound.operator == "==" and not bound.version.endswith(".*"))


def _newest_archive(project: str, bounds: SpecifierSet, near_names: Iterable[str]) -> IndexFile:
    """Return the newest source archive of a project on the index that pip uses.

    A release that is no pre-release wins; one that was withdrawn counts only if it alone is named,
    as by "==1.5.3": https://peps.python.org/pep-0592/
    """
    index = package_index.configured_index()
    shown_index = hide_password(index)
    with http_session() as session:
        files = package_index.find_project_files(session, index, project, _HINT)
    if not files:
        raise UnknownReleaseError(
            f"{shown_index} has no package {project}{did_you_mean(project, near_names)}",
            code="not-on-index",
        )
    archives: dict[Version, IndexFile] = {}
    is_named = any(_names_one_version(bound) for bound in bounds)
    for version, file in package_index.source_archives(files, project):
        if bounds.contains(version, prereleases=True) and (is_named or not file.yanked):
            archives[version] = file
    if not archives:
        kinds = "wheels alone"
        if bounds:
            kinds = f"no source archive {bounds}"
        raise WheelsOnlyError(
            f"{shown_index} has {kinds} of {project}: `pip install {project}` installs what fits; to "
            "build it, give a folder or an archive of its source",
            code="no-source-archive",
        )
    finals = [version for version in archives if not version.is_prerelease]
    return archives[max(finals or archives)]
