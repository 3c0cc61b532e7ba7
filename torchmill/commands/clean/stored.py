"""What is stored for a checkout and a user: where each kind lies, when it was last needed, what keeps it."""

import contextlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from millguard.timeline import SUFFIX

from torchmill.commands.clean.in_use import RunningProcesses
from torchmill.config.facts import Facts
from torchmill.core.deletion import DELETED_NAME, is_being_deleted
from torchmill.core.errors import TorchmillError
from torchmill.core.git_index import list_tracked
from torchmill.core.homes import MARK
from torchmill.core.lenient_paths import read_text
from torchmill.core.locks import HOLDER_FILE, LOCK_FILE, list_contents
from torchmill.core.paths import (
    CACHE_FILES,
    CONFIGS,
    EMPTY_ENVIRONMENTS,
    HOMES,
    PROOFS_CACHE,
    Layout,
    nox_environment_name,
)
from torchmill.fetch.source.git_command import git_folder
from torchmill.fetch.source.source_dir import RECORD, read_record
from torchmill.fetch.source.verification import check_source
from torchmill.host import provisioned
from torchmill.host.disk_usage import list_children, newest_change
from torchmill.host.native import native_arch
from torchmill.plan.matrix import all_builds
from torchmill.wheel.dist_files import companion_paths, manifest_path, read_manifest

Hindrance = Callable[[RunningProcesses], str]
Finder = Callable[[], Iterable[Path]]

TOOLS = (
    "gates",
    "stand-ins",
    "compilers",
    "programs",
    CONFIGS,
    EMPTY_ENVIRONMENTS,
)  # folders of the cache
HISTORY = "units.sqlite"
_CACHES = ("members", "debian", "upstream", "downloads", "ccache", "sccache", PROOFS_CACHE)
CACHE_NAMES = frozenset({*_CACHES, *TOOLS, *CACHE_FILES, HISTORY, HOMES, provisioned.FOLDER})
_STATE_NAMES = ("trees", "sources", "logs", "demo", "bisect", "images", "cluster", "channel", MARK)
_ENVIRONMENT = re.compile(
    r"\w+-\d+-\d+t?-\w+|[0-9a-f]{8}|gpu-\w{8}"
)  # of a build, with a long path, of `nox -s gpu`
_DELIVERED = re.compile(rb"\.whl|\.conda|\.zip")  # in the names of files that `dist/` has
_OUTPUTS = (
    "raw",
    "stage",
    "packed",
    "verify",
    "offers",
    "ledger",
)  # of a cell; everything else is part of the tree


@dataclass(frozen=True, slots=True)
class StoragePlace:
    """Where to look: the folders of a checkout and its user, nox's environments, and the facts."""

    layout: Layout
    environments: Path
    facts: Facts


@dataclass(frozen=True, slots=True)
class StoredItem:
    """One thing that `invoke clean` removes or leaves as a whole."""

    kind: str
    name: str  # within its kind: "v1.13.1/wheel-3.10-cpu"
    find: Finder  # its files and folders now; they may change until its locks are held
    used: float  # when it was last needed, in seconds since the epoch
    tag: str = ""  # of its release; "" for none
    locks: tuple[Path, ...] = ()  # held by whoever uses it
    hindrance: Hindrance | None = (
        None  # why it must stay for now, as a clause; "" if it may go; None: locks say it all
    )

    def find_hindrance(self, processes: RunningProcesses) -> str:
        """Return why it must stay for now beside its locks, as a clause; "" if it may go."""
        return self.hindrance(processes) if self.hindrance else ""


def stored(
    kind: str,
    name: str,
    *paths: Path,
    touched: Iterable[Path] = (),
    tag: str = "",
    locks: Iterable[Path] = (),
    hindrance: Hindrance | None = None,
) -> StoredItem:
    """Return an item of fixed paths, last needed when the newest of `touched` (or of them) changed."""
    return StoredItem(
        kind,
        name,
        lambda: paths,
        newest_change(tuple(touched) or paths),
        tag,
        tuple(locks),
        hindrance,
    )


def _list_folders(folder: Path) -> list[Path]:
    """Return the folders in a folder, by name, without links: what these lead to is not ours to remove."""
    return [path for path in list_children(folder) if path.is_dir() and not path.is_symlink()]


# What builds of this checkout leave behind


