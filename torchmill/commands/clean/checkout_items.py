"""Finders of the items that builds of a checkout leave behind: trees, sources, logs, wheels, more.

A tag is that of a release: the builds of a release are in a folder named by its tag.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from millguard.timeline import SUFFIX

from torchmill.commands.clean.in_use import RunningProcesses
from torchmill.commands.clean.items import (
    Hindrance,
    StoragePlace,
    StoredItem,
    build_at_work,
    list_cells,
    list_folders,
    stored,
)
from torchmill.core.deletion import DELETED_NAME
from torchmill.core.errors import TorchmillError
from torchmill.core.git_index import list_tracked
from torchmill.core.lenient_paths import read_text
from torchmill.core.locks import HOLDER_FILE, LOCK_FILE, list_contents
from torchmill.core.paths import nox_environment_name
from torchmill.fetch.source.git_command import git_folder
from torchmill.fetch.source.source_dir import RECORD, read_record
from torchmill.fetch.source.verification import check_source
from torchmill.host.disk_usage import list_children, newest_change
from torchmill.host.native import native_arch
from torchmill.plan.matrix import all_builds
from torchmill.wheel.dist_files import (
    DEBUG_SUFFIX,
    companion_paths,
    document_path,
    manifest_path,
    read_manifest,
)

# Names that nox gives: for a build, for a long path, and for `nox -s gpu`.
_ENVIRONMENT = re.compile(r"\w+-\d+-\d+t?-\w+|[0-9a-f]{8}|gpu-\w{8}")
_DELIVERED = re.compile(rb"\.whl|\.conda|\.zip")  # in the names of the products in dist/
# Beginnings of the names of a cell's outputs; everything else in its folder is part of the tree.
_OUTPUTS = ("raw", "stage", "packed", "verify", "offers", "ledger")


def find_trees(place: StoragePlace) -> Iterator[StoredItem]:
    """Yield the trees in which packages are compiled: those of single cells and shared ones."""
    for tag, folder in list_cells(place):
        locks = _locks_of_sharing_cells(place, tag, folder)
        yield from _part_of_cell("trees", tag, folder, partial(_list_tree, folder), locks)


def find_outputs(place: StoragePlace) -> Iterator[StoredItem]:
    """Yield the outputs of each cell: wheels in the making, and their records."""
    for tag, folder in list_cells(place):
        yield from _part_of_cell("outputs", tag, folder, partial(_list_outputs, folder))


def _part_of_cell(
    kind: str,
    tag: str,
    folder: Path,
    find: Callable[[], list[Path]],
    other_locks: Iterable[Path] = (),
) -> Iterator[StoredItem]:
    """Yield one item for the paths in a cell's folder that `find` returns; none without paths.

    `tag` is that of the cell's release, and `other_locks` are those of other cells that use the
    item.
    """
    paths = find()
    if paths:
        # Compiling changes the date of source/build, and not that of source/.
        builds = [path / "build" for path in paths]
        used = newest_change((*paths, *builds, folder / HOLDER_FILE))
        locks = (folder / LOCK_FILE, *other_locks)
        yield StoredItem(kind, f"{tag}/{folder.name}", find, used, tag, locks)


def _list_outputs(folder: Path) -> list[Path]:
    """Return the outputs in the folder of a cell."""
    return [path for path in list_contents(folder) if path.name.startswith(_OUTPUTS)]


def _list_tree(folder: Path) -> list[Path]:
    """Return the parts of the tree in the folder of a cell: everything but its outputs."""
    return [path for path in list_contents(folder) if not path.name.startswith(_OUTPUTS)]


def _locks_of_sharing_cells(place: StoragePlace, tag: str, tree: Path) -> Iterator[Path]:
    """Yield the paths of the locks of the cells that share a tree; none if a cell has it alone.

    The Pythons of a variant are compiled in one tree, one after the other. The lock of the tree is
    not enough: a cell that packs its wheel has released it, but still reads tools in the tree.
    """
    if not (tree / HOLDER_FILE).is_file():
        return  # it is the folder of a single cell
    native = native_arch()
    for releases in place.facts.releases.values():
        for release in releases:
            if release.tag != tag:
                continue
            for build in all_builds(place.facts, place.facts.packages[release.package]):
                cell = tree.with_name(build.identifier(native))
                if tree.name.startswith(f"{build.family(native)}-") and cell.is_dir():
                    yield cell / LOCK_FILE


def find_sources(place: StoragePlace) -> Iterator[StoredItem]:
    """Yield fetched sources, and unfinished fetches."""
    for package_folder in list_folders(place.layout.sources):
        for folder in list_folders(package_folder):
            if not folder.name.startswith(DELETED_NAME):
                yield _source_item(place, package_folder.name, folder)


def _source_item(place: StoragePlace, package: str, folder: Path) -> StoredItem:
    """Return the item of the source in a folder.

    The cells of its release use it: their trees are copies of it.
    """
    tag = folder.name
    name = f"{package} {tag}"
    if tag.startswith("."):
        # A fetch works in hidden folders of SourceDir, such as ".partial-v1.13.1".
        tag = tag.partition("-")[2] or tag
        name = f"{package} {tag} (unfinished)"
    cells = [cell for cell_tag, cell in list_cells(place) if cell_tag == tag]
    holders = [cell / HOLDER_FILE for cell in cells]
    cell_locks = [cell / LOCK_FILE for cell in cells]
    return stored(
        "sources",
        name,
        folder,
        touched=(folder / RECORD, folder / "tree", *cells, *holders),
        tag=tag,
        locks=(folder.with_name(LOCK_FILE), *cell_locks),
        hindrance=partial(_source_hindrance, place, folder),
    )


def _source_hindrance(place: StoragePlace, folder: Path, processes: RunningProcesses) -> str:
    """Return why a source must stay, as a clause; "" if it may go.

    A build may be copying it, or it has work of the user's: edited files, commits, a stash.
    """
    build = build_at_work(place, folder)(processes)
    if build:
        return build
    tree = folder / "tree"
    try:
        record = read_record(folder)
        if record is not None:
            check_source(record.source)
    except TorchmillError as error:
        return str(error)
    reference = next(_user_references(tree), None)
    if reference is None:
        return ""
    return f"{tree} has commits of yours ({reference}): push them, or delete {folder}"


def _user_references(tree: Path) -> Iterator[str]:
    """Yield the branches and the stash in a fetched tree and its submodules, "refs/heads/spam".

    They are the user's: `invoke fetch` makes none.
    """
    top = git_folder(tree)
    if top is None or not top.is_dir():
        return
    modules = [head.parent for head in (top / "modules").rglob("HEAD")]
    for folder in (top, *modules):
        for path in (*(folder / "refs" / "heads").rglob("*"), folder / "refs" / "stash"):
            if path.is_file():
                yield path.relative_to(folder).as_posix()
        # git moves references from files of their own into this one: git-pack-refs(1).
        for line in read_text(folder / "packed-refs").splitlines():
            reference = line.partition(" ")[2]
            if reference.startswith(("refs/heads/", "refs/stash")):
                yield reference


def find_environments(place: StoragePlace) -> Iterator[StoredItem]:
    """Yield the environments that nox made for builds; others in its folder are the user's."""
    cells: dict[str, list[tuple[str, Path]]] = {}  # by the name of their environment
    for tag, cell in list_cells(place):
        cells.setdefault(nox_environment_name(cell.name), []).append((tag, cell))
    for folder in list_folders(place.environments):
        if not _ENVIRONMENT.fullmatch(folder.name) or not (folder / "pyvenv.cfg").is_file():
            continue
        users = cells.get(folder.name, [])
        logs = [place.layout.logs / f"{tag}-{cell.name}.log" for tag, cell in users]
        yield stored(
            "environments",
            folder.name,
            folder,
            # A build for which everything is installed changes only its log.
            touched=(folder, *list_children(folder), *logs),
            locks=[cell / LOCK_FILE for _, cell in users],
            hindrance=build_at_work(place, folder),
        )


