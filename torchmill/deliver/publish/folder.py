"""A folder, such as one that a web server shows or `invoke index` reads."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchmill.core.errors import DeliveryError
from torchmill.core.files import hash_file, report_disk_full
from torchmill.deliver.publish.upload_set import PublishTarget, UploadFile


@dataclass(frozen=True, slots=True)
class FolderTarget(PublishTarget):
    """A folder of this machine, which is made where it is missing."""

    path: Path

    @property
    def name(self) -> str:
        """Return its path."""
        return str(self.path)

    def existing(self, files: Sequence[UploadFile]) -> Mapping[str, str]:
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
                    f"{path} is not a file: remove it, or name another folder", code="target-occupied"
                )
        return found

    def upload(self, file: UploadFile) -> None:
        """Copy a file; it appears whole, and never in the place of another."""
        target = self.path / file.name
        fresh = self.path / f".{file.name}.{os.getpid()}"
        try:
            self.path.mkdir(parents=True, exist_ok=True)
            with report_disk_full(self.path):
                shutil.copyfile(file.path, fresh)
            _appear(fresh, target)
        except FileExistsError:
            raise DeliveryError(
                f"{target} has appeared in the meantime: run the command again", code="file-appeared"
            ) from None
        except OSError as error:
            raise DeliveryError(
                f"cannot write to {self.path} ({error.strerror or error})", code="not-writable"
            ) from None
        finally:
            with contextlib.suppress(OSError):
                fresh.unlink()


def _appear(fresh: Path, target: Path) -> None:
    """Give a file its name unless that is taken; a disk without links cannot say so in one step."""
    try:
        target.hardlink_to(fresh)
    except FileExistsError:
        raise
    except OSError:
        if target.exists():
            raise FileExistsError from None
        fresh.rename(target)
