"""What builds of this checkout leave behind: trees, outputs, sources, environments, logs, wheels, a demo."""

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from torchmill.artifact import beside, manifest_of, record
from torchmill.errors import SuiteError
from torchmill.guard.timeline import SUFFIX
from torchmill.host import native_arch
from torchmill.housekeeping.items import Hindrance, Item, Place, just
from torchmill.housekeeping.running import Running, environment_of
from torchmill.housekeeping.usage import children, newest
from torchmill.locks import HOLDER, LOCK, taken_at
from torchmill.matrix import builds
from torchmill.removal import GONE, contents
from torchmill.source.checking import check
from torchmill.source.reading import git_folder
from torchmill.source.slot import RECORD, read

_OUTPUTS = ("raw", "stage", "packed", "verify", "ledger")  # of a cell; the rest of a folder is a tree's
_ENVIRONMENT = "pyvenv.cfg"  # without it a folder is no environment


def trees(place: Place) -> Iterator[Item]:
    """Yield the trees in which packages are compiled."""
    for tag, folder in _folders(place):
        sharing = _sharing(place, tag, folder)
        yield from _of_folder("trees", tag, folder, lambda path: not _is_output(path), *sharing)


def outputs(place: Place) -> Iterator[Item]:
    """Yield what was made of the trees, a wheel's stages in each."""
    for tag, folder in _folders(place):
        yield from _of_folder("outputs", tag, folder, _is_output)


def _folders(place: Place) -> Iterator[tuple[str, Path]]:
    """Yield the tag and the folder of all trees and cells."""
    for tag in children(place.layout.trees):
        for folder in children(tag):
            seen = folder.is_dir() and os.access(folder, os.R_OK | os.X_OK)
            if seen and not folder.name.startswith("."):
                yield tag.name, folder


def _is_output(path: Path) -> bool:
    return path.name.startswith(_OUTPUTS)


def _of_folder(
    kind: str, tag: str, folder: Path, is_meant: Callable[[Path], bool], *others: Path
) -> Iterator[Item]:
    """Yield what is meant of a folder, where there is any; who holds one of the others may use it too."""

    def find() -> list[Path]:
        return [path for path in contents(folder) if is_meant(path)]

    if inside := find():
        used = max(newest((*inside, *(path / "build" for path in inside))), taken_at(folder))
        yield Item(kind, f"{tag}/{folder.name}", find, used, tag, (folder / LOCK, *others))


def _sharing(place: Place, tag: str, tree: Path) -> Iterator[Path]:
    """Yield the locks of the cells that share a tree: who packs has given it back, and reads its kit."""
    if not (tree / HOLDER).is_file():  # it is of one cell
        return
    native = native_arch()
    for releases in place.facts.releases.values():
        for release in (one for one in releases if one.tag == tag):
            for build in builds(place.facts, place.facts.packages[release.package]):
                cell = tree.with_name(build.identifier(native))
                if tree.name.startswith(f"{build.family(native)}-") and cell.is_dir():
                    yield cell / LOCK


def sources(place: Place) -> Iterator[Item]:
    """Yield fetched sources, and what fetches left that did not come to an end."""
    for home in children(place.layout.sources):
        for folder in children(home):
            if not folder.is_dir() or folder.name.startswith(GONE):
                continue
            hidden, _, tag = folder.name.rpartition("-") if folder.name.startswith(".") else ("", "", "")
            name = f"{home.name} {tag} (unfinished)" if hidden else f"{home.name} {folder.name}"
            tag = tag or folder.name
            built = [one for said, one in _folders(place) if said == tag]
            locks = (home / LOCK, *(one / LOCK for one in built))
            used = newest((folder / RECORD, folder / "tree", *built, *(one / HOLDER for one in built)))
            yield Item("sources", name, just(folder), used, tag, locks, _keeping(place, home.name, folder))


def _keeping(place: Place, package: str, folder: Path) -> Hindrance:
    """Return what keeps a source in its place: a nox that may copy it, work of the user's that is in it."""
    known = place.facts.packages.get(package)
    named = builds(place.facts, known) if known else ()
    sessions = {environment_of(build.identifier(native_arch())) for build in named}

    def hindrance(running: Running) -> str:
        if (nox := running.builder(place.layout.root, sessions)) is not None:
            return f"in use by {nox}"
        try:
            record = read(folder)
            if record is not None:
                check(record.source)
        except SuiteError as error:
            return str(error)
        own = next(_own_refs(folder / "tree"), None)
        return f"{folder / 'tree'} has commits of yours ({own}): push them, or delete {folder}" if own else ""

    return hindrance


