"""Clone a release: a shallow fetch of one commit with its pinned submodules, resumable and verified."""

import contextlib
import io
import os
import shutil
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from torchmill.config.model import Source
from torchmill.core import process
from torchmill.core.console import ProgressDisplay
from torchmill.core.errors import NetworkError, SourceError, TorchmillError
from torchmill.core.files import (
    disk_full_error,
    read_text,
    real_path,
    report_unwritable,
    write_atomically,
)
from torchmill.core.process import CommandError, program_output
from torchmill.core.urls import hide_password, host_of
from torchmill.fetch.download import connection_complaint
from torchmill.fetch.source import git_command, git_proof
from torchmill.fetch.source.git_command import GitCheckout, git_environment
from torchmill.fetch.source.source_dir import SourceDir, SourceProof, SourceRequest, list_fetched

_CONNECTIONS = 8  # more do not help, and hosts begin to refuse
_RETRY_SECONDS = 1.0  # before a dropped connection is tried once more
# The index and the locks belong to the work tree that stays behind.
_LEFT_BEHIND = shutil.ignore_patterns(
    "index", "*.lock", "FETCH_HEAD", "hooks", "worktrees", "tmp_*"
)
_LEFTOVERS = ("*.lock", "tmp_pack_*", "tmp_idx_*", "tmp_obj_*")  # of a git that was killed
_PINNED_REF = "refs/torchmill/pinned"  # written by git when all of a commit is there
_EVERYTHING = ("+refs/heads/*:refs/remotes/origin/*", "+refs/tags/*:refs/tags/*")
# Git reads the settings of the repository that it is started in, and these can name programs: it may be anybody's.
_GIT_ANYWHERE = ("git", "-C", os.path.abspath(os.sep))  # noqa: PTH100 - the drive's on Windows
_FETCH = ("fetch", "--progress", "--no-tags", "--force", "--no-recurse-submodules")

Run = Callable[[GitCheckout, Sequence[str]], object]
# Before all other attributes: each file has exactly the bytes that the commit has for it.
_ATTRIBUTES = "* -text -ident -filter !eol !working-tree-encoding\n"


def fetch_git(
    request: SourceRequest, slot: SourceDir, current: Source | None, progress: ProgressDisplay
) -> Source:
    """Fetch the request with its submodules and return it; `current` is the complete source in the slot.

    Raises NetworkError, SourceError, HostError.
    """
    transport = GitTransport(request, slot.partial)
    commit, refs, url = _resolve_commit(request, transport)
    if current is not None and current.provider == "git" and current.commit == commit:
        return current
    top = _prepare(request, slot)
    path = slot.partial / "fetch.log"
    with (
        path.open("a", encoding="utf-8") as log,
        contextlib.closing(progress.task(request.what)) as bar,
    ):
        show = partial(git_command.show_git_progress, bar)

        def run(repository: GitCheckout, arguments: Sequence[str]) -> None:
            argv, tree, env = (
                repository.argv(*arguments),
                repository.worktree,
                git_environment(os.environ),
            )
            host = host_of(url) if arguments[0] == "fetch" else ""
            process.stream(argv, cwd=tree, env=env, log=log, on_line=show, waits_for=host)

        transport.obtain(top, commit, (url,), run, refs)
        _check_out(top, commit, run)
    submodules = _populate_submodules(top, transport, progress)
    origin = hide_password(url) + (f" ({request.ref})" if request.ref else "")
    git_proof.require_commit(top.worktree, commit, submodules)
    recorded = request.ref is None and request.release.commit == commit
    proof = SourceProof(commit=commit, verified=recorded, submodules=submodules)
    return slot.publish(slot.partial, request, "git", origin, proof=proof)


def _resolve_commit(
    request: SourceRequest, transport: "GitTransport"
) -> tuple[str, tuple[str, ...], str]:
    """Return the commit of the requested tag or ref, how to ask for it, and the URL that answered.

    How to ask for it: by these refs; by its id where there are none. Raises SourceError where the
    repository lacks it, or has the tag at another commit than the recorded one.
    """
    urls = git_command.mirror_candidates(request.package.repository, request.mirror)
    name, recorded = request.ref or request.release.tag, request.release.commit
    tag, branch = f"refs/tags/{name}", f"refs/heads/{name}"
    patterns = (tag, f"{tag}^{{}}") if request.ref is None else (branch, tag, f"{tag}^{{}}")
    url, found = transport.remote_refs(urls, patterns)
    if request.ref is not None and git_command.is_commit(request.ref):
        return request.ref, (), url
    if request.ref is not None and branch in found:
        return found[branch], (f"+{branch}:refs/remotes/origin/{name}",), url
    if tag not in found:
        what, cure = "tag", "update that repository, or use another one"
        if request.ref is not None:
            what, cure = (
                "branch or tag",
                "check --ref (a commit is given with all of its 40 digits)",
            )
        raise SourceError(
            f"{hide_password(url)} has no {what} '{name}': {cure}", code="unknown-ref"
        )
    commit = found.get(
        f"{tag}^{{}}", found[tag]
    )  # an annotated tag is listed twice: itself, its commit
    if request.ref is None and recorded not in {None, commit}:
        raise SourceError(
            f"{hide_password(url)}: the tag {name} is the commit {commit}, but {request.package.name} "
            f"{request.release.version} was released from {recorded}: do not use that repository, or request "
            f"that commit with `--ref {commit}`",
            code="wrong-commit",
        )
    return commit, (f"+{tag}:{tag}",), url


