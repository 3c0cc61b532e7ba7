"""The files to publish, and which of them the target already has."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

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

    @property
    def is_wheel(self) -> bool:
        """Tell whether it is the wheel itself."""
        return self.path == self.wheel.path


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
            f"{place} has another file of the same name, which is never replaced: {told}: give what is new a "
            "new version or label, or remove what is there yourself",
            code="file-exists",
        )
    return [file for file in every if file.name not in there]
