"""CUDA toolkits from conda channels, resolved and unpacked by py-rattler."""

import asyncio
import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import url2pathname

from torchmill.config.toolkit import ProviderPackage, ToolkitSource
from torchmill.core.console import ProgressBar, ProgressDisplay
from torchmill.core.errors import HostError, NetworkError, SourceError
from torchmill.core.files import hash_file, read_refusal
from torchmill.core.silence import silence_limit
from torchmill.core.urls import hide_password, host_of
from torchmill.fetch.download import connection_complaint
from torchmill.fetch.toolkit import store
from torchmill.fetch.toolkit.request import ProviderOffer, ProviderRefusal, ToolkitRequest
from torchmill.fetch.toolkit.store import PACKAGES, fetch_piece, placer
from torchmill.fetch.user_packages import import_rattler
from torchmill.host.provisioned import TOOLKIT

if TYPE_CHECKING:
    from rattler import RepoDataRecord

ALIAS_VARIABLE = (
    "CONDA_CHANNEL_ALIAS"  # conda's own: where channels are that are named without an address
)
DEFAULT_ALIAS = "https://conda.anaconda.org/"
SUBDIRS = {"x86_64": "linux-64", "aarch64": "linux-aarch64"}  # how conda calls a machine
_SILENCES = 10  # so many times the limit of silence, for an index: rattler's limit is one of a whole request
PROVIDER = "conda"
_LONGEST_REASON = 300  # characters of what the solver reports


def is_toolkit_package(package: str) -> bool:
    """Tell whether a package of a solution becomes a part of the toolkit."""
    return any(re.fullmatch(pattern, package) for pattern in PACKAGES["taken"])