def _prepare(request: SourceRequest, slot: SourceDir) -> GitCheckout:
    """Return the repository to fetch into: that of the last try, a copy of an earlier tree, or a new one."""
    top = GitCheckout(slot.partial / "tree", slot.partial / "tree" / ".git")
    if slot.partial.exists() or not _seed_history(slot):
        top.worktree.mkdir(
            parents=True, exist_ok=True
        )  # a try may have been killed, or the disk full, before it
    for left in (
        one for pattern in _LEFTOVERS for one in top.folder.rglob(pattern) if one.is_file()
    ):
        left.unlink(missing_ok=True)
    _set_up(top, request.package.repository)
    return top


def _set_up(repository: GitCheckout, url: str, **settings: str) -> None:
    repository.git("init", "--quiet", "--template=")
    write_atomically(repository.folder / "info/attributes", _ATTRIBUTES)
    remote = {
        "remote.origin.url": url,
        "remote.origin.fetch": "+refs/heads/*:refs/remotes/origin/*",
    }
    for key, value in ({"core.bare": "false"} | settings | remote).items():
        repository.git("config", key, value)


def _seed_history(slot: SourceDir) -> bool:
    """Copy the history of a tree that was fetched before into the partial folder; False if there is none.

    Commits, branches and stashes of that tree come along, and git then fetches only what is new.
    """
    trees = (folder / "tree" / ".git" for folder in (slot.folder, *list_fetched(slot.home)))
    origin = next((folder for folder in trees if folder.is_dir()), None)
    if origin is None:
        return False
    fresh = slot.partial.with_name(f".seeding-{slot.tag}")
    shutil.rmtree(fresh, ignore_errors=True)
    with report_unwritable(fresh):
        copy = fresh / "tree" / ".git"
        shutil.copytree(
            origin, copy, symlinks=True, ignore=_LEFT_BEHIND, copy_function=git_command.copy_or_link
        )
    fresh.rename(slot.partial)
    return True


def run_git_quietly(repository: GitCheckout, arguments: Sequence[str]) -> None:
    """Run git without showing what it does."""
    argv, tree = repository.argv(*arguments), repository.worktree
    _ask_git(
        argv, tree, host_of(arguments[arguments.index("--") + 1]) if arguments[0] == "fetch" else ""
    )


