"""The files to publish, what a target of them is, and which of them it already has."""

from __future__ import annotations

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from torchmill.core.errors import DeliveryError
from torchmill.wheel import dist_files
from torchmill.wheel.wheel_file import Distribution

UPLOADED, THERE, ABSENT = "uploaded", "there already, the same bytes", "would be uploaded"


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


class PublishTarget(ABC):
    """Somewhere that files can be brought to."""

    takes_documents: ClassVar[bool] = True  # files that are no wheels

    @property
    @abstractmethod
    def name(self) -> str:
        """Return how messages call it; never with a password."""

    def complaint(self, file: UploadFile) -> str | None:  # noqa: ARG002 - for others
        """Return why it would not take a file, whatever it has; None where it would."""
        return None

    @abstractmethod
    def existing(self, files: Sequence[UploadFile]) -> Mapping[str, str]:
        """Return the sha256 of those of the files, by name, of which it has one of that name.

        Raises NetworkError, HostError, or DeliveryError where it is not what it should be.
        """

    @abstractmethod
    def upload(self, file: UploadFile) -> None:
        """Bring a file, of whose name it has none.

        Raises DeliveryError where it has one by now, or refuses it; NetworkError or HostError.
        """

    def finish(self) -> None:  # noqa: B027 - most have nothing to do
        """Show what was brought, where that is kept back until all of it is there."""


def upload_files(wheel: Distribution, suffixes: Iterable[str]) -> Iterator[UploadFile]:
    """Yield the documents of a wheel that are there, then the wheel: who finds it finds them, too."""
    for suffix in suffixes:
        path = dist_files.document_path(wheel.path, suffix)
        if path.is_file():
            content = path.read_bytes()
            yield UploadFile(path, hashlib.sha256(content).hexdigest(), len(content), wheel)
    yield UploadFile(wheel.path, wheel.sha256, wheel.size, wheel)


def files_to_upload(files: Iterable[UploadFile], there: Mapping[str, str], place: str) -> list[UploadFile]:
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
            f"{place} has a different file of the same name, which is never replaced: {told}: give "
            f"the new one a "
            "new version or label, or remove the old one yourself",
            code="file-exists",
        )
    return [file for file in every if file.name not in there]
