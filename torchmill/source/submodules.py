"""Submodules, nested ones too: exactly the pinned commits, several at a time, as git itself lays them out."""

import os
from collections.abc import Callable
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path

from torchmill.errors import SourceError
from torchmill.source.gitcommand import Checkout
from torchmill.source.mirror import candidates
from torchmill.source.reading import Pin, head, pins
from torchmill.source.request import Progress
from torchmill.source.transport import Transport, quietly

AT_ONCE = 8  # connections; more does not help, and hosts begin to refuse


@dataclass(frozen=True, slots=True)
class Submodule:
    """A submodule that its parent asks for."""

    parent: Checkout
    pin: Pin
    url: str  # where its own people keep it
    path: str  # from the top of the tree

    @property
    def checkout(self) -> Checkout:
        """Return where it is laid out."""
        return Checkout(self.parent.worktree / self.pin.path, self.parent.folder / "modules" / self.pin.name)


def populate(top: Checkout, transport: Transport, progress: Progress) -> dict[str, str]:
    """Bring every submodule to its pinned commit and return path -> commit.

    What is there already is kept. Raises NetworkError, SourceError or HostError for the first that fails.
    """
    found = list(register(top, ""))
    bar = progress.task("submodules", len(found))
    pool = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="submodule")
    try:
        running = {pool.submit(bring, submodule, transport): submodule for submodule in found}
        done = 0
        while running:
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                name, nested = running.pop(future).path, future.result()
                found.extend(nested)
                running |= {pool.submit(bring, submodule, transport): submodule for submodule in nested}
                done += 1
                bar.update(done, len(found), name)
    finally:
        pool.shutdown(wait=True, cancel_futures=True)  # nobody writes into the tree once we are gone
        bar.close()
    return {submodule.path: submodule.pin.commit for submodule in sorted(found, key=lambda one: one.path)}


def register(parent: Checkout, prefix: str) -> tuple[Submodule, ...]:
    """Note the submodules of a checked-out commit in its repository, forget others, and return them."""
    wanted = pins(parent) if (parent.worktree / ".gitmodules").exists() else ()
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
            f"{parent.worktree}: .gitmodules has no url for {missing.path}: fetch another release"
        )
    return tuple(Submodule(parent, pin, urls[pin.name], prefix + pin.path) for pin in wanted)


def bring(submodule: Submodule, transport: Transport) -> tuple[Submodule, ...]:
    """Lay out one submodule at its pinned commit and return those that it has itself."""
    checkout = submodule.checkout
    _lay_out(submodule)
    urls = candidates(submodule.url, transport.request.mirror)
    transport.obtain(checkout, submodule.pin.commit, urls, quietly)
    check_out(checkout, submodule.pin.commit, quietly)
    return register(checkout, f"{submodule.path}/")


def check_out(repository: Checkout, commit: str, run: Callable[[Checkout, list[str]], None]) -> None:
    """Put the files of `commit` in the work tree, unless they are there."""
    resumed = (repository.folder / "index").exists()
    if resumed and head(repository.worktree) == commit:
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
            f"{submodule.path}: the submodule's folder is a link out of the source: do not trust this source"
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


def _urls(repository: Checkout) -> dict[str, str]:
    """Return name -> address of the submodules that the repository knows, relative ones resolved."""
    listed = repository.git("config", "-z", "--local", "--list").split("\0")
    pairs = (entry.partition("\n") for entry in listed if entry.startswith("submodule."))
    return {
        key.removeprefix("submodule.").removesuffix(".url"): value
        for key, _, value in pairs
        if key.endswith(".url")
    }


def _forget(names: set[str], repository: Checkout) -> None:
    """Drop the settings of submodules that this commit does not have."""
    for name in sorted(names):
        repository.git("config", "--local", "--remove-section", f"submodule.{name}")
