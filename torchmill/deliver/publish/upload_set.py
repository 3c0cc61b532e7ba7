"""The files to publish, and the interface of a target, the place that they are published to.

Nothing in a target is ever replaced. Each kind of target has a module beside this one.
"""

import hashlib
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar, NamedTuple

from torchmill.core import retries
from torchmill.core.errors import DeliveryError, NetworkError
from torchmill.core.silence import silence_limit
from torchmill.wheel import dist_files
from torchmill.wheel.finished_wheel import FinishedWheel

# The pauses between two requests for the files of a target.
_FIRST_PAUSE_SECONDS = 0.1
_LONGEST_PAUSE_SECONDS = 5.0

# The codes of errors by which a target refuses a file because it has one of that name.
_TAKEN_CODES = {"file-appeared", "simple-differs"}

# The outcomes of publishing a file.
UPLOADED = "uploaded"
PRESENT = "there already, the same bytes"
ABSENT = "would be uploaded"


@dataclass(frozen=True, slots=True)
class UploadFile:
    """A wheel, or a document beside it."""

    path: Path
    sha256: str
    size: int  # bytes
    wheel: FinishedWheel  # which it belongs to

    @property
    def name(self) -> str:
        """Return the name of the file, which it has everywhere."""
        return self.path.name


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file that a target has."""

    name: str
    digest: Callable[[], str]  # returns its sha256
    read: Callable[[], Iterable[bytes]]  # returns its content, in parts
    remove: Callable[[], object]


class PublishTarget(ABC):
    """A place that files can be uploaded to."""

    # These two have no default, so that every kind of target answers them. Options that need a yes
    # are refused for a target that answers no.
    takes_documents: ClassVar[bool]  # it takes files that are not wheels, too
    removes_files: ClassVar[bool]  # its files can be listed and removed, by `stored_files`
    size_limit: ClassVar[int] = sys.maxsize  # bytes of a file
    usual_limit: int = sys.maxsize  # bytes of a file that it takes without a special permission
    # For each file of which the target has only the beginning, because its upload broke off, how
    # many bytes it has, by the file's name; `existing_digests` finds them.
    partial_sizes: Mapping[str, int] = MappingProxyType({})

    @property
    @abstractmethod
    def name(self) -> str:
        """Return the name of the target for messages; it never has a password in it."""

    def complaint(self, file: UploadFile) -> str | None:
        """Return why the target would refuse a file in any case; None if it would not."""
        if file.size <= self.size_limit:
            return None
        limit = f"{self.name} takes at most {self.size_limit} a file"
        return f"{file.name} has {file.size} bytes; {limit}"

    @abstractmethod
    def existing_digests(self, files: Sequence[UploadFile]) -> Mapping[str, str]:
        """Return the sha256 of the target's files that have the names of these files, by name.

        A file of which the target has only the beginning does not count. Raises NetworkError,
        HostError, or DeliveryError if nothing can be published there.
        """

    @abstractmethod
    def upload(self, file: UploadFile) -> None:
        """Upload a file whose name the target does not have.

        Raises DeliveryError if it has such a file by now, or refuses the file; NetworkError,
        HostError.
        """

    def stored_files(self) -> Iterable[StoredFile]:
        """Return all files of the target, if it `removes_files`; other targets do not have this.

        Raises the errors of `existing_digests`.
        """
        raise NotImplementedError

    def finish(self) -> None:  # noqa: B027 - most targets have nothing to do
        """Make the uploads visible, if the target hides them until all of them are there."""


class DigestAndSize(NamedTuple):
    """The sha256 of some content, hexadecimal, and its size in bytes."""

    sha256: str
    size: int


def digest_parts(parts: Iterable[bytes]) -> DigestAndSize:
    """Return the digest and the size of content that comes in parts."""
    digest = hashlib.sha256()
    size = 0
    for part in parts:
        digest.update(part)
        size += len(part)
    return DigestAndSize(digest.hexdigest(), size)


def upload_files(wheel: FinishedWheel, suffixes: Iterable[str]) -> Iterator[UploadFile]:
    """Yield the documents beside a wheel that exist, then the wheel itself.

    In this order, whoever finds the wheel in a target also finds its documents.
    """
    for suffix in suffixes:
        path = dist_files.document_path(wheel.path, suffix)
        if path.is_file():
            content = digest_parts([path.read_bytes()])
            yield UploadFile(path, content.sha256, content.size, wheel)
    yield UploadFile(wheel.path, wheel.sha256, wheel.size, wheel)


def files_to_upload(
    files: Iterable[UploadFile], existing: Mapping[str, str], target: str
) -> list[UploadFile]:
    """Return the files that a target lacks; `existing` are the sha256 of those that it has.

    Raises DeliveryError that names all files that the target has with other bytes.
    """
    missing = []
    conflicts = []
    for file in files:
        digest = existing.get(file.name)
        if digest is None:
            missing.append(file)
        elif digest != file.sha256:
            conflicts.append(f"{file.name} (sha256 {file.sha256} here, {digest} there)")
    if conflicts:
        raise DeliveryError(
            f"{target} has a different file of the same name, which is never replaced: "
            f"{'; '.join(conflicts)}: give the new one a new version or label, or remove the old "
            "one yourself",
            code="file-exists",
        )
    return missing


def upload_file(target: PublishTarget, file: UploadFile) -> None:
    """Upload a file whose name the target does not have; a failure that may pass is repeated.

    An upload whose answer was lost may have succeeded, and another run may upload the same file.
    So before the file is sent again, and if the target says that it has the file, the target is
    asked what it has: the same bytes are a success. Raises the errors of `PublishTarget.upload`,
    and DeliveryError if the target has other bytes.
    """
    is_repetition = False

    def is_there() -> bool:
        return not files_to_upload([file], target.existing_digests([file]), target.name)

    def try_once() -> None:
        nonlocal is_repetition
        if is_repetition and is_there():
            return
        was_sent_before = is_repetition
        is_repetition = True
        try:
            target.upload(file)
        except DeliveryError as error:
            # A file that was sent before may be there, and not be listed yet: `confirm_uploads`
            # waits for that, and compares the bytes.
            is_taken = error.code in _TAKEN_CODES
            if not is_taken or not (was_sent_before or is_there()):
                raise

    retries.repeat(try_once, retries.judge_error, f"{file.name} to {target.name}")


def confirm_uploads(target: PublishTarget, files: Sequence[UploadFile]) -> None:
    """Prove that a target now has the very bytes of files that were uploaded.

    An index may list a file only some time after its upload, so it is asked again for up to
    `silence_limit` seconds. Raises DeliveryError for a file that differs or is incomplete,
    NetworkError for a file that the target does not list.
    """
    deadline = time.monotonic() + silence_limit()
    pause = _FIRST_PAUSE_SECONDS
    while True:
        existing = target.existing_digests(files)
        missing = [file.name for file in files if file.name not in existing]
        incomplete = [name for name in missing if name in target.partial_sizes]
        # An incomplete file stays incomplete: there is nothing to wait for.
        if not missing or incomplete or time.monotonic() > deadline:
            break
        time.sleep(pause)
        pause = min(2 * pause, _LONGEST_PAUSE_SECONDS)
    different = [file.name for file in files if existing.get(file.name, file.sha256) != file.sha256]
    if different:
        raise DeliveryError(
            f"{target.name} took {', '.join(different)}, but has other bytes than were sent: "
            "remove that there, and run the command again",
            code="upload-differs",
        )
    if incomplete:
        raise DeliveryError(
            f"{target.name} has only the beginning of {', '.join(incomplete)}: run the command "
            "again; if it keeps what it has, remove that there first",
            code="half-upload",
        )
    if missing:
        raise NetworkError(
            f"{target.name} took {', '.join(missing)}, but does not list it yet, so that nothing "
            "proves what it has: run the command again later",
            code="upload-unproved",
        )
