"""Clone a release: a shallow fetch of one commit with its submodules, resumable and verified.

The "top" is the repository of the package itself, as opposed to those of its submodules. A commit
"pins" a submodule at a commit of the submodule's own repository.
"""

import contextlib
import os
import shutil
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from functools import partial

from torchmill.core import process
from torchmill.core.atomic_writes import write_atomically
from torchmill.core.console import ProgressDisplay
from torchmill.core.errors import SourceError
from torchmill.core.lenient_paths import read_text, real_path
from torchmill.core.system_errors import report_unwritable
from torchmill.core.urls import hide_password, host_of
from torchmill.fetch.source import git_command, git_proof
from torchmill.fetch.source.git_command import GitCheckout, git_environment
from torchmill.fetch.source.git_transport import GitTransport, RunGit, run_git_quietly
from torchmill.fetch.source.request import SourceRequest
from torchmill.fetch.source.source import Source
from torchmill.fetch.source.source_dir import SourceDir, SourceProof, list_fetched

_END_SECONDS = 1.0  # between two tries to end the fetches of submodules
_CONNECTIONS = 8  # more do not help, and hosts begin to refuse
# Not copied with the history of a tree: what belongs to that tree, as its index and its locks.
_NOT_COPIED = shutil.ignore_patterns("index", "*.lock", "FETCH_HEAD", "hooks", "worktrees", "tmp_*")
_LEFTOVERS = ("*.lock", "tmp_pack_*", "tmp_idx_*", "tmp_obj_*")  # of a git that was killed
# Written to info/attributes, which overrides all .gitattributes: each file is checked out with
# exactly the bytes that the commit has for it.
_ATTRIBUTES = "* -text -ident -filter !eol !working-tree-encoding\n"


def fetch_git(
    request: SourceRequest, slot: SourceDir, current: Source | None, progress: ProgressDisplay
) -> Source:
    """Fetch a source with its submodules from git, and return it.

    `current` is the complete source that the slot has, or None. It is returned if it has the commit
    at which the requested tag or branch is now. Raises NetworkError, SourceError, HostError.
    """
    transport = GitTransport(request, slot.partial)
    target = _resolve_commit(request, transport)
    commit = target.commit
    if current is not None and current.provider == "git" and current.commit == commit:
        return current
    top = _prepare_repository(request, slot)
    log_path = slot.partial / "fetch.log"
    with (
        log_path.open("a", encoding="utf-8") as log,
        contextlib.closing(progress.start_bar(request.title)) as bar,
    ):
        show_progress = partial(git_command.show_git_progress, bar)

        def run(repository: GitCheckout, arguments: Sequence[str]) -> None:
            process.stream(
                repository.argv(*arguments),
                cwd=repository.worktree,
                env=git_environment(os.environ),
                log=log,
                on_line=show_progress,
                # Only a fetch waits for a host, so only the silence of a fetch is limited.
                waits_for=host_of(target.url) if arguments[0] == "fetch" else "",
            )

        transport.obtain(top, commit, (target.url,), run, target.refs)
        _check_out(top, commit, run)
    submodules = _populate_submodules(top, transport, progress)
    origin = hide_password(target.url)
    if request.ref:
        origin += f" ({request.ref})"
    # The last step before the tree becomes visible. git's own word is not taken for it.
    git_proof.require_commit(top.worktree, commit, submodules)
    is_recorded = request.ref is None and request.release.proof.commit == commit
    proof = SourceProof(commit=commit, verified=is_recorded, submodules=submodules)
    return slot.publish(slot.partial, request, "git", origin, proof=proof)


@dataclass(frozen=True, slots=True)
class _FetchTarget:
    """The commit to fetch, and how to ask for it."""

    commit: str
    refs: tuple[str, ...]  # the refspecs by which it is fetched; if empty, it is fetched by its id
    url: str  # of the repository that answered


