"""The commits of a package without their files, and `git bisect` among them."""

import re
from pathlib import Path

from torchmill.core.errors import ConfigError, SourceError
from torchmill.core.process import CommandError
from torchmill.fetch.source.git_command import GitCheckout, complaint_gist, mirror_candidates
from torchmill.fetch.source.git_transport import GitTransport, run_git_quietly
from torchmill.fetch.source.request import SourceRequest

_ENDED = re.compile(
    r"^[0-9a-f]{40} is the first bad commit|^There are only 'skip'ped commits left", re.MULTILINE
)
_FETCH = ("fetch", "--no-tags", "--force")
_ALL_REFS = ("+refs/heads/*:refs/heads/*", "+refs/tags/*:refs/tags/*")
_COMMITS_ONLY = "--filter=tree:0"  # neither trees nor files


class CommitHistory:
    """A bare repository with the commits of a package, in which `git bisect` keeps its state."""

    def __init__(self, folder: Path) -> None:
        self._checkout = GitCheckout(folder, folder)
        self.git = self._checkout.git

    def fetch(self, request: SourceRequest) -> None:
        """Fetch the commits of all branches and tags.

        Their files are left out if both the server and git can do that; git 2.25 cannot. Raises
        NetworkError, SourceError, HostError.
        """
        self._checkout.folder.mkdir(parents=True, exist_ok=True)
        transport = GitTransport(request, self._checkout.folder)
        urls = mirror_candidates(request.package.source.repository, request.mirror)
        url, _ = transport.remote_refs(urls, ("HEAD",))
        # The templates of the system may contain hooks, so an empty --template names none.
        self.git("init", "--quiet", "--bare", "--template=")
        try:
            run_git_quietly(self._checkout, [*_FETCH, _COMMITS_ONLY, "--", url, *_ALL_REFS])
        except CommandError as error:
            if "filter" not in error.output:
                raise transport.explain(error, url) from None
        else:
            return
        try:
            run_git_quietly(self._checkout, [*_FETCH, "--", url, *_ALL_REFS])
        except CommandError as error:
            raise transport.explain(error, url) from None

    def find_commit(self, name: str) -> str:
        """Return the id of the commit that a tag, branch or id names.

        Raises SourceError for an unknown name.
        """
        try:
            # "^{commit}" gives the commit of an annotated tag. With "--", git does not search a
            # file of this name.
            output = self.git("rev-parse", "--verify", "--quiet", f"{name}^{{commit}}", "--")
        except CommandError:
            raise SourceError(
                f"the history has no tag, branch or commit '{name}'", code="unknown-ref"
            ) from None
        return output.split()[0]

    def describe(self, commit: str) -> str:
        """Return the id and the subject of a commit."""
        output = self.git("rev-list", "--format=%s", "-1", commit)
        subject = output.partition("\n")[2]  # below a line "commit ID"
        return f"{commit} {subject.strip()}"

    def start(self, *, good: str, bad: str) -> None:
        """Begin a search between a good and a bad commit.

        Raises ConfigError if git sees that the bad commit does not come after the good one.
        """
        # `git bisect` refuses to work if HEAD is not a commit, as may be in a bare repository.
        self.git("update-ref", "--no-deref", "HEAD", bad)
        self.bisect("start", "--no-checkout", bad, good)

    def next_step(self) -> tuple[str, str]:
        """Return the commit to try next, and git's line about the commits that remain.

        Both are "" when the search has ended: the first bad commit is known, or only commits that
        were skipped are left.
        """
        output = self.bisect("next")
        if _ENDED.search(output):
            return "", ""
        return self.find_commit("BISECT_HEAD"), output.partition("\n")[0]

    def suspects(self) -> list[str]:
        """Return the commits that can still be the first bad one, the newest first."""
        return self.git("rev-list", "refs/bisect/bad", "--not", "--glob=refs/bisect/good-*").split()

    def bisect(self, *words: str) -> str:
        """Return the output of a command of `git bisect`. Raises ConfigError if git refuses it.

        When the search has ended, git shows the bad commit, and fails, because the repository does
        not have the commit's files. Its output is complete before that, and is returned.
        """
        try:
            return self.git("bisect", *words)
        except CommandError as error:
            if _ENDED.search(error.output):
                return error.output
            raise ConfigError(
                f"git bisect: {complaint_gist(error.output)}", code="bisect-refused"
            ) from None
