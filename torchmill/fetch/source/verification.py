"""Find changes in a fetched source, and refuse a source that was changed."""

import contextlib
import os
import time
from dataclasses import replace
from pathlib import Path

from torchmill.core.errors import SourceError
from torchmill.core.paths import Layout
from torchmill.core.process import CommandError
from torchmill.core.stat_cache import StatCache, stat_folder
from torchmill.core.units import name_few
from torchmill.fetch.source import git_proof
from torchmill.fetch.source.git_command import git_folder, read_head, run_git, uncommitted_changes
from torchmill.fetch.source.request import DEBIAN, PYPI
from torchmill.fetch.source.source import Source
from torchmill.fetch.source.source_dir import (
    RECORD,
    FetchRecord,
    SourceDir,
    load_source,
    read_record,
)
from torchmill.fetch.source.tree import (
    TreeFingerprint,
    digest_contents,
    take_fingerprint,
    walk_tree,
)

_ORIGIN_OPTIONS = {
    DEBIAN: " --from debian",
    PYPI: " --from pypi",
    "path": " --from PATH|URL",
}


def check_source(source: Source) -> FetchRecord:
    """Return the record of a source whose tree is complete and unchanged, as far as can be seen.

    Raises SourceError if the tree is missing, changed, at another commit, or another source.
    """
    record = read_record(source.path.parent)
    if record is None or not source.path.is_dir():
        raise SourceError(
            f"{source.path}: the source of {source.package} {source.tag} is missing or incomplete: "
            f"run {refetch_command(source)}",
            code="source-gone",
        )
    recorded = record.source
    # Another run may have fetched the source anew since the caller loaded it.
    if (recorded.identity, recorded.provider) != (source.identity, source.provider):
        raise SourceError(
            f"{source.path} was replaced while it was in use, and is now {recorded.title}: run the "
            "command again",
            code="source-replaced",
        )
    clause = moved_clause(recorded)
    if clause:
        raise SourceError(f"{clause}: run {refetch_command(source)}", code="source-moved")
    refuse_changes(record)
    return record


def verify_source(source: Source, cache: StatCache, *, allow_ignored: bool = False) -> None:
    """Raise SourceError if the contents of a tree's files are not those that were fetched.

    With `allow_ignored`, a git tree may have further files that git ignores: a fetch does not
    destroy them. A build does not allow them, because it would compile them.

    A tree that looks as it did at its last full check is not read again: its files have the same
    inodes, sizes and times, and one of these times (ctime) cannot be set by any program. The caller
    saves the cache.
    """
    tree_stat = stat_folder(source.path)
    key = f"{source.path}{os.sep}"  # ends with a separator, unlike the keys of files
    identity = f"{source.provider} {source.origin} {source.identity}"
    # The stat does not include .git, so the checked out commit is compared each time.
    if cache.lookup(key, tree_stat) == identity and moved_clause(source) is None:
        return
    check_source(source)
    if source.provider == "git":
        has_extra_files = git_proof.require_commit(
            source.path, source.commit or "", source.submodules, allow_extra=allow_ignored
        )
        if has_extra_files:
            return  # the cache must not say that the tree is verified: a build has to refuse it
    elif source.contents != digest_contents(source.path):
        raise SourceError(
            f"{source.path} was changed after it was fetched, though its files are as large and as "
            f"old as before: fetch it anew with {refetch_command(source, ' --discard')}",
            code="source-changed",
        )
    cache.store(key, tree_stat, identity)


def load_examined_source(layout: Layout, package: str, tag: str, cache: StatCache) -> Source | None:
    """Return a package's fetched source after a check of its files; None if none was fetched.

    A source whose files were changed is returned without a proven commit, and its `refusal` says
    why a build would refuse it. For commands that only show the source.
    """
    source = load_source(layout, package, tag)
    if source is None:
        return None
    try:
        verify_source(source, cache)
    except SourceError as error:
        return replace(
            source,
            commit=None,
            verified=False,
            submodules=dict.fromkeys(source.submodules, ""),
            contents="",
            unproven="it was changed after it was fetched",
            refusal=str(error),
        )
    finally:
        cache.save()
    return source