def _cells(place: StoragePlace) -> Iterator[tuple[str, Path]]:
    """Yield the tag and the folder of all trees and cells."""
    for tag in _list_folders(place.layout.trees):
        for folder in _list_folders(tag):
            readable = os.access(folder, os.R_OK | os.X_OK)
            if readable and not folder.name.startswith("."):
                yield tag.name, folder


def find_trees(place: StoragePlace, kind: str = "trees") -> Iterator[StoredItem]:
    """Yield the trees in which packages are compiled, or what each cell made of its tree ("outputs")."""

    def find(folder: Path) -> list[Path]:
        return [
            path
            for path in list_contents(folder)
            if path.name.startswith(_OUTPUTS) == (kind == "outputs")
        ]

    for tag, folder in _cells(place):
        if inside := find(folder):
            used = newest_change(
                (*inside, *(path / "build" for path in inside), folder / HOLDER_FILE)
            )
            others = () if kind == "outputs" else _cells_sharing(place, tag, folder)
            locks, name = (folder / LOCK_FILE, *others), f"{tag}/{folder.name}"
            yield StoredItem(kind, name, partial(find, folder), used, tag, locks)


def _cells_sharing(place: StoragePlace, tag: str, tree: Path) -> Iterator[Path]:
    """Yield the locks of the cells that share a tree: one that packs has released it, but reads its tools."""
    if not (tree / HOLDER_FILE).is_file():  # a tree of one cell
        return
    native = native_arch()
    for release in (
        one for releases in place.facts.releases.values() for one in releases if one.tag == tag
    ):
        for build in all_builds(place.facts, place.facts.packages[release.package]):
            cell = tree.with_name(build.identifier(native))
            if tree.name.startswith(f"{build.family(native)}-") and cell.is_dir():
                yield cell / LOCK_FILE


def find_sources(place: StoragePlace) -> Iterator[StoredItem]:
    """Yield fetched sources, and what unfinished fetches left."""
    for folder in (
        folder for home in _list_folders(place.layout.sources) for folder in _list_folders(home)
    ):
        if folder.name.startswith(DELETED_NAME):
            continue
        unfinished, package = folder.name.startswith("."), folder.parent.name
        tag = (folder.name.rpartition("-")[2] if unfinished else "") or folder.name
        cells = [cell for cell_tag, cell in _cells(place) if cell_tag == tag]
        name = f"{package} {tag} (unfinished)" if unfinished else f"{package} {tag}"
        touched = (
            folder / RECORD,
            folder / "tree",
            *cells,
            *(cell / HOLDER_FILE for cell in cells),
        )
        locks = (folder.with_name(LOCK_FILE), *(cell / LOCK_FILE for cell in cells))
        busy = partial(_source_hindrance, place, folder)
        yield stored("sources", name, folder, touched=touched, tag=tag, locks=locks, hindrance=busy)


def _source_hindrance(place: StoragePlace, folder: Path, running: RunningProcesses) -> str:
    """Return what keeps a source: a nox that may copy it, or work of the user's in it."""
    if busy := _build_at_work(place, folder)(running):
        return busy
    try:
        if (record := read_record(folder)) is not None:
            check_source(record.source)
    except TorchmillError as error:
        return str(error)
    ref = next(_own_refs(folder / "tree"), None)
    return (
        f"{folder / 'tree'} has commits of yours ({ref}): push them, or delete {folder}"
        if ref
        else ""
    )


def _own_refs(tree: Path) -> Iterator[str]:
    """Name branches and stashes in a fetched tree and its submodules: a fetch makes none."""
    top = git_folder(tree)
    if top is None or not top.is_dir():
        return
    for folder in (top, *(head.parent for head in (top / "modules").rglob("HEAD"))):
        for path in (*(folder / "refs" / "heads").rglob("*"), folder / "refs" / "stash"):
            if path.is_file():
                yield path.relative_to(folder).as_posix()
        refs = (line.partition(" ")[2] for line in read_text(folder / "packed-refs").splitlines())
        yield from (ref for ref in refs if ref.startswith(("refs/heads/", "refs/stash")))


def find_environments(place: StoragePlace) -> Iterator[StoredItem]:
    """Yield the environments that nox made for builds; others in its folder are not ours."""
    cells = [(nox_environment_name(folder.name), tag, folder) for tag, folder in _cells(place)]
    for folder in _list_folders(place.environments):
        if _ENVIRONMENT.fullmatch(folder.name) and (folder / "pyvenv.cfg").is_file():
            users = [(tag, cell) for name, tag, cell in cells if name == folder.name]
            logs = (place.layout.logs / f"{tag}-{cell.name}.log" for tag, cell in users)
            touched, busy = (folder, *list_children(folder), *logs), _build_at_work(place, folder)
            locks = (cell / LOCK_FILE for _, cell in users)
            yield stored(
                "environments", folder.name, folder, touched=touched, locks=locks, hindrance=busy
            )


