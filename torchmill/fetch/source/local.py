"""`--from PATH|URL` copies a folder, or unpacks an archive; `--from pypi` takes that of the package index."""

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from packaging.utils import canonicalize_name
from packaging.version import Version

from torchmill.config.model import Source
from torchmill.core.console import ProgressBar, ProgressDisplay
from torchmill.core.errors import NetworkError, SourceError
from torchmill.core.files import hash_file, real_path, report_unwritable
from torchmill.core.process import CommandError
from torchmill.core.stat_cache import digest_data
from torchmill.core.units import name_few
from torchmill.core.urls import hide_password, host_of
from torchmill.fetch import package_index
from torchmill.fetch.download import download_file, http_session
from torchmill.fetch.package_index import IndexFile
from torchmill.fetch.source import git_proof
from torchmill.fetch.source.archive import SUFFIXES, unpack_archive
from torchmill.fetch.source.git_command import (
    complaint_gist,
    git_folder,
    is_commit,
    read_head,
    run_git,
)
from torchmill.fetch.source.git_proof import listed_submodules
from torchmill.fetch.source.source_dir import (
    PYPI,
    SourceDir,
    SourceProof,
    SourceRequest,
    require_python_project,
    take_fingerprint,
)

_LISTED_VERSIONS = 8  # in a message
_KINDS = {stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK}  # of what is copied: no pipes, no sockets


def fetch_local(
    request: SourceRequest, origin: str, slot: SourceDir, progress: ProgressDisplay
) -> Source:
    """Copy, or download and unpack, `origin`. Raises SourceError, NetworkError or HostError."""
    with contextlib.closing(progress.task(request.what)) as bar, slot.scratch() as tree:
        try:
            asked = origin_record(origin)
            title, proof = _bring(request, origin, slot, tree, bar)
            require_python_project(tree, title)
            _require_submodules(request, tree, title)
            _refuse_other_commit(request, title, proof)
        except SourceError:  # not what was wanted: the next try must not find it
            shutil.rmtree(slot.downloaded, ignore_errors=True)
            raise
        return slot.publish(
            slot.unpacked,
            request,
            "path",
            title,
            proof=replace(
                proof, verified=proof.commit is not None and proof.commit == request.release.commit
            ),
            asked=asked,  # as it looked before: what is changed while it is copied is noticed the next time
        )


def _refuse_other_commit(request: SourceRequest, title: str, proof: SourceProof) -> None:
    commit, named = request.release.commit, proof.commit or proof.declared
    if named is not None and commit not in {None, named}:
        raise SourceError(
            f"{title} is the commit {named}, but {request.package.name} "
            f"{request.release.version} was released from {commit}: check out or get the right one",
            code="wrong-commit",
        )


def _require_submodules(request: SourceRequest, tree: Path, title: str) -> None:
    """Raise SourceError where a tree lacks what its .gitmodules lists, as the archives that GitHub makes do.

    An archive of git has an empty folder for each submodule. A folder that is missing altogether was left out by
    somebody on purpose, as long as other submodules are there.
    """
    empty = tuple(_empty_submodules(tree, ""))
    if empty:
        clone = f"git clone --recurse-submodules --branch {request.release.tag} {request.package.repository}"
        way = (
            f"take a clone with its submodules (`{clone}`)"
            if request.package.repository
            else "take a complete one"
        )
        raise SourceError(
            f"{title} lacks {len(empty)} of its submodules ({name_few(empty)}): {way}, or {request.alternatives()}",
            code="submodule-missing",
        )


def _empty_submodules(folder: Path, prefix: str) -> Iterator[str]:
    """Yield the paths of the submodules that are listed in a folder, or in a submodule of it, and have no files."""
    listed = listed_submodules(folder)
    filled = [path for path in listed if _has_entries(folder / path)]
    for path in listed:
        if path in filled:
            yield from _empty_submodules(folder / path, f"{prefix}{path}/")
        elif (folder / path).is_dir() or not filled:
            yield f"{prefix}{path}"


def _has_entries(folder: Path) -> bool:
    return folder.is_dir() and any(folder.iterdir())


def origin_record(origin: str) -> dict[str, str | None]:
    """Return what a record keeps of `--from`: where, and how it looked, so that a change is noticed."""
    path, state = (
        _local_path(origin),
        digest_data(origin),
    )  # of an address, whose password is kept nowhere
    if path is not None and path.is_dir():
        state = str(take_fingerprint(path))
    elif path is not None and path.is_file():
        state = f"{path.stat().st_size} {path.stat().st_mtime_ns}"
    return {"ref": None, "origin": str(path or hide_password(origin)), "state": state}


