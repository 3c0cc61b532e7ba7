"""The record of a fetched source, `source.json` beside its tree: read it, write it, find the latest."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from torchmill.config.model import Source
from torchmill.core.errors import SourceError
from torchmill.core.files import write_atomically
from torchmill.core.paths import Layout

RECORD = "source.json"


@dataclass(frozen=True, slots=True)
class TreeFingerprint:
    """Enough of a tree to see that somebody touched it, without reading its files."""

    files: int
    newest: int  # nanoseconds
    size: int  # bytes


@dataclass(frozen=True, slots=True)
class FetchRecord:
    """What was fetched, what had been asked for, and how the tree looked then."""

    source: Source
    asked: Mapping[str, str | None]  # the request's ref and origin, and the state of a local origin
    fingerprint: TreeFingerprint
    contents: str | None = None  # digest of all files, where no commit stands for them


def load_source(layout: Layout, package: str, tag: str | None = None) -> Source | None:
    """Return the package's fetched source of `tag`, or the one fetched last; None if there is none.

    Raises SourceError for a record that cannot be read.
    """
    home = layout.source(package)
    folder = home / tag if tag else next(iter(list_fetched(home)), None)
    record = read_record(folder) if folder else None
    return record.source if record else None


def list_fetched(home: Path) -> list[Path]:
    """Return the folders of a package's fetched sources, the one fetched last first."""
    found = [record for record in home.glob(f"*/{RECORD}") if not record.parent.name.startswith(".")]
    return [one.parent for one in sorted(found, key=lambda one: one.stat().st_mtime_ns, reverse=True)]


def read_record(folder: Path) -> FetchRecord | None:
    """Return the record in the folder of a source, or None where nothing was fetched.

    Raises SourceError for a record that cannot be read.
    """
    try:
        raw = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        asked, seen = raw.pop("asked"), TreeFingerprint(**raw.pop("fingerprint"))
        contents = raw.pop("contents", None)
        return FetchRecord(Source(**raw, path=folder / "tree"), asked, seen, contents)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, TypeError, KeyError, AttributeError):
        raise SourceError(
            f"{folder / RECORD} cannot be read: save what you changed in {folder / 'tree'}, delete {folder}, "
            "and run `invoke fetch` again",
            code="unreadable-source-record",
        ) from None


def write_record(folder: Path, record: FetchRecord) -> None:
    """Write a record into the folder of a source."""
    values: dict[str, Any] = {
        field.name: getattr(record.source, field.name) for field in fields(Source) if field.name != "path"
    }
    values["submodules"] = dict(record.source.submodules)
    values |= {"asked": dict(record.asked), "fingerprint": asdict(record.fingerprint)}
    values["contents"] = record.contents
    write_atomically(folder / RECORD, json.dumps(values, indent=2) + "\n")


def refresh_record(folder: Path, record: FetchRecord, seen: TreeFingerprint) -> None:
    """Record that the tree, as it looks now, is intact, and that it was requested last."""
    if seen == record.fingerprint:
        os.utime(folder / RECORD)
    else:
        write_record(folder, replace(record, fingerprint=seen))
