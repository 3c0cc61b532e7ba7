"""Whether a tree is still what was fetched: told without starting a program, unless something looks wrong."""

import os
from pathlib import Path

from torchmill import process
from torchmill.errors import SourceError
from torchmill.model import Source
from torchmill.process import CommandError
from torchmill.recall import Recall, look_below
from torchmill.source.gitcommand import Cause, diagnose, environment, foreign
from torchmill.source.reading import changes, git_folder, head
from torchmill.source.slot import Fingerprint, Record, Slot, contents, fingerprint, newer, read

_NAMED = 5  # files that a message names


def check(source: Source) -> None:
    """Raise SourceError, naming the cure, where the tree is gone, half-updated, changed or elsewhere."""
    record = read(source.path.parent)
    if record is None or not source.path.is_dir():
        raise SourceError(
            f"{source.path}: the source of {source.package} {source.tag} is gone or was never whole: "
            f"run {cure(source)}"
        )
    if (record.source.commit, record.source.provider) != (source.commit, source.provider):
        raise SourceError(
            f"{source.path} was replaced while it was in use, and is now {record.source.commit}: "
            "run the command again"
        )
    found = moved(record.source)
    if found:
        raise SourceError(f"{found}: run {cure(source)}")
    refuse_changes(record)


def assure(source: Source, recall: Recall) -> None:
    """Raise SourceError as `check` does, also for what times and sizes do not show.

    A tree that looks as it did when it was last found unchanged is not looked through again.
    """
    seen = look_below(source.path)
    what, fetched = f"{source.path}{os.sep}", f"{source.provider} {source.origin} {source.commit}"
    if recall.told(what, seen) == fetched and moved(source) is None:
        return
    check(source)
    if source.provider == "git":
        refuse_uncommitted(source.path)
    else:
        _refuse_other_contents(source)
    recall.keep(what, seen, fetched)


def _refuse_other_contents(source: Source) -> None:
    record = read(source.path.parent)
    if record is not None and record.contents not in {None, contents(source.path)}:
        raise SourceError(
            f"{source.path} was changed after it was fetched, though its files are as large and as old as "
            f"before: delete {source.path.parent}, and run {cure(source)}"
        )


def cure(source: Source) -> str:
    """Return the command that brings the source back."""
    package = "" if source.package == "torch" else f" --package {source.package}"
    tag = "" if package else f" --tag {source.tag}"
    words = {"debian": " --from debian", "pypi": " --from pypi", "path": " --from PATH|URL"}
    origin = words.get(source.provider, "")
    return f"`invoke fetch{tag}{package}{origin}`"


def moved(source: Source) -> str | None:
    """Return what is not at the commit that was fetched (a clause), or None."""
    if source.provider != "git":
        return None
    _assure_readable(source.path)
    places = {"": source.commit, **source.submodules}
    for path, commit in places.items():
        tree = source.path / path
        folder = git_folder(tree)
        if folder is None or not folder.is_dir():
            return f"{tree} is half-updated: it has no git folder"
        if (folder / "index.lock").exists():
            return f"{tree} is half-updated: git was stopped in the middle of it ({folder / 'index.lock'})"
        actual = head(tree)
        if actual != commit:
            return f"{tree} is at {actual or 'no commit'}, not at {commit} as fetched"
    return None


def refuse_changes(record: Record) -> Fingerprint:
    """Return how the tree looks now; raise SourceError, naming the files, where somebody changed it."""
    tree = record.source.path
    seen = fingerprint(tree)
    if seen == record.fingerprint or not tree.exists():
        return seen
    if record.source.provider == "git":
        refuse_uncommitted(tree)
        return seen
    names = tuple(newer(tree, record.fingerprint.newest)) or (_difference(record.fingerprint, seen),)
    raise SourceError(
        f"{tree} was changed after it was fetched ({_list(names)}): keep what you need of it, delete "
        f"{tree.parent}, and run {cure(record.source)}"
    )


def refuse_uncommitted(tree: Path) -> None:
    """Raise SourceError, naming the files, where a git tree has changes that are in no commit."""
    if git_folder(tree) is None:
        return  # nothing to ask; moved() says what is wrong with it
    _assure_readable(tree)
    names = changes(tree)
    if names:
        raise SourceError(
            f"{tree} has changes that are not committed ({_list(names)}): commit or stash them there, or "
            f"delete {tree.parent} to drop them, and run `invoke fetch` again"
        )


def refuse_unrecorded(slot: Slot) -> None:
    """Raise SourceError where the slot has a tree without a record, and nothing proves that it can go."""
    if not slot.tree.exists():
        return
    if git_folder(slot.tree) is None:
        raise SourceError(
            f"{slot.folder} has a tree without a record of where it is from: delete it, and run again"
        )
    refuse_uncommitted(slot.tree)


def _assure_readable(tree: Path) -> None:
    """Raise SourceError where git would refuse a tree because it belongs to somebody else."""
    if not hasattr(os, "geteuid") or tree.stat().st_uid == os.geteuid():
        return
    try:
        # without --git-dir, with which git asks for no owner
        process.capture(["git", "-C", str(tree), "rev-parse", "--git-dir"], env=environment(os.environ))
    except CommandError as error:
        if diagnose(error.output) is Cause.FOREIGN:
            raise foreign(tree) from None


def _difference(then: Fingerprint, now: Fingerprint) -> str:
    return f"{then.files} files and {then.size} bytes then, {now.files} files and {now.size} bytes now"


def _list(names: tuple[str, ...]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(names[:_NAMED]) + more