def _resolve_commit(request: SourceRequest, transport: GitTransport) -> _FetchTarget:
    """Return the commit at which the requested tag or ref is now in the repository.

    Raises NetworkError if no repository answers, SourceError if it does not have the tag or ref, or
    has the tag at another commit than the facts record.
    """
    urls = git_command.mirror_candidates(request.package.source.repository, request.mirror)
    ref = request.ref
    name = ref or request.release.tag
    tag = f"refs/tags/{name}"
    # An annotated tag is listed twice: with its own id, and then with the id of its commit.
    tagged_commit = f"{tag}^{{}}"
    branch = f"refs/heads/{name}"
    patterns = [tag, tagged_commit]
    if ref is not None:
        patterns.insert(0, branch)
    url, commits = transport.remote_refs(urls, patterns)
    if ref is not None and git_command.is_commit(ref):
        return _FetchTarget(ref, (), url)
    if ref is not None and branch in commits:
        refs = (f"+{branch}:refs/remotes/origin/{name}",)
        return _FetchTarget(commits[branch], refs, url)
    if tag not in commits:
        if ref is None:
            kind = "tag"
            cure = "update that repository, or use another one"
        else:
            kind = "branch or tag"
            cure = "check --ref (a commit is given with all of its 40 digits)"
        raise SourceError(
            f"{hide_password(url)} has no {kind} '{name}': {cure}", code="unknown-ref"
        )
    commit = commits.get(tagged_commit, commits[tag])
    recorded = request.release.proof.commit
    if ref is None and recorded not in {None, commit}:
        raise SourceError(
            f"{hide_password(url)}: the tag {name} is the commit {commit}, but "
            f"{request.package.name} {request.release.version} was released from {recorded}: do "
            f"not use that repository, or request that commit with `--ref {commit}`",
            code="wrong-commit",
        )
    return _FetchTarget(commit, (f"+{tag}:{tag}",), url)


def _prepare_repository(request: SourceRequest, slot: SourceDir) -> GitCheckout:
    """Return the top repository to fetch into.

    It is that of an interrupted try, or else a copy of the history of another fetched tree, or else
    a new one.
    """
    top = GitCheckout(slot.partial / "tree", slot.partial / "tree" / ".git")
    if slot.partial.exists() or not _seed_history(slot):
        # An interrupted try may have ended before it made this folder.
        top.worktree.mkdir(parents=True, exist_ok=True)
    for pattern in _LEFTOVERS:
        for leftover in top.folder.rglob(pattern):
            if leftover.is_file():
                leftover.unlink(missing_ok=True)
    _set_up(top, request.package.source.repository)
    return top


def _set_up(repository: GitCheckout, url: str, **settings: str) -> None:
    """Make a repository with `url` as its origin; if it exists, correct its settings."""
    # The templates of the system may contain hooks, so an empty --template names none.
    repository.git("init", "--quiet", "--template=")
    write_atomically(repository.folder / "info/attributes", _ATTRIBUTES)
    settings = {
        # `git init` makes a bare repository in a folder that is not called .git, as modules/NAME.
        "core.bare": "false",
        **settings,
        "remote.origin.url": url,
        "remote.origin.fetch": "+refs/heads/*:refs/remotes/origin/*",
    }
    for key, value in settings.items():
        repository.git("config", key, value)


def _seed_history(slot: SourceDir) -> bool:
    """Copy the history of a tree that was fetched before into the partial folder.

    git then fetches only what is new, and the user's branches and stashes are in the new tree, too.
    Returns False if no tree of the package was fetched by git.
    """
    folders = [folder / "tree" / ".git" for folder in (slot.folder, *list_fetched(slot.home))]
    origin = next((folder for folder in folders if folder.is_dir()), None)
    if origin is None:
        return False
    # Copied under another name first: the next run would take half of a copy under the name of the
    # partial folder for the repository of an interrupted try, and go on with it.
    fresh = slot.partial.with_name(f".seeding-{slot.tag}")
    shutil.rmtree(fresh, ignore_errors=True)
    with report_unwritable(fresh):
        shutil.copytree(
            origin,
            fresh / "tree" / ".git",
            symlinks=True,
            ignore=_NOT_COPIED,
            copy_function=git_command.copy_or_link,
        )
    fresh.rename(slot.partial)
    return True


@dataclass(frozen=True, slots=True)
class Submodule:
    """A submodule, at the commit that its parent pins."""

    checkout: GitCheckout
    commit: str
    url: str  # of its repository, as .gitmodules has it
    path: str  # from the top of the tree
    parent: GitCheckout


def _populate_submodules(
    top: GitCheckout, transport: GitTransport, progress: ProgressDisplay
) -> dict[str, str]:
    """Check out every submodule at its pinned commit; return the commits by path.

    Several are fetched at a time. Nested submodules are known only when their parents are checked
    out. Submodules that an earlier try has completed are not fetched again. Raises NetworkError,
    SourceError or HostError for the first that fails.
    """
    submodules = list(_register_submodules(top, ""))
    bar = progress.start_bar("submodules", len(submodules))
    pool = ThreadPoolExecutor(_CONNECTIONS, thread_name_prefix="submodule")
    running: dict[Future[tuple[Submodule, ...]], Submodule] = {}

    def start(batch: Sequence[Submodule]) -> None:
        for submodule in batch:
            running[pool.submit(_bring_submodule, submodule, transport)] = submodule

    try:
        start(submodules)
        done = 0
        while running:
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                finished = running.pop(future)
                nested = future.result()
                submodules.extend(nested)
                start(nested)
                done += 1
                bar.update(done, len(submodules), finished.path)
    except BaseException:
        transport.stopped.set()
        pool.shutdown(wait=False, cancel_futures=True)
        # Repeated, because a thread may start its next git at this moment.
        while not all(future.done() for future in running):
            process.end_children()
            wait(running, timeout=_END_SECONDS)
        raise
    finally:
        pool.shutdown(wait=True)  # no thread writes into the tree after this function has ended
        bar.close()
    submodules.sort(key=lambda submodule: submodule.path)
    return {submodule.path: submodule.commit for submodule in submodules}


