"""A folder of this machine as a target."""

import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

from torchmill.core.atomic_writes import fresh_path
from torchmill.core.digests import hash_file
from torchmill.core.errors import DeliveryError
from torchmill.core.lenient_paths import link_file
from torchmill.core.system_errors import report_unwritable
from torchmill.deliver.publish.upload_set import PublishTarget, StoredFile, UploadFile


@dataclass(frozen=True, slots=True)
class FolderTarget(PublishTarget):
    """A folder of this machine, which is created if it is missing."""

    path: Path
    takes_documents: ClassVar[bool] = True
    removes_files: ClassVar[bool] = True

    @property
    def name(self) -> str:
        """Return the path of the folder."""
        return str(self.path)

    def existing_digests(self, files: Sequence[UploadFile]) -> Mapping[str, str]:
        """Return the sha256 of the folder's files that have the names of these files.

        A link to a file counts as that file. Raises DeliveryError if it is not a folder, or has
        something else than a file of such a name.
        """
        if self.path.exists() and not self.path.is_dir():
            raise DeliveryError(f"{self.path} is a file: name a folder", code="target-is-file")
        digests = {}
        for file in files:
            path = self.path / file.name
            if path.is_file():
                try:
                    digests[path.name] = hash_file(path)
                except OSError as error:
                    raise DeliveryError(
                        f"{path} cannot be read ({error.strerror or error})", code="not-readable"
                    ) from None
            elif path.is_symlink() or path.exists():
                raise DeliveryError(
                    f"{path} is not a file: remove it, or name another folder",
                    code="target-occupied",
                )
        return digests

    def upload(self, file: UploadFile) -> None:
        """Copy a file; it appears at once and whole, and never replaces another file.

        Raises DeliveryError if there is one, or if the copy differs, HostError if the disk refuses.
        """
        target = self.path / file.name
        with (
            report_unwritable(self.path, needed_bytes=file.path.stat().st_size),
            fresh_path(target) as fresh,
        ):
            shutil.copyfile(file.path, fresh)
            if hash_file(fresh) != file.sha256:
                raise DeliveryError(
                    f"{target} would not match {file.path}: check the disk, and run the command "
                    "again",
                    code="upload-differs",
                )
            # A link never replaces a file, and a rename does. But some disks have no links, so a
            # refused link does not prove that the name is taken.
            if not link_file(fresh, target):
                if target.is_symlink() or target.exists():
                    raise DeliveryError(
                        f"{target} has appeared in the meantime: run the command again",
                        code="file-appeared",
                    )
                fresh.rename(target)

    def stored_files(self) -> Iterator[StoredFile]:
        """Yield the files in the folder itself, and not its links: `existing_digests` counts those."""
        if not self.path.is_dir():
            return
        for path in sorted(self.path.iterdir()):
            if path.is_file() and not path.is_symlink():
                yield StoredFile(
                    path.name,
                    digest=partial(hash_file, path),
                    read=partial(_read_whole, path),
                    remove=partial(path.unlink, missing_ok=True),
                )


def _read_whole(path: Path) -> list[bytes]:
    return [path.read_bytes()]