def find_logs(place: StoragePlace) -> Iterator[StoredItem]:
    """Yield the logs of builds, each with its timeline."""
    cells = {f"{tag}-{folder.name}": (tag, (folder / LOCK_FILE,)) for tag, folder in _cells(place)}
    tags = [release.tag for releases in place.facts.releases.values() for release in releases]
    logs: dict[str, list[Path]] = {}
    for path in list_children(place.layout.logs):
        if path.is_file() and not path.name.startswith("."):
            logs.setdefault(path.name.removesuffix(SUFFIX).removesuffix(path.suffix), []).append(
                path
            )
    for name, paths in logs.items():
        known_tag = max((one for one in tags if name.startswith(f"{one}-")), key=len, default="")
        tag, locks = cells.get(name, (known_tag, ()))
        yield stored("logs", name, *paths, tag=tag, locks=locks)


def _tracked_hindrance(place: StoragePlace) -> Callable[[Path], Hindrance | None]:
    """Return what says why a file of `dist/` must stay: it came with the repository, or was handed on with it."""
    tracked = {
        place.layout.dist / entry.path
        for entry in list_tracked(place.layout.dist, _DELIVERED) or ()
    }
    return lambda path: (lambda _: "git tracks it") if path in tracked else None


def find_wheels(place: StoragePlace) -> Iterator[StoredItem]:
    """Yield verified wheels with the files beside them; one without a manifest was not built here."""
    hindrance = _tracked_hindrance(place)
    for wheel in list_children(place.layout.dist):
        if wheel.suffix == ".whl" and manifest_path(wheel).is_file():
            manifest = read_manifest(wheel)
            companions = [path for path in companion_paths(wheel) if path.is_file()]
            locks, tag = _cells_using(place, manifest), str(manifest.get("tag", ""))
            yield stored(
                "wheels",
                wheel.name,
                *companions,
                wheel,
                tag=tag,
                locks=locks,
                hindrance=hindrance(wheel),
            )


def _cells_using(place: StoragePlace, manifest: Mapping[str, object]) -> Iterator[Path]:
    """Yield the locks of the cell that made a wheel, and of those that may be built against it."""
    dependent = [
        one.name for one in place.facts.packages.values() if one.after == manifest.get("package")
    ]
    tags = {release.tag for name in dependent for release in place.facts.releases.get(name, ())}
    for tag, folder in _cells(place):
        if tag in tags or (tag, folder.name) == (manifest.get("tag"), manifest.get("identifier")):
            yield folder / LOCK_FILE


def find_home(place: StoragePlace, kind: str) -> Iterator[StoredItem]:
    """Yield what was made in a folder of its own: by `nox -s demo`, `invoke bisect` or `invoke cluster`."""
    folder: Path = getattr(place.layout, kind)
    if inside := list_contents(folder):
        locks = (*folder.glob(LOCK_FILE), *folder.glob(f"home/.torchmill/*/*/*/{LOCK_FILE}"))
        where = (folder, *inside)
        yield stored(
            kind,
            kind,
            *inside,
            touched=where,
            locks=locks,
            hindrance=lambda running: running.within(folder),
        )


# What was made of the wheels


def find_packages(place: StoragePlace) -> Iterator[StoredItem]:
    """Yield conda packages, and archives with their records; an archive without one is not ours."""
    dist, hindrance = place.layout.dist, _tracked_hindrance(place)
    kinds = _list_folders(place.layout.conda)  # of machines
    conda = [path for kind in kinds for path in list_children(kind) if path.suffix == ".conda"]
    archives = sorted(dist.glob("lib*.zip"))
    for path in (*conda, *(archive for archive in archives if manifest_path(archive).is_file())):
        records = [one for one in (manifest_path(path),) if one.is_file()]
        name = path.relative_to(dist).as_posix()
        yield stored("packages", name, *records, path, touched=(path,), hindrance=hindrance(path))


def find_published(place: StoragePlace, kind: str) -> Iterator[StoredItem]:
    """Yield the index, the channel or the images: what was written for others goes by hand alone."""
    folder: Path = getattr(place.layout, kind)
    if folder.is_dir():
        yield stored(kind, str(folder), folder)


