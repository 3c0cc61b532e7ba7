"""Run git, find repositories, read them, and explain git's errors.

Repositories are not trusted: they come from a network, or lie in a folder that anybody may have
made. Their settings and contents must not run a program, write outside of the tree, or decide which
files come out of a commit.
"""

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
from torchmill.core.lenient_paths import link_file, read_text, real_path
from torchmill.core.package_data import read_table_beside
from torchmill.core.process import CommandError
from torchmill.core.retries import PassingFailure, judge_error
from torchmill.core.urls import SCP_URL, hide_password

PROTOCOLS = ("https", "ssh", "git", "file")
# GitHub has retired both protocols; old releases name their submodules by them.
_RETIRED = re.compile(r"^(?:git|http)://(?:www\.)?github\.com/")
_COMMIT = re.compile(r"[0-9a-f]{40}")
_TABLES = read_table_beside(__file__, "git.toml")
_REPOSITORY = re.compile(r"repository (?:at )?\(?'(.+?)'")
_CONFIG_VARIABLE = re.compile(r"GIT_CONFIG_(COUNT|(KEY|VALUE)_\d+)")
# git.config in the form in which `git -c` hands settings down to its children, which is the only
# form that git before 2.31 reads. Git reads these after GIT_CONFIG_COUNT, so that they override
# the user's settings there.
_CONFIG_FILE = str(Path(__file__).with_name("git.config")).replace("'", r"'\''")
_CONFIG_PARAMETERS = f"'include.path={_CONFIG_FILE}'"
if os.name != "nt":
    _CONFIG_PARAMETERS += " 'core.symlinks=true'"
_PROGRESS = re.compile(
    r"^(?:remote: )?(?P<phase>[A-Z][a-z]+(?: [a-z]+)*):\s+\d+% "
    r"\((?P<done>\d+)/(?P<total>\d+)\)(?:, (?P<rest>[^,]*\|[^,]*))?"
)
# Components of a path that would lead it to another folder than it seems.
_LEADING_ELSEWHERE = {".", "..", ""}
_SUBMODULE_ENTRY = "160000 "  # begins the line of a submodule in `git ls-tree`
# An entry of `git status --porcelain=v2` begins with the letter of its kind, and its path follows
# after so many fields (git-status(1), "Porcelain Format Version 2").
_FIELDS_BEFORE_PATH = {"?": 1, "1": 8, "2": 9}
_FIELDS_BEFORE_UNMERGED_PATH = 10  # of kind "u"
# The causes of a failure of git that make a difference here; git.toml has the patterns of each.
GitFailure = Literal[
    "full",  # the disk is full
    "foreign",  # the tree belongs to another user
    "damaged",  # something that no sound repository contains
    "refused",  # the server does not give out this commit by its id
    "missing",  # there is no such repository, or not for this user
    "unreachable",
    "other",
]


@dataclass(frozen=True, slots=True)
class GitCheckout:
    """A work tree and its git folder."""

    worktree: Path
    folder: Path

    def argv(self, *arguments: str) -> list[str]:
        """Return a git command for exactly this repository.

        Without --git-dir, git would look for one in the folders above if this one is damaged.
        """
        return ["git", f"--git-dir={self.folder}", *arguments]

    def git(self, *arguments: str) -> str:
        """Return the output of git in this repository. Raises CommandError."""
        environment = git_environment(os.environ)
        return process.capture(self.argv(*arguments), cwd=self.worktree, env=environment)


def run_git(tree: Path, *arguments: str) -> str:
    """Return the output of git in a folder, whose repository git finds itself.

    Raises CommandError if git fails, SourceError if it refuses the folder because of its owner.
    """
    argv = ["git", "-C", str(tree), *arguments]
    try:
        return process.capture(argv, env=git_environment(os.environ))
    except CommandError as error:
        if diagnose_git(error.output) == "foreign":
            raise foreign_owner_error(tree, error.output) from None
        raise