def _local_path(origin: str) -> Path | None:
    """Return the path that `--from` names, or None for a URL to download."""
    scheme = origin.partition("://")[0].lower() if "://" in origin and host_of(origin) else ""
    if scheme in {"http", "https"}:
        if origin.rstrip("/").endswith(".git"):
            raise SourceError(
                f"{hide_password(origin)} is a git repository: give its host with --mirror instead of --from",
                code="origin-is-repository",
            )
        return None
    if scheme not in {"", "file"}:
        raise SourceError(
            f"--from {hide_password(origin)}: give a path, or a URL that begins with https:// or file://",
            code="unsupported-origin",
        )
    return real_path(os.path.expanduser(unquote(urlsplit(origin).path) if scheme else origin))  # noqa: PTH111 - ~nobody


def _bring(
    request: SourceRequest, origin: str, slot: SourceDir, tree: Path, bar: ProgressBar
) -> tuple[str, SourceProof]:
    """Make the tree of whatever `origin` is; return what to call that (other contents, another text), and its proof."""
    path, name = _local_path(origin), hide_password(origin)
    if path is None:
        refused = "check the address given to --from"
        otherwise, sha256 = request.alternatives(), request.sha256.lower() or None
        folder = (
            slot.downloaded / digest_data(origin)[:8]
        )  # what was left of another address is another file
        path = download_file(
            origin, folder, bar, network_hint=otherwise, refusal_hint=refused, sha256=sha256
        )
    else:
        name = str(path)
    if path.is_file():
        if not path.name.endswith(SUFFIXES):
            raise SourceError(
                f"{name} is not an archive that can be unpacked: give one of {', '.join(SUFFIXES)}",
                code="unknown-archive-type",
            )
        actual = hash_file(path)
        if request.sha256 and actual != request.sha256.lower():
            raise SourceError(
                f"{path} has the sha256 {actual}, not {request.sha256} as given: get the right one",
                code="wrong-digest",
            )
        commit = unpack_archive(path, tree, bar, proved=bool(request.sha256))
        _remove_repositories(tree)
        declared = commit if is_commit(commit) else None
        why = (
            "the archive names a commit, and nothing proves it"
            if declared
            else "the archive names no commit"
        )
        return f"{name} (sha256 {actual})", SourceProof(
            archive=actual, declared=declared, unproven=why
        )
    if path.is_dir() and request.sha256:
        raise SourceError(
            f"{path} is a folder, which has no sha256: leave out --sha256", code="no-digest"
        )
    if not path.is_dir():
        raise SourceError(
            f"{origin} is neither a folder nor an archive: check the path given to --from",
            code="no-such-origin",
        )
    if tree.is_relative_to(path):
        raise SourceError(
            f"{path} contains {slot.home}, where fetched sources go: give --from only the source",
            code="origin-contains-sources",
        )
    return _copy_folder(path, tree, bar)


def _remove_repositories(tree: Path) -> None:
    """Remove what an archive of a work tree has of git: a build would ask it which commit this is, and believe it."""
    for folder, names, files in os.walk(tree):
        if ".git" in names:
            names.remove(".git")
            shutil.rmtree(Path(folder, ".git"))
        if ".git" in files:
            Path(folder, ".git").unlink()


def _copy_folder(folder: Path, tree: Path, bar: ProgressBar) -> tuple[str, SourceProof]:
    """Copy a folder without .git and what git ignores: an old build must not leak into a new one."""
    commit, ignored = _inspect_folder(folder)
    done = 0

    def left_out(visited: str, names: list[str]) -> set[str]:
        nonlocal done
        done += len(names)
        bar.update(done, None, "copying")
        paths = [Path(visited, name) for name in names]
        left = (
            one for one in paths if one in ignored or stat.S_IFMT(one.lstat().st_mode) not in _KINDS
        )
        return {".git", *(one.name for one in left)}

    with report_unwritable(tree):
        shutil.copytree(folder, tree, symlinks=True, ignore=left_out)
    proof = (
        SourceProof(unproven="the folder is no git checkout")
        if commit is None
        else _prove(folder, tree, commit)
    )
    title = str(folder)
    if proof.commit is None:
        seen = take_fingerprint(tree)
        title += f" ({seen.files} files, {seen.size} bytes, newest {seen.newest})"
    return title, proof


def _prove(folder: Path, tree: Path, commit: str) -> SourceProof:
    """Return whether the copy of a git checkout is what its commit holds, and which of its submodules are.

    Where a checkout wrote CRLF for LF, as .gitattributes or core.autocrlf ask for, the copy gets what the commit has.
    """
    submodules: dict[str, str] = {}
    differences = []
    for one in git_proof.find_differences(
        tree, commit, git_proof.worktree_repository(folder), submodules
    ):
        if one.line_ends:
            file = tree / one.path
            file.write_bytes(git_proof.with_unix_line_ends(file.read_bytes()))
        else:
            differences.append(one)
    if not differences:
        return SourceProof(commit=commit, submodules=submodules)
    changed = {path for path in submodules for one in differences if is_below(one.path, path)}
    proven = {path: "" if path in changed else pinned for path, pinned in submodules.items()}
    why = f"it is not what its commit holds: {git_proof.describe_differences(differences)}"
    return SourceProof(submodules=proven, declared=commit, unproven=why)


