"""CUDA toolkits from conda channels, resolved and unpacked by py-rattler."""

import asyncio
import contextlib
import os
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from textwrap import shorten
from typing import TYPE_CHECKING
from urllib.parse import urlsplit
from urllib.request import url2pathname

from torchmill.config.toolkit import ProviderPackage, ToolkitSource
from torchmill.core import locks, retries
from torchmill.core.console import ProgressBar, ProgressDisplay
from torchmill.core.digests import hash_file
from torchmill.core.errors import HostError, NetworkError, SourceError
from torchmill.core.retries import PassingFailure
from torchmill.core.silence import silence_limit
from torchmill.core.system_errors import read_refusal
from torchmill.core.urls import hide_password, host_of
from torchmill.fetch.download import lasting_complaint
from torchmill.fetch.toolkit import layout
from torchmill.fetch.toolkit.layout import PACKAGES, placer
from torchmill.fetch.toolkit.request import ProviderOffer, ProviderRefusal, ToolkitRequest
from torchmill.fetch.toolkit.store import downloads_folder, fetch_piece
from torchmill.fetch.user_packages import import_rattler
from torchmill.host.provisioned import TOOLKIT

if TYPE_CHECKING:
    from rattler import RepoDataRecord

PROVIDER = "conda"
# conda's own variable for the server of channels that are given by name and not by URL.
ALIAS_VARIABLE = "CONDA_CHANNEL_ALIAS"
DEFAULT_ALIAS = "https://conda.anaconda.org/"
SUBDIRS = {"x86_64": "linux-64", "aarch64": "linux-aarch64"}  # arch -> conda's name of it
# rattler has a time limit for a whole request, and none for silence. An index is large, and gets so
# many times the limit of silence.
_SILENCE_LIMITS_OF_REQUEST = 10
# The causes that rattler tells of a connection that broke, and answers that ask to come back.
_BROKEN_CONNECTION = re.compile(
    r"(?i)body from connection|connection (?:reset|refused|closed|aborted)|broken pipe|end of file"
    r"|unexpected eof|incomplete|timed out|\b(?:304|408|425|429|500|502|503|504)\b"
)
_LONGEST_REASON = 300  # characters of the solver's report in a message


def is_toolkit_package(name: str) -> bool:
    """Tell whether a package that conda would install for a toolkit becomes a part of it."""
    return any(re.fullmatch(pattern, name) for pattern in PACKAGES["toolkit_packages"])


def channel_address(name: str, environ: Mapping[str, str]) -> str:
    """Return the URL of a channel, which may be given by URL or by name.

    "conda-forge" is on Anaconda's server, or on the mirror in CONDA_CHANNEL_ALIAS.
    """
    if "://" in name:
        return name
    alias = environ.get(ALIAS_VARIABLE) or DEFAULT_ALIAS
    return f"{alias.rstrip('/')}/{name}"


def offer(
    request: ToolkitRequest,
    sources: Sequence[ToolkitSource],
    cache: Path,
    progress: ProgressDisplay,
) -> ProviderOffer | ProviderRefusal:
    """Return the offer of the first source whose channels have all packages, or a refusal.

    py-rattler is installed for it if it is missing.
    """
    complaints = {source: _channel_complaint(source) for source in sources}
    if sources and all(complaints.values()):
        return ProviderRefusal(PROVIDER, complaints[sources[-1]])
    try:
        import_rattler(cache, progress)
    except (NetworkError, SourceError, HostError) as error:
        reason = f"it needs py-rattler, which could not be installed ({error})"
        return ProviderRefusal(PROVIDER, reason)
    reason = "no known channel has it"
    for source in sources:
        if complaints[source]:
            reason = complaints[source]
            continue
        title = f"{request} on {hide_password(', '.join(source.places))}"
        with (
            contextlib.closing(progress.start_bar(title)) as bar,
            _hold_channels(cache, bar) as channels,
        ):
            pieces = _solve(request, source, channels)
        if isinstance(pieces, str):
            reason = pieces
            continue
        return _make_offer(request, source, pieces, cache, progress)
    return ProviderRefusal(PROVIDER, reason)