def git_environment(base: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for git: `base` with most GIT_… variables replaced by torchmill's.

    Of the user's GIT_… variables, those stay that say how to reach other machines. The others could
    come from a hook or from a git that has started torchmill, and would decide in which folders git
    works and which files come out of a commit. Raises ConfigError if GIT_CONFIG_COUNT is wrong.
    """
    environment = {}
    for name, value in base.items():
        is_passed_on = name in _TABLES["passed_on"] or _CONFIG_VARIABLE.fullmatch(name)
        if not name.startswith("GIT_") or is_passed_on:
            environment[name] = value
    # Nobody would answer a question for a password.
    environment["GIT_TERMINAL_PROMPT"] = "0"
    # refs/replace in a repository could put any object in place of another one.
    environment["GIT_NO_REPLACE_OBJECTS"] = "1"
    # git's output is parsed, so it must be in English. gettext prefers LANGUAGE to LC_ALL.
    environment["LC_ALL"] = "C"
    environment.pop("LANGUAGE", None)
    count = _config_count(environment)
    # Only protocol 2 serves commits that no branch points at. The setting is not in git.config: git
    # 2.17 fails if it finds it there, and does not read these variables.
    environment[f"GIT_CONFIG_KEY_{count}"] = "protocol.version"
    environment[f"GIT_CONFIG_VALUE_{count}"] = "2"
    environment["GIT_CONFIG_COUNT"] = str(count + 1)
    environment["GIT_CONFIG_PARAMETERS"] = _CONFIG_PARAMETERS
    return environment


def _config_count(environment: Mapping[str, str]) -> int:
    """Return how many settings the user gives to git in variables (GIT_CONFIG_KEY_0, …).

    Raises ConfigError if one is missing. Git would fail later, with a less helpful message.
    """
    text = environment.get("GIT_CONFIG_COUNT") or "0"
    count = int(text) if re.fullmatch(r"\d{1,4}", text, re.ASCII) else None
    names = []
    for number in range(count or 0):
        names += [f"GIT_CONFIG_KEY_{number}", f"GIT_CONFIG_VALUE_{number}"]
    if count is None or not environment.keys() >= set(names):
        raise ConfigError(
            f"GIT_CONFIG_COUNT is '{text}', and git wants as many GIT_CONFIG_KEY_0, "
            "GIT_CONFIG_VALUE_0, …: unset it, or set them all",
            code="invalid-git-config-count",
        )
    return count


def diagnose_git(output: str) -> GitFailure:
    """Return the cause of a failure of git, by its output."""
    # In the order of git.toml: "the remote end hung up" follows many other complaints.
    failures: Mapping[GitFailure, list[str]] = _TABLES["failures"]
    for cause, patterns in failures.items():
        if re.search("|".join(patterns), output, re.IGNORECASE):
            return cause
    return "other"


def judge_git(error: Exception) -> PassingFailure | None:
    """Return how a failure of git may pass: its connection broke, or its host is silent."""
    if not isinstance(error, CommandError):
        return judge_error(error)
    lasting = "|".join(_TABLES["lasting"]["unreachable"])
    if diagnose_git(error.output) != "unreachable":
        return None
    if re.search(lasting, error.output, re.IGNORECASE):
        return None
    return PassingFailure(complaint_gist(error.output))


def foreign_owner_error(tree: Path, output: str) -> SourceError:
    """Return the error for a repository that git refuses to read because of its owner.

    Git names the repository in its output; it may also be one that is fetched from, such as a
    mirror in a folder.
    """
    match = _REPOSITORY.search(output)
    path = shlex.quote(match[1] if match else str(tree))
    return SourceError(
        f"{path} belongs to another user, and git does not work in it: run as that user, "
        f"`chown -R` it, or `git config --global --add safe.directory {path}`",
        code="foreign-repository",
    )


def complaint_gist(output: str) -> str:
    """Return the most telling line of git's output: the first error, or the last line."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    for label in ("fatal:", "error:"):
        for line in lines:
            if line.startswith((label, f"remote: {label}")):
                complaint = line.partition(label)[2].strip()
                return hide_password(complaint.rstrip("."))
    if not lines:
        return "it printed nothing"
    return hide_password(lines[-1])


def show_git_progress(bar: ProgressBar, text: str) -> None:
    """Show a line of git's progress, "Receiving objects:  50% (5/10), 3.1 MiB | 2 MiB/s"."""
    # git overwrites its progress on a terminal: a line has many states, each after a "\r".
    for state in text.split("\r"):
        match = _PROGRESS.match(state.strip())
        if match:
            note = match["phase"]
            if match["rest"]:
                note += f", {match['rest'].strip()}"
            bar.update(int(match["done"]), int(match["total"]), note)


def is_commit(ref: str | None) -> bool:
    """Tell whether a ref is a full commit id, which never moves."""
    return ref is not None and _COMMIT.fullmatch(ref) is not None


def mirror_candidates(url: str, mirror: str | None) -> tuple[str, ...]:
    """Return the addresses to try in turn for a repository.

    Without a mirror that is its own one, by https if it is on GitHub. In a mirror,
    https://host/OWNER/NAME(.git) is MIRROR/OWNER/NAME.git or MIRROR/NAME.git, and only these are
    returned. Raises SourceError for a protocol that could run commands or cannot be trusted, and
    with a mirror for a URL whose end is no name of a repository.
    """
    if mirror is None:
        return (require_allowed_url(_RETIRED.sub("https://github.com/", url)),)
    # A file of facts may hold a NUL, which no path can have: it is refused as any control
    # character.
    if "://" in mirror or "::" in mirror or "\0" in mirror or SCP_URL.match(mirror):
        base = require_allowed_url(mirror).rstrip("/")
    else:
        base = real_path(mirror).as_uri().rstrip("/")
    parts = [part for part in re.split(r"[/:\\]", url.rstrip("/").removesuffix(".git")) if part]
    if not parts or not {".", ".."}.isdisjoint(parts[-2:]):
        raise SourceError(
            f"'{url}' names no repository that a mirror could have: leave out --mirror",
            code="not-mirrorable",
        )
    return (f"{base}/{'/'.join(parts[-2:])}.git", f"{base}/{parts[-1]}.git")


def require_allowed_url(url: str) -> str:
    """Return `url`; raise SourceError if git would do more with it than fetch by one of PROTOCOLS.

    - "ext::COMMAND" and other remote helpers run programs.
    - A leading "-" would be taken for an option (CVE-2018-17456).
    - A newline or another control character can make a credential helper hand out the password of
      another host (CVE-2020-5260).
    """
    if "://" in url:
        is_allowed = url.split("://", 1)[0] in PROTOCOLS
    else:
        is_allowed = not re.match(r"^\w+::", url)
    has_control_character = any(character < " " for character in url)
    if url.startswith("-") or not is_allowed or has_control_character:
        raise SourceError(
            f"'{hide_password(url)}' cannot be fetched from: give an address of "
            f"{', '.join(PROTOCOLS[:-1])} or {PROTOCOLS[-1]}",
            code="untrusted-protocol",
        )
    return url


def git_folder(tree: Path) -> Path | None:
    """Return the git folder of a work tree; None if it has none.

    A folder that a file .git names is returned also if it is missing.
    """
    path = tree / ".git"
    if path.is_dir():
        return path
    # A submodule or a linked work tree has a file instead: "gitdir: ../.git/modules/NAME".
    key, _, folder = read_text(path).strip().partition(": ")
    if key != "gitdir":
        return None
    return Path(os.path.normpath(tree / folder))


def copy_or_link(origin: str, copy: str) -> str:
    """Copy a file and return the path of the copy, for `shutil.copytree`.

    A git object, which never changes, is linked, to save time and room.
    """
    is_object = f"{os.sep}.git{os.sep}" in origin and f"{os.sep}objects{os.sep}" in origin
    if is_object and link_file(Path(origin), Path(copy)):
        return copy
    return shutil.copy2(origin, copy, follow_symlinks=False)


def read_head(tree: Path) -> str | None:
    """Return the commit that is checked out in `tree`, or None if there is none.

    Starts no program, so that the settings of an untrusted repository cannot run one.
    """
    folder = git_folder(tree)
    if folder is None:
        return None
    text = read_text(folder / "HEAD").strip()
    if not text:
        return None
    if is_commit(text):
        return text
    import git  # slow to load, and needed only if a branch is checked out

    try:
        with git.Repo(tree) as repository:
            return git.SymbolicReference.dereference_recursive(repository, "HEAD")
    except (ValueError, git.GitError):  # a branch without commits, or no repository
        return None


def read_submodule_pins(repository: GitCheckout) -> dict[str, tuple[str, str]]:
    """Return the submodules of the commit that is checked out: name and commit, by path, sorted.

    A submodule that .gitmodules does not list has no URL, and is left out. Raises SourceError for a
    name that would lead out of the git folder, and if .gitmodules cannot be read; CommandError if
    git fails otherwise.
    """
    commits = {}
    for entry in repository.git("ls-tree", "-r", "-z", "HEAD").split("\0"):
        fields, _, path = entry.partition("\t")
        if fields.startswith(_SUBMODULE_ENTRY):
            commits[path] = fields.split()[2]
    names = _submodule_names(repository)
    for name in names.values():
        # The repository of a submodule lies in .git/modules/NAME. A name with ".." would put it
        # into the work tree, where the commit supplies its hooks (CVE-2018-11235). A name with "-"
        # would be taken for an option.
        components = set(name.replace("\\", "/").split("/"))
        if name.startswith(("-", "/")) or components & _LEADING_ELSEWHERE:
            raise SourceError(
                f"{repository.worktree}: .gitmodules has a submodule named '{name}', which would "
                "be written elsewhere: do not trust this source",
                code="hostile-source",
            )
    pins = {}
    for path, commit in sorted(commits.items()):
        if path in names:
            pins[path] = (names[path], commit)
    return pins


def _submodule_names(repository: GitCheckout) -> dict[str, str]:
    """Return the names of the submodules that the commit's .gitmodules lists, by path.

    The file is read from the commit, because in the work tree it could be a link to another file.
    """
    pattern = r"^submodule\..*\.path$"
    try:
        listing = repository.git("config", "-z", "--blob=HEAD:.gitmodules", "--get-regexp", pattern)
    except CommandError as error:
        if "bad config" not in error.output:  # no such file, or nothing in it
            return {}
        raise SourceError(
            f"{repository.worktree}: .gitmodules cannot be read ({complaint_gist(error.output)}): "
            "do not trust this source, or fetch another release",
            code="unreadable-gitmodules",
        ) from None
    names = {}
    for entry in filter(None, listing.split("\0")):
        key, _, path = entry.partition("\n")
        names[path.rstrip("/")] = key.removeprefix("submodule.").removesuffix(".path")
    return names


def uncommitted_changes(tree: Path) -> tuple[str, ...]:
    """Return the paths of changed and of new files in a git tree and its submodules.

    They are in no commit, and would be lost if the tree were fetched again. Files that git ignores
    are not listed. Raises SourceError if git does not work in the tree.
    """
    try:
        output = run_git(tree, "status", "--porcelain=v2", "-z", "--ignore-submodules=none")
    except CommandError as error:
        raise SourceError(
            f"git cannot read {tree} ({complaint_gist(error.output)}): fetch it anew by "
            "`invoke fetch` with --discard",
            code="unreadable-repository",
        ) from None
    changes: list[str] = []
    entries = filter(None, output.split("\0"))
    for entry in entries:
        kind = entry[0]
        fields = entry.split(" ", _FIELDS_BEFORE_PATH.get(kind, _FIELDS_BEFORE_UNMERGED_PATH))
        path = fields[-1]
        if kind == "2":
            # A renamed file; its former path follows. git before 2.18 reports renames although
            # git.config switches status.renames off.
            next(entries)
        is_submodule = kind != "?" and fields[2].startswith("S")
        if not is_submodule:
            changes.append(path)
        elif (tree / path / ".git").exists():
            # Nothing would be lost of a submodule that is missing, or at another commit. Files in
            # it may have changes.
            changes.extend(f"{path}/{name}" for name in uncommitted_changes(tree / path))
    return tuple(changes)