def is_below(path: str, folder: str) -> bool:
    """Tell whether a path is a folder's, or of something in it."""
    return path == folder or path.startswith(f"{folder}{os.sep}")


def _inspect_folder(folder: Path) -> tuple[str | None, set[Path]]:
    """Return the commit that a folder is said to be at, and what git ignores in it.

    One without git has no commit. Raises SourceError where submodules are missing, or git does not work.
    """
    if git_folder(folder) is None:
        return None, set()
    try:
        places = [folder, *(folder / path for path, _ in _checked_out_submodules(folder))]
        seen = {place: _status(place) for place in places}
    except CommandError as error:
        raise SourceError(
            f"git cannot read {folder} ({complaint_gist(error.output)}): repair it, or give another folder",
            code="unreadable-repository",
        ) from None
    ignored = {
        top / one[3:].rstrip("/")
        for top, found in seen.items()
        for one in found
        if one.startswith("!!")
    }
    return read_head(folder), ignored


def _status(folder: Path) -> list[str]:
    """Return what git says of files that it does not have as they are, and of ignored ones: "!! build/"."""
    said = run_git(folder, "status", "--porcelain", "-z", "--ignored", "--ignore-submodules=none")
    return [entry for entry in said.split("\0") if entry]


def _checked_out_submodules(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield path and commit of each submodule. Raises SourceError for one that is not there, CommandError."""
    for line in run_git(folder, "submodule", "status", "--recursive").splitlines():
        commit, path = line[1:].split(" ", 1)
        if line.startswith("-"):
            raise SourceError(
                f"{folder}: the submodule {path} is not checked out: "
                f"run `git -C {folder} submodule update --init --recursive`",
                code="submodule-missing",
            )
        yield path.rpartition(" (")[0] or path, commit


def fetch_pypi(request: SourceRequest, slot: SourceDir, progress: ProgressDisplay) -> Source:
    """Download the archive of a release from the index that pip uses, check and unpack it.

    Raises SourceError if it is missing, or not what the index or the facts say; NetworkError or HostError.
    """
    with contextlib.closing(progress.task(request.what)) as bar, slot.scratch() as tree:
        bar.update(0, None, "asking the index")
        file = _find_archive(request)
        refused = "the index lists a file that is not there: run the command again later"
        ways = request.alternatives()
        archive = download_file(
            file.url,
            slot.downloaded,
            bar,
            network_hint=ways,
            refusal_hint=refused,
            sha256=file.sha256,
            size=file.size,
        )
        unpack_archive(archive, tree, bar, proved=True)
        require_python_project(tree, f"PyPI's {file.name}")
        _remove_repositories(tree)
        recorded = request.release.sha256 is not None  # else what the index lists today
        origin = f"PyPI's {file.name} (sha256 {file.sha256}{', as recorded' * recorded})"
        proof = SourceProof(
            verified=recorded, archive=file.sha256, unproven="an archive of PyPI names no commit"
        )
        return slot.publish(slot.unpacked, request, PYPI, origin, proof=proof)


def _find_archive(request: SourceRequest) -> IndexFile:
    """Return the source archive of the requested release, with a digest."""
    index = package_index.configured_index()
    project, version, host = request.package.pypi, request.release.version, hide_password(index)
    if project is None:
        raise SourceError(
            f"{request.package.name} has no project on PyPI that its source could come from ('pypi' in "
            f"its file in build_configs/packages): {request.alternatives()}",
            code="no-pypi-project",
        )
    try:
        with http_session() as session:
            files = package_index.project_files(session, index, canonicalize_name(project))
    except NetworkError as error:
        raise NetworkError(f"{error}, or {request.alternatives()}", code=error.code) from None
    archives = dict(package_index.source_archives(files, project))
    file = archives.get(Version(version))
    if file is None:
        newest = ", ".join(map(str, sorted(archives, reverse=True)[:_LISTED_VERSIONS]))
        raise SourceError(
            f"{host} has no source archive of {project} {version} (it has "
            f"{newest or 'none of any version'}): {request.alternatives()}",
            code="release-not-on-index",
        )
    if file.sha256 is None:
        raise SourceError(
            f"{host} lists no sha256 of {file.name}, so the download could not be checked: set PIP_INDEX_URL "
            f"to an index that does, or {request.alternatives()}",
            code="no-digest-on-index",
        )
    if request.release.sha256 not in {None, file.sha256}:
        raise SourceError(
            f"{host} lists another {file.name} (sha256 {file.sha256}) than build_configs records "
            f"({request.release.sha256}): find out why before you use it",
            code="digest-differs-from-facts",
        )
    return file