def find_logs(place: StoragePlace) -> Iterator[StoredItem]:
    """Yield the logs of builds, each with its timeline."""
    cells = {f"{tag}-{cell.name}": (tag, cell) for tag, cell in list_cells(place)}
    tags: set[str] = set()
    for releases in place.facts.releases.values():
        tags.update(release.tag for release in releases)
    files: dict[str, list[Path]] = {}
    for path in list_children(place.layout.logs):
        if path.is_file() and not path.name.startswith("."):
            name = path.name.removesuffix(SUFFIX).removesuffix(path.suffix)
            files.setdefault(name, []).append(path)
    for name, paths in files.items():
        if name in cells:
            tag, cell = cells[name]
            yield stored("logs", name, *paths, tag=tag, locks=(cell / LOCK_FILE,))
        else:
            fitting = [tag for tag in tags if name.startswith(f"{tag}-")]
            # The longest tag, because one may begin with another: "v1.0.0" and "v1.0.0-rc1".
            yield stored("logs", name, *paths, tag=max(fitting, key=len, default=""))


def find_home(place: StoragePlace, kind: str) -> Iterator[StoredItem]:
    """Yield one item for all that is in the folder of a command; none if that is empty.

    `kind` is "demo", "bisect", "rebuild", "cluster" or "new-torch". The first four have trees, sources and a
    dist/ of their own.
    """
    folder: Path = getattr(place.layout, kind.replace("-", "_"))
    paths = list_contents(folder)
    if paths:
        # The cells that the command builds, in a home of its own, have their locks there.
        home = replace(place.layout, root=folder / "home")
        inner_locks = home.trees.glob(f"*/*/{LOCK_FILE}")
        yield stored(
            kind,
            kind,
            *paths,
            touched=(folder, *paths),
            locks=(*folder.glob(LOCK_FILE), *inner_locks),
            hindrance=lambda processes: processes.using(folder),
        )


