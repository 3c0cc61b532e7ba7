"""What somebody's own checkout proves: its commit, its submodules, and that nobody changed it."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torchmill import process
from torchmill.errors import SourceError
from torchmill.process import CommandError
from torchmill.source.gitcommand import Cause, diagnose, environment, foreign, gist
from torchmill.source.reading import git_folder, head


@dataclass(frozen=True, slots=True)
class Inspected:
    """A folder as git sees it; one without git has no commit."""

    commit: str | None = None
    changed: bool = False
    submodules: Mapping[str, str] = field(default_factory=dict)
    ignored: frozenset[Path] = frozenset()


def inspect(folder: Path) -> Inspected:
    """Return what git knows of a folder.

    Raises SourceError where its submodules are not there, or git does not work in it.
    """
    if git_folder(folder) is None:
        return Inspected()
    try:
        status = _git(
            folder, "status", "--porcelain", "-z", "--no-renames", "--ignored", "--ignore-submodules=none"
        )
        submodules = _git(folder, "submodule", "status", "--recursive")
    except CommandError as error:
        if diagnose(error.output) is Cause.FOREIGN:
            raise foreign(folder) from None
        raise SourceError(
            f"{folder}: git cannot read it ({gist(error.output)}): repair it, or give another"
        ) from None
    entries = [entry for entry in status.split("\0") if entry]
    pins = parse_submodules(submodules, folder)
    return Inspected(
        commit=head(folder),
        changed=any(not entry.startswith("!!") for entry in entries),
        submodules=pins,
        ignored=frozenset(folder / entry[3:].rstrip("/") for entry in entries if entry.startswith("!!")),
    )


def parse_submodules(listing: str, folder: Path) -> dict[str, str]:
    """Return path -> commit of what `git submodule status` lists; raise SourceError where one is empty."""
    found = {}
    for line in listing.splitlines():
        commit, path = line[1:].split(" ", 1)
        if line.startswith("-"):
            raise SourceError(
                f"{folder}: the submodule {path} is not there: "
                f"run `git -C {folder} submodule update --init --recursive`"
            )
        found[path.rpartition(" (")[0] or path] = commit
    return found


def _git(folder: Path, *arguments: str) -> str:
    return process.capture(["git", "-C", str(folder), *arguments], env=environment(os.environ))
