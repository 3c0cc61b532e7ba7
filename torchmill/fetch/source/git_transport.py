"""Fetch one commit of a repository, starting from objects that are already on the disk."""

import contextlib
import os
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torchmill.core import process
from torchmill.core.errors import SourceError
from torchmill.core.files import report_disk_full
from torchmill.core.process import CommandError
from torchmill.core.urls import hide_password, host_of
from torchmill.fetch.source.git_command import (
    GitCheckout,
    GitFailure,
    complaint_gist,
    diagnose_git,
    explain_git_error,
    git_environment,
)
from torchmill.fetch.source.request import SourceRequest, connection_complaint, unreachable_error
from torchmill.fetch.source.source_dir import RECORD, SourceDir

# The index and the locks belong to the work tree that stays behind.
_LEFT_BEHIND = shutil.ignore_patterns("index", "*.lock", "FETCH_HEAD", "hooks", "worktrees", "tmp_*")


def seed_history(slot: SourceDir) -> bool:
    """Copy the history of a tree that was fetched before into the partial folder; False if there is none.

    Commits, branches and stashes of that tree come along, and git then fetches only what is new. Objects
    never change, so they are linked where the disk allows it.
    """
    origin = _nearest(slot)
    if origin is None:
        return False
    fresh = slot.partial.with_name(f".seeding-{slot.tag}")
    shutil.rmtree(fresh, ignore_errors=True)
    with report_disk_full(fresh):
        shutil.copytree(
            origin, fresh / "tree" / ".git", symlinks=True, ignore=_LEFT_BEHIND, copy_function=_link_objects
        )
    fresh.rename(slot.partial)
    return True


def remove_git_leftovers(folder: Path) -> None:
    """Remove what a killed git leaves in its folder and would stumble over."""
    for pattern in ("*.lock", "tmp_pack_*", "tmp_idx_*", "tmp_obj_*"):
        for left in folder.rglob(pattern):
            left.unlink(missing_ok=True)


def _nearest(slot: SourceDir) -> Path | None:
    """Return the git folder of the slot's own tree, else of the one fetched last."""
    if (slot.tree / ".git").is_dir():
        return slot.tree / ".git"
    others = [
        record
        for record in slot.home.glob(f"*/{RECORD}")
        if not record.parent.name.startswith(".") and (record.parent / "tree" / ".git").is_dir()
    ]
    if not others:
        return None
    return max(others, key=lambda record: record.stat().st_mtime_ns).parent / "tree" / ".git"


def _link_objects(origin: str, copy: str) -> str:
    if f"{os.sep}objects{os.sep}" in origin:
        with contextlib.suppress(OSError):
            os.link(origin, copy, follow_symlinks=False)
            return copy
    return str(shutil.copy2(origin, copy, follow_symlinks=False))


PINNED_REF = "refs/torchmill/pinned"  # written by git when all of a commit is there
_EVERYTHING = ("+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*")
_FETCH = ("fetch", "--progress", "--no-tags", "--force", "--no-recurse-submodules")
_RETRY_SECONDS = 1.0  # before a dropped connection is tried once more

Run = Callable[[GitCheckout, Sequence[str]], None]


def run_git_quietly(repository: GitCheckout, arguments: Sequence[str]) -> None:
    """Run git without showing what it does."""
    repository.git(*arguments)


@dataclass(frozen=True, slots=True)
class GitTransport:
    """Fetches commits for one request; remembers which hosts answered."""

    request: SourceRequest
    where: Path  # the folder that is worked in, for messages
    reached: set[str] = field(default_factory=set)  # hosts that took a connection

    def remote_refs(self, urls: Sequence[str], patterns: Sequence[str]) -> tuple[str, dict[str, str]]:
        """Return the first of `urls` that is a repository, and its refs that match, with their commits.

        Raises NetworkError or SourceError.
        """
        listing: list[str] = []

        def ask(url: str) -> None:
            argv = ["git", "ls-remote", "--", url, *patterns]
            listing.extend(process.capture(argv, env=git_environment(os.environ)).splitlines())

        url = self._first(urls, ask)
        pairs = (line.split("\t", 1) for line in listing)
        return url, {name: commit for commit, name in pairs}

    def obtain(
        self, repository: GitCheckout, commit: str, urls: Sequence[str], run: Run, refs: Sequence[str] = ()
    ) -> None:
        """Bring `commit` into the repository, by `refs` if given, else by its id; at once if it is there.

        Raises NetworkError, SourceError or HostError.
        """
        if pinned_commit(repository) != commit:
            self._first(urls, lambda url: _twice(lambda: _fetch_least(repository, commit, url, run, refs)))

    def _first(self, urls: Sequence[str], attempt: Callable[[str], None]) -> str:
        """Return the first URL that the attempt succeeds with; only a missing repository leads on."""
        missing = None
        for url in urls:
            self._assure_reachable(url)
            try:
                attempt(url)
            except CommandError as error:
                if diagnose_git(error.output) is not GitFailure.MISSING:
                    raise explain_git_error(error, url, self.where, self.request) from None
                missing = error
            else:
                return url
        tried = " or ".join(hide_password(url) for url in urls)
        why = complaint_gist(missing.output) if missing else "nothing was tried"
        raise SourceError(
            f"no repository that can be read is at {tried} ({why}): check the address and your access to it, "
            "or give another --mirror",
            code="repository-not-found",
        )

    def _assure_reachable(self, url: str) -> None:
        """Raise NetworkError within seconds where git itself would wait for minutes."""
        real = _git_answer("ls-remote", "--get-url", "--", url) or url  # the user's own insteadOf
        host = host_of(real)
        if host in self.reached or _git_answer("config", "--get-urlmatch", "http.proxy", real):
            return
        why = connection_complaint(real)
        if why is not None:
            raise unreachable_error(host, why, self.request)
        self.reached.add(host)


def pinned_commit(repository: GitCheckout) -> str | None:
    """Return the commit that was fetched completely last."""
    try:
        return (repository.folder / PINNED_REF).read_text(encoding="utf-8").strip()
    except OSError:
        return None


def _fetch_least(repository: GitCheckout, commit: str, url: str, run: Run, refs: Sequence[str]) -> None:
    """Ask for as little as the server allows: the commit, recent history, all of it."""
    shallow = (repository.folder / "shallow").exists()
    rungs = (
        ("--depth=1", "--", url, *(refs or (f"+{commit}:{PINNED_REF}",))),
        ("--depth=50", "--", url, *_EVERYTHING),
        (*(("--unshallow",) if shallow else ()), "--", url, *_EVERYTHING),
    )
    for rung in rungs:
        try:
            run(repository, [*_FETCH, *rung])
            if pinned_commit(repository) != commit:
                repository.git("update-ref", PINNED_REF, f"{commit}^{{commit}}")
        except CommandError as error:
            if diagnose_git(error.output) is not GitFailure.REFUSED and "update-ref" not in error.argv:
                raise
        else:
            return
    raise SourceError(
        f"{hide_password(url)} does not have the commit {commit}, not even in its whole history: update that "
        "repository, or fetch from another one",
        code="commit-not-found",
    )


def _twice(attempt: Callable[[], None]) -> None:
    """Try again, once, after a connection that broke."""
    try:
        attempt()
    except CommandError as error:
        if diagnose_git(error.output) is not GitFailure.UNREACHABLE:
            raise
        time.sleep(_RETRY_SECONDS)
        attempt()


def _git_answer(*arguments: str) -> str:
    """Return the output of git outside of any repository; "" if it fails."""
    try:
        return process.capture(["git", *arguments], env=git_environment(os.environ)).strip()
    except CommandError:
        return ""
