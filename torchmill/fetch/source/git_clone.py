"""Clone a release: a shallow fetch of one commit with its pinned submodules, resumable and verified."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from torchmill.config.model import Source
from torchmill.core import process
from torchmill.core.errors import SourceError
from torchmill.core.urls import hide_password
from torchmill.fetch.source.git_command import (
    GitCheckout,
    SubmodulePin,
    git_environment,
    read_head,
    read_submodule_pins,
    show_git_progress,
)
from torchmill.fetch.source.git_transport import (
    GitTransport,
    Run,
    remove_git_leftovers,
    run_git_quietly,
    seed_history,
)
from torchmill.fetch.source.request import SourceRequest, is_commit, mirror_candidates
from torchmill.fetch.source.source_dir import SourceDir, describe_source

if TYPE_CHECKING:
    from torchmill.core.console import ProgressBar, ProgressDisplay

_CONNECTIONS = 8  # more do not help, and hosts begin to refuse


@dataclass(frozen=True, slots=True)
class GitTarget:
    """The commit to check out, resolved before anything is downloaded."""

    commit: str
    refs: tuple[str, ...]  # how to ask for it; none: by its id
    url: str  # that answered


def fetch_git(
    request: SourceRequest, slot: SourceDir, current: Source | None, progress: ProgressDisplay
) -> Source:
    """Fetch the request with its submodules and return it; `current` is the complete source in the slot.

    Raises NetworkError, SourceError, HostError.
    """
    transport = GitTransport(request, slot.partial)
    target = resolve_commit(request, transport)
    confirm_commit(request, target)
    if current is not None and current.provider == "git" and current.commit == target.commit:
        return current
    top = _prepare(request, slot)
    with (
        (slot.partial / "fetch.log").open("a", encoding="utf-8") as log,
        contextlib.closing(progress.task(request.what)) as bar,
    ):
        run = _run_with_progress(bar, log)
        transport.obtain(top, target.commit, (target.url,), run, target.refs)
        check_out(top, target.commit, run)
    submodules = populate_submodules(top, transport, progress)
    origin = hide_password(target.url) + (f" ({request.ref})" if request.ref else "")
    source = describe_source(
        request,
        top.worktree,
        "git",
        origin,
        commit=target.commit,
        verified=request.ref is None and request.release.commit == target.commit,
        submodules=submodules,
    )
    return slot.publish(slot.partial, source, {"ref": request.ref, "origin": None})


def resolve_commit(request: SourceRequest, transport: GitTransport) -> GitTarget:
    """Return the commit of the requested tag or ref. Raises SourceError if the repository lacks it."""
    urls = mirror_candidates(request.package.repository, request.mirror)
    name = request.ref or request.release.tag
    tag, branch = f"refs/tags/{name}", f"refs/heads/{name}"
    patterns = (tag, f"{tag}^{{}}") if request.ref is None else (branch, tag, f"{tag}^{{}}")
    url, found = transport.remote_refs(urls, patterns)
    if request.ref is not None and is_commit(request.ref):
        return GitTarget(request.ref, (), url)
    if request.ref is not None and branch in found:
        return GitTarget(found[branch], (f"+{branch}:refs/remotes/origin/{name}",), url)
    if tag in found:  # an annotated tag is listed twice: the tag, and the commit it is of
        return GitTarget(found.get(f"{tag}^{{}}", found[tag]), (f"+{tag}:{tag}",), url)
    if request.ref is not None:
        raise SourceError(
            f"{hide_password(url)} has no branch or tag '{name}': check --ref (a commit is given with "
            f"all of its "
            "40 digits)",
            code="unknown-ref",
        )
    raise SourceError(
        f"{hide_password(url)} has no tag '{name}': update that repository, or use another one",
        code="unknown-ref",
    )


def confirm_commit(request: SourceRequest, target: GitTarget) -> None:
    """Raise SourceError if the tag is not at the recorded commit."""
    known = request.release.commit
    if request.ref is None and known is not None and known != target.commit:
        raise SourceError(
            f"{hide_password(target.url)}: the tag {request.release.tag} is the commit {target.commit}, but "
            f"{request.package.name} {request.release.version} was released from {known}: do not use that "
            f"repository, or request that commit with `--ref {target.commit}`",
            code="wrong-commit",
        )


def _prepare(request: SourceRequest, slot: SourceDir) -> GitCheckout:
    """Return the repository to fetch into: that of the last try, a copy of an earlier tree, or a new one."""
    top = GitCheckout(slot.partial / "tree", slot.partial / "tree" / ".git")
    if not slot.partial.exists() and not seed_history(slot):
        top.worktree.mkdir(parents=True)
    if top.folder.exists():
        remove_git_leftovers(top.folder)
    top.git("init", "--quiet", "--template=")
    top.git("config", "core.bare", "false")
    top.git("config", "remote.origin.url", request.package.repository)
    top.git("config", "remote.origin.fetch", "+refs/heads/*:refs/remotes/origin/*")
    return top


def _run_with_progress(bar: ProgressBar, log: TextIO) -> Run:
    """Return what runs git with its progress on the bar and its words in the log."""
    on_line = show_git_progress(bar)

    def run(repository: GitCheckout, arguments: Sequence[str]) -> None:
        argv = repository.argv(*arguments)
        process.stream(
            argv, cwd=repository.worktree, env=git_environment(os.environ), log=log, on_line=on_line
        )

    return run


@dataclass(frozen=True, slots=True)
class Submodule:
    """A submodule that its parent asks for."""

    parent: GitCheckout
    pin: SubmodulePin
    url: str  # where its own people keep it
    path: str  # from the top of the tree

    @property
    def checkout(self) -> GitCheckout:
        """Return its work tree and git folder."""
        return GitCheckout(
            self.parent.worktree / self.pin.path, self.parent.folder / "modules" / self.pin.name
        )


def populate_submodules(
    top: GitCheckout, transport: GitTransport, progress: ProgressDisplay
) -> dict[str, str]:
    """Bring every submodule to its pinned commit and return path -> commit.

    What is there already is kept. Raises NetworkError, SourceError or HostError for the first that fails.
    """
    found = list(register_submodules(top, ""))
    bar = progress.task("submodules", len(found))
    pool = ThreadPoolExecutor(_CONNECTIONS, thread_name_prefix="submodule")
    try:
        running = {pool.submit(bring_submodule, submodule, transport): submodule for submodule in found}
        done = 0
        while running:
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                name, nested = running.pop(future).path, future.result()
                found.extend(nested)
                running |= {
                    pool.submit(bring_submodule, submodule, transport): submodule for submodule in nested
                }
                done += 1
                bar.update(done, len(found), name)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)  # nobody writes into the tree once we are gone
        bar.close()
    return {submodule.path: submodule.pin.commit for submodule in sorted(found, key=lambda one: one.path)}


def register_submodules(parent: GitCheckout, prefix: str) -> tuple[Submodule, ...]:
    """Note the submodules of a checked-out commit in its repository, forget others, and return them."""
    wanted = read_submodule_pins(parent) if (parent.worktree / ".gitmodules").exists() else ()
    if "[submodule " in (parent.folder / "config").read_text(encoding="utf-8"):
        _forget(set(_urls(parent)) - {pin.name for pin in wanted}, parent)
    if not wanted:
        return ()
    parent.git("submodule", "--quiet", "init")
    parent.git("submodule", "--quiet", "sync")  # init keeps the address of a submodule that has moved
    urls = _urls(parent)
    missing = next((pin for pin in wanted if pin.name not in urls), None)
    if missing:
        raise SourceError(
            f"{parent.worktree}: .gitmodules has no url for {missing.path}: fetch another release",
            code="submodule-without-url",
        )
    return tuple(Submodule(parent, pin, urls[pin.name], prefix + pin.path) for pin in wanted)


def bring_submodule(submodule: Submodule, transport: GitTransport) -> tuple[Submodule, ...]:
    """Lay out one submodule at its pinned commit and return those that it has itself."""
    checkout = submodule.checkout
    _lay_out(submodule)
    urls = mirror_candidates(submodule.url, transport.request.mirror)
    transport.obtain(checkout, submodule.pin.commit, urls, run_git_quietly)
    check_out(checkout, submodule.pin.commit, run_git_quietly)
    return register_submodules(checkout, f"{submodule.path}/")


def check_out(repository: GitCheckout, commit: str, run: Callable[[GitCheckout, list[str]], None]) -> None:
    """Put the files of `commit` in the work tree, unless they are there."""
    resumed = (repository.folder / "index").exists()
    if resumed and read_head(repository.worktree) == commit:
        return
    run(repository, ["checkout", "--progress", "--force", "--detach", commit])
    if resumed:  # another commit's submodules and files
        repository.git("clean", "-ffdx", "--quiet")


def _lay_out(submodule: Submodule) -> None:
    """Make the folders and settings that `git submodule` would have made."""
    checkout = submodule.checkout
    within = submodule.parent.worktree.resolve()
    if within not in checkout.worktree.resolve().parents:
        raise SourceError(
            f"{submodule.path}: the submodule's folder is a link out of the source: do not trust this source",
            code="hostile-source",
        )
    checkout.worktree.mkdir(parents=True, exist_ok=True)
    checkout.folder.mkdir(parents=True, exist_ok=True)
    checkout.git("init", "--quiet", "--template=")
    for key, value in (
        ("core.bare", "false"),
        ("core.worktree", _relative(checkout.worktree, checkout.folder)),
        ("remote.origin.url", submodule.url),
        ("remote.origin.fetch", "+refs/heads/*:refs/remotes/origin/*"),
    ):
        checkout.git("config", key, value)
    link = f"gitdir: {_relative(checkout.folder, checkout.worktree)}\n"
    (checkout.worktree / ".git").write_text(link, encoding="utf-8")


def _relative(path: Path, start: Path) -> str:
    return Path(os.path.relpath(path, start)).as_posix()


def _urls(repository: GitCheckout) -> dict[str, str]:
    """Return name -> address of the submodules that the repository knows, relative ones resolved."""
    listed = repository.git("config", "-z", "--local", "--list").split("\0")
    pairs = (entry.partition("\n") for entry in listed if entry.startswith("submodule."))
    return {
        key.removeprefix("submodule.").removesuffix(".url"): value
        for key, _, value in pairs
        if key.endswith(".url")
    }


def _forget(names: set[str], repository: GitCheckout) -> None:
    """Drop the settings of submodules that this commit does not have."""
    for name in sorted(names):
        repository.git("config", "--local", "--remove-section", f"submodule.{name}")
