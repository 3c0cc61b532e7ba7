"""The state of an index: what it wrote, which wheels it read, and which versions are yanked."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from millpress.errors import WheelError

from torchmill.core import locks
from torchmill.core.atomic_writes import write_atomically
from torchmill.core.errors import DeliveryError
from torchmill.core.strict_json import read_json_object
from torchmill.deliver.index import entries
from torchmill.deliver.index.entries import IndexEntry

# The folder in an index with its state, its lock, and the file that is being written.
STATE_FOLDER = ".torchmill"
STATE_FILE = f"{STATE_FOLDER}/index.json"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class RememberedWheel:
    """A wheel that an earlier run read."""

    stamp: str  # of its file and the files beside it (see `stamp_file`); "" if it had just changed
    entry: IndexEntry


@dataclass(frozen=True, slots=True)
class IndexState:
    """The memory of an index between runs."""

    # The sha256 that each file of the index may have, by its place. There are two while a run
    # writes, because it may be stopped before or after it replaced the file.
    written: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    wheels: Mapping[str, RememberedWheel] = field(default_factory=dict)  # by the file's name
    yanked: Mapping[str, str] = field(default_factory=dict)  # "torch==1.13.1+cpu" -> the reason


def load_state(out: Path) -> IndexState | None:
    """Return the state of an index; None if torchmill wrote no index there.

    Raises DeliveryError if the state cannot be read, or is not in files of torchmill's.
    """
    file = out / STATE_FILE
    _refuse_foreign(file.parent, is_folder=True)
    _refuse_foreign(file, is_folder=False)
    _refuse_foreign(file.with_name(locks.LOCK_FILE), is_folder=False)
    try:
        data = read_json_object(file)
        if data["format"] == FORMAT:
            wheels = {}
            for name, fields in data["wheels"].items():
                entry = entries.restore_entry(name, fields)
                wheels[name] = RememberedWheel(fields["look"], entry)  # the key of FORMAT 1
            written = {place: tuple(digests) for place, digests in data["written"].items()}
            return IndexState(written, wheels, dict(data["yanked"]))
        problem = f"its format is {data['format']}, not {FORMAT}"
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        problem = error.strerror or str(error)
    except (ValueError, KeyError, TypeError, AttributeError, WheelError):
        problem = "it is damaged"
    raise DeliveryError(
        f"{file}: cannot be read ({problem}): write the index to another folder with --out, or "
        f"remove {out} if you need nothing that is in it",
        code="index-state-damaged",
    )


def _refuse_foreign(path: Path, *, is_folder: bool) -> None:
    """Raise DeliveryError for a link, and for a file that should be a folder or the reverse.

    A link could make a run write to a place outside the index.
    """
    if path.is_symlink() or (path.exists() and path.is_dir() != is_folder):
        raise DeliveryError(
            f"{path} was not written by `invoke index`: remove it, or name another folder with "
            "--out",
            code="foreign-folder",
        )


def save_state(out: Path, state: IndexState) -> None:
    """Write the state, unless the file has it already. Raises OSError."""
    wheels = {}
    for name, wheel in state.wheels.items():
        wheels[name] = {"look": wheel.stamp, **wheel.entry.as_data()}
    data = {"format": FORMAT, "yanked": state.yanked, "wheels": wheels, "written": state.written}
    text = json.dumps(data, indent=0, sort_keys=True) + "\n"
    file = out / STATE_FILE
    if not file.exists() or file.read_text(encoding="utf-8") != text:
        write_atomically(file, text)
