"""Getting one commit of one repository over the network, however little the server is willing to give."""

import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from torchmill import process
from torchmill.errors import SourceError
from torchmill.process import CommandError
from torchmill.source.gitcommand import Cause, Checkout, diagnose, environment, explained, gist
from torchmill.source.mirror import host_of, shown
from torchmill.source.network import complaint, unreachable
from torchmill.source.request import Request

PIN = "refs/torchmill/pinned"  # written by git when all of a commit is there
_EVERYTHING = ("+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*")
_FETCH = ("fetch", "--progress", "--no-tags", "--force", "--no-recurse-submodules")
_PAUSE = 1.0  # seconds before a dropped connection is tried once more

Run = Callable[[Checkout, Sequence[str]], None]


def quietly(repository: Checkout, arguments: Sequence[str]) -> None:
    """Run git without showing what it does."""
    repository.git(*arguments)


@dataclass(frozen=True, slots=True)
class Transport:
    """The network as one fetch sees it."""

    request: Request
    where: Path  # the folder that is worked in, for messages
    reached: set[str] = field(default_factory=set)  # hosts that took a connection

    def remote_refs(self, urls: Sequence[str], patterns: Sequence[str]) -> tuple[str, dict[str, str]]:
        """Return the first of `urls` that is a repository, and its refs that match, with their commits.

        Raises NetworkError or SourceError.
        """
        listing: list[str] = []

        def ask(url: str) -> None:
            argv = ["git", "ls-remote", "--", url, *patterns]
            listing.extend(process.capture(argv, env=environment(os.environ)).splitlines())

        url = self._first(urls, ask)
        pairs = (line.split("\t", 1) for line in listing)
        return url, {name: commit for commit, name in pairs}

    def obtain(
        self, repository: Checkout, commit: str, urls: Sequence[str], run: Run, refs: Sequence[str] = ()
    ) -> None:
        """Bring `commit` into the repository, by `refs` if given, else by its id; at once if it is there.

        Raises NetworkError, SourceError or HostError.
        """
        if pinned(repository) != commit:
            self._first(urls, lambda url: _twice(lambda: _climb(repository, commit, url, run, refs)))

    def _first(self, urls: Sequence[str], attempt: Callable[[str], None]) -> str:
        """Return the first URL that the attempt succeeds with; only a missing repository leads on."""
        missing = None
        for url in urls:
            self._assure_reachable(url)
            try:
                attempt(url)
            except CommandError as error:
                if diagnose(error.output) is not Cause.MISSING:
                    raise explained(error, url, self.where, self.request) from None
                missing = error
            else:
                return url
        tried = " or ".join(shown(url) for url in urls)
        why = gist(missing.output) if missing else "nothing was tried"
        raise SourceError(
            f"no repository that can be read is at {tried} ({why}): check the address and your access to it, "
            "or give another --mirror"
        )

    def _assure_reachable(self, url: str) -> None:
        """Raise NetworkError within seconds where git itself would wait for minutes."""
        real = _capture_or("", "ls-remote", "--get-url", "--", url).strip() or url  # the user's own insteadOf
        host = host_of(real)
        if host in self.reached or _capture_or("", "config", "--get-urlmatch", "http.proxy", real):
            return
        why = complaint(real)
        if why is not None:
            raise unreachable(host, why, self.request)
        self.reached.add(host)


def pinned(repository: Checkout) -> str | None:
    """Return the commit that was brought in last, whole."""
    try:
        return (repository.folder / PIN).read_text(encoding="utf-8").strip()
    except OSError:
        return None


def _climb(repository: Checkout, commit: str, url: str, run: Run, refs: Sequence[str]) -> None:
    """Ask for as little as the server allows: the commit, recent history, all of it."""
    shallow = (repository.folder / "shallow").exists()
    rungs = (
        ("--depth=1", "--", url, *(refs or (f"+{commit}:{PIN}",))),
        ("--depth=50", "--", url, *_EVERYTHING),
        (*(("--unshallow",) if shallow else ()), "--", url, *_EVERYTHING),
    )
    for rung in rungs:
        try:
            run(repository, [*_FETCH, *rung])
            if pinned(repository) != commit:
                repository.git("update-ref", PIN, f"{commit}^{{commit}}")
        except CommandError as error:
            if diagnose(error.output) is not Cause.REFUSED and "update-ref" not in error.argv:
                raise
        else:
            return
    raise SourceError(
        f"{shown(url)} does not have the commit {commit}, not even in its whole history: bring that "
        "repository up to date, or fetch from another one"
    )


def _twice(attempt: Callable[[], None]) -> None:
    """Try again, once, after a connection that broke."""
    try:
        attempt()
    except CommandError as error:
        if diagnose(error.output) is not Cause.UNREACHABLE:
            raise
        time.sleep(_PAUSE)
        attempt()


def _capture_or(otherwise: str, *arguments: str) -> str:
    try:
        return process.capture(["git", *arguments], env=environment(os.environ))
    except CommandError:
        return otherwise
