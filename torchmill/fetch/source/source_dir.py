"""The folder of a fetched source: the tree, its record, and publishing by rename.

A source is complete if its folder has a name without a dot. A fetch works in hidden folders beside
it, and renames the finished one.
"""

import contextlib
import json
import os
import shutil
import time
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path

from torchmill.core import formats
from torchmill.core.atomic_writes import write_atomically
from torchmill.core.deletion import delete_paths
from torchmill.core.errors import SourceError
from torchmill.core.paths import Layout
from torchmill.core.strict_json import parse_json
from torchmill.fetch.source.request import SourceRequest
from torchmill.fetch.source.source import Source
from torchmill.fetch.source.tree import (
    TreeFingerprint,
    digest_contents,
    read_build_backend,
    take_fingerprint,
    version_clause,
    walk_tree,
)

WAIT_TIMEOUT_SECONDS = 600.0  # for another run to release a folder
RECORD = "source.json"


@dataclass(frozen=True, slots=True)
class FetchRecord:
    """The file beside a fetched tree: the source, how it was requested, and how it looked."""

    source: Source
    requested: Mapping[str, str | None]  # ref and origin, and the state of a local origin
    fingerprint: TreeFingerprint  # of the tree when it was fetched


@dataclass(frozen=True, slots=True)
class SourceProof:
    """The commit that a fetched tree is proven to be, or merely claims to be."""

    commit: str | None = None  # the proven commit
    # The facts record for the release this commit, or the digest of this archive.
    verified: bool = False
    submodules: Mapping[str, str] = field(default_factory=dict)  # path -> proven commit, or ""
    archive: str | None = None  # sha256 of the archive that was unpacked
    declared: str | None = None  # the commit that the archive or the folder names
    unproven: str = ""  # why there is no proven commit, as a clause


class SourceDir:
    """The folder of one release, and the hidden folders beside it that a fetch works in."""

    def __init__(self, home: Path, tag: str) -> None:
        self.home = home  # the folder of the package, with a folder for each release
        self.tag = tag
        self.folder = home / tag  # exists only when all of the source is in it
        self.tree = self.folder / "tree"
        # git works here until the tree is complete. Stays for the next try.
        self.partial = home / f".partial-{tag}"
        # Archives are unpacked here. Emptied at each try.
        self.unpacked = home / f".unpacked-{tag}"
        # Archives are downloaded to here. Stays for the next try.
        self.downloaded = home / f".downloaded-{tag}"
        # The old tree is here while the new one replaces it.
        self.old = home / f".old-{tag}"

    def recover(self) -> None:
        """Finish a replacement of trees that was interrupted.

        Between its two renames there is only the old tree, which is put back. After them, the old
        tree is deleted. Raises OSError if that is not possible.
        """
        is_complete = (self.old / RECORD).exists()
        if is_complete and not self.folder.exists():
            self.old.rename(self.folder)
        self._delete_old()

    def discard(self) -> None:
        """Delete the tree, and the remains of unfinished fetches."""
        self._delete_old()
        delete_paths((self.folder, self.partial, self.unpacked, self.downloaded))

    def _delete_old(self) -> None:
        """Delete the old tree, its record first.

        If this is interrupted, the rest has no record, and `recover` takes it for no source: it
        would put back half a tree after the user has deleted the new one.
        """
        delete_paths((self.old / RECORD, self.old))

    @contextlib.contextmanager
    def scratch(self) -> Iterator[Path]:
        """Yield the path for an unpacked tree, in an empty folder that is deleted at the end."""
        shutil.rmtree(self.unpacked, ignore_errors=True)
        self.unpacked.mkdir(parents=True)
        try:
            yield self.unpacked / "tree"
        finally:
            shutil.rmtree(self.unpacked, ignore_errors=True)

    def publish(
        self,
        finished: Path,
        request: SourceRequest,
        provider: str,
        origin: str,
        *,
        proof: SourceProof,
        requested: Mapping[str, str | None] | None = None,
    ) -> Source:
        """Move the folder `finished`, which has the complete tree, into place; return the source.

        All its files get the time of this moment. An earlier tree is replaced, and what unfinished
        fetches have left is deleted. `origin` says in messages where the source comes from.
        `requested` is the record of how the source was requested; by default, the ref and origin of
        the request. Raises SourceError if the tree's pyproject.toml is not valid TOML.
        """
        tree = finished / "tree"
        _set_one_date(tree)
        source = Source(
            package=request.package.name,
            version=request.release.version,
            tag=request.release.tag,
            provider=provider,
            origin=origin,
            commit=proof.commit,
            path=self.tree,
            verified=proof.verified,
            submodules=proof.submodules,
            build_backend=read_build_backend(tree),
            contents=digest_contents(tree),
            archive=proof.archive,
            declared=proof.declared,
            unproven=proof.unproven,
            # The files of a proven release are what they are: some of torch's own were not kept up
            # to date.
            contradiction="" if proof.verified else version_clause(tree, request.release.version),
        )
        if not requested:
            requested = {"ref": request.ref, "origin": request.origin}
        write_record(finished, FetchRecord(source, requested, take_fingerprint(tree)))
        # A folder cannot replace another in one step. If the process ends between these two
        # renames, `recover` restores the old tree.
        if self.folder.exists():
            self.folder.rename(self.old)
        finished.rename(self.folder)
        # The source is complete: what cannot be deleted now is deleted by the next fetch.
        with contextlib.suppress(OSError):
            self._delete_old()
        for leftover in (self.partial, self.unpacked, self.downloaded):
            shutil.rmtree(leftover, ignore_errors=True)
        return source


