"""What an index remembers, in a hidden folder of its own: what it wrote, what is yanked, what wheels were."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torchmill import atomic, jsonobject, locks
from torchmill.deliver.index import entry
from torchmill.deliver.index.entry import Entry
from torchmill.errors import DeliveryError

FOLDER = ".torchmill"  # in the index; it also holds the lock, and what is just being written
FILE = "index.json"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Kept:
    """A wheel that was read, and how its file looked then ("" where it had just changed)."""

    look: str
    entry: Entry


@dataclass(frozen=True, slots=True)
class State:
    """The memory of an index.

    `written` has, for each file that the index wrote, the digests (sha256) that it may have: two while a run
    writes, for that may be stopped.
    """

    written: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    wheels: Mapping[str, Kept] = field(default_factory=dict)  # by the name of the file
    yanked: Mapping[str, str] = field(default_factory=dict)  # "torch==1.13.1+cpu" -> the reason

    def as_text(self) -> str:
        """Return the state as it is kept."""
        wheels = {name: {"look": kept.look} | kept.entry.as_data() for name, kept in self.wheels.items()}
        data = {"format": FORMAT, "yanked": self.yanked, "wheels": wheels, "written": self.written}
        return json.dumps(data, indent=0, sort_keys=True) + "\n"


def file(out: Path) -> Path:
    """Return where the state of an index lies."""
    return out / FOLDER / FILE


def load(out: Path) -> State | None:
    """Return the state of an index; None where the folder is none of ours.

    Raises DeliveryError where it cannot be read.
    """
    kept = file(out)
    for path in (kept.parent, kept, kept.with_name(locks.LOCK)):
        if path.is_symlink() or (path.exists() and path.is_dir() != (path == kept.parent)):
            raise DeliveryError(f"{path}: no index made this: remove it, or name another folder with --out")
    try:
        data = jsonobject.read(kept)
        return _state(data) if data["format"] == FORMAT else _refuse(out, f"its format is {data['format']}")
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        return _refuse(out, error.strerror or str(error))
    except (ValueError, KeyError, TypeError, AttributeError, DeliveryError):
        return _refuse(out, "it is damaged")


def save(out: Path, state: State) -> None:
    """Write the state, unless it is kept so already. Raises OSError."""
    kept, text = file(out), state.as_text()
    if not kept.exists() or kept.read_text(encoding="utf-8") != text:
        atomic.write(kept, text)


def _state(data: Mapping[str, Any]) -> State:
    return State(
        written={place: tuple(digests) for place, digests in data["written"].items()},
        wheels={
            name: Kept(told["look"], entry.remembered(name, told)) for name, told in data["wheels"].items()
        },
        yanked=dict(data["yanked"]),
    )


def _refuse(out: Path, why: str) -> State:
    raise DeliveryError(
        f"{file(out)}: cannot be read ({why}): have the index written to another folder, with --out, or "
        f"remove {out} if you need nothing that is in it"
    ) from None
