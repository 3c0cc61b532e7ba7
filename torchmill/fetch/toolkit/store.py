"""Place downloads and toolkits in the user's cache; each appears complete or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

from torchmill.config.facts_model import ProviderPackage
from torchmill.core import locks
from torchmill.core.files import delete_paths, report_disk_full
from torchmill.fetch.download import download_file
from torchmill.host.provisioned import (
    FOLDER,
    MAKING,
    RECORD,
    WHOLE,
    ProvisionedFolder,
    ProvisionRecord,
    format_provision_record,
    list_provisioned,
)

if TYPE_CHECKING:
    from torchmill.core.console import ProgressBar

_OTHERWISE = "use another provider (`--from conda|debian|pypi`)"
_REFUSED = f"the index lists a file that is not there: run the command again later, or {_OTHERWISE}"


def downloads_folder(cache: Path, provider: str) -> Path:
    """Return where a provider's files are downloaded to; they are deleted after installing."""
    return cache / "downloads" / provider


def fetch_piece(piece: ProviderPackage, cache: Path, bar: ProgressBar) -> Path:
    """Return the file of a package that has a URL, complete and checked; a broken download is resumed.

    Raises NetworkError, HostError for a full disk, SourceError for a file that is not what the index lists.
    """
    folder = downloads_folder(cache, piece.provider)
    return download_file(piece.url, folder, bar, otherwise=_OTHERWISE, refused=_REFUSED, sha256=piece.sha256)


def work_folder(cache: Path, name: str, arch: str) -> Path:
    """Return the folder in which something is assembled, under a lock."""
    return cache / FOLDER / f"{MAKING}{name}-{arch}"


def make_in_store(  # noqa: PLR0917 - the last two are for what is not known by the name of its place alone
    cache: Path,
    name: str,
    arch: str,
    fill: Callable[[Path], ProvisionRecord],
    note: Callable[[str], None],
    find: Callable[[], ProvisionedFolder | None] | None = None,
    named: Callable[[Path], str] | None = None,
) -> ProvisionedFolder:
    """Return what is installed under a name; if nothing is, `fill` puts it into an empty folder first.

    One process assembles it, others wait. `find`, if given, tells whether it is installed; `named` returns
    the final name by what lies in the folder. If these raise, nothing stays but what was downloaded. Raises
    HostError for a full disk.
    """
    place = work_folder(cache, name, arch)
    who = f"the run that brings {name} (process {os.getpid()})"
    with locks.wait_for_lock(place, who, lambda _: note(f"waiting for {locks.read_holder(place)}")):
        if (there := find() if find else list_provisioned(cache, arch).get(name)) is not None:
            return there
        whole = place / WHOLE
        with report_disk_full(place):
            delete_paths([whole])  # what an interrupted run left
            whole.mkdir()
            try:
                record = fill(whole)
                name = named(whole) if named else name
                final = cache / FOLDER / f"{name}-{arch}"
                delete_paths([final])  # it has lost its record
                made = datetime.now(UTC).isoformat(timespec="seconds")
                (whole / RECORD).write_text(format_provision_record(record, arch, made), encoding="utf-8")
                whole.rename(final)
            finally:
                shutil.rmtree(whole, ignore_errors=True)
    return ProvisionedFolder(name, arch, final, record)