def channel_address(name: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the address of a channel: "conda-forge" lies on Anaconda's server, or where the user's mirror is."""
    if "://" in name:
        return name
    return f"{(environ.get(ALIAS_VARIABLE) or DEFAULT_ALIAS).rstrip('/')}/{name}"


def offer(
    request: ToolkitRequest,
    sources: Sequence[ToolkitSource],
    cache: Path,
    progress: ProgressDisplay,
) -> ProviderOffer | ProviderRefusal:
    """Return the packages of the first channels that have all of a toolkit."""
    closed = {source: _closed_channel(source) for source in sources}
    if sources and all(closed.values()):
        return ProviderRefusal(PROVIDER, closed[sources[-1]])
    try:
        import_rattler(cache, progress)
    except (NetworkError, SourceError, HostError) as error:
        return ProviderRefusal(
            PROVIDER, f"it needs py-rattler, which could not be installed ({error})"
        )
    why = "no known channel has it"
    for source in sources:
        if closed[source]:
            why = closed[source]
            continue
        with contextlib.closing(
            progress.task(f"{request} on {hide_password(', '.join(source.where))}")
        ):
            pieces = _solved(request, source, cache / "downloads" / "channels")
        if isinstance(pieces, str):
            why = pieces
            continue
        first = source.packages[0].split()[0]  # its version stands for all
        full = next((piece.version for piece in pieces if piece.name == first), "")
        exact = request if request.kind == TOOLKIT else replace(request, version=full)
        return ProviderOffer(
            exact, PROVIDER, full, pieces, partial(_fill, exact, pieces, cache, progress)
        )
    return ProviderRefusal(PROVIDER, why)


def _closed_channel(source: ToolkitSource) -> str:
    """Return which host of a source's channels cannot be reached, as a clause; "" where all can."""
    for name in source.where:
        address = channel_address(name)
        if (complaint := connection_complaint(address)) is not None:
            return f"{host_of(address)} cannot be reached ({complaint})"
    return ""


def _fill(
    request: ToolkitRequest,
    pieces: Sequence[ProviderPackage],
    cache: Path,
    progress: ProgressDisplay,
    folder: Path,
) -> None:
    place = placer(PROVIDER if request.kind == TOOLKIT else "magma")
    for piece in pieces:
        with contextlib.closing(progress.task(f"{piece.name} {piece.version}")) as bar:
            _unpack(_file(piece, cache, bar), piece.name, folder, place)
    if request.kind == TOOLKIT:
        store.add_links(folder, request.arch)
        store.add_driver_stub(folder)


def _solved(
    request: ToolkitRequest, source: ToolkitSource, cache: Path
) -> tuple[ProviderPackage, ...] | str:
    """Return the packages that go together, those of no interest left out; else why there are none."""
    import rattler
    from rattler.exceptions import (
        GatewayError,
        InvalidChannelError,
        InvalidMatchSpecError,
        SolverError,
    )
    from rattler.networking import Client
    from rattler.platform import Subdir

    # no __cuda: a driver that is too old, or none, does not matter where nothing is run
    machine = [one.into_generic() for one in rattler.VirtualPackage.detect()]
    named = hide_password(", ".join(source.where))
    client = Client.default_client(
        timeout=max(1, round(_SILENCES * silence_limit()))
    )  # else it waits for ever
    try:
        channels = [rattler.Channel(channel_address(name)) for name in source.where]
        work = rattler.solve(
            channels,
            # a package with its bounds, or any version of it
            [
                spec.replace("{version}", request.version)
                if request.version
                else spec.split(maxsplit=1)[0]
                for spec in source.packages
            ],
            gateway=rattler.Gateway(cache_dir=cache, client=client),
            platforms=[Subdir(SUBDIRS[request.arch]), Subdir("noarch")],
            virtual_packages=[one for one in machine if one.name.normalized != "__cuda"],
        )
        records = asyncio.run(work)
    except InvalidChannelError as error:
        return f"{named} names no channel ({shorten(str(error), _LONGEST_REASON)})"
    except GatewayError as error:
        return f"{named} cannot be read ({shorten(str(error), _LONGEST_REASON)})"
    except (InvalidMatchSpecError, SolverError) as error:
        return f"{named} does not have all of it ({shorten(str(error), _LONGEST_REASON)})"
    ours = (
        is_toolkit_package
        if request.kind == TOOLKIT
        else {spec.split()[0] for spec in source.packages}.__contains__
    )
    pieces = sorted(map(_piece, records), key=lambda piece: piece.name)
    chosen = tuple(piece for piece in pieces if ours(piece.name))
    if unchecked := [piece.file for piece in chosen if not piece.sha256]:
        return (
            f"the channel lists no sha256 of {', '.join(unchecked)}, so they could not be checked"
        )
    return chosen


def _piece(record: "RepoDataRecord") -> ProviderPackage:
    digest = record.sha256.hex() if record.sha256 else ""
    version, size = str(record.version), record.size or 0
    return ProviderPackage(
        PROVIDER, record.name.normalized, version, record.file_name, record.url, digest, size
    )


def _file(piece: ProviderPackage, cache: Path, bar: ProgressBar) -> Path:
    """Return the file of a package, checked; that of a local channel is used in place.

    Raises NetworkError, SourceError.
    """
    parts = urlsplit(piece.url)
    if parts.scheme != "file":
        return fetch_piece(piece, cache, bar)
    file = Path(url2pathname(parts.path))
    if hash_file(file) != piece.sha256:
        raise SourceError(
            f"{file} is not what the channel lists: index the channel again", code="wrong-digest"
        )
    return file


def _unpack(package: Path, name: str, home: Path, place: Callable[[str], str | None]) -> None:
    """Unpack those files of a package that have a place. Raises SourceError for one that is broken."""
    from rattler.exceptions import ExtractError
    from rattler.package import PathsJson
    from rattler.package_streaming import extract

    with tempfile.TemporaryDirectory(dir=home) as scratch:
        root = Path(scratch, "package")
        try:
            extract(package, root)
            listed = PathsJson.from_package_directory_with_deprecated_fallback(root).paths
        except (ExtractError, OSError) as error:
            told = f"{package} cannot be unpacked ({shorten(str(error), _LONGEST_REASON)}): run the command again"
            raise read_refusal(str(error), home) or SourceError(
                told, code="damaged-archive"
            ) from None
        # what holds the path of where it was made only tells other programs where the package lies
        fixed = {
            str(entry.relative_path) for entry in listed if entry.prefix_placeholder is not None
        }
        store.place_files(root, home, lambda path: None if path in fixed else place(path))
        licences = root / "info/licenses"
        if licences.is_dir():
            shutil.copytree(licences, home / "licenses" / name, dirs_exist_ok=True)