# What all checkouts of a user share


def find_downloads(place: StoragePlace) -> Iterator[StoredItem]:
    """Yield downloads for sources and toolkits, and what the package index answered."""
    cache = place.layout.cache
    installing = (cache / provisioned.FOLDER).glob(f"{provisioned.MAKING}*/{LOCK_FILE}")
    locks = {
        "debian": (cache / "debian" / LOCK_FILE,),
        "upstream": (),
        "downloads": tuple(installing),
    }
    for name, held in locks.items():
        if any(path.is_file() for path in (cache / name).rglob("*") if path.name != LOCK_FILE):
            find = partial(list_contents, cache / name)
            yield StoredItem(
                "downloads", name, find, newest_change((cache / name).rglob("*")), "", held
            )


def find_toolkits(place: StoragePlace) -> Iterator[StoredItem]:
    """Yield installed toolkits, libraries and compilers, and what unfinished installations left."""
    for folder in list_children(place.layout.cache / provisioned.FOLDER):
        name = folder.name.removeprefix(provisioned.MAKING)
        locks = (folder.with_name(f"{provisioned.MAKING}{name}") / LOCK_FILE,)
        whole = folder / provisioned.WHOLE
        if name == folder.name and not name.startswith(DELETED_NAME):
            used = max(newest_change((folder, folder / provisioned.RECORD)), _last_read(folder))
            item = stored(
                "toolkits", name, folder, locks=locks, hindrance=_build_at_work(place, folder)
            )
            yield replace(item, used=used)
        elif whole.is_dir():
            yield stored("toolkits", f"{name} (unfinished)", whole, locks=locks)


def _last_read(folder: Path) -> float:
    """Return when a build last read a program or a header: to the day, as file systems record it."""
    times = [0.0]
    for path in (*list_children(folder / "bin"), *list_children(folder / "include")):
        with contextlib.suppress(OSError):
            if path.is_file():
                times.append(path.stat().st_atime)
    return max(times)


def find_tools(place: StoragePlace) -> Iterator[StoredItem]:
    """Yield the tools of builds: gates, stand-ins, compiler properties, programs, and what environments are made of."""
    for folder in (place.layout.cache / name for name in TOOLS):
        if folder.is_dir():
            touched, busy = (folder, *list_children(folder)), _build_at_work(place, folder)
            yield stored("tools", folder.name, folder, touched=touched, hindrance=busy)


def _build_at_work(place: StoragePlace, *paths: Path) -> Hindrance:
    # `within`: a server may outlive its build
    shared = all(path.is_relative_to(place.layout.cache) for path in paths)
    folder = place.layout.cache if shared else place.layout.root
    return lambda running: running.build(folder) or running.within(*paths)


def find_history(place: StoragePlace) -> Iterator[StoredItem]:
    """Yield the guard's history: the memory that each file took to compile."""
    files = [path for path in list_children(place.layout.cache) if path.name.startswith(HISTORY)]
    if files:
        yield stored("history", HISTORY, *files, hindrance=_build_at_work(place, *files))


def find_stat_cache(place: StoragePlace) -> Iterator[StoredItem]:
    """Yield the caches of digests, of programs' answers, of what the facts hold, and of sessions."""
    for file in (place.layout.cache / name for name in CACHE_FILES):
        if file.is_file():
            yield stored("recall", file.name, file)


def find_compiler_caches(place: StoragePlace) -> Iterator[StoredItem]:
    """Yield the files of ccache and sccache, which set their times when they use them.

    Those of ccache are in folders of one digit; its statistics beside them are counted anew by `ccache -c`.
    """
    yield from find_cached(place, "compilers", "ccache", "[0-9a-f]/**/*")
    yield from find_cached(
        place, "compilers", "sccache", hindrance=partial(_sccache_server, place.layout.cache)
    )


def _sccache_server(cache: Path, running: RunningProcesses) -> str:
    server = running.sccache_server(cache / "sccache")
    return f"{server}: `sccache --stop-server` ends it" if server else ""


def find_cached(
    place: StoragePlace,
    kind: str,
    folder: str,
    pattern: str = "**/*",
    hindrance: Hindrance | None = None,
) -> Iterator[StoredItem]:
    """Yield each file in a folder of the cache."""
    for path in (place.layout.cache / folder).glob(pattern):
        # hidden: being written
        if path.is_file() and not path.name.startswith((".", "stats", "CACHEDIR")):
            yield stored(kind, str(path.relative_to(place.layout.cache)), path, hindrance=hindrance)


