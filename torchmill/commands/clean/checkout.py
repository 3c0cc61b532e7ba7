"""Find what builds of this checkout left behind.

Trees, sources, environments, logs, wheels, published folders.
"""

import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

from torchmill.commands.clean.in_use import RunningProcesses, nox_environment_name
from torchmill.commands.clean.items import Hindrance, StoragePlace, StoredItem, fixed_paths
from torchmill.config.matrix import all_builds
from torchmill.core.errors import DeliveryError, TorchmillError
from torchmill.core.files import DELETED_NAME, list_contents
from torchmill.core.locks import HOLDER_FILE, LOCK_FILE, last_taken
from torchmill.core.stat_cache import StatCache
from torchmill.deliver.image.folder import IMAGE_RECORD, require_our_folder
from torchmill.deliver.index import scan
from torchmill.fetch.source.git_command import git_folder
from torchmill.fetch.source.source_dir import RECORD, check_source, read_record
from torchmill.host.disk_usage import list_children, newest_change
from torchmill.host.native import native_arch
from torchmill.toolchain.guard.timeline import SUFFIX
from torchmill.wheel.dist_files import companion_paths, manifest_path, read_manifest

_OUTPUTS = ("raw", "stage", "packed", "verify", "ledger")  # of a cell; the rest of a folder is a tree's
_ENVIRONMENT = "pyvenv.cfg"  # without it a folder is no environment


def find_trees(place: StoragePlace) -> Iterator[StoredItem]:
    """Yield the trees in which packages are compiled."""
    for tag, folder in _folders(place):
        sharing = _sharing(place, tag, folder)
        yield from _of_folder("trees", tag, folder, lambda path: not _is_output(path), *sharing)


def find_outputs(place: StoragePlace) -> Iterator[StoredItem]:
    """Yield what was made of the trees, a wheel's stages in each."""
    for tag, folder in _folders(place):
        yield from _of_folder("outputs", tag, folder, _is_output)


def _folders(place: StoragePlace) -> Iterator[tuple[str, Path]]:
    """Yield the tag and the folder of all trees and cells."""
    for tag in list_children(place.layout.trees):
        for folder in list_children(tag):
            seen = folder.is_dir() and os.access(folder, os.R_OK | os.X_OK)
            if seen and not folder.name.startswith("."):
                yield tag.name, folder


def _is_output(path: Path) -> bool:
    return path.name.startswith(_OUTPUTS)


def _of_folder(
    kind: str, tag: str, folder: Path, is_meant: Callable[[Path], bool], *others: Path
) -> Iterator[StoredItem]:
    """Yield what is meant of a folder, where there is any; who holds one of the others may use it too."""

    def find() -> list[Path]:
        return [path for path in list_contents(folder) if is_meant(path)]

    if inside := find():
        used = max(newest_change((*inside, *(path / "build" for path in inside))), last_taken(folder))
        yield StoredItem(kind, f"{tag}/{folder.name}", find, used, tag, (folder / LOCK_FILE, *others))


def _sharing(place: StoragePlace, tag: str, tree: Path) -> Iterator[Path]:
    """Yield the locks of the cells that share a tree: who packs has given it back, and reads its kit."""
    if not (tree / HOLDER_FILE).is_file():  # it is of one cell
        return
    native = native_arch()
    for releases in place.facts.releases.values():
        for release in (one for one in releases if one.tag == tag):
            for build in all_builds(place.facts, place.facts.packages[release.package]):
                cell = tree.with_name(build.identifier(native))
                if tree.name.startswith(f"{build.family(native)}-") and cell.is_dir():
                    yield cell / LOCK_FILE


def find_sources(place: StoragePlace) -> Iterator[StoredItem]:
    """Yield fetched sources, and what fetches left that did not come to an end."""
    for home in list_children(place.layout.sources):
        for folder in list_children(home):
            if not folder.is_dir() or folder.name.startswith(DELETED_NAME):
                continue
            hidden, _, tag = folder.name.rpartition("-") if folder.name.startswith(".") else ("", "", "")
            name = f"{home.name} {tag} (unfinished)" if hidden else f"{home.name} {folder.name}"
            tag = tag or folder.name
            built = [one for said, one in _folders(place) if said == tag]
            locks = (home / LOCK_FILE, *(one / LOCK_FILE for one in built))
            used = newest_change(
                (folder / RECORD, folder / "tree", *built, *(one / HOLDER_FILE for one in built))
            )
            yield StoredItem(
                "sources", name, fixed_paths(folder), used, tag, locks, _keeping(place, home.name, folder)
            )


