"""The history of a package without its files, and git's own bisect in it."""

import re
from pathlib import Path

from torchmill.core.errors import ConfigError, SourceError
from torchmill.core.process import CommandError
from torchmill.fetch.source.git_clone import GitTransport, run_git_quietly
from torchmill.fetch.source.git_command import GitCheckout, complaint_gist, mirror_candidates
from torchmill.fetch.source.source_dir import SourceRequest

_ENDED = re.compile(
    r"^[0-9a-f]{40} is the first bad commit|^There are only 'skip'ped commits left", re.MULTILINE
)
_FETCH = ("fetch", "--no-tags", "--force")
_EVERYTHING = ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")


class CommitHistory:
    """A bare repository with the commits of a package, in which git keeps how far a search is."""

    def __init__(self, folder: Path) -> None:
        self._checkout = GitCheckout(folder, folder)
        self.git = self._checkout.git

    def fetch(self, request: SourceRequest) -> None:
        """Bring the commits of all branches and tags. Raises NetworkError, SourceError, HostError."""
        self._checkout.folder.mkdir(parents=True, exist_ok=True)
        transport = GitTransport(request, self._checkout.folder)
        url, _ = transport.remote_refs(
            mirror_candidates(request.package.repository, request.mirror), ("HEAD",)
        )
        self.git("init", "--quiet", "--bare", "--template=")
        for less in (
            ["--filter=tree:0"],
            [],
        ):  # of commits, no files where server and git can do that; git 2.25 cannot
            try:
                run_git_quietly(self._checkout, [*_FETCH, *less, "--", url, *_EVERYTHING])
                break
            except CommandError as error:
                if not less or "filter" not in error.output:
                    raise transport.explain(error, url) from None

    def find_commit(self, name: str) -> str:
        """Return the id of the commit that a tag, branch or id names. Raises SourceError for an unknown one."""
        try:
            return self.git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}", "--").split()[
                0
            ]
        except CommandError:
            raise SourceError(
                f"the history has no tag, branch or commit '{name}'", code="unknown-ref"
            ) from None

    def describe(self, commit: str) -> str:
        """Return the id and the subject of a commit."""
        _, _, subject = self.git("rev-list", "--format=%s", "-1", commit).partition(
            "\n"
        )  # below "commit ID"
        return f"{commit} {subject.strip()}"

    def start(self, good: str, bad: str) -> None:
        """Begin a search. Raises ConfigError where git sees that these cannot be its ends."""
        self.git("update-ref", "--no-deref", "HEAD", bad)  # git bisects nothing without one
        self.bisect("start", "--no-checkout", bad, good)

    def next_step(self) -> tuple[str, str]:
        """Return the commit to try next, and what git says of those left; "" for both at the end."""
        said = self.bisect("next")
        return (
            ("", "")
            if _ENDED.search(said)
            else (self.find_commit("BISECT_HEAD"), said.partition("\n")[0])
        )

    def suspects(self) -> list[str]:
        """Return the commits that can still be the first bad one, the newest first."""
        return self.git("rev-list", "refs/bisect/bad", "--not", "--glob=refs/bisect/good-*").split()

    def bisect(self, *words: str) -> str:
        """Return what `git bisect` says; that it lacks the files of the commit it found does not matter."""
        try:
            return self.git("bisect", *words)
        except CommandError as error:
            if _ENDED.search(error.output):
                return error.output
            raise ConfigError(
                f"git bisect: {complaint_gist(error.output)}", code="bisect-refused"
            ) from None