def find_containers(place: StoragePlace) -> Iterator[StoredItem]:
    """Yield what builds in containers left: trees, environments and logs, by arch, with a cache of their own."""
    from torchmill.cell.containers.cross import guest_layout

    for arch in place.facts.arches if not place.layout.guest else ():
        guest = guest_layout(place.layout, arch)
        if guest.state.is_dir():
            yield stored("containers", arch, guest.state, guest.cache)


def find_unknown(place: StoragePlace) -> Iterator[StoredItem]:
    """Yield what is none of ours, in the user's cache and in the folder of this checkout."""
    layout = place.layout
    own = {*_STATE_NAMES, layout.selection.name, *place.facts.arches}
    for path in (*list_children(layout.state), *list_children(layout.cache)):
        by_name = path.name in CACHE_NAMES or path.name.startswith((DELETED_NAME, HISTORY))
        if not by_name and not (path.parent == layout.state and path.name in own):
            yield stored("other", str(path), path)


def find_leftovers(place: StoragePlace) -> Iterator[Path]:
    """Yield what an interrupted clean renamed but did not delete; not what another one deletes right now."""
    layout = place.layout
    homes = [layout.state, layout.logs, layout.dist, layout.cache, place.environments]
    homes += [*_list_folders(layout.sources), *_list_folders(layout.cache)]
    homes += [cell for _, cell in _cells(place)]
    for path in (path for home in homes for path in list_children(home)):
        if path.name.startswith(DELETED_NAME) and not is_being_deleted(path):
            yield path


@dataclass(frozen=True, slots=True)
class StorageKind:
    """Things that are listed and removed together."""

    name: str
    cost: str  # of removing them, as a clause
    find: Callable[[StoragePlace], Iterable[StoredItem]]
    removed: str = (
        "selected"  # when: "selected" by age, release or size; "named" with --kind only; "never"
    )


KINDS = (
    StorageKind("trees", "the next build recompiles what is not in the compiler cache", find_trees),
    StorageKind(
        "outputs",
        "a wheel that is remade is packed and verified again",
        partial(find_trees, kind="outputs"),
    ),
    StorageKind("sources", "fetched again", find_sources),
    StorageKind(
        "environments",
        "installed again, and what includes their headers recompiled",
        find_environments,
    ),
    StorageKind("logs", "`invoke report` cannot draw those builds any more", find_logs),
    StorageKind(
        "members", "compressed again", partial(find_cached, kind="members", folder="members")
    ),
    StorageKind("downloads", "downloaded again", find_downloads),
    StorageKind("tools", "made or downloaded again, in seconds", find_tools),
    StorageKind(
        "recall", "digests and programs' versions are read again, in a second", find_stat_cache
    ),
    StorageKind(
        "proofs",
        "upstream's tests are run again",
        partial(find_cached, kind="proofs", folder=PROOFS_CACHE),
    ),
    StorageKind("demo", "`nox -s demo` takes a minute again", partial(find_home, kind="demo")),
    StorageKind(
        "bisect", "the search of `invoke bisect` begins anew", partial(find_home, kind="bisect")
    ),
    StorageKind(
        "cluster", "shares are compiled again", partial(find_home, kind="cluster"), "named"
    ),
    StorageKind("compilers", "every file is recompiled once", find_compiler_caches, "named"),
    StorageKind("toolkits", "downloaded again, gigabytes for a toolkit", find_toolkits, "named"),
    StorageKind("history", "the guard learns the memory of each file again", find_history, "named"),
    StorageKind("wheels", "built again", find_wheels, "named"),
    StorageKind("packages", "made from their wheels again, in minutes", find_packages, "named"),
    StorageKind(
        "index",
        "written again from `dist/`; yanks are lost",
        partial(find_published, kind="index"),
        "never",
    ),
    StorageKind(
        "channel",
        "indexed again from `dist/conda/`",
        partial(find_published, kind="channel"),
        "never",
    ),
    StorageKind(
        "images", "their folders are written again", partial(find_published, kind="images"), "never"
    ),
    StorageKind(
        "containers",
        "compiled again; TORCHMILL_GUEST=NAME shows what is in one",
        find_containers,
        "never",
    ),
    StorageKind("other", "unknown", find_unknown, "never"),
)
