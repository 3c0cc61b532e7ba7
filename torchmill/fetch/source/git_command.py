"""Run git, show its progress, read repositories, and explain its errors."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto
from pathlib import Path
from typing import TYPE_CHECKING

from torchmill.core import process
from torchmill.core.errors import SourceError, TorchmillError
from torchmill.core.files import disk_full_error
from torchmill.core.process import CommandError
from torchmill.core.urls import hide_password, host_of
from torchmill.fetch.source.request import PROTOCOLS, SourceRequest, is_commit, unreachable_error

if TYPE_CHECKING:
    from torchmill.core.console import ProgressBar

# What a git hook, or an outer git, would impose on ours.
_INHERITED = (
    "GIT_DIR", "GIT_WORK_TREE", "GIT_INDEX_FILE", "GIT_OBJECT_DIRECTORY", "GIT_COMMON_DIR", "GIT_NAMESPACE",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES", "GIT_PREFIX", "GIT_SHALLOW_FILE", "GIT_CONFIG_PARAMETERS", "LANGUAGE",
)  # fmt: skip
_SETTINGS = (
    ("protocol.allow", "never"),
    *((f"protocol.{name}.allow", "always") for name in PROTOCOLS),
    ("protocol.version", "2"),  # only 2 serves commits that no branch points at
    ("core.hooksPath", os.devnull),
    ("core.fsmonitor", "false"),
    ("fetch.recurseSubmodules", "false"),
    ("submodule.recurse", "false"),
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
    ("advice.detachedHead", "false"),
    ("http.lowSpeedLimit", "1"),  # bytes per second; a server that thinks sends a byte now and then
    ("http.lowSpeedTime", "20"),  # seconds
)


class GitFailure(Enum):
    """Why git failed, as far as it matters for what to try next."""

    FULL = auto()  # the disk
    FOREIGN = auto()  # the tree belongs to somebody else
    REFUSED = auto()  # the server does not give out this commit by itself
    MISSING = auto()  # no such repository, or not for us
    UNREACHABLE = auto()
    OTHER = auto()


_SIGNS = (  # in this order: "the remote end hung up" follows other complaints too
    (GitFailure.FULL, r"no space left on device|disk quota exceeded"),
    (GitFailure.FOREIGN, r"dubious ownership"),
    (GitFailure.REFUSED, r"unadvertised object|not our ref|shallow capabilities|couldn't find remote ref"),
    (
        GitFailure.MISSING,
        (
            r"not found|does not exist|does not appear to be a git repository|no such file or directory"
            r"|could not read username|authentication failed|permission denied|returned error: 40[134]"
        ),
    ),
    (
        GitFailure.UNREACHABLE,
        (
            r"could not resolve|name resolution|failed to connect|couldn't connect|unable to connect"
            r"|timed out|connection (?:refused|reset|closed)|network is unreachable|no route to host"
            r"|too slow|early eof|rpc failed|hung up|tunnel|unexpected disconnect|ssl|gnutls"
            r"|returned error: [45]\d\d"
        ),
    ),
)


@dataclass(frozen=True, slots=True)
class GitCheckout:
    """A work tree and its git folder."""

    worktree: Path
    folder: Path

    def argv(self, *arguments: str) -> list[str]:
        """Return a git command about exactly this repository, never about one around it."""
        return ["git", f"--git-dir={self.folder}", *arguments]

    def git(self, *arguments: str) -> str:
        """Return the output of git. Raises CommandError."""
        return process.capture(self.argv(*arguments), cwd=self.worktree, env=git_environment(os.environ))


def run_git(tree: Path, *arguments: str) -> str:
    """Return the output of git in a folder. Raises CommandError."""
    return process.capture(["git", "-C", str(tree), *arguments], env=git_environment(os.environ))


def git_environment(base: Mapping[str, str]) -> dict[str, str]:
    """Return `base` with git made quiet, careful and English; the user's own settings stay."""
    env = {name: value for name, value in base.items() if name not in _INHERITED}
    env |= {"GIT_TERMINAL_PROMPT": "0", "LC_ALL": "C"}
    first = int(env.get("GIT_CONFIG_COUNT") or 0)
    for number, (key, value) in enumerate(_SETTINGS, first):
        env |= {f"GIT_CONFIG_KEY_{number}": key, f"GIT_CONFIG_VALUE_{number}": value}
    return env | {"GIT_CONFIG_COUNT": str(first + len(_SETTINGS))}


def diagnose_git(output: str) -> GitFailure:
    """Return what git's complaint comes from."""
    return next(
        (cause for cause, signs in _SIGNS if re.search(signs, output, re.IGNORECASE)), GitFailure.OTHER
    )


def explain_git_error(error: CommandError, url: str, where: Path, request: SourceRequest) -> TorchmillError:
    """Return the error to show when git failed on `url`, working in `where`."""
    cause, gist = diagnose_git(error.output), complaint_gist(error.output)
    if cause is GitFailure.FULL:
        return disk_full_error(where)
    if cause is GitFailure.FOREIGN:
        return foreign_owner_error(where)
    if cause is GitFailure.UNREACHABLE:
        return unreachable_error(host_of(url), gist, request)
    return SourceError(
        f"{hide_password(url)}: git could not fetch {request.what} ({gist}): run the command again; if that "
        f"does not help, delete {where} to start over",
        code="git-failed",
    )


def foreign_owner_error(tree: Path) -> SourceError:
    """Return the error for a repository that git will not read because of its owner."""
    return SourceError(
        f"{tree} belongs to another user, and git does not work in it: run as that user, `chown -R` it, or "
        f"`git config --global --add safe.directory {tree}`",
        code="foreign-repository",
    )


