"""The user's cache of toolkits: downloads, and folders that appear only when they are complete."""

import os
import shutil
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from torchmill.config.toolkit import ProviderPackage
from torchmill.core import locks
from torchmill.core.console import ProgressBar
from torchmill.core.deletion import delete_paths
from torchmill.core.system_errors import report_unwritable
from torchmill.fetch.download import download_file
from torchmill.fetch.toolkit.request import ToolkitRequest
from torchmill.host import provisioned
from torchmill.host.provisioned import ProvisionedFolder, ProvisionRecord

_NETWORK_HINT = "use another provider (`--from conda|debian|pypi`)"
_REFUSAL_HINT = (
    f"the index lists a file that is not there: run the command again later, or {_NETWORK_HINT}"
)


def downloads_folder(cache: Path, request: ToolkitRequest) -> Path:
    """Return the folder of a request's downloads, which is deleted after installation.

    No other request has its downloads there, even if it needs the same packages: whoever holds the
    lock of the request in `make_in_store` owns the folder.
    """
    return cache / "downloads" / f"{request.name}-{request.arch}"


def fetch_piece(piece: ProviderPackage, downloads: Path, bar: ProgressBar) -> Path:
    """Return the file of a package that has a URL, complete and checked, in a folder of downloads.

    A broken download is resumed. Raises NetworkError, HostError for a full disk, SourceError for a
    file that is not what the index lists.
    """
    return download_file(
        piece.url,
        downloads,
        bar,
        network_hint=_NETWORK_HINT,
        refusal_hint=_REFUSAL_HINT,
        sha256=piece.sha256,
        size=piece.size or None,
    )


def make_in_store(
    cache: Path,
    request: ToolkitRequest,
    find: Callable[[], ProvisionedFolder | None],
    fill: Callable[[Path], tuple[str, ProvisionRecord]],
    note: Callable[[str], None],
) -> ProvisionedFolder:
    """Return the installed folder of a request, and install it first if `find` finds none.

    `fill` puts the contents into an empty folder, and returns the name for the folder and its
    record. If it raises an error, nothing but downloads remains, which the next run need not
    repeat; after an installation they are deleted. One process installs while others wait; `note`
    then gets a sentence for the user. Raises HostError for a full disk.
    """
    arch = request.arch
    toolkits = cache / provisioned.FOLDER
    work = toolkits / f"{provisioned.MAKING}{request.name}-{arch}"
    holder = f"the run that installs {request.name} (process {os.getpid()})"
    with locks.wait_for_folder(
        work, holder, lambda _: note(f"waiting for {locks.read_holder(work)}")
    ):
        # Looked for with the lock held: another process may just have installed it.
        installed = find()
        if installed is not None:
            return installed
        folder = work / provisioned.WHOLE
        with report_unwritable(work):
            delete_paths([folder])  # of an interrupted run
            folder.mkdir()
            try:
                name, record = fill(folder)
                home = toolkits / f"{name}-{arch}"
                delete_paths([home])  # it is damaged, or `find` would have returned it
                date = datetime.now(UTC).isoformat(timespec="seconds")
                text = provisioned.format_provision_record(record, arch, date)
                (folder / provisioned.RECORD).write_text(text, encoding="utf-8")
                folder.rename(home)
                delete_paths([downloads_folder(cache, request)])
            finally:
                shutil.rmtree(folder, ignore_errors=True)
    return ProvisionedFolder(name, arch, home, record)
