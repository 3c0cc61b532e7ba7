"""Fetch commits from remote repositories: mirrors, retries, and restrictive servers.

A commit that was fetched completely is "pinned": the ref refs/torchmill/pinned points at it.
"""

import io
import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from torchmill.core import process, retries
from torchmill.core.errors import NetworkError, SourceError, TorchmillError
from torchmill.core.lenient_paths import read_text
from torchmill.core.process import CommandError, program_output
from torchmill.core.retries import PassingFailure
from torchmill.core.system_errors import disk_full_error
from torchmill.core.urls import hide_password, host_of
from torchmill.fetch.download import lasting_complaint
from torchmill.fetch.source import git_command
from torchmill.fetch.source.git_command import GitCheckout, git_environment
from torchmill.fetch.source.request import SourceRequest

# git updates a ref only when it has all objects of the commit, so the ref proves that the fetch was
# complete.
_PINNED_REF = "refs/torchmill/pinned"
_ALL_REFS = ("+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*")
# Started in the root folder, because git reads the settings of the repository around its working
# folder. That repository may be a stranger's, and settings can name programs to run.
_GIT_ANYWHERE = ("git", "-C", os.path.abspath(os.sep))  # noqa: PTH100 - the drive's on Windows
# Without --no-tags, the commits of tags would be fetched, too. --force accepts a rewritten branch.
_FETCH = ("fetch", "--progress", "--no-tags", "--force", "--no-recurse-submodules")

# Runs git in a repository with some arguments; raises CommandError if git fails.
RunGit = Callable[[GitCheckout, Sequence[str]], object]


def run_git_quietly(repository: GitCheckout, arguments: Sequence[str]) -> None:
    """Run git without showing its progress.

    The `arguments` of a fetch must have "--" before the URL. Raises CommandError, and SilentError
    if the host of a fetch is silent for too long.
    """
    host = ""
    if arguments[0] == "fetch":
        host = host_of(arguments[arguments.index("--") + 1])
    _capture_git(repository.argv(*arguments), repository.worktree, host)


def _capture_git(argv: Sequence[str], cwd: Path | None, host: str) -> str:
    """Return all that git prints, on standard output and standard error.

    `host` is the host that git waits for, "" if there is none. Raises CommandError, and SilentError
    if the host is silent for too long.
    """
    log = io.StringIO()
    process.stream(
        argv,
        cwd=cwd,
        env=git_environment(os.environ),
        log=log,
        on_line=lambda _: None,
        waits_for=host,
    )
    return log.getvalue()