def touched_since_check(folder: Path) -> bool:
    """Tell whether a file of the source in `folder` may have been touched after its record.

    Raises FileNotFoundError if there is no record.
    """
    record_ns = (folder / RECORD).stat().st_mtime_ns
    if record_ns > time.time_ns():
        return True  # the clock was set back: a file that is written now is older than the record
    # A file of the same time as the record may have been written after it.
    return stat_folder(folder / "tree").changed_ns >= record_ns


def refetch_command(source: Source, options: str = "") -> str:
    """Return the command that fetches the source again, for messages; `options` is appended."""
    if source.package == "torch":  # the package that `invoke fetch` fetches by default
        selection = f" --tag {source.tag}"
    else:
        selection = f" --package {source.package}"
    origin = _ORIGIN_OPTIONS.get(source.provider, "")
    return f"`invoke fetch{selection}{origin}{options}`"


def moved_clause(source: Source) -> str | None:
    """Return a clause that says which repository of a git tree is not at the fetched commit.

    None if the tree and its submodules all are, and for trees without git. Raises SourceError if
    git refuses to work in the tree because it belongs to another user, FileNotFoundError if the
    tree is missing.
    """
    if source.provider != "git":
        return None
    if hasattr(os, "geteuid") and source.path.stat().st_uid != os.geteuid():
        # Elsewhere git is called with --git-dir=PATH, and does not look at the owner. Without that,
        # it refuses the folder of another user that the user has not declared safe.
        with contextlib.suppress(CommandError):
            run_git(source.path, "rev-parse", "--git-dir")
    for path, commit in {"": source.commit, **source.submodules}.items():
        tree = source.path / path
        folder = git_folder(tree)
        if folder is None or not folder.is_dir():
            return f"{tree} is half-updated: it has no git folder"
        lock = folder / "index.lock"
        if lock.exists():
            return f"{tree} is half-updated: git was stopped in the middle of it ({lock})"
        actual = read_head(tree)
        if actual != commit:
            return f"{tree} is at {actual or 'no commit'}, not at {commit} as fetched"
    return None


def refuse_changes(record: FetchRecord) -> TreeFingerprint:
    """Return the fingerprint of the tree now, if nobody has changed the files.

    A tree that is missing is none that was changed, and a git tree at another commit is reported by
    `moved_clause`. Of a git tree, files that git ignores or is told to overlook do not count.
    Raises SourceError, with the names of the files, if somebody has changed them.
    """
    tree = record.source.path
    recorded = record.fingerprint
    current = take_fingerprint(tree)
    if current == recorded or not tree.exists():
        return current
    if record.source.provider == "git":
        refuse_uncommitted(tree)
        return current
    if record.source.contents == digest_contents(tree):
        return current  # the tree was copied, as by tar, and has other times
    changed = []
    for entry in walk_tree(tree):
        if entry.stat(follow_symlinks=False).st_mtime_ns > recorded.newest:
            changed.append(os.path.relpath(entry.path, tree))
    if not changed:  # files were removed, or were given an old time
        changed.append(
            f"{recorded.files} files and {recorded.size} bytes then, {current.files} files and "
            f"{current.size} bytes now"
        )
    raise SourceError(
        f"{tree} was changed after it was fetched ({name_few(changed)}): keep what you need of it, "
        f"and fetch it anew with {refetch_command(record.source, ' --discard')}",
        code="source-changed",
    )


def refuse_uncommitted(tree: Path) -> None:
    """Raise SourceError, with the names of the files, if a git tree has uncommitted changes.

    A tree without a git folder is not refused.
    """
    if git_folder(tree) is None:
        return  # moved_clause reports it
    names = uncommitted_changes(tree)
    if names:
        raise SourceError(
            f"{tree} has changes that are not committed ({name_few(names)}): commit or stash them "
            "there, or fetch it anew by `invoke fetch` with --discard, which drops them",
            code="uncommitted-changes",
        )


def refuse_unrecorded(slot: SourceDir) -> None:
    """Raise SourceError if the tree of a slot that has no record may hold somebody's work.

    That is a tree without git, or with uncommitted changes. The record is not looked for here: the
    caller has found none that can be read.
    """
    if not slot.tree.exists():
        return
    if git_folder(slot.tree) is None:
        raise SourceError(
            f"{slot.folder} has a tree without a record of its origin: keep what you need of it, "
            "and add --discard to fetch it anew",
            code="source-unrecorded",
        )
    refuse_uncommitted(slot.tree)