def find_wheels(place: StoragePlace) -> Iterator[StoredItem]:
    """Yield the verified wheels in dist/, each with the files that belong to it.

    A wheel without a manifest was not built here, and is left out.
    """
    hindrance_of = _tracked_hindrance(place)
    for wheel in list_children(place.layout.dist):
        if wheel.suffix != ".whl" or not manifest_path(wheel).is_file():
            continue
        manifest = read_manifest(wheel)
        # The manifest goes first, and the wheel last: without a manifest a wheel does not count.
        possible = (*companion_paths(wheel), document_path(wheel, DEBUG_SUFFIX))
        companions = [path for path in possible if path.is_file()]
        yield stored(
            "wheels",
            wheel.name,
            *companions,
            wheel,
            tag=str(manifest.get("tag", "")),
            locks=_locks_of_wheel(place, manifest),
            hindrance=hindrance_of(wheel),
        )


def _tracked_hindrance(place: StoragePlace) -> Callable[[Path], Hindrance | None]:
    """Return a function that takes a file in dist/ and returns its hindrance, or None.

    A file that git tracks came with a repository, and is not ours to remove. If git's index cannot
    be read, every file may be tracked.
    """
    entries = list_tracked(place.layout.dist, _DELIVERED)
    tracked = {place.layout.dist / entry.path for entry in entries or ()}

    def hindrance_of(path: Path) -> Hindrance | None:
        if entries is None:
            return lambda _: "git's index cannot be read, so git may track it"
        return (lambda _: "git tracks it") if path in tracked else None

    return hindrance_of


def _locks_of_wheel(place: StoragePlace, manifest: Mapping[str, object]) -> Iterator[Path]:
    """Yield the locks of the cells that may use a wheel: its own, and of the packages built on it.

    Which wheel such a package will be built against is not known here, so that all its cells count.
    """
    tags: set[str] = set()
    for package in place.facts.packages.values():
        if package.after == manifest.get("package"):
            releases = place.facts.releases.get(package.name, ())
            tags.update(release.tag for release in releases)
    own_cell = (manifest.get("tag"), manifest.get("identifier"))
    for tag, folder in list_cells(place):
        if tag in tags or (tag, folder.name) == own_cell:
            yield folder / LOCK_FILE


def find_packages(place: StoragePlace) -> Iterator[StoredItem]:
    """Yield the conda packages and the archives of libtorch in dist/, each with its record.

    An archive without a record was not made here, and is left out.
    """
    dist = place.layout.dist
    paths = []
    for machine in list_folders(place.layout.conda):
        paths += [path for path in list_children(machine) if path.suffix == ".conda"]
    archives = sorted(dist.glob("lib*.zip"))
    paths += [archive for archive in archives if manifest_path(archive).is_file()]
    hindrance_of = _tracked_hindrance(place)
    for path in paths:
        record = manifest_path(path)
        yield stored(
            "packages",
            path.relative_to(dist).as_posix(),
            *([record] if record.is_file() else []),
            path,
            touched=(path,),
            hindrance=hindrance_of(path),
        )


def find_published(place: StoragePlace, kind: str) -> Iterator[StoredItem]:
    """Yield the folder of what is published; none if there is no such folder.

    `kind` is "index", "channel" or "images". They are listed, but never removed: others may use
    them.
    """
    folder: Path = getattr(place.layout, kind)
    if folder.is_dir():
        yield stored(kind, str(folder), folder)