def complaint_gist(output: str) -> str:
    """Return the most telling line of git's output."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for sign in ("fatal:", "error:"):
        for line in lines:
            if line.startswith((sign, f"remote: {sign}")):
                return hide_password(line.partition(sign)[2].strip().rstrip("."))
    return hide_password(lines[-1]) if lines else "it printed nothing"


_PROGRESS = re.compile(
    r"^(?:remote: )?(?P<phase>[A-Z][a-z]+(?: [a-z]+)*):\s+\d+% "
    r"\((?P<done>\d+)/(?P<total>\d+)\)(?:, (?P<rest>[^,]*\|[^,]*))?"
)


def parse_git_progress(line: str) -> tuple[int, int, str] | None:
    """Return (done, total, note) of a line of `git --progress`, or None if it is no such line.

    The note is like "Receiving objects, 3.1 MiB | 2.0 MiB/s".
    """
    match = _PROGRESS.match(line.strip())
    if match is None:
        return None
    rest = match["rest"]
    note = f"{match['phase']}, {rest.strip()}" if rest else match["phase"]
    return int(match["done"]), int(match["total"]), note


def show_git_progress(bar: ProgressBar) -> Callable[[str], None]:
    """Return what moves the bar for each line of git."""

    def show(text: str) -> None:
        for line in text.split("\r"):
            if step := parse_git_progress(line):
                bar.update(*step)

    return show


@dataclass(frozen=True, slots=True)
class SubmodulePin:
    """The commit of a submodule that a commit of its parent asks for."""

    name: str
    path: str
    commit: str


def git_folder(tree: Path) -> Path | None:
    """Return the folder that keeps a work tree's history, or None if there is none."""
    place = tree / ".git"
    if place.is_dir():
        return place
    try:
        word, _, folder = place.read_text(encoding="utf-8").strip().partition(": ")
    except OSError:
        return None
    return Path(os.path.normpath(tree / folder)) if word == "gitdir" else None


def read_head(tree: Path) -> str | None:
    """Return the commit that is checked out in `tree`, or None if there is none.

    Starts no program unless a branch is checked out.
    """
    folder = git_folder(tree)
    if folder is None:
        return None
    try:
        text = (folder / "HEAD").read_text(encoding="utf-8").strip()
    except OSError:
        return None
    if is_commit(text):
        return text
    try:
        return run_git(tree, "rev-parse", "--verify", "--quiet", "HEAD").strip()
    except CommandError:  # a branch without commits, or no repository
        return None


def read_submodule_pins(repository: GitCheckout) -> tuple[SubmodulePin, ...]:
    """Return the submodules of the commit that is checked out.

    Raises SourceError for a name that would lead out of the git folder. A pin that .gitmodules does not
    know cannot be fetched by anyone and is left out.
    """
    listed = repository.git("ls-tree", "-r", "-z", "HEAD").split("\0")
    pairs = (line.partition("\t") for line in listed)
    commits = {path: about.split()[2] for about, _, path in pairs if about.startswith("160000 ")}
    if not commits:
        return ()
    names = _submodule_names(repository)
    for name in names.values():
        if name.startswith(("-", "/")) or {".", "..", ""} & set(name.replace("\\", "/").split("/")):
            raise SourceError(
                f"{repository.worktree}: .gitmodules has a submodule named '{name}', which would be written "
                "elsewhere: do not trust this source",
                code="hostile-source",
            )
    return tuple(
        SubmodulePin(names[path], path, commit) for path, commit in sorted(commits.items()) if path in names
    )


def _submodule_names(repository: GitCheckout) -> dict[str, str]:
    """Return path -> name of .gitmodules, as committed."""
    try:
        found = repository.git(
            "config", "-z", "--blob=HEAD:.gitmodules", "--get-regexp", r"^submodule\..*\.path$"
        )
    except CommandError:  # no such file, or nothing in it
        return {}
    pairs = (entry.partition("\n") for entry in found.split("\0") if entry)
    return {path.rstrip("/"): key.removeprefix("submodule.").removesuffix(".path") for key, _, path in pairs}


def uncommitted_changes(tree: Path) -> tuple[str, ...]:
    """Return the files that are in no commit, and would be lost if the tree were fetched again.

    What .gitignore covers is not named. Raises SourceError where git does not work in the tree.
    """
    try:
        listed = run_git(tree, "status", "--porcelain=v2", "-z", "--no-renames", "--ignore-submodules=none")
    except CommandError as error:
        if diagnose_git(error.output) is GitFailure.FOREIGN:
            raise foreign_owner_error(tree) from None
        raise SourceError(
            f"git cannot read {tree} ({complaint_gist(error.output)}): delete {tree.parent} and fetch it "
            "again",
            code="unreadable-repository",
        ) from None
    found: list[str] = []
    for entry in filter(None, listed.split("\0")):
        path, is_submodule = _changed_path(entry)
        if not is_submodule:
            found.append(path)
        elif (tree / path / ".git").exists():  # one that is merely gone, or at another commit, loses nothing
            found.extend(f"{path}/{name}" for name in uncommitted_changes(tree / path))
    return tuple(found)


def _changed_path(entry: str) -> tuple[str, bool]:
    """Return the path of a line of `git status --porcelain=v2`, and whether it is a submodule's."""
    if entry.startswith("?"):
        return entry[2:], False
    fields = 8 if entry.startswith("1") else 10  # before the path; the longer form is of unmerged files
    parts = entry.split(" ", fields)
    return parts[fields], parts[2].startswith("S")