@dataclass(frozen=True, slots=True)
class GitTransport:
    """Fetches commits for one request, and remembers which hosts answered."""

    request: SourceRequest
    folder: Path  # in which git works; its disk may be full
    reached: set[str] = field(default_factory=set)  # hosts that took a connection
    stopped: threading.Event = field(default_factory=threading.Event)  # set: nothing is repeated

    def remote_refs(
        self, urls: Sequence[str], patterns: Sequence[str]
    ) -> tuple[str, dict[str, str]]:
        """Return the first of `urls` that is a repository, and the ids of its refs by name.

        Only refs that match `patterns` of `git ls-remote` are listed. Raises NetworkError or
        SourceError.
        """

        def list_refs(url: str) -> str:
            argv = [*_GIT_ANYWHERE, "ls-remote", "--", url, *patterns]
            return _capture_git(argv, None, host_of(url))

        url, listing = self._try_urls(urls, list_refs)
        commits = {}
        for line in listing.splitlines():
            commit, _, name = line.partition("\t")
            if git_command.is_commit(commit):  # otherwise the line is a warning
                commits[name] = commit
        return url, commits

    def obtain(
        self,
        repository: GitCheckout,
        commit: str,
        urls: Sequence[str],
        run: RunGit,
        refs: Sequence[str] = (),
    ) -> None:
        """Fetch a commit into a repository, unless it is pinned there.

        It is fetched from the first of `urls` that is a repository, by the refspecs in `refs`, or
        by its id if there are none. `run` starts git. Raises NetworkError, SourceError or
        HostError.
        """

        def attempt(url: str) -> str:
            return _fetch_commit(repository, commit, url, run, refs)

        if _pinned_commit(repository) != commit:
            self._try_urls(urls, attempt)

    def _try_urls(self, urls: Sequence[str], attempt: Callable[[str], str]) -> tuple[str, str]:
        """Return the first URL with which the attempt succeeds, and the result of the attempt.

        An attempt is repeated as long as its failures may pass. The next URL is tried only if a URL
        has no repository. After any other failure, the complaint of the next host would hide the
        reason.
        """

        def judge(error: Exception) -> PassingFailure | None:
            return None if self.stopped.is_set() else git_command.judge_git(error)

        gist = "nothing was tried"
        for url in urls:
            try:
                self._require_reachable(url)
                result = retries.repeat(
                    partial(attempt, url), judge, f"git, {host_of(url)}", sleep=self.stopped.wait
                )
            except CommandError as error:
                if git_command.diagnose_git(error.output) != "missing":
                    raise self.explain(error, url) from None
                gist = git_command.complaint_gist(error.output)
            else:
                return url, result
        tried = " or ".join(hide_password(url) for url in urls)
        raise SourceError(
            f"no repository that can be read is at {tried} ({gist}): check the address and your "
            "access to it, or give another --mirror",
            code="repository-not-found",
        )

    def _require_reachable(self, url: str) -> None:
        """Raise NetworkError within seconds if the host takes no connection; git waits minutes."""
        environment = git_environment(os.environ)
        # The URL that git will use: the user's settings may replace it (url.BASE.insteadOf).
        argv = [*_GIT_ANYWHERE, "ls-remote", "--get-url", "--", url]
        real_url = process.ask(argv, environment).strip() or url
        if host_of(real_url) in self.reached:
            return
        proxy = program_output(
            *_GIT_ANYWHERE, "config", "--get-urlmatch", "http.proxy", real_url, env=environment
        )
        if proxy.strip():
            return  # only the proxy may be able to connect to the host
        complaint = lasting_complaint(real_url)
        if complaint is not None:
            raise self._unreachable(real_url, complaint)
        self.reached.add(host_of(real_url))

    def _unreachable(self, url: str, reason: str) -> NetworkError:
        """Return the error for a host that does not answer."""
        return NetworkError(
            f"cannot reach {host_of(url)} ({reason}): {self.request.alternatives()}",
            code="host-unreachable",
        )

    def explain(self, error: CommandError, url: str) -> TorchmillError:
        """Return the error to show if git failed to read `url`."""
        cause = git_command.diagnose_git(error.output)
        gist = git_command.complaint_gist(error.output)
        if cause == "full":
            return disk_full_error(self.folder)
        if cause == "foreign":
            return git_command.foreign_owner_error(self.folder, error.output)
        if cause == "unreachable":
            return self._unreachable(url, gist)
        if cause == "damaged":
            return SourceError(
                f"{hide_password(url)}: what git received is damaged or malicious ({gist}), and "
                "was not taken: run the command again; if that does not help, use another "
                "repository",
                code="hostile-source",
            )
        return SourceError(
            f"{hide_password(url)}: git could not fetch {self.request.title} ({gist}): run the "
            "command again; if that does not help, start over (`invoke fetch` with --discard, "
            "`invoke clean --kind bisect`)",
            code="git-failed",
        )


def _pinned_commit(repository: GitCheckout) -> str:
    """Return the commit that was pinned last; "" if there is none."""
    return read_text(repository.folder / _PINNED_REF).strip()


def _fetch_commit(
    repository: GitCheckout, commit: str, url: str, run: RunGit, refs: Sequence[str]
) -> str:
    """Fetch a commit with as little history as the server allows, pin it, and return it.

    First the commit alone is requested. Some servers refuse commits that no ref points at. From
    these, the 50 latest commits of each ref are fetched, and if the commit is not among them, the
    whole history. Raises CommandError, and SourceError if not even that has the commit.
    """
    commit_refs = refs or (f"+{commit}:{_PINNED_REF}",)
    if _fetch_and_pin(repository, commit, run, ["--depth=1", "--", url, *commit_refs]):
        return commit
    if _fetch_and_pin(repository, commit, run, ["--depth=50", "--", url, *_ALL_REFS]):
        return commit
    # git refuses to unshallow a repository whose history is complete.
    depth = []
    if (repository.folder / "shallow").exists():
        depth = ["--unshallow"]
    if _fetch_and_pin(repository, commit, run, [*depth, "--", url, *_ALL_REFS]):
        return commit
    raise SourceError(
        f"{hide_password(url)} does not have the commit {commit}, not even in its whole history: "
        "update that repository, or fetch from another one",
        code="commit-not-found",
    )


def _fetch_and_pin(
    repository: GitCheckout, commit: str, run: RunGit, arguments: Sequence[str]
) -> bool:
    """Fetch by some `arguments`, and pin the commit.

    Returns False if the server refuses, or if the commit was not among what came. Raises
    CommandError for any other failure.
    """
    try:
        run(repository, [*_FETCH, *arguments])
        if _pinned_commit(repository) != commit:
            # The fetch wrote other refs. This fails if the commit did not come with them.
            repository.git("update-ref", _PINNED_REF, f"{commit}^{{commit}}")
    except CommandError as error:
        is_refusal = git_command.diagnose_git(error.output) == "refused"
        has_no_commit = "update-ref" in error.argv
        if is_refusal or has_no_commit:
            return False
        raise
    return True
