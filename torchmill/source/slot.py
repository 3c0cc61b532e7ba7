"""Where the source of one release is kept: it appears, and changes, by rename."""

import contextlib
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

from torchmill import atomic
from torchmill.errors import SourceError
from torchmill.model import Source

RECORD = "source.json"


@dataclass(frozen=True, slots=True)
class Fingerprint:
    """Enough of a tree to see that somebody touched it, without reading its files."""

    files: int
    newest: int  # nanoseconds
    size: int  # bytes


@dataclass(frozen=True, slots=True)
class Record:
    """What was fetched, what had been asked for, and how the tree looked then."""

    source: Source
    asked: Mapping[str, str | None]  # the request's ref and origin, and the state of a local origin
    fingerprint: Fingerprint
    contents: str | None = None  # digest of all files, where no commit stands for them


@dataclass(frozen=True, slots=True)
class Slot:
    """The folder of one release: the tree and, beside it, the record."""

    home: Path  # of the package
    tag: str

    @property
    def folder(self) -> Path:
        """Return the folder that is visible once all of it is there."""
        return self.home / self.tag

    @property
    def tree(self) -> Path:
        """Return the fetched tree."""
        return self.folder / "tree"

    @property
    def partial(self) -> Path:
        """Return the folder in which git works until the tree is whole; kept for the next try."""
        return self.home / f".partial-{self.tag}"

    @property
    def unpacked(self) -> Path:
        """Return the folder in which archives are unpacked; begun anew at each try."""
        return self.home / f".unpacked-{self.tag}"

    @property
    def downloaded(self) -> Path:
        """Return the folder of an archive that is being downloaded; kept for the next try."""
        return self.home / f".downloaded-{self.tag}"

    @property
    def old(self) -> Path:
        """Return where the tree waits while its successor takes its place."""
        return self.home / f".old-{self.tag}"

    def recover(self) -> None:
        """Finish a change of trees that was cut off between its two renames."""
        if self.old.exists() and not self.folder.exists():
            self.old.rename(self.folder)
        shutil.rmtree(self.old, ignore_errors=True)

    def publish(self, made: Path, source: Source, asked: Mapping[str, str | None]) -> Source:
        """Put the folder `made` (its tree is whole) in place of what is there, and return its source."""
        source = relocated(source, self.tree)
        held = None if source.provider == "git" else contents(made / "tree")
        _write(made / RECORD, Record(source, asked, fingerprint(made / "tree"), held))
        if self.folder.exists():
            self.folder.rename(self.old)
        made.rename(self.folder)
        for left in (self.old, self.partial, self.unpacked):
            shutil.rmtree(left, ignore_errors=True)
        return source


def relocated(source: Source, tree: Path) -> Source:
    """Return the source with another path."""
    values = {field.name: getattr(source, field.name) for field in fields(Source)}
    return Source(**values | {"path": tree})


def read(folder: Path) -> Record | None:
    """Return the record in a slot's folder, or None where nothing was fetched.

    Raises SourceError for a record that cannot be read.
    """
    try:
        raw = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        asked, seen = raw.pop("asked"), Fingerprint(**raw.pop("fingerprint"))
        held = raw.pop("contents", None)
        return Record(Source(**raw, path=folder / "tree"), asked, seen, held)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, TypeError, KeyError, AttributeError):
        raise SourceError(
            f"{folder / RECORD} cannot be read: save what you changed in {folder / 'tree'}, delete {folder}, "
            "and run `invoke fetch` again"
        ) from None


def refresh(folder: Path, record: Record, seen: Fingerprint) -> None:
    """Note that the tree as it looks now was found to be whole, and that it was wanted last."""
    if seen == record.fingerprint:
        os.utime(folder / RECORD)
    else:
        _write(folder / RECORD, replace(record, fingerprint=seen))


def latest(home: Path) -> Path | None:
    """Return the slot folder that was fetched last, or None."""
    found = [record for record in home.glob(f"*/{RECORD}") if not record.parent.name.startswith(".")]
    return max(found, key=lambda record: record.stat().st_mtime_ns).parent if found else None


def fingerprint(tree: Path) -> Fingerprint:
    """Walk a tree, git's own files left out."""
    files = newest = size = 0
    for entry in walk(tree):
        seen = entry.stat(follow_symlinks=False)
        files += 1
        size += seen.st_size
        newest = max(newest, seen.st_mtime_ns)
    return Fingerprint(files, newest, size)


def contents(tree: Path) -> str:
    """Return a digest of all that a tree holds, git's own files left out: names, modes and contents."""
    whole = hashlib.sha256()
    for path in sorted(entry.path for entry in walk(tree)):
        mode = os.lstat(path).st_mode & 0o111
        link = os.path.islink(path)  # noqa: PTH114
        held = hashlib.sha256(os.fsencode(os.readlink(path))).digest() if link else _sha256(path)  # noqa: PTH115
        whole.update(os.fsencode(os.path.relpath(path, tree)) + b"\0%o\0" % mode + held)
    return whole.hexdigest()


def _sha256(path: str) -> bytes:
    with open(path, "rb") as file:  # noqa: PTH123
        return hashlib.file_digest(file, "sha256").digest()


def newer(tree: Path, than: int) -> Iterator[str]:
    """Name the files changed after `than` nanoseconds."""
    for entry in walk(tree):
        if entry.stat(follow_symlinks=False).st_mtime_ns > than:
            yield str(Path(entry.path).relative_to(tree))


def walk(tree: Path) -> Iterator["os.DirEntry[str]"]:
    """Visit everything in a tree that is no folder and not git's."""
    waiting = [str(tree)]
    while waiting:
        with contextlib.suppress(FileNotFoundError), os.scandir(waiting.pop()) as entries:
            for entry in entries:
                if entry.name == ".git":
                    continue
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(entry.path)
                else:
                    yield entry


def _write(file: Path, record: Record) -> None:
    values: dict[str, Any] = {
        field.name: getattr(record.source, field.name) for field in fields(Source) if field.name != "path"
    }
    values["submodules"] = dict(record.source.submodules)
    values |= {"asked": dict(record.asked), "fingerprint": asdict(record.fingerprint)}
    values["contents"] = record.contents
    atomic.write(file, json.dumps(values, indent=2) + "\n")
