"""What this checkout wrote for others: an index, a channel, folders of images; never what they put there."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from torchmill.deliver.image import folder as image_folder
from torchmill.deliver.index import state
from torchmill.errors import DeliveryError
from torchmill.housekeeping.items import Hindrance, Item, Place
from torchmill.housekeeping.running import Running
from torchmill.housekeeping.usage import children, newest
from torchmill.locks import LOCK
from torchmill.recall import Recall
from torchmill.removal import GONE, contents

# What py-rattler writes into each folder of a channel, beside packages.
_INDEX = re.compile(r"[\w-]+/(repodata\.json(\.zst)?|repodata_shards\.msgpack\.zst|shards/\w+\.msgpack\.zst)")


def index(place: Place) -> Iterator[Item]:
    """Yield the index; its state stays, for it remembers what is yanked."""
    out = place.layout.index
    why = ""
    try:
        known = state.load(out)
    except DeliveryError as error:
        known, why = state.State(), str(error)
    if known is None:
        return
    written, recall = known.written, Recall(place.layout.cache / "recall.json")

    def is_ours(file: Path) -> bool:
        return recall.digest(file) in written.get(file.relative_to(out).as_posix(), ())

    def find() -> list[Path]:
        return [one for path in children(out) if path.name != state.FOLDER for one in _ours(path, is_ours)]

    def hindrance(running: Running) -> str:
        found = running.within(out)  # as `invoke serve` is
        return why or (f"in use by {found}" if found else "")

    if why or find():
        recall.save()
        used = newest((state.file(out),))
        yield Item("index", out.name, find, used, "", (out / state.FOLDER / LOCK,), hindrance)


def _ours(path: Path, is_ours: Callable[[Path], bool]) -> list[Path]:
    """Return the files below a path that are ours; a folder that wholly is stands for its files."""
    if path.is_symlink() or path.name.startswith(GONE):
        return []
    if not path.is_dir():
        return [path] if path.is_file() and is_ours(path) else []
    inside = children(path)
    found = [one for each in inside for one in _ours(each, is_ours)]
    return [path] if inside and found == inside else found


def channels(place: Place) -> Iterator[Item]:
    """Yield the channel of conda's, which goes as a whole or stays."""
    from torchmill.deliver.conda.channel import MARKER  # noqa: PLC0415 - slow to load

    out = place.layout.channel
    if not (out / MARKER).is_file():
        return

    def find() -> list[Path]:  # the file by which it counts as ours goes last
        return sorted(contents(out), key=lambda path: path.name == MARKER)

    def hindrance(_: Running) -> str:
        recall = Recall(place.layout.cache / "recall.json")
        stranger = next(_strangers(out, MARKER, recall), None)
        recall.save()
        return f"{stranger} was put there or changed by somebody else" if stranger else ""

    lock = place.layout.state / "channel" / LOCK
    yield Item("channel", out.name, find, newest((out / MARKER,)), "", (lock,), hindrance)


def _strangers(out: Path, marker: str, recall: Recall) -> Iterator[Path]:
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
    for path in children(folder):
        if path.is_dir() and not path.is_symlink():
            if not path.name.startswith(GONE):
                yield from _files(path)
        else:
            yield path


def images(place: Place) -> Iterator[Item]:
    """Yield the folders of images, those of dev containers not: they are the project's."""
    home = place.layout.images
    for out in children(home):
        if (out / image_folder.RECORD).is_file() and not out.name.startswith("."):
            lock = home / ".locks" / out.name / LOCK
            find = _just(out)
            used = newest((out / image_folder.RECORD,))
            yield Item("images", out.name, find, used, "", (lock,), _changed(out))


def _just(folder: Path) -> Callable[[], list[Path]]:
    return lambda: [folder]


def _changed(folder: Path) -> Hindrance:
    def hindrance(_: Running) -> str:
        try:
            image_folder.require_ours(folder)
        except DeliveryError as error:
            return str(error)
        return ""

    return hindrance