def _register_submodules(parent: GitCheckout, prefix: str) -> tuple[Submodule, ...]:
    """Return the submodules of a checked-out commit, and write them into git's settings.

    Settings of submodules that the commit does not have, but an earlier commit had, are removed:
    `git submodule` would act on them. `prefix` is the path of the parent from the top of the tree
    ("" or "a/b/").
    """
    pins: dict[str, tuple[str, str]] = {}
    if (parent.worktree / ".gitmodules").exists():
        pins = git_command.read_submodule_pins(parent)
    # The file is searched first, because to start git takes longer.
    if "[submodule " in read_text(parent.folder / "config"):
        pinned_names = {name for name, _ in pins.values()}
        for name in sorted(_submodule_urls(parent).keys() - pinned_names):
            parent.git("config", "--local", "--remove-section", f"submodule.{name}")
    if not pins:
        return ()
    parent.git("submodule", "--quiet", "init")
    # `init` keeps the address of a submodule that the settings have already; `sync` corrects it if
    # the submodule has moved between two releases.
    parent.git("submodule", "--quiet", "sync")
    urls = _submodule_urls(parent)
    submodules = []
    for path, (name, commit) in pins.items():
        if name not in urls:
            raise SourceError(
                f"{parent.worktree}: .gitmodules has no url for {path}: fetch another release",
                code="submodule-without-url",
            )
        checkout = GitCheckout(parent.worktree / path, parent.folder / "modules" / name)
        submodules.append(Submodule(checkout, commit, urls[name], prefix + path, parent))
    return tuple(submodules)


def _submodule_urls(repository: GitCheckout) -> dict[str, str]:
    """Return the URLs of a repository's submodules by name, from its settings.

    There `git submodule init` has made the relative URLs of .gitmodules absolute.
    """
    urls = {}
    for entry in repository.git("config", "-z", "--local", "--list").split("\0"):
        key, _, value = entry.partition("\n")
        if key.startswith("submodule.") and key.endswith(".url"):
            urls[key.removeprefix("submodule.").removesuffix(".url")] = value
    return urls


def _bring_submodule(submodule: Submodule, transport: GitTransport) -> tuple[Submodule, ...]:
    """Check out one submodule at its pinned commit, and return the submodules that it has itself.

    The folders are laid out as by `git submodule update`, which is not used because it fetches one
    submodule after the other.
    """
    checkout = submodule.checkout
    # A hostile commit may have a link, and a submodule "below" the link.
    if real_path(submodule.parent.worktree) not in real_path(checkout.worktree).parents:
        raise SourceError(
            f"{submodule.path}: the submodule's folder is a link out of the source: do not trust "
            "this source",
            code="hostile-source",
        )
    checkout.worktree.mkdir(parents=True, exist_ok=True)
    checkout.folder.mkdir(parents=True, exist_ok=True)
    # The paths are relative in both directions, so that the tree can be moved.
    worktree = os.path.relpath(checkout.worktree, checkout.folder)
    folder = os.path.relpath(checkout.folder, checkout.worktree)
    _set_up(checkout, submodule.url, **{"core.worktree": worktree})
    (checkout.worktree / ".git").write_text(f"gitdir: {folder}\n", encoding="utf-8")
    urls = git_command.mirror_candidates(submodule.url, transport.request.mirror)
    transport.obtain(checkout, submodule.commit, urls, run_git_quietly)
    _check_out(checkout, submodule.commit, run_git_quietly)
    return _register_submodules(checkout, f"{submodule.path}/")


def _check_out(repository: GitCheckout, commit: str, run: RunGit) -> None:
    """Put the files of `commit` into the work tree, unless an earlier try has done so.

    Files that an earlier try has left, and that `commit` does not have, are removed.
    """
    # git writes the index during a checkout, and HEAD at its end.
    is_resumed = (repository.folder / "index").exists()
    if is_resumed and git_command.read_head(repository.worktree) == commit:
        return
    # An interrupted checkout may have left files, which --force overwrites.
    run(repository, ["checkout", "--progress", "--force", "--detach", commit])
    if is_resumed:
        # Remove files of another commit, and, by the second f, the repositories of its submodules.
        repository.git("clean", "-ffdx", "--quiet")
