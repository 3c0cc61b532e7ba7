"""The git provider: a shallow clone with pinned submodules, resumable, verified by its commit."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TextIO

from torchmill import process
from torchmill.errors import SourceError
from torchmill.model import Source
from torchmill.source import progress as git_progress
from torchmill.source.gitcommand import Checkout, environment
from torchmill.source.mirror import candidates, shown
from torchmill.source.pyproject import build_backend
from torchmill.source.request import Bar, Progress, Request, is_commit
from torchmill.source.seed import seed, tidy
from torchmill.source.slot import Slot
from torchmill.source.submodules import check_out, populate
from torchmill.source.transport import Run, Transport


@dataclass(frozen=True, slots=True)
class Target:
    """What is to be checked out, found out before anything is downloaded."""

    commit: str
    refs: tuple[str, ...]  # how to ask for it; none: by its id
    url: str  # that answered


def fetch(request: Request, slot: Slot, whole: Source | None, progress: Progress) -> Source:
    """Fetch what is asked for, with its submodules, and return it; `whole` is what the slot holds already.

    Raises NetworkError, SourceError, HostError.
    """
    transport = Transport(request, slot.partial)
    target = resolve(request, transport)
    confirm(request, target)
    if whole is not None and whole.provider == "git" and whole.commit == target.commit:
        return whole
    top = _prepare(request, slot)
    with (slot.partial / "fetch.log").open("a", encoding="utf-8") as log:
        bar = progress.task(request.what)
        try:
            run = _shown(bar, log)
            transport.obtain(top, target.commit, (target.url,), run, target.refs)
            check_out(top, target.commit, run)
        finally:
            bar.close()
    submodules = populate(top, transport, progress)
    source = Source(
        package=request.package.name,
        version=request.release.version,
        tag=request.release.tag,
        provider="git",
        origin=_origin(request, target),
        commit=target.commit,
        path=slot.partial / "tree",
        verified=request.ref is None and request.release.commit == target.commit,
        submodules=submodules,
        build_backend=build_backend(top.worktree),
    )
    return slot.publish(slot.partial, source, {"ref": request.ref, "origin": None})


def resolve(request: Request, transport: Transport) -> Target:
    """Find out which commit is meant. Raises SourceError where the repository does not have it."""
    urls = candidates(request.package.repository, request.mirror)
    name = request.ref or request.release.tag
    tag, branch = f"refs/tags/{name}", f"refs/heads/{name}"
    patterns = (tag, f"{tag}^{{}}") if request.ref is None else (branch, tag, f"{tag}^{{}}")
    url, found = transport.remote_refs(urls, patterns)
    if request.ref is not None and is_commit(request.ref):
        return Target(request.ref, (), url)
    if request.ref is not None and branch in found:
        return Target(found[branch], (f"+{branch}:refs/remotes/origin/{name}",), url)
    if tag in found:  # an annotated tag is listed twice: the tag, and the commit it is of
        return Target(found.get(f"{tag}^{{}}", found[tag]), (f"+{tag}:{tag}",), url)
    if request.ref is not None:
        raise SourceError(
            f"{shown(url)} has no branch or tag '{name}': check --ref (a commit is given with all of its "
            "40 digits)"
        )
    raise SourceError(
        f"{shown(url)} has no tag '{name}': bring that repository up to date, or use another one"
    )


def confirm(request: Request, target: Target) -> None:
    """Raise SourceError where the tag is not the commit that was recorded."""
    known = request.release.commit
    if request.ref is None and known is not None and known != target.commit:
        raise SourceError(
            f"{shown(target.url)}: the tag {request.release.tag} is the commit {target.commit}, but "
            f"{request.package.name} {request.release.version} was released from {known}: do not use that "
            f"repository, or say what you want with `--ref {target.commit}`"
        )


def _prepare(request: Request, slot: Slot) -> Checkout:
    """Return the repository to fetch into: that of the last try, a copy of an earlier tree, or a new one."""
    top = Checkout(slot.partial / "tree", slot.partial / "tree" / ".git")
    if not slot.partial.exists() and not seed(slot):
        top.worktree.mkdir(parents=True)
    if top.folder.exists():
        tidy(top.folder)
    top.git("init", "--quiet", "--template=")
    top.git("config", "core.bare", "false")
    top.git("config", "remote.origin.url", request.package.repository)
    top.git("config", "remote.origin.fetch", "+refs/heads/*:refs/remotes/origin/*")
    return top


def _shown(bar: Bar, log: TextIO) -> Run:
    """Return what runs git with its progress on the bar and its words in the log."""
    on_line = git_progress.showing(bar)

    def run(repository: Checkout, arguments: Sequence[str]) -> None:
        argv = repository.argv(*arguments)
        process.stream(argv, cwd=repository.worktree, env=environment(os.environ), log=log, on_line=on_line)

    return run


def _origin(request: Request, target: Target) -> str:
    return f"{shown(target.url)} ({request.ref})" if request.ref else shown(target.url)
