"""`--from PATH|URL`: copy a folder, or unpack an archive."""

import contextlib
import os
import shutil
import stat
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.parse import unquote, urlsplit

from torchmill.core.console import ProgressBar, ProgressDisplay
from torchmill.core.digests import hash_file
from torchmill.core.errors import SourceError
from torchmill.core.lenient_paths import real_path
from torchmill.core.process import CommandError
from torchmill.core.stat_cache import digest_data
from torchmill.core.system_errors import report_unwritable
from torchmill.core.units import name_few
from torchmill.core.urls import hide_password, host_of
from torchmill.fetch.download import download_file
from torchmill.fetch.source import git_proof
from torchmill.fetch.source.archive import SUFFIXES, unpack_archive
from torchmill.fetch.source.git_command import (
    complaint_gist,
    git_folder,
    read_head,
    run_git,
)
from torchmill.fetch.source.request import SourceRequest
from torchmill.fetch.source.source import Source
from torchmill.fetch.source.source_dir import SourceDir, SourceProof
from torchmill.fetch.source.tree import (
    remove_repositories,
    require_python_project,
    take_fingerprint,
)

_COPIED_TYPES = {stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK}  # no pipes, no sockets
_IGNORED = "!! "  # begins an entry of `git status --porcelain --ignored`


def fetch_local(
    request: SourceRequest, origin: str, slot: SourceDir, progress: ProgressDisplay
) -> Source:
    """Copy the folder `origin`, or unpack the archive `origin`, which may have to be downloaded.

    Raises SourceError, ConfigError (for an invalid URL), NetworkError or HostError.
    """
    with contextlib.closing(progress.start_bar(request.title)) as bar, slot.scratch() as tree:
        try:
            # Recorded as it looks before the copy, so that the next fetch notices a change that was
            # made during the copy.
            requested = origin_record(origin)
            title, proof = _fill_tree(request, origin, slot, tree, bar)
            require_python_project(tree, title)
            _require_submodules(request, tree, title)
            _refuse_other_commit(request, title, proof)
        except SourceError:
            # If an archive was downloaded, it is the wrong one, and the next try must download it
            # anew. Downloads of other URLs stay.
            shutil.rmtree(_download_folder(origin, slot), ignore_errors=True)
            raise
        is_verified = proof.commit is not None and proof.commit == request.release.proof.commit
        return slot.publish(
            slot.unpacked,
            request,
            "path",
            title,
            proof=replace(proof, verified=is_verified),
            requested=requested,
        )


def origin_record(origin: str) -> dict[str, str | None]:
    """Return the record of an origin: its path or URL, and a state that differs after a change.

    The state of a file or folder is its size and times. That of a URL is a digest of the URL with
    its password, because the password itself must not be stored; that of a path that is missing is
    a digest of it. Raises SourceError or ConfigError for a URL that `--from` cannot take.
    """
    path = _local_path(origin)
    shown_origin = str(path or hide_password(origin))
    state = digest_data(origin)
    if path is not None and path.is_dir():
        state = str(take_fingerprint(path))
    elif path is not None and path.is_file():
        status = path.stat()
        state = f"{status.st_size} {status.st_mtime_ns}"
    # Every record has a ref, for comparison with a request. --from takes none.
    return {"ref": None, "origin": shown_origin, "state": state}


def _local_path(origin: str) -> Path | None:
    """Return the path that `--from` names, or None for a URL to download.

    Raises SourceError for a repository, or a URL of another protocol, and ConfigError for an
    invalid URL.
    """
    scheme = ""
    if "://" in origin:
        host_of(origin)  # raises ConfigError for http://[bad/
        scheme = origin.partition("://")[0].lower()
    if scheme in {"http", "https"}:
        if origin.rstrip("/").endswith(".git"):
            raise SourceError(
                f"{hide_password(origin)} is a git repository: give its host with --mirror instead "
                "of --from",
                code="origin-is-repository",
            )
        return None
    if scheme not in {"", "file"}:
        raise SourceError(
            f"--from {hide_password(origin)}: give a path, or a URL that begins with https:// or "
            "file://",
            code="unsupported-origin",
        )
    path = unquote(urlsplit(origin).path) if scheme else origin
    # Path.expanduser is not used, because it raises an error for "~nobody".
    return real_path(os.path.expanduser(path))  # noqa: PTH111


def _fill_tree(
    request: SourceRequest, origin: str, slot: SourceDir, tree: Path, bar: ProgressBar
) -> tuple[str, SourceProof]:
    """Fill `tree` from `origin`, and return a title for the source and the proof of its commit.

    The title says in messages where the source comes from. Unless a commit is proven, the title
    also has the archive's digest, or the size and date of the folder's files, so that two states of
    one origin have two titles. Raises SourceError if `origin` is neither an archive nor a folder.
    """
    path = _local_path(origin)
    if path is None:
        archive = _download_archive(request, origin, slot, bar)
        return _unpack(request, archive, hide_password(origin), tree, bar)
    if path.is_file():
        return _unpack(request, path, str(path), tree, bar)
    if path.is_dir() and request.sha256:
        raise SourceError(
            f"{path} is a folder, which has no sha256: leave out --sha256", code="no-digest"
        )
    if not path.is_dir():
        raise SourceError(
            f"{origin} is neither a folder nor an archive: check the path given to --from",
            code="no-such-origin",
        )
    if real_path(tree).is_relative_to(path):  # the copy would contain itself
        raise SourceError(
            f"{path} contains {slot.home}, where fetched sources go: give --from only the source",
            code="origin-contains-sources",
        )
    return _copy_folder(path, tree, bar)


