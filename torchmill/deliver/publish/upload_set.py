"""The files to publish, what a target of them is and has already; a folder as a target."""

import hashlib
import shutil
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

from torchmill.core.errors import DeliveryError, NetworkError
from torchmill.core.files import fresh_path, hash_file, link_file, report_unwritable
from torchmill.core.silence import silence_limit
from torchmill.wheel import dist_files
from torchmill.wheel.wheel_file import Distribution

_LONGEST_PAUSE_SECONDS = 5.0  # between two questions
UPLOADED, PRESENT, ABSENT = "uploaded", "there already, the same bytes", "would be uploaded"


@dataclass(frozen=True, slots=True)
class UploadFile:
    """A wheel, or a document that stands beside it."""

    path: Path
    sha256: str
    size: int  # bytes
    wheel: Distribution  # to which it belongs

    @property
    def name(self) -> str:
        """Return its name, which it has everywhere."""
        return self.path.name


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file that a place has."""

    name: str
    digest: Callable[[], str]  # its sha256
    read: Callable[[], Iterable[bytes]]  # its parts
    remove: Callable[[], object]


class PublishTarget(ABC):
    """Somewhere that files can be brought to."""

    takes_documents: ClassVar[bool] = True  # files that are no wheels
    size_limit: ClassVar[int] = sys.maxsize  # bytes of a file
    usual_limit: int = sys.maxsize  # of one that it takes from everybody
    # files of which `existing` found but the beginning -> how many bytes it keeps
    partial_sizes: Mapping[str, int] = MappingProxyType({})

    @property
    @abstractmethod
    def name(self) -> str:
        """Return how messages call it; never with a password."""

    def complaint(self, file: UploadFile) -> str | None:
        """Return why it would not take a file, whatever it has; None where it would."""
        if file.size <= self.size_limit:
            return None
        return (
            f"{file.name} has {file.size} bytes; {self.name} takes at most {self.size_limit} a file"
        )

    @abstractmethod
    def existing_digests(self, files: Sequence[UploadFile]) -> Mapping[str, str]:
        """Return the sha256 of those of the files, by name, of which it has one of that name.

        Raises NetworkError, HostError, or DeliveryError where it is not what it should be.
        """

    @abstractmethod
    def upload(self, file: UploadFile) -> None:
        """Bring a file, of whose name it has none.

        Raises DeliveryError where it has one by now, or refuses it; NetworkError or HostError.
        """

    def stored_files(self) -> Iterable[StoredFile]:
        """Return all files that it has; nothing where it lets none be removed. Raises as `existing` does."""
        return ()

    def finish(self) -> None:  # noqa: B027 - most have nothing to do
        """Show what was brought, where that is kept back until all of it is there."""


def digest_parts(parts: Iterable[bytes]) -> tuple[str, int]:
    """Return the sha256 of what comes in parts, and how many bytes that is."""
    digest, size = hashlib.sha256(), 0
    for part in parts:
        digest.update(part)
        size += len(part)
    return digest.hexdigest(), size


def upload_files(wheel: Distribution, suffixes: Iterable[str]) -> Iterator[UploadFile]:
    """Yield the documents of a wheel that are there, then the wheel: who finds it finds them, too."""
    for suffix in suffixes:
        path = dist_files.document_path(wheel.path, suffix)
        if path.is_file():
            yield UploadFile(path, *digest_parts([path.read_bytes()]), wheel)
    yield UploadFile(wheel.path, wheel.sha256, wheel.size, wheel)


def files_to_upload(
    files: Iterable[UploadFile], there: Mapping[str, str], place: str
) -> list[UploadFile]:
    """Return the files that a place lacks; `there` is the sha256 of each that it has.

    Raises DeliveryError that names all files of which it has another one.
    """
    every = list(files)
    others = [file for file in every if there.get(file.name, file.sha256) != file.sha256]
    if others:
        told = "; ".join(
            f"{file.name} (sha256 {file.sha256} here, {there[file.name]} there)" for file in others
        )
        raise DeliveryError(
            f"{place} has a different file of the same name, which is never replaced: {told}: give the new one "
            "a new version or label, or remove the old one yourself",
            code="file-exists",
        )
    return [file for file in every if file.name not in there]


def confirm_uploads(target: PublishTarget, files: Sequence[UploadFile]) -> None:
    """Prove that a target now has the very bytes of files that were uploaded.

    An index may list them a moment later: it is asked until the limit of `silence_limit`. Raises
    DeliveryError for what differs, or is there by half; NetworkError for what it does not list.
    """
    until, pause = time.monotonic() + silence_limit(), 0.1
    while True:
        there = target.existing_digests(files)
        left = [file for file in files if file.name not in there]
        if (
            not left
            or any(file.name in target.partial_sizes for file in left)
            or time.monotonic() > until
        ):
            break
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
    if wrong := [file.name for file in files if there.get(file.name, file.sha256) != file.sha256]:
        raise DeliveryError(
            f"{target.name} took {', '.join(wrong)}, but has other bytes than were sent: remove that there, and run "
            "the command again",
            code="upload-differs",
        )
    if halves := [file.name for file in left if file.name in target.partial_sizes]:
        raise DeliveryError(
            f"{target.name} has only the beginning of {', '.join(halves)}: run the command again; if it keeps what "
            "it has, remove that there first",
            code="half-upload",
        )
    if left:
        raise NetworkError(
            f"{target.name} took {', '.join(file.name for file in left)}, but does not list it yet, so that nothing "
            "proves what it has: run the command again later",
            code="upload-unproved",
        )


@dataclass(frozen=True, slots=True)
class FolderTarget(PublishTarget):
    """A folder of this machine, which is made where it is missing."""

    path: Path

    @property
    def name(self) -> str:
        """Return its path."""
        return str(self.path)

    def existing_digests(self, files: Sequence[UploadFile]) -> Mapping[str, str]:
        """Return the sha256 of the files that it has. Raises DeliveryError where it is no folder."""
        if self.path.exists() and not self.path.is_dir():
            raise DeliveryError(f"{self.path} is a file: name a folder", code="target-is-file")
        found = {}
        for path in (self.path / file.name for file in files):
            if path.is_file():
                try:
                    found[path.name] = hash_file(path)
                except OSError as error:
                    raise DeliveryError(
                        f"{path} cannot be read ({error.strerror or error})", code="not-readable"
                    ) from None
            elif path.is_symlink() or path.exists():
                raise DeliveryError(
                    f"{path} is not a file: remove it, or name another folder",
                    code="target-occupied",
                )
        return found

    def upload(self, file: UploadFile) -> None:
        """Copy a file; it appears whole, and never in the place of another."""
        target = self.path / file.name
        with (
            report_unwritable(self.path, wanted=file.path.stat().st_size),
            fresh_path(target) as fresh,
        ):
            shutil.copyfile(file.path, fresh)
            if hash_file(fresh) != file.sha256:
                raise DeliveryError(
                    f"{target} would not match {file.path}: check the disk, and run the command again",
                    code="upload-differs",
                )
            if not link_file(fresh, target):  # the name is taken, or the disk has no links
                if target.is_symlink() or target.exists():
                    raise DeliveryError(
                        f"{target} has appeared in the meantime: run the command again",
                        code="file-appeared",
                    )
                fresh.rename(target)

    def stored_files(self) -> Iterator[StoredFile]:
        """Yield the files that lie in it."""
        for path in sorted(self.path.iterdir()) if self.path.is_dir() else ():
            if path.is_file() and not path.is_symlink():
                read, remove = (
                    partial(map, Path.read_bytes, [path]),
                    partial(path.unlink, missing_ok=True),
                )
                yield StoredFile(path.name, partial(hash_file, path), read, remove)