def _keeping(place: StoragePlace, package: str, folder: Path) -> Hindrance:
    """Return what keeps a source in its place: a nox that may copy it, work of the user's that is in it."""
    known = place.facts.packages.get(package)
    named = all_builds(place.facts, known) if known else ()
    sessions = {nox_environment_name(build.identifier(native_arch())) for build in named}

    def hindrance(running: RunningProcesses) -> str:
        if (nox := running.builder(place.layout.root, sessions)) is not None:
            return f"in use by {nox}"
        try:
            record = read_record(folder)
            if record is not None:
                check_source(record.source)
        except TorchmillError as error:
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


def find_environments(place: StoragePlace) -> Iterator[StoredItem]:
    """Yield the environments that nox made."""
    cells = [(nox_environment_name(folder.name), tag, folder) for tag, folder in _folders(place)]
    for folder in list_children(place.environments):
        if not (folder / _ENVIRONMENT).is_file() or folder.name.startswith("."):
            continue
        mine = [(tag, cell) for name, tag, cell in cells if name == folder.name]
        logs = (place.layout.logs / f"{tag}-{cell.name}.log" for tag, cell in mine)
        used = newest_change((folder, *list_children(folder), *logs))
        locks = tuple(cell / LOCK_FILE for _, cell in mine)
        yield StoredItem("environments", folder.name, fixed_paths(folder), used, "", locks, _working(folder))


def _working(folder: Path) -> Hindrance:
    def hindrance(running: RunningProcesses) -> str:
        found = running.within(folder) or running.session(folder)
        return f"in use by {found}" if found else ""

    return hindrance


def find_logs(place: StoragePlace) -> Iterator[StoredItem]:
    """Yield the logs of builds, each with its timeline."""
    cells = {f"{tag}-{folder.name}": (tag, folder / LOCK_FILE) for tag, folder in _folders(place)}
    tags = [release.tag for releases in place.facts.releases.values() for release in releases]
    found: dict[str, list[Path]] = {}
    for path in list_children(place.layout.logs):
        if path.is_file() and not path.name.startswith("."):
            name = path.name.removesuffix(SUFFIX)
            found.setdefault(path.stem if name == path.name else name, []).append(path)
    for name, paths in found.items():
        tag = max((one for one in tags if name.startswith(f"{one}-")), key=len, default="")
        known = cells.get(name)
        locks = (known[1],) if known else ()
        yield StoredItem(
            "logs", name, fixed_paths(*paths), newest_change(paths), known[0] if known else tag, locks
        )


def find_wheels(place: StoragePlace) -> Iterator[StoredItem]:
    """Yield verified wheels with what stands beside them; what has no manifest was not built here."""
    for wheel in list_children(place.layout.dist):
        manifest = manifest_path(wheel)
        if wheel.suffix == ".whl" and manifest.is_file():
            said = read_manifest(wheel)
            tag = str(said.get("tag", ""))
            told = [path for path in companion_paths(wheel) if path.is_file()]
            used = newest_change((wheel, *told))
            locks = tuple(_users(place, said))
            yield StoredItem("wheels", wheel.name, fixed_paths(*told, wheel), used, tag, locks)


def _users(place: StoragePlace, said: Mapping[str, object]) -> Iterable[Path]:
    """Yield the locks of the cell that made a wheel, and of those that may be built against it."""
    dependent = [one.name for one in place.facts.packages.values() if one.after == said.get("package")]
    tags = {release.tag for name in dependent for release in place.facts.releases.get(name, ())}
    for tag, folder in _folders(place):
        if tag in tags or (tag, folder.name) == (said.get("tag"), said.get("identifier")):
            yield folder / LOCK_FILE


def find_demo(place: StoragePlace) -> Iterator[StoredItem]:
    """Yield what `nox -s demo` made."""
    folder = place.layout.demo
    if folder.is_dir():
        locks = tuple(folder.glob(f"home/.torchmill/*/*/*/{LOCK_FILE}"))
        used = newest_change((folder, *list_children(folder)))
        yield StoredItem("demo", "demo", fixed_paths(folder), used, "", locks, _working(folder))


def find_packages(place: StoragePlace) -> Iterator[StoredItem]:
    """Yield packages of conda, and archives with their records; an archive without one is not ours."""
    dist = place.layout.dist
    for package in sorted(dist.glob("conda/*/*.conda")):
        name = package.relative_to(dist).as_posix()
        told = [path for path in (manifest_path(package),) if path.is_file()]
        yield StoredItem("packages", name, fixed_paths(*told, package), newest_change((package,)))
    for archive in sorted(dist.glob("lib*.zip")):
        record = manifest_path(archive)
        if record.is_file():
            yield StoredItem(
                "packages", archive.name, fixed_paths(record, archive), newest_change((archive,))
            )


