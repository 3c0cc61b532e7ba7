"""Fetch commits from remote repositories: mirrors, retries, and restrictive servers."""

import io
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torchmill.core import process
from torchmill.core.errors import NetworkError, SourceError, TorchmillError
from torchmill.core.lenient_paths import read_text
from torchmill.core.process import CommandError, program_output
from torchmill.core.system_errors import disk_full_error
from torchmill.core.urls import hide_password, host_of
from torchmill.fetch.download import connection_complaint
from torchmill.fetch.source import git_command
from torchmill.fetch.source.git_command import GitCheckout, git_environment
from torchmill.fetch.source.request import SourceRequest

RETRY_SECONDS = 1.0  # before a dropped connection is tried once more
# Written when a commit is there with all of its objects: git updates refs only then.
_PINNED_REF = "refs/torchmill/pinned"
_ALL_REFS = ("+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*")
# Run in the root folder: git reads the settings of a repository that it is started in, which may be
# anybody's, and these can name programs.
_GIT_ANYWHERE = ("git", "-C", os.path.abspath(os.sep))  # noqa: PTH100 - the drive's on Windows
# --no-tags: tags would bring other commits. --force: a branch may have been rewritten.
_FETCH = ("fetch", "--progress", "--no-tags", "--force", "--no-recurse-submodules")

RunGit = Callable[[GitCheckout, Sequence[str]], object]


def run_git_quietly(repository: GitCheckout, arguments: Sequence[str]) -> None:
    """Run git without showing its progress. `arguments` of a fetch have "--" before the URL."""
    host = ""
    if arguments[0] == "fetch":
        host = host_of(arguments[arguments.index("--") + 1])
    _capture_git(repository.argv(*arguments), repository.worktree, host)


def _capture_git(argv: Sequence[str], cwd: Path | None, host: str) -> str:
    """Return all that git prints, its complaints included.

    It is ended if `host` ("": none) is silent for too long.
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
    folder: Path  # in which git works, for messages
    reached: set[str] = field(default_factory=set)  # hosts that took a connection

    def remote_refs(
        self, urls: Sequence[str], patterns: Sequence[str]
    ) -> tuple[str, dict[str, str]]:
        """Return the first of `urls` that is a repository, and the commits of its matching refs.

        Raises NetworkError or SourceError.
        """

        def list_refs(url: str) -> str:
            argv = [*_GIT_ANYWHERE, "ls-remote", "--", url, *patterns]
            return _capture_git(argv, None, host_of(url))

        url, listing = self._try_urls(urls, list_refs)
        commits = {}
        for line in listing.splitlines():
            commit, _, name = line.partition("\t")
            if git_command.is_commit(commit):  # other lines are warnings
                commits[name] = commit
        return url, commits

    def obtain(
        self,
        into: GitCheckout,
        commit: str,
        urls: Sequence[str],
        run: RunGit,
        refs: Sequence[str] = (),
    ) -> None:
        """Bring `commit` into a repository: by `refs` if there are any, else by its id.

        Nothing is fetched if the repository has it. A connection that breaks is tried once more.
        Raises NetworkError, SourceError or HostError.
        """

        def attempt(url: str) -> str:
            try:
                return _fetch_least(into, commit, url, run, refs)
            except CommandError as error:
                if git_command.diagnose_git(error.output) != "unreachable":
                    raise
            time.sleep(RETRY_SECONDS)
            return _fetch_least(into, commit, url, run, refs)

        if _pinned_commit(into) != commit:
            self._try_urls(urls, attempt)

    def _try_urls(self, urls: Sequence[str], attempt: Callable[[str], str]) -> tuple[str, str]:
        """Return the first URL that the attempt succeeds with, and its result.

        Only if there is no repository at a URL, the next one is tried: after any other failure a
        second host would only hide the reason.
        """
        gist = "nothing was tried"
        for url in urls:
            try:
                self._require_reachable(url)
                return url, attempt(url)
            except CommandError as error:
                if git_command.diagnose_git(error.output) != "missing":
                    raise self.explain(error, url) from None
                gist = git_command.complaint_gist(error.output)
        tried = " or ".join(hide_password(url) for url in urls)
        raise SourceError(
            f"no repository that can be read is at {tried} ({gist}): check the address and your "
            "access to it, or give another --mirror",
            code="repository-not-found",
        )

    def _require_reachable(self, url: str) -> None:
        """Raise NetworkError within seconds if git itself would wait minutes for a connection."""
        environment = git_environment(os.environ)
        # the address after the user's own insteadOf, which git will connect to
        argv = [*_GIT_ANYWHERE, "ls-remote", "--get-url", "--", url]
        real_url = process.ask(argv, environment).strip() or url
        if host_of(real_url) in self.reached:
            return
        proxy = program_output(
            *_GIT_ANYWHERE, "config", "--get-urlmatch", "http.proxy", real_url, env=environment
        )
        if proxy.strip():
            return  # only the proxy may be able to connect to the host
        complaint = connection_complaint(real_url)
        if complaint is not None:
            raise self._unreachable(real_url, complaint)
        self.reached.add(host_of(real_url))

    def _unreachable(self, url: str, reason: str) -> NetworkError:
        return NetworkError(
            f"cannot reach {host_of(url)} ({reason}): {self.request.alternatives()}",
            code="host-unreachable",
        )

    def explain(self, error: CommandError, url: str) -> TorchmillError:
        """Return the error to show if git failed on `url`."""
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
    """Return the commit that was fetched completely last, "" if there is none."""
    return read_text(repository.folder / _PINNED_REF).strip()


def _fetch_least(
    repository: GitCheckout, commit: str, url: str, run: RunGit, refs: Sequence[str]
) -> str:
    """Fetch a commit, with as little else as the server allows, and return it.

    The commit alone is asked for first. Some servers give out only commits that a ref points at:
    then recent history is fetched, and at last all of it. Raises CommandError, and SourceError if
    not even the whole history has the commit.
    """
    commit_refs = refs or (f"+{commit}:{_PINNED_REF}",)
    if _fetch_and_pin(repository, commit, run, ["--depth=1", "--", url, *commit_refs]):
        return commit
    if _fetch_and_pin(repository, commit, run, ["--depth=50", "--", url, *_ALL_REFS]):
        return commit
    # git refuses to unshallow a repository that is complete
    is_shallow = (repository.folder / "shallow").exists()
    depth = ["--unshallow"] if is_shallow else []
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
    """Fetch and pin the commit; return False if the server refuses, or the commit did not come.

    Raises CommandError for any other failure.
    """
    try:
        run(repository, [*_FETCH, *arguments])
        if _pinned_commit(repository) != commit:
            # it came by other refs; fails if it did not come
            repository.git("update-ref", _PINNED_REF, f"{commit}^{{commit}}")
    except CommandError as error:
        is_refusal = git_command.diagnose_git(error.output) == "refused"
        has_no_commit = "update-ref" in error.argv
        if is_refusal or has_no_commit:
            return False
        raise
    return True