def _own_refs(tree: Path) -> Iterator[str]:
    """Name branches and stashes in a fetched tree and its submodules: a fetch makes none."""
    top = git_folder(tree)
    if top is None or not top.is_dir():
        return
    for folder in (top, *(head.parent for head in (top / "modules").rglob("HEAD"))):
        for path in (*(folder / "refs" / "heads").rglob("*"), folder / "refs" / "stash"):
            if path.is_file():
                yield path.relative_to(folder).as_posix()
        packed = folder / "packed-refs"
        if packed.is_file():
            words = (line.split() for line in packed.read_text("utf-8", "replace").splitlines())
            refs = (said[1] for said in words if len(said) == 2)  # noqa: PLR2004
            yield from (ref for ref in refs if ref.startswith(("refs/heads/", "refs/stash")))


def environments(place: Place) -> Iterator[Item]:
    """Yield the environments that nox made."""
    cells = [(environment_of(folder.name), tag, folder) for tag, folder in _folders(place)]
    for folder in children(place.environments):
        if not (folder / _ENVIRONMENT).is_file() or folder.name.startswith("."):
            continue
        mine = [(tag, cell) for name, tag, cell in cells if name == folder.name]
        logs = (place.layout.logs / f"{tag}-{cell.name}.log" for tag, cell in mine)
        used = newest((folder, *children(folder), *logs))
        locks = tuple(cell / LOCK for _, cell in mine)
        yield Item("environments", folder.name, just(folder), used, "", locks, _working(folder))


def _working(folder: Path) -> Hindrance:
    def hindrance(running: Running) -> str:
        found = running.within(folder) or running.session(folder)
        return f"in use by {found}" if found else ""

    return hindrance


def logs(place: Place) -> Iterator[Item]:
    """Yield the logs of builds, each with its timeline."""
    cells = {f"{tag}-{folder.name}": (tag, folder / LOCK) for tag, folder in _folders(place)}
    tags = [release.tag for releases in place.facts.releases.values() for release in releases]
    found: dict[str, list[Path]] = {}
    for path in children(place.layout.logs):
        if path.is_file() and not path.name.startswith("."):
            name = path.name.removesuffix(SUFFIX)
            found.setdefault(path.stem if name == path.name else name, []).append(path)
    for name, paths in found.items():
        tag = max((one for one in tags if name.startswith(f"{one}-")), key=len, default="")
        known = cells.get(name)
        locks = (known[1],) if known else ()
        yield Item("logs", name, just(*paths), newest(paths), known[0] if known else tag, locks)


def wheels(place: Place) -> Iterator[Item]:
    """Yield verified wheels with what stands beside them; what has no manifest was not built here."""
    for wheel in children(place.layout.dist):
        manifest = manifest_of(wheel)
        if wheel.suffix == ".whl" and manifest.is_file():
            said = record(wheel)
            tag = str(said.get("tag", ""))
            told = [path for path in beside(wheel) if path.is_file()]
            used = newest((wheel, *told))
            locks = tuple(_users(place, said))
            yield Item("wheels", wheel.name, just(*told, wheel), used, tag, locks)


def _users(place: Place, said: Mapping[str, object]) -> Iterable[Path]:
    """Yield the locks of the cell that made a wheel, and of those that may be built against it."""
    dependent = [one.name for one in place.facts.packages.values() if one.after == said.get("package")]
    tags = {release.tag for name in dependent for release in place.facts.releases.get(name, ())}
    for tag, folder in _folders(place):
        if tag in tags or (tag, folder.name) == (said.get("tag"), said.get("identifier")):
            yield folder / LOCK


def demo(place: Place) -> Iterator[Item]:
    """Yield what `nox -s demo` made."""
    folder = place.layout.demo
    if folder.is_dir():
        locks = tuple(folder.glob(f"home/.torchmill/*/*/*/{LOCK}"))
        used = newest((folder, *children(folder)))
        yield Item("demo", "demo", just(folder), used, "", locks, _working(folder))
