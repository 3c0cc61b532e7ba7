"""Run git, find repositories, read them, and explain git's errors."""

import os
import re
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from torchmill.core import process
from torchmill.core.console import ProgressBar
from torchmill.core.errors import ConfigError, SourceError
from torchmill.core.files import link_file, read_table_beside, read_text, real_path
from torchmill.core.process import CommandError
from torchmill.core.urls import SCP_URL, hide_password

PROTOCOLS = ("https", "ssh", "git", "file")
# GitHub answers neither of these any more; old releases name submodules so.
_RETIRED = re.compile(r"^(?:git|http)://(?:www\.)?github\.com/")
_SHA = re.compile(r"[0-9a-f]{40}")
_KNOWN = read_table_beside(__file__, "git.toml")
_REPOSITORY = re.compile(r"repository (?:at )?\(?'(.+?)'")
_PAIRS = re.compile(r"GIT_CONFIG_(COUNT|(KEY|VALUE)_\d+)")
# As `git -c` hands them down: git before 2.31 reads no others. What a user has set by GIT_CONFIG_COUNT comes before.
_FILE = str(Path(__file__).with_name("git.config")).replace("'", r"'\''")
_SETTINGS = f"'include.path={_FILE}'" + (" 'core.symlinks=true'" if os.name != "nt" else "")
_PROGRESS = re.compile(
    r"^(?:remote: )?(?P<phase>[A-Z][a-z]+(?: [a-z]+)*):\s+\d+% "
    r"\((?P<done>\d+)/(?P<total>\d+)\)(?:, (?P<rest>[^,]*\|[^,]*))?"
)
# Why git failed, as far as it matters for what to try next; git.toml tells what in its output says so. "full" is the
# disk, "foreign" a tree of somebody else, "damaged" what no repository may hold, "refused" a commit that the server
# does not give out by itself, "missing" a repository that is not there, or not for us.
GitFailure = Literal["full", "foreign", "damaged", "refused", "missing", "unreachable", "other"]


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
        return process.capture(
            self.argv(*arguments), cwd=self.worktree, env=git_environment(os.environ)
        )


def run_git(tree: Path, *arguments: str) -> str:
    """Return the output of git in a folder.

    Raises CommandError; SourceError where git does not work in it because of its owner.
    """
    try:
        return process.capture(
            ["git", "-C", str(tree), *arguments], env=git_environment(os.environ)
        )
    except CommandError as error:
        if diagnose_git(error.output) == "foreign":
            raise foreign_owner_error(tree, error.output) from None
        raise


def git_environment(base: Mapping[str, str]) -> dict[str, str]:
    """Return `base` with git made quiet, careful and English; how the user reaches other machines stays.

    Raises ConfigError where its GIT_CONFIG_COUNT is wrong.
    """
    kept = (
        name
        for name in base
        if not name.startswith("GIT_") or name in _KNOWN["kept"] or _PAIRS.fullmatch(name)
    )
    env = {name: base[name] for name in kept}
    env |= {"GIT_TERMINAL_PROMPT": "0", "GIT_NO_REPLACE_OBJECTS": "1", "LC_ALL": "C"}
    env.pop("LANGUAGE", None)
    count = env.get("GIT_CONFIG_COUNT") or "0"
    first = int(count) if re.fullmatch(r"\d{1,4}", count, re.ASCII) else -1
    pairs = [(f"GIT_CONFIG_KEY_{number}", f"GIT_CONFIG_VALUE_{number}") for number in range(first)]
    if first < 0 or any(name not in env for pair in pairs for name in pair):
        raise ConfigError(
            f"GIT_CONFIG_COUNT is '{count}', and git wants as many GIT_CONFIG_KEY_0, GIT_CONFIG_VALUE_0, …: "
            "unset it, or set them all",
            code="invalid-git-config-count",
        )
    # only 2 serves commits that no branch points at; git 2.17 ends with an error where it is told so, and is not here
    env |= {f"GIT_CONFIG_KEY_{first}": "protocol.version", f"GIT_CONFIG_VALUE_{first}": "2"}
    return env | {"GIT_CONFIG_COUNT": str(first + 1), "GIT_CONFIG_PARAMETERS": _SETTINGS}


def diagnose_git(output: str) -> GitFailure:
    """Return what git's complaint comes from."""
    signs = _KNOWN["failures"].items()
    found = (
        cause for cause, patterns in signs if re.search("|".join(patterns), output, re.IGNORECASE)
    )
    return next(found, "other")