def _download_archive(
    request: SourceRequest, origin: str, slot: SourceDir, bar: ProgressBar
) -> Path:
    """Download the archive of a URL, and return its path."""
    return download_file(
        origin,
        _download_folder(origin, slot),
        bar,
        network_hint=request.alternatives(),
        refusal_hint="check the address given to --from",
        sha256=request.sha256.lower() or None,
    )


def _download_folder(origin: str, slot: SourceDir) -> Path:
    """Return the folder for the download of a URL: two URLs may end with the same file name."""
    return slot.downloaded / digest_data(origin)[:8]


def _unpack(
    request: SourceRequest, archive: Path, name: str, tree: Path, bar: ProgressBar
) -> tuple[str, SourceProof]:
    """Unpack an archive, and return its title and its proof.

    `name` is its path or URL in messages. Raises SourceError for a type that is not supported, or a
    wrong digest.
    """
    if not archive.name.endswith(SUFFIXES):
        raise SourceError(
            f"{name} is not an archive that can be unpacked: give one of {', '.join(SUFFIXES)}",
            code="unknown-archive-type",
        )
    actual = hash_file(archive)
    if request.sha256 and actual != request.sha256.lower():
        raise SourceError(
            f"{name} has the sha256 {actual}, not {request.sha256} as given: get the right one",
            code="wrong-digest",
        )
    declared = unpack_archive(archive, tree, bar, has_known_digest=bool(request.sha256))
    remove_repositories(tree)
    if declared:
        reason = "the archive names a commit, and nothing proves it"
    else:
        reason = "the archive names no commit"
    proof = SourceProof(archive=actual, declared=declared, unproven=reason)
    return f"{name} (sha256 {actual})", proof


def _copy_folder(folder: Path, tree: Path, bar: ProgressBar) -> tuple[str, SourceProof]:
    """Copy a folder, and return its title and its proof.

    The copy has neither .git nor the files that git ignores, because products of an old build must
    not become a part of a new one. Pipes, sockets and devices are left out, too.
    """
    commit, ignored = _inspect_folder(folder)
    done = 0

    def select_left_out(visited: str, names: list[str]) -> set[str]:
        """Return which names in a folder `copytree` leaves out."""
        nonlocal done
        done += len(names)
        bar.update(done, None, "copying")
        left_out = {".git"}
        for name in names:
            path = Path(visited, name)
            if path in ignored or stat.S_IFMT(path.lstat().st_mode) not in _COPIED_TYPES:
                left_out.add(name)
        return left_out

    with report_unwritable(tree):
        try:
            # Links stay links, even if they lead out of the folder.
            shutil.copytree(folder, tree, symlinks=True, ignore=select_left_out)
        except shutil.Error as error:
            _refuse_unreadable(error)
            raise
    if commit is not None:
        proof = _prove(folder, tree, commit)
    elif git_folder(folder) is None:
        proof = SourceProof(unproven="the folder is no git checkout")
    else:
        proof = SourceProof(unproven="no commit is checked out in the folder")
    title = str(folder)
    if proof.commit is None:
        fingerprint = take_fingerprint(tree)
        title += (
            f" ({fingerprint.files} files, {fingerprint.size} bytes, newest {fingerprint.newest})"
        )
    return title, proof


def _refuse_unreadable(error: shutil.Error) -> None:
    """Raise SourceError if a copy failed because the user may not read some files.

    The text of `error` does not say whether a file could not be read or not be written.
    """
    unreadable = []
    for source, _target, _reason in error.args[0]:
        if not os.path.islink(source) and not os.access(source, os.R_OK):  # noqa: PTH114
            unreadable.append(source)
    if unreadable:
        raise SourceError(
            f"{name_few(unreadable)} may not be read: let your user read all of the folder given "
            "to --from",
            code="unreadable-origin",
        ) from None


