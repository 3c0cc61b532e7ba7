"""What a repository on disk says of itself."""

import os
from dataclasses import dataclass
from pathlib import Path

from torchmill import process
from torchmill.errors import SourceError
from torchmill.process import CommandError
from torchmill.source.gitcommand import Cause, Checkout, diagnose, environment, foreign, gist
from torchmill.source.request import is_commit


@dataclass(frozen=True, slots=True)
class Pin:
    """The commit of a submodule that a commit of its parent asks for."""

    name: str
    path: str
    commit: str


def git_folder(tree: Path) -> Path | None:
    """Return the folder that keeps a work tree's history, or None where there is none."""
    place = tree / ".git"
    if place.is_dir():
        return place
    try:
        word, _, folder = place.read_text(encoding="utf-8").strip().partition(": ")
    except OSError:
        return None
    return Path(os.path.normpath(tree / folder)) if word == "gitdir" else None


def head(tree: Path) -> str | None:
    """Return the commit that is checked out in `tree`, or None where there is none.

    Starts no program unless a branch is checked out.
    """
    folder = git_folder(tree)
    if folder is None:
        return None
    try:
        text = (folder / "HEAD").read_text(encoding="utf-8").strip()
    except OSError:
        return None
    return text if is_commit(text) else _branch_head(tree)


def _branch_head(tree: Path) -> str | None:
    import git  # noqa: PLC0415 (slow to load, and seldom needed)

    try:
        with git.Repo(tree) as repo:
            return git.SymbolicReference.dereference_recursive(repo, "HEAD")
    except (ValueError, git.GitError):  # a branch without commits, or no repository
        return None


def pins(repository: Checkout) -> tuple[Pin, ...]:
    """Return the submodules of the commit that is checked out.

    Raises SourceError for a name that would lead out of the git folder. A pin that .gitmodules does not
    know cannot be fetched by anyone and is left out.
    """
    listed = repository.git("ls-tree", "-r", "-z", "HEAD").split("\0")
    commits = {
        path: about.split()[2] for about, _, path in map(_halves, listed) if about.startswith("160000 ")
    }
    if not commits:
        return ()
    names = _names(repository)
    for name in names.values():
        if name.startswith(("-", "/")) or {".", "..", ""} & set(name.replace("\\", "/").split("/")):
            raise SourceError(
                f"{repository.worktree}: .gitmodules has a submodule named '{name}', which would be written "
                "elsewhere: do not trust this source"
            )
    return tuple(Pin(names[path], path, commit) for path, commit in sorted(commits.items()) if path in names)


def _halves(line: str) -> tuple[str, str, str]:
    return line.partition("\t")


def _names(repository: Checkout) -> dict[str, str]:
    """Return path -> name of .gitmodules, as committed."""
    try:
        found = repository.git(
            "config", "-z", "--blob=HEAD:.gitmodules", "--get-regexp", r"^submodule\..*\.path$"
        )
    except CommandError:  # no such file, or nothing in it
        return {}
    pairs = (entry.partition("\n") for entry in found.split("\0") if entry)
    return {path.rstrip("/"): key.removeprefix("submodule.").removesuffix(".path") for key, _, path in pairs}


def changes(tree: Path) -> tuple[str, ...]:
    """Name what would be lost if the tree were made anew: files that are in no commit.

    What .gitignore covers is not named. Raises SourceError where git does not work in the tree.
    """
    argv = [
        "git",
        "-C",
        str(tree),
        "status",
        "--porcelain=v2",
        "-z",
        "--no-renames",
        "--ignore-submodules=none",
    ]
    try:
        listed = process.capture(argv, env=environment(os.environ))
    except CommandError as error:
        if diagnose(error.output) is Cause.FOREIGN:
            raise foreign(tree) from None
        raise SourceError(
            f"{tree}: git cannot read it ({gist(error.output)}): delete {tree.parent} and fetch it again"
        ) from None
    found: list[str] = []
    for entry in filter(None, listed.split("\0")):
        path, is_submodule = _changed(entry)
        if not is_submodule:
            found.append(path)
        elif (tree / path / ".git").exists():  # one that is merely gone, or at another commit, loses nothing
            found.extend(f"{path}/{name}" for name in changes(tree / path))
    return tuple(found)


def _changed(entry: str) -> tuple[str, bool]:
    """Return the path of a line of `git status --porcelain=v2`, and whether it is a submodule's."""
    if entry.startswith("?"):
        return entry[2:], False
    fields = 8 if entry.startswith("1") else 10  # before the path; the longer form is of unmerged files
    parts = entry.split(" ", fields)
    return parts[fields], parts[2].startswith("S")