def _set_one_date(tree: Path) -> None:
    """Give all files of a tree the same time.

    For GCC, two headers with the same content are the same file if their times are equal to the
    second, and `#pragma once` then skips the second header. So what is compiled, and what a
    compiler cache finds, would depend on the moment at which git wrote each file.
    """
    now = int(time.time())
    for entry in walk_tree(tree):
        if not entry.is_symlink():
            os.utime(entry.path, (now, now))


def read_record(folder: Path) -> FetchRecord | None:
    """Return the record in the folder of a source, or None if nothing was fetched.

    Raises SourceError for a record that cannot be read.
    """
    try:
        document = parse_json((folder / RECORD).read_text(encoding="utf-8"))
        age = formats.judge_format(document, formats.SOURCE_RECORD)
        if age == "same":
            del document[formats.KEY]
            requested = document.pop("asked")
            fingerprint = TreeFingerprint(**document.pop("fingerprint"))
            source = Source(**document, path=folder / "tree")
            return FetchRecord(source, requested, fingerprint)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (ValueError, TypeError, KeyError, AttributeError):
        age = "invalid"
    reasons = {
        "newer": "was written by a newer torchmill",
        "older": "was written by an older torchmill",
    }
    reason = reasons.get(age, "cannot be read")
    raise SourceError(
        f"{folder / RECORD} {reason}: run the `invoke fetch` that brought the source again, with "
        "--discard if it says so",
        code="unreadable-source-record",
    )


def write_record(folder: Path, record: FetchRecord) -> None:
    """Write a record into the folder of a source."""
    document = {
        formats.KEY: formats.SOURCE_RECORD,
        **asdict(record.source),
        "asked": dict(record.requested),
        "fingerprint": asdict(record.fingerprint),
    }
    del document["path"]  # it is where the record lies
    write_atomically(folder / RECORD, json.dumps(document, indent=2) + "\n")


def refresh_record(folder: Path, record: FetchRecord, fingerprint: TreeFingerprint) -> None:
    """Record that a tree with this fingerprint is intact, and was requested just now.

    The time of the record is that of the request. Usually nothing else of it changes, which works
    on a full disk, too.
    """
    if fingerprint == record.fingerprint:
        os.utime(folder / RECORD)
    else:
        write_record(folder, replace(record, fingerprint=fingerprint))


def load_source(layout: Layout, package: str, tag: str) -> Source | None:
    """Return a package's fetched source, or None if there is none.

    Raises SourceError for a record that cannot be read.
    """
    record = read_record(layout.source(package) / tag)
    return record.source if record else None


def list_fetched(home: Path) -> list[Path]:
    """Return the folders of a package's fetched sources, the most recently requested one first."""
    # Folders with a dot are those of unfinished fetches.
    records = [file for file in home.glob(f"*/{RECORD}") if not file.parent.name.startswith(".")]
    records.sort(key=lambda file: file.stat().st_mtime_ns, reverse=True)
    return [file.parent for file in records]