def _prove(folder: Path, tree: Path, commit: str) -> SourceProof:
    """Compare the copy of a git checkout with its commit, and return what is proven.

    A checkout may have CRLF in place of LF, because of .gitattributes or core.autocrlf. Then the
    files of the copy get the line ends of the commit.
    """
    # find_differences writes into this. It compares while the loop below runs, and has compared
    # each file before the loop rewrites it.
    submodules: dict[str, str] = {}
    differences = []
    repository_of = git_proof.worktree_repository(folder)
    for difference in git_proof.find_differences(tree, commit, repository_of, submodules):
        if difference.has_other_line_ends:
            file = tree / difference.path
            file.write_bytes(git_proof.with_unix_line_ends(file.read_bytes()))
        else:
            differences.append(difference)
    if not differences:
        return SourceProof(commit=commit, submodules=submodules)
    commit_by_submodule = {}
    for path, pinned in submodules.items():
        is_changed = any(_is_below(difference.path, path) for difference in differences)
        commit_by_submodule[path] = "" if is_changed else pinned
    reason = f"it is not what its commit holds: {git_proof.describe_differences(differences)}"
    return SourceProof(submodules=commit_by_submodule, declared=commit, unproven=reason)


def _is_below(path: str, folder: str) -> bool:
    """Tell whether the path of a difference belongs to a submodule, or to a file in it."""
    # find_differences joins the paths of a submodule and of a file in it by os.sep.
    return path == folder or path.startswith(f"{folder}{os.sep}")


def _inspect_folder(folder: Path) -> tuple[str | None, set[Path]]:
    """Return the commit that is checked out in a folder, and the paths that git ignores in it.

    The commit is not proven; it is None for a folder without git. Raises SourceError if submodules
    are missing, or if git does not work in the folder.
    """
    if git_folder(folder) is None:
        return None, set()
    ignored = set()
    try:
        checkouts = [folder]
        checkouts += [folder / path for path in _require_checked_out_submodules(folder)]
        for checkout in checkouts:
            for entry in _status_entries(checkout):
                if entry.startswith(_IGNORED):
                    ignored.add(checkout / entry.removeprefix(_IGNORED).rstrip("/"))
    except CommandError as error:
        raise SourceError(
            f"git cannot read {folder} ({complaint_gist(error.output)}): repair it, or give "
            "another folder",
            code="unreadable-repository",
        ) from None
    return read_head(folder), ignored


def _status_entries(folder: Path) -> list[str]:
    """Return the entries of `git status`: changed, untracked and ignored files ("!! build/").

    Files in submodules are not among them: git lists the ignored files of a submodule only if it is
    started in the submodule.
    """
    output = run_git(folder, "status", "--porcelain", "-z", "--ignored", "--ignore-submodules=all")
    return [entry for entry in output.split("\0") if entry]


def _require_checked_out_submodules(folder: Path) -> Iterator[str]:
    """Yield the path of each submodule, nested ones included.

    Raises SourceError for a submodule that is not checked out, and CommandError if git fails.
    """
    # Each line is a mark, the commit, the path, and the commit's description if it has one, such
    # as " 1d8f600f third_party/fmt (9.1.0)".
    for line in run_git(folder, "submodule", "status", "--recursive").splitlines():
        _, text = line[1:].split(" ", 1)
        path = text.rpartition(" (")[0] or text
        if line.startswith("-"):
            raise SourceError(
                f"{folder}: the submodule {text} is not checked out: "
                f"run `git -C {folder} submodule update --init --recursive`",
                code="submodule-missing",
            )
        yield path


def _refuse_other_commit(request: SourceRequest, title: str, proof: SourceProof) -> None:
    """Raise SourceError if the commit of a tree, proven or declared, is not the release's."""
    recorded = request.release.proof.commit
    actual = proof.commit or proof.declared
    if recorded is None or actual is None:
        return
    if actual != recorded:
        raise SourceError(
            f"{title} is the commit {actual}, but {request.package.name} "
            f"{request.release.version} was released from {recorded}: check out or get the right "
            "one",
            code="wrong-commit",
        )


def _require_submodules(request: SourceRequest, tree: Path, title: str) -> None:
    """Raise SourceError if a tree lacks its submodules, as the archives that GitHub makes do."""
    empty = tuple(_empty_submodules(tree, ""))
    if not empty:
        return
    cure = "take a complete one"
    if request.package.source.repository:
        tag = request.release.tag
        command = (
            f"git clone --recurse-submodules --branch {tag} {request.package.source.repository}"
        )
        cure = f"take a clone with its submodules (`{command}`)"
    raise SourceError(
        f"{title} lacks {len(empty)} of its submodules ({name_few(empty)}): {cure}, or "
        f"{request.alternatives()}",
        code="submodule-missing",
    )


def _empty_submodules(folder: Path, prefix: str) -> Iterator[str]:
    """Yield the submodules without files in a folder, and in its submodules.

    `git archive` writes an empty folder for each submodule. A submodule whose folder is missing
    counts only if all are without files: otherwise, whoever packed the source has left it out on
    purpose.
    """
    listed = git_proof.listed_submodules(folder)
    filled = [path for path in listed if _has_entries(folder / path)]
    for path in listed:
        if path in filled:
            yield from _empty_submodules(folder / path, f"{prefix}{path}/")
        elif (folder / path).is_dir() or not filled:
            yield f"{prefix}{path}"


def _has_entries(folder: Path) -> bool:
    """Tell whether a folder exists and is not empty."""
    return folder.is_dir() and any(folder.iterdir())