@dataclass(frozen=True, slots=True)
class GitTransport:
    """Fetches commits for one request; remembers which hosts answered."""

    request: SourceRequest
    where: Path  # the folder that is worked in, for messages
    reached: set[str] = field(default_factory=set)  # hosts that took a connection

    def remote_refs(
        self, urls: Sequence[str], patterns: Sequence[str]
    ) -> tuple[str, dict[str, str]]:
        """Return the first of `urls` that is a repository, and its refs that match, with their commits.

        Raises NetworkError or SourceError.
        """
        url, listing = self._first(
            urls,
            lambda url: _ask_git(
                [*_GIT_ANYWHERE, "ls-remote", "--", url, *patterns], None, host_of(url)
            ),
        )
        pairs = (line.partition("\t") for line in listing.splitlines())
        return url, {name: commit for commit, _, name in pairs if git_command.is_commit(commit)}

    def obtain(
        self,
        into: GitCheckout,
        commit: str,
        urls: Sequence[str],
        run: Run,
        refs: Sequence[str] = (),
    ) -> None:
        """Bring `commit` into a repository, by `refs` if given, else by its id; at once if it is there.

        A connection that breaks is tried once more. Raises NetworkError, SourceError or HostError.
        """

        def attempt(url: str) -> str:
            try:
                return _fetch_least(into, commit, url, run, refs)
            except CommandError as error:
                if git_command.diagnose_git(error.output) != "unreachable":
                    raise
            time.sleep(_RETRY_SECONDS)
            return _fetch_least(into, commit, url, run, refs)

        if _pinned_commit(into) != commit:
            self._first(urls, attempt)

    def _first(self, urls: Sequence[str], attempt: Callable[[str], str]) -> tuple[str, str]:
        """Return the first URL that the attempt succeeds with, and its result.

        Only a missing repository leads on to the next.
        """
        missing = "nothing was tried"
        for url in urls:
            try:
                self._assure_reachable(url)
                return url, attempt(url)
            except CommandError as error:
                if git_command.diagnose_git(error.output) != "missing":
                    raise self.explain(error, url) from None
                missing = git_command.complaint_gist(error.output)
        tried = " or ".join(hide_password(url) for url in urls)
        raise SourceError(
            f"no repository that can be read is at {tried} ({missing}): check the address and your access to "
            "it, or give another --mirror",
            code="repository-not-found",
        )

    def _assure_reachable(self, url: str) -> None:
        """Raise NetworkError within seconds where git itself would wait for minutes."""
        env = git_environment(os.environ)
        # by the user's own insteadOf
        real = (
            process.ask([*_GIT_ANYWHERE, "ls-remote", "--get-url", "--", url], env).strip() or url
        )
        if host_of(real) in self.reached:
            return
        if program_output(
            *_GIT_ANYWHERE, "config", "--get-urlmatch", "http.proxy", real, env=env
        ).strip():
            return
        if (why := connection_complaint(real)) is not None:
            raise self._unreachable(real, why)
        self.reached.add(host_of(real))

    def _unreachable(self, url: str, why: str) -> NetworkError:
        return NetworkError(
            f"cannot reach {host_of(url)} ({why}): {self.request.alternatives()}",
            code="host-unreachable",
        )

    def explain(self, error: CommandError, url: str) -> TorchmillError:
        """Return the error to show when git failed on `url`."""
        cause, gist = (
            git_command.diagnose_git(error.output),
            git_command.complaint_gist(error.output),
        )
        if cause == "full":
            return disk_full_error(self.where)
        if cause == "foreign":
            return git_command.foreign_owner_error(self.where, error.output)
        if cause == "unreachable":
            return self._unreachable(url, gist)
        if cause == "damaged":
            return SourceError(
                f"{hide_password(url)}: what git received is damaged or malicious ({gist}), and was not "
                "taken: run the command again; if that does not help, use another repository",
                code="hostile-source",
            )
        return SourceError(
            f"{hide_password(url)}: git could not fetch {self.request.what} ({gist}): run the command again; "
            "if that does not help, start over (`invoke fetch` with --discard, `invoke clean --kind bisect`)",
            code="git-failed",
        )


def _ask_git(argv: Sequence[str], cwd: Path | None, host: str) -> str:
    """Return all that git prints, its complaints too; a host that is silent for long ends it."""
    heard = io.StringIO()
    process.stream(
        argv,
        cwd=cwd,
        env=git_environment(os.environ),
        log=heard,
        on_line=lambda _: None,
        waits_for=host,
    )
    return heard.getvalue()


def _pinned_commit(repository: GitCheckout) -> str:
    """Return the commit that was fetched completely last, "" if there is none."""
    return read_text(repository.folder / _PINNED_REF).strip()


def _fetch_least(
    repository: GitCheckout, commit: str, url: str, run: Run, refs: Sequence[str]
) -> str:
    """Ask for as little as the server allows: the commit, recent history, all of it. Return the commit."""
    least = ("--depth=1", "--", url, *(refs or (f"+{commit}:{_PINNED_REF}",)))
    recent, all_of_it = (
        ("--depth=50", "--", url, *_EVERYTHING),
        ("--unshallow", "--", url, *_EVERYTHING),
    )
    for rung in (least, recent, all_of_it):
        complete = not (
            repository.folder / "shallow"
        ).exists()  # git refuses to unshallow such a one
        try:
            run(repository, [*_FETCH, *(rung[1:] if complete and rung is all_of_it else rung)])
            if _pinned_commit(repository) != commit:
                repository.git("update-ref", _PINNED_REF, f"{commit}^{{commit}}")
        except CommandError as error:
            if (
                git_command.diagnose_git(error.output) != "refused"
                and "update-ref" not in error.argv
            ):
                raise
        else:
            return commit
    raise SourceError(
        f"{hide_password(url)} does not have the commit {commit}, not even in its whole history: update that "
        "repository, or fetch from another one",
        code="commit-not-found",
    )


@dataclass(frozen=True, slots=True)
class Submodule:
    """A submodule that its parent asks for."""

    checkout: GitCheckout
    commit: str  # that its parent pins
    url: str  # where its own people keep it
    path: str  # from the top of the tree
    parent: GitCheckout