def foreign_owner_error(tree: Path, output: str) -> SourceError:
    """Return the error for a repository, which git's output names, that git will not read because of its owner."""
    named = _REPOSITORY.search(
        output
    )  # also one that is fetched from, such as a mirror in a folder
    place = shlex.quote(named[1] if named else str(tree))
    return SourceError(
        f"{place} belongs to another user, and git does not work in it: run as that user, `chown -R` it, or "
        f"`git config --global --add safe.directory {place}`",
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


def show_git_progress(bar: ProgressBar, text: str) -> None:
    """Move the bar as git says, like "Receiving objects, 3.1 MiB | 2.0 MiB/s"."""
    for match in filter(None, map(_PROGRESS.match, map(str.strip, text.split("\r")))):
        rest = f", {match['rest'].strip()}" if match["rest"] else ""
        bar.update(int(match["done"]), int(match["total"]), match["phase"] + rest)


def is_commit(ref: str | None) -> bool:
    """Tell whether a ref is a full commit id, which never moves."""
    return ref is not None and _SHA.fullmatch(ref) is not None


def mirror_candidates(url: str, mirror: str | None) -> tuple[str, ...]:
    """Return the addresses to try in turn for a repository.

    In a mirror, https://host/OWNER/NAME(.git) is MIRROR/OWNER/NAME.git or MIRROR/NAME.git. Raises
    SourceError for a protocol that could run commands or cannot be trusted.
    """
    if mirror is None:
        return (require_allowed_url(_RETIRED.sub("https://github.com/", url)),)
    has_host = "://" in mirror or "::" in mirror or SCP_URL.match(mirror)
    base = (require_allowed_url(mirror) if has_host else real_path(mirror).as_uri()).rstrip("/")
    parts = [part for part in re.split(r"[/:\\]", url.rstrip("/").removesuffix(".git")) if part]
    if not parts or any(part in {".", ".."} for part in parts[-2:]):
        raise SourceError(
            f"'{url}' names no repository that a mirror could have: leave out --mirror",
            code="not-mirrorable",
        )
    return (f"{base}/{'/'.join(parts[-2:])}.git", f"{base}/{parts[-1]}.git")


def require_allowed_url(url: str) -> str:
    """Return `url`, or raise SourceError where git would do more than fetch from it."""
    scheme = url.split("://", 1)[0] if "://" in url else None
    fine = scheme in PROTOCOLS if scheme else not re.match(r"^\w+::", url)
    if url.startswith("-") or not fine or any(ord(letter) < ord(" ") for letter in url):
        raise SourceError(
            f"'{hide_password(url)}' cannot be fetched from: give an address of {', '.join(PROTOCOLS[:-1])} "
            f"or {PROTOCOLS[-1]}",
            code="untrusted-protocol",
        )
    return url


def git_folder(tree: Path) -> Path | None:
    """Return the folder that keeps a work tree's history, or None if there is none."""
    place = tree / ".git"
    if place.is_dir():
        return place
    word, _, folder = read_text(place).strip().partition(": ")
    return Path(os.path.normpath(tree / folder)) if word == "gitdir" else None


def copy_or_link(origin: str, copy: str) -> str:
    """Copy a file; git's objects never change, so they are linked where the disk allows it. Return the copy."""
    is_object = f"{os.sep}.git{os.sep}" in origin and f"{os.sep}objects{os.sep}" in origin
    if is_object and link_file(Path(origin), Path(copy)):
        return copy
    return shutil.copy2(origin, copy, follow_symlinks=False)


def read_head(tree: Path) -> str | None:
    """Return the commit that is checked out in `tree`, or None if there is none. Starts no program."""
    folder = git_folder(tree)
    text = read_text(folder / "HEAD").strip() if folder else ""
    if not text or is_commit(text):
        return text or None
    import git  # slow to load, and needed only where a branch is checked out

    try:
        with git.Repo(tree) as repository:
            return git.SymbolicReference.dereference_recursive(repository, "HEAD")
    except (ValueError, git.GitError):  # a branch without commits, or no repository
        return None


def read_submodule_pins(repository: GitCheckout) -> dict[str, tuple[str, str]]:
    """Return the submodules of the commit that is checked out: name and commit, by path, sorted.

    A pin that .gitmodules does not list cannot be fetched by anyone and is left out. Raises SourceError for
    a name that would lead out of the git folder.
    """
    listed = (
        line.partition("\t") for line in repository.git("ls-tree", "-r", "-z", "HEAD").split("\0")
    )
    commits = {path: about.split()[2] for about, _, path in listed if about.startswith("160000 ")}
    try:
        modules = repository.git(
            "config", "-z", "--blob=HEAD:.gitmodules", "--get-regexp", r"^submodule\..*\.path$"
        )
    except CommandError as error:
        if "bad config" not in error.output:  # no such file, or nothing in it
            return {}
        raise SourceError(
            f"{repository.worktree}: .gitmodules cannot be read ({complaint_gist(error.output)}): do not trust "
            "this source, or fetch another release",
            code="unreadable-gitmodules",
        ) from None
    pairs = (entry.partition("\n") for entry in modules.split("\0") if entry)
    names = {
        path.rstrip("/"): key.removeprefix("submodule.").removesuffix(".path")
        for key, _, path in pairs
    }
    for name in names.values():
        if name.startswith(("-", "/")) or {".", "..", ""} & set(name.replace("\\", "/").split("/")):
            raise SourceError(
                f"{repository.worktree}: .gitmodules has a submodule named '{name}', which would be written "
                "elsewhere: do not trust this source",
                code="hostile-source",
            )
    return {
        path: (names[path], commit) for path, commit in sorted(commits.items()) if path in names
    }


def uncommitted_changes(tree: Path) -> tuple[str, ...]:
    """Return the files that are in no commit, and would be lost if the tree were fetched again.

    What .gitignore covers is not named. Raises SourceError where git does not work in the tree.
    """
    try:
        listed = run_git(tree, "status", "--porcelain=v2", "-z", "--ignore-submodules=none")
    except CommandError as error:
        raise SourceError(
            f"git cannot read {tree} ({complaint_gist(error.output)}): fetch it anew by `invoke fetch` with --discard",
            code="unreadable-repository",
        ) from None
    found: list[str] = []
    entries = filter(None, listed.split("\0"))
    for entry in entries:
        # fields before the path: "? PATH", "1 XY SUB …", and longer ones of renamed and unmerged files
        parts = entry.split(" ", {"?": 1, "1": 8, "2": 9}.get(entry[0], 10))
        path = parts[-1]
        if entry[0] == "2":
            next(entries)  # its former path: git before 2.18 tells of renames whatever it is told
        if entry[0] == "?" or not parts[2].startswith("S"):
            found.append(path)
        elif (
            tree / path / ".git"
        ).exists():  # one that is merely gone, or at another commit, loses nothing
            found.extend(f"{path}/{name}" for name in uncommitted_changes(tree / path))
    return tuple(found)