def _make_offer(
    request: ToolkitRequest,
    source: ToolkitSource,
    pieces: tuple[ProviderPackage, ...],
    cache: Path,
    progress: ProgressDisplay,
) -> ProviderOffer:
    """Return the offer of some packages; its version is that of the source's first package."""
    main_package = source.packages[0].split()[0]
    versions = {piece.name: piece.version for piece in pieces}
    full = versions.get(main_package, "")
    exact = request
    if request.kind != TOOLKIT:  # a library may be requested by the beginning of its version
        exact = replace(request, version=full)
    fill = partial(_fill, exact, pieces, downloads_folder(cache, exact), progress)
    return ProviderOffer(exact, PROVIDER, full, pieces, fill)


def _channel_complaint(source: ToolkitSource) -> str:
    """Return which host of a source's channels cannot be reached, as a clause; "" if all can."""
    for name in source.places:
        address = channel_address(name, os.environ)
        complaint = lasting_complaint(address)
        if complaint is not None:
            return f"{host_of(address)} cannot be reached ({complaint})"
    return ""


def _fill(
    request: ToolkitRequest,
    pieces: Sequence[ProviderPackage],
    downloads: Path,
    progress: ProgressDisplay,
    folder: Path,
) -> None:
    """Download, check and unpack the packages, and add the links and stubs that they leave out."""
    place = placer(PROVIDER if request.kind == TOOLKIT else "magma")
    for piece in pieces:
        with contextlib.closing(progress.start_bar(f"{piece.name} {piece.version}")) as bar:
            archive = _fetch_archive(piece, downloads, bar)
            _unpack(archive, piece.name, folder, place)
    if request.kind == TOOLKIT:
        layout.add_links(folder, request.arch)
        layout.add_driver_stub(folder, request.arch)


@contextlib.contextmanager
def _hold_channels(cache: Path, bar: ProgressBar) -> Iterator[Path]:
    """Hold the folder of rattler's copies of indexes in the user's cache, after other processes.

    A process whose connection breaks deletes the folder, and another must not read there meanwhile.
    """
    folder = cache / "downloads" / "channels"

    def report(holder: str) -> None:
        bar.update(0, None, f"waiting for another process that reads channels{holder}")

    with locks.wait_for_file(folder.with_name(f"{folder.name}.lock"), report):
        yield folder


def _solve(
    request: ToolkitRequest, source: ToolkitSource, cache: Path
) -> tuple[ProviderPackage, ...] | str:
    """Return the packages of a request, as the solver chooses their versions.

    Returns a clause that says why instead, if the channels cannot be read or do not have all.
    """
    import rattler
    from rattler.exceptions import (
        GatewayError,
        InvalidChannelError,
        InvalidMatchSpecError,
        SolverError,
    )
    from rattler.networking import Client
    from rattler.platform import Subdir

    virtual_packages = []
    for package in rattler.VirtualPackage.detect():
        generic = package.into_generic()
        # A toolkit can be installed, and build, on a machine with an old driver or without one.
        if generic.name.normalized != "__cuda":
            virtual_packages.append(generic)
    channel_names = hide_password(", ".join(source.places))
    seconds = max(1, round(_SILENCE_LIMITS_OF_REQUEST * silence_limit()))
    client = Client.default_client(timeout=seconds)  # the default is to wait for ever

    def solve() -> list["RepoDataRecord"]:
        work = rattler.solve(
            [rattler.Channel(channel_address(name, os.environ)) for name in source.places],
            _match_specs(request, source),
            gateway=rattler.Gateway(cache_dir=cache, client=client),
            platforms=[Subdir(SUBDIRS[request.arch]), Subdir("noarch")],
            virtual_packages=virtual_packages,
        )
        return asyncio.run(work)

    def judge(error: Exception) -> PassingFailure | None:
        if not isinstance(error, GatewayError) or not _BROKEN_CONNECTION.search(str(error)):
            return None
        # rattler 0.28 remembers the validator of an index whose body broke off, and then rejects
        # the answer 304, that it has the index already.
        shutil.rmtree(cache, ignore_errors=True)
        return PassingFailure(str(error).splitlines()[-1])

    try:
        # rattler itself repeats a request three times, but not if the body of an answer breaks off.
        records = retries.repeat(solve, judge, channel_names)
    except InvalidChannelError as error:
        return f"{channel_names} names no channel ({shorten(str(error), _LONGEST_REASON)})"
    except GatewayError as error:
        return f"{channel_names} cannot be read ({shorten(str(error), _LONGEST_REASON)})"
    except (InvalidMatchSpecError, SolverError) as error:
        return f"{channel_names} does not have all of it ({shorten(str(error), _LONGEST_REASON)})"
    pieces = _choose_pieces(request, source, [_piece(record) for record in records])
    unchecked = [piece.file for piece in pieces if not piece.sha256]
    if unchecked:
        return (
            f"the channel lists no sha256 of {', '.join(unchecked)}, so they could not be checked"
        )
    return pieces