def _populate_submodules(
    top: GitCheckout, transport: GitTransport, progress: ProgressDisplay
) -> dict[str, str]:
    """Bring every submodule to its pinned commit and return path -> commit.

    What is there already is kept. Raises NetworkError, SourceError or HostError for the first that fails.
    """
    found = list(_register_submodules(top, ""))
    bar = progress.task("submodules", len(found))
    pool = ThreadPoolExecutor(_CONNECTIONS, thread_name_prefix="submodule")
    running: dict[Future[tuple[Submodule, ...]], Submodule] = {}
    try:
        running |= {pool.submit(_bring_submodule, one, transport): one for one in found}
        done = 0
        while running:
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                name, nested = running.pop(future).path, future.result()
                found.extend(nested)
                running |= {pool.submit(_bring_submodule, one, transport): one for one in nested}
                done += 1
                bar.update(done, len(found), name)
    except BaseException:
        pool.shutdown(wait=False, cancel_futures=True)
        while not all(future.done() for future in running):  # one whose git ends may try once more
            process.end_children()
            wait(running, timeout=_RETRY_SECONDS)
        raise
    finally:
        pool.shutdown(wait=True)  # nobody writes into the tree once we are gone
        bar.close()
    return {
        submodule.path: submodule.commit for submodule in sorted(found, key=lambda one: one.path)
    }


def _register_submodules(parent: GitCheckout, prefix: str) -> tuple[Submodule, ...]:
    """Note the submodules of a checked-out commit in its repository, forget others, and return them."""
    pins = (
        git_command.read_submodule_pins(parent)
        if (parent.worktree / ".gitmodules").exists()
        else {}
    )
    if "[submodule " in read_text(parent.folder / "config"):
        for name in sorted(set(_urls(parent)) - {name for name, _ in pins.values()}):
            parent.git("config", "--local", "--remove-section", f"submodule.{name}")
    if not pins:
        return ()
    parent.git("submodule", "--quiet", "init")
    parent.git(
        "submodule", "--quiet", "sync"
    )  # init keeps the address of a submodule that has moved
    urls = _urls(parent)
    if missing := [path for path, (name, _) in pins.items() if name not in urls]:
        raise SourceError(
            f"{parent.worktree}: .gitmodules has no url for {missing[0]}: fetch another release",
            code="submodule-without-url",
        )
    modules = parent.folder / "modules"
    return tuple(
        Submodule(
            GitCheckout(parent.worktree / path, modules / name),
            commit,
            urls[name],
            prefix + path,
            parent,
        )
        for path, (name, commit) in pins.items()
    )


def _urls(repository: GitCheckout) -> dict[str, str]:
    """Return name -> address of the submodules that the repository lists, relative ones resolved."""
    listed = repository.git("config", "-z", "--local", "--list").split("\0")
    pairs = (entry.partition("\n") for entry in listed if entry.startswith("submodule."))
    return {
        key.removeprefix("submodule.").removesuffix(".url"): url
        for key, _, url in pairs
        if key.endswith(".url")
    }


def _bring_submodule(submodule: Submodule, transport: GitTransport) -> tuple[Submodule, ...]:
    """Lay out one submodule at its pinned commit, as git would, and return those that it has itself."""
    checkout = submodule.checkout
    if real_path(submodule.parent.worktree) not in real_path(checkout.worktree).parents:
        raise SourceError(
            f"{submodule.path}: the submodule's folder is a link out of the source: do not trust this source",
            code="hostile-source",
        )
    checkout.worktree.mkdir(parents=True, exist_ok=True)
    checkout.folder.mkdir(parents=True, exist_ok=True)
    _set_up(
        checkout,
        submodule.url,
        **{"core.worktree": os.path.relpath(checkout.worktree, checkout.folder)},
    )
    link = f"gitdir: {os.path.relpath(checkout.folder, checkout.worktree)}\n"
    (checkout.worktree / ".git").write_text(link, encoding="utf-8")
    urls = git_command.mirror_candidates(submodule.url, transport.request.mirror)
    transport.obtain(checkout, submodule.commit, urls, run_git_quietly)
    _check_out(checkout, submodule.commit, run_git_quietly)
    return _register_submodules(checkout, f"{submodule.path}/")


def _check_out(repository: GitCheckout, commit: str, run: Run) -> None:
    """Put the files of `commit` in the work tree, unless they are there."""
    resumed = (repository.folder / "index").exists()
    if resumed and git_command.read_head(repository.worktree) == commit:
        return
    run(repository, ["checkout", "--progress", "--force", "--detach", commit])
    if resumed:  # another commit's submodules and files
        repository.git("clean", "-ffdx", "--quiet")