# What py-rattler writes into each folder of a channel, beside packages.
_INDEX = re.compile(r"[\w-]+/(repodata\.json(\.zst)?|repodata_shards\.msgpack\.zst|shards/\w+\.msgpack\.zst)")


def find_index(place: StoragePlace) -> Iterator[StoredItem]:
    """Yield the index; its state stays, for it remembers what is yanked."""
    out = place.layout.index
    why = ""
    try:
        known = scan.load_state(out)
    except DeliveryError as error:
        known, why = scan.IndexState(), str(error)
    if known is None:
        return
    written, recall = known.written, StatCache(place.layout.cache / "recall.json")

    def is_ours(file: Path) -> bool:
        return recall.digest(file) in written.get(file.relative_to(out).as_posix(), ())

    def find() -> list[Path]:
        return [
            one for path in list_children(out) if path.name != scan.FOLDER for one in _ours(path, is_ours)
        ]

    def hindrance(running: RunningProcesses) -> str:
        found = running.within(out)  # as `invoke serve` is
        return why or (f"in use by {found}" if found else "")

    if why or find():
        recall.save()
        used = newest_change((scan.state_file(out),))
        yield StoredItem("index", out.name, find, used, "", (out / scan.FOLDER / LOCK_FILE,), hindrance)


def _ours(path: Path, is_ours: Callable[[Path], bool]) -> list[Path]:
    """Return the files below a path that are ours; a folder that wholly is stands for its files."""
    if path.is_symlink() or path.name.startswith(DELETED_NAME):
        return []
    if not path.is_dir():
        return [path] if path.is_file() and is_ours(path) else []
    inside = list_children(path)
    found = [one for each in inside for one in _ours(each, is_ours)]
    return [path] if inside and found == inside else found


def find_channels(place: StoragePlace) -> Iterator[StoredItem]:
    """Yield the channel of conda's, which goes as a whole or stays."""
    from torchmill.deliver.conda.channel import MARKER

    out = place.layout.channel
    if not (out / MARKER).is_file():
        return

    def find() -> list[Path]:  # the file by which it counts as ours goes last
        return sorted(list_contents(out), key=lambda path: path.name == MARKER)

    def hindrance(_: RunningProcesses) -> str:
        recall = StatCache(place.layout.cache / "recall.json")
        stranger = next(_strangers(out, MARKER, recall), None)
        recall.save()
        return f"{stranger} was put there or changed by somebody else" if stranger else ""

    lock = place.layout.state / "channel" / LOCK_FILE
    yield StoredItem("channel", out.name, find, newest_change((out / MARKER,)), "", (lock,), hindrance)


def _strangers(out: Path, marker: str, recall: StatCache) -> Iterator[Path]:
    """Yield the files of a channel that are not as we wrote them."""
    try:
        told = json.loads((out / marker).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        told = None
    if not isinstance(told, dict):
        yield out / marker
        return
    for path in _files(out):
        name = path.relative_to(out).as_posix()
        ours = name == marker or _INDEX.fullmatch(name) or told.get(name) == recall.digest(path)
        if path.is_symlink() or not ours:
            yield path


def _files(folder: Path) -> Iterator[Path]:
    """Yield what lies in a folder and below it but for folders, and what was put away."""
    for path in list_children(folder):
        if path.is_dir() and not path.is_symlink():
            if not path.name.startswith(DELETED_NAME):
                yield from _files(path)
        else:
            yield path


def find_images(place: StoragePlace) -> Iterator[StoredItem]:
    """Yield the folders of images, those of dev containers not: they are the project's."""
    home = place.layout.images
    for out in list_children(home):
        if (out / IMAGE_RECORD).is_file() and not out.name.startswith("."):
            lock = home / ".locks" / out.name / LOCK_FILE
            find = _just(out)
            used = newest_change((out / RECORD,))
            yield StoredItem("images", out.name, find, used, "", (lock,), _changed(out))


def _just(folder: Path) -> Callable[[], list[Path]]:
    return lambda: [folder]


def _changed(folder: Path) -> Hindrance:
    def hindrance(_: RunningProcesses) -> str:
        try:
            require_our_folder(folder)
        except DeliveryError as error:
            return str(error)
        return ""

    return hindrance