def _match_specs(request: ToolkitRequest, source: ToolkitSource) -> list[str]:
    """Return the source's packages with bounds of the version; without, if any version will do."""
    if request.version:
        return [spec.replace("{version}", request.version) for spec in source.packages]
    return [spec.split(maxsplit=1)[0] for spec in source.packages]


def _choose_pieces(
    request: ToolkitRequest, source: ToolkitSource, pieces: Sequence[ProviderPackage]
) -> tuple[ProviderPackage, ...]:
    """Return those packages of a solution that are needed, sorted by name.

    They are the parts of a toolkit, or the packages that the source names for a library. Left out
    are their dependencies, such as compilers.
    """
    library_names = {spec.split()[0] for spec in source.packages}
    chosen = []
    for piece in sorted(pieces, key=lambda piece: piece.name):
        if request.kind == TOOLKIT:
            is_chosen = is_toolkit_package(piece.name)
        else:
            is_chosen = piece.name in library_names
        if is_chosen:
            chosen.append(piece)
    return tuple(chosen)


def _piece(record: "RepoDataRecord") -> ProviderPackage:
    """Return the package of a record of rattler."""
    return ProviderPackage(
        provider=PROVIDER,
        name=record.name.normalized,
        version=str(record.version),
        file=record.file_name,
        url=record.url,
        sha256=record.sha256.hex() if record.sha256 else "",
        size=record.size or 0,
    )


def _fetch_archive(piece: ProviderPackage, downloads: Path, bar: ProgressBar) -> Path:
    """Download the file of a package, compare its digest, and return its path.

    A file of a channel that is a folder is not copied. Raises NetworkError, SourceError.
    """
    parts = urlsplit(piece.url)
    if parts.scheme != "file":
        return fetch_piece(piece, downloads, bar)
    file = Path(url2pathname(parts.path))
    if hash_file(file) != piece.sha256:
        raise SourceError(
            f"{file} is not what the channel lists: index the channel again", code="wrong-digest"
        )
    return file


def _unpack(archive: Path, name: str, home: Path, place: Callable[[str], str | None]) -> None:
    """Unpack the files of a package that have a place in the folder `home`, and its licences.

    Raises SourceError for a damaged package, HostError for a full disk.
    """
    from rattler.exceptions import ExtractError
    from rattler.package import PathsJson
    from rattler.package_streaming import extract

    with tempfile.TemporaryDirectory(dir=home) as scratch:
        root = Path(scratch, "package")
        try:
            extract(archive, root)
            listed = PathsJson.from_package_directory_with_deprecated_fallback(root).paths
        except (ExtractError, OSError) as error:
            disk_error = read_refusal(str(error), home)
            if disk_error is not None:
                raise disk_error from None
            reason = shorten(str(error), _LONGEST_REASON)
            raise SourceError(
                f"{archive} cannot be unpacked ({reason}): run the command again",
                code="damaged-archive",
            ) from None
        # conda replaces the path of the folder in which a package was built, in all files that
        # contain it. Such files only tell other programs the package's folder, so they are left
        # out.
        placeholder_files = set()
        for entry in listed:
            if entry.prefix_placeholder is not None:
                placeholder_files.add(str(entry.relative_path))

        def place_unless_placeholder(path: str) -> str | None:
            return None if path in placeholder_files else place(path)

        layout.place_files(root, home, place_unless_placeholder)
        licences = root / "info/licenses"
        if licences.is_dir():
            shutil.copytree(licences, home / "licenses" / name, dirs_exist_ok=True)
