"""What the stages of a cell made last, and of what: so none is done again for nothing, or wrongly skipped."""

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from torchmill import atomic, outside
from torchmill.recall import Recall

STAGES = ("compile", "pack", "verify")
INSTALLED = "installed packages"
WHOLE = "the plan"


@dataclass(frozen=True, slots=True)
class Entry:
    """One stage: all that could change its result, and the result."""

    parts: Mapping[str, str]  # name -> digest
    made: str  # sha256 of the file it made
    read: Mapping[str, str] = field(default_factory=dict)  # files of the machine that were read -> sha256
    said: Mapping[str, Any] = field(default_factory=dict)  # what the manifest tells of it


def differences(entry: Entry | None, parts: Mapping[str, str], recall: Recall) -> Iterator[str]:
    """Yield what a stage would find changed; nothing means that it would make the same again."""
    if entry is None:
        yield "it was not done yet"
        return
    optional = {INSTALLED} - parts.keys()  # an environment that is new will hold the same again
    names = [*parts, *sorted(entry.parts.keys() - parts.keys() - optional)]
    found = [name for name in names if entry.parts.get(name) != parts.get(name)]
    yield from [name for name in found if name != WHOLE] or found  # what is whole only says it once more
    yield from outside.changed(entry.read, recall)


def digest(value: object) -> str:
    """Return a digest of plain data."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def parse(found: object) -> dict[str, Entry]:
    """Return the entries in what was read from a ledger or a manifest; none where it is something else."""
    stages = found.get("stages") if isinstance(found, dict) else None
    entries: dict[str, Entry] = {}
    for name in STAGES:
        try:
            entries[name] = _entry(stages[name])  # type: ignore[index]
        except (KeyError, TypeError, ValueError):
            break  # what follows was made of it
    return entries


def plain(entries: Mapping[str, Entry]) -> dict[str, Any]:
    """Return entries as a manifest holds them, which tells in its own words what they say."""
    return {name: asdict(replace(entry, said={})) for name, entry in entries.items()}


def read(file: Path) -> dict[str, Entry]:
    """Return the entries in a file; none where there is none, or it cannot be read."""
    try:
        return parse(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return {}


def write(file: Path, entries: Mapping[str, Entry]) -> None:
    """Write the entries of a cell; the file appears whole."""
    stages = {name: asdict(entry) for name, entry in entries.items()}
    atomic.write(file, json.dumps({"stages": stages}, default=str))


def _entry(found: Mapping[str, Any]) -> Entry:
    entry = Entry(dict(found["parts"]), str(found["made"]), dict(found["read"]), dict(found["said"]))
    if not entry.parts or not entry.made:
        raise ValueError("an entry that names nothing would be equal to nothing")
    return entry
