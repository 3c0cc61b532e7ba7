"""Install a toolkit, library or compiler into the user's cache, from the first provider with it.

Providers are conda channels, Debian's archives and PyPI. Each is asked for an offer, which lists
the packages, and the first offer is installed.
"""

import contextlib
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torchmill.config.toolkit import ProviderPackage, ToolkitPart, ToolkitSource
from torchmill.core.console import ProgressBar, ProgressDisplay
from torchmill.core.errors import HostError, InterruptedBuildError, SourceError
from torchmill.core.system_errors import nearest_existing
from torchmill.core.units import format_bytes
from torchmill.fetch.toolkit.inherited import copied_bytes
from torchmill.fetch.toolkit.layout import PACKAGES
from torchmill.fetch.toolkit.request import (
    AskProvider,
    ProviderOffer,
    ProviderRefusal,
    ToolkitRequest,
    Unserved,
    candidate_sources,
    refusal_message,
)
from torchmill.fetch.toolkit.store import downloads_folder, make_in_store
from torchmill.host import libraries, provisioned
from torchmill.host.cuda_toolkits import lacking_toolkit_parts
from torchmill.host.programs import RunProgram, parse_tool_version
from torchmill.host.provisioned import COMPILER, MAGMA, TOOLKIT, ProvisionedFolder, ProvisionRecord

_CURE = "use another provider (`--from`)"


@dataclass(frozen=True, slots=True)
class ProvisionContext:
    """The providers to install from, and the cache to install into."""

    providers: Mapping[str, AskProvider]  # in the order in which they are asked
    sources: Sequence[ToolkitSource]
    cache: Path
    run: RunProgram
    progress: ProgressDisplay
    parts: Sequence[ToolkitPart] = ()  # those of a complete toolkit
    find_unserved: Unserved = lambda *_: ()  # by default, any GPU code will do


def install_from_providers(request: ToolkitRequest, context: ProvisionContext) -> ProvisionedFolder:
    """Return the folder of a request in the cache, and install it first if it is not there.

    Raises HostError with the reason of each provider if none has it, or for a full disk;
    SourceError and NetworkError if the provider's files are incomplete or do not arrive;
    InputError for a damaged library; InterruptedBuildError if the user stops the installation.
    """
    installed = _find_installed(request, context)
    if installed is not None:
        return installed
    offer = _first_offer(request, context)
    # The request may name only the beginning of a version, "8.5". The offer has the exact version,
    # which may be installed.
    installed = _find_installed(offer.request, context)
    if installed is not None:
        return installed
    _require_room(offer, context.cache)
    title = f"{offer.request} from {offer.provider}"
    try:
        with contextlib.closing(context.progress.start_bar(title)) as bar:
            return _install_offer(offer, context, bar)
    except KeyboardInterrupt:
        raise InterruptedBuildError(
            f"installing {offer.request} was interrupted: run the same command to resume it",
            code="interrupted",
        ) from None


def _find_installed(request: ToolkitRequest, context: ProvisionContext) -> ProvisionedFolder | None:
    """Return the folder of a request in the cache; None if it is not installed.

    Several folders may have the same version of MAGMA: one is returned whose GPU code serves the
    requested capabilities.
    """
    folders = provisioned.list_provisioned(context.cache, request.arch, request.programs_of)
    if request.kind != MAGMA:
        return folders.get(request.name)
    for magma in provisioned.provisioned_magma(folders, request.cuda or ""):
        if magma.version != request.version:
            continue
        if not context.find_unserved(magma.code, request.capabilities):
            return folders[magma.name]
    return None


def _first_offer(request: ToolkitRequest, context: ProvisionContext) -> ProviderOffer:
    """Return the first offer for a request. Raises HostError with the reasons if there is none."""
    refusals = []
    for name, ask in context.providers.items():
        sources = candidate_sources(request, name, context.sources, context.find_unserved)
        if isinstance(sources, ProviderRefusal):
            refusals.append(sources)
            continue
        answer = ask(request, sources, context.cache, context.progress)
        if isinstance(answer, ProviderOffer):
            return answer
        refusals.append(answer)
    raise HostError(refusal_message(request, refusals), code="no-provider")


def _require_room(offer: ProviderOffer, cache: Path) -> None:
    """Raise HostError if the disk cannot hold both the downloads and their contents."""
    existing_folder = nearest_existing(cache)
    needed = bytes_taken(offer.pieces)
    downloads = downloads_folder(cache, offer.request)
    for piece in offer.pieces:
        file = downloads / piece.file
        if file.is_file():  # it is downloaded already
            needed -= file.stat().st_size
    if offer.request.completes:
        needed += copied_bytes(
            Path(offer.request.completes),
            existing_folder,
            offer.request.programs_of or offer.request.arch,
            programs_only=bool(offer.request.programs_of),
        )
    free = shutil.disk_usage(existing_folder).free
    if free < needed:
        raise HostError(
            f"{offer.request} needs at least {format_bytes(needed)} in {cache}, whose disk has "
            f"{format_bytes(free)} free: make room (`invoke status` shows what is there, `invoke "
            "clean` removes it), or set XDG_CACHE_HOME to a folder on another disk",
            code="disk-full",
        )


def bytes_taken(pieces: Sequence[ProviderPackage]) -> int:
    """Return the room, in bytes, that downloading and unpacking some packages takes at least."""
    # Each download stays until its contents are unpacked and checked.
    return int(sum(piece.size * (1 + PACKAGES["unpacked"][piece.provider]) for piece in pieces))


def _install_offer(
    offer: ProviderOffer, context: ProvisionContext, bar: ProgressBar
) -> ProvisionedFolder:
    """Install an offer, and return its folder."""
    request = offer.request
    count = len(offer.pieces)
    size = format_bytes(sum(piece.size for piece in offer.pieces))
    plural = "s" if count > 1 else ""
    extent = f"{count} package{plural}, {size}"

    def fill(folder: Path) -> tuple[str, ProvisionRecord]:
        """Fill an empty folder, and return its final name and its record."""
        bar.update(0, None, extent)
        offer.fill(folder)
        _require_complete(offer, folder, context)
        name = request.name
        if request.kind == MAGMA:
            name = _name_magma(offer, folder, context.find_unserved)
        record = ProvisionRecord(
            kind=request.kind,
            version=request.version,
            full=offer.full,
            provider=offer.provider,
            pieces=tuple(offer.pieces),
            completes=request.completes,
            programs_of=request.programs_of,
        )
        return name, record

    def find() -> ProvisionedFolder | None:
        return _find_installed(request, context)

    def show_note(text: str) -> None:
        """Show a line that does not progress, such as that another process is waited for."""
        context.progress.start_bar(text).close()

    installed = make_in_store(context.cache, request, find, fill, show_note)
    bar.update(0, None, f"{extent}, in {installed.home}")
    return installed


def _require_complete(offer: ProviderOffer, folder: Path, context: ProvisionContext) -> None:
    """Raise SourceError if files are missing in a filled folder, or nvcc does not run as requested.

    Parts without which a build is possible may be missing.
    """
    request = offer.request
    title = f"{request} from {offer.provider}"
    if request.kind == COMPILER:
        compiler = provisioned.provisioned_cxx(folder, request.version)
        required = [[str(compiler.relative_to(folder))]]
    else:
        required = PACKAGES["required"][request.kind]

    def has_any(names: Sequence[str]) -> bool:
        return any((folder / name).exists() for name in names)

    missing = [alternatives[0] for alternatives in required if not has_any(alternatives)]
    if request.completes:
        missing_parts = lacking_toolkit_parts(folder, request.version, context.parts)
        missing += [part.called for part in missing_parts if part.is_required]
    if missing:
        raise SourceError(
            f"{title} has no {', '.join(missing)}: {_CURE}", code="incomplete-toolkit"
        )
    output = ""
    if request.kind == TOOLKIT:
        output = nvcc_mismatch(folder, request.version, context.run)
    if output:
        raise SourceError(
            f"the nvcc of {title} does not run here as that version (it prints: {output}): {_CURE}",
            code="nvcc-does-not-run",
        )


def install_parts(
    request: ToolkitRequest, packages: Sequence[str], context: ProvisionContext
) -> ProvisionedFolder:
    """Install some packages of PyPI beside the toolkit that a request completes; return the folder.

    `packages` are requirements. Raises what `install_from_providers` raises.
    """
    # A source that is in no facts: these packages alone.
    source = ToolkitSource(
        provider="pypi",
        kind=TOOLKIT,
        versions=(request.version,),
        packages=tuple(packages),
        arches=(request.arch,),
        places=(),
        cuda=None,
        source="",
    )
    return install_from_providers(request, replace(context, sources=(source,)))


def require_running_nvcc(home: Path, version: str, run: RunProgram, cure: str) -> None:
    """Raise HostError unless the nvcc of a toolkit runs here, and is of its version.

    `cure` says in the message what to do.
    """
    output = nvcc_mismatch(home, version, run)
    if output:
        raise HostError(
            f"the nvcc in {home}/bin does not run here as CUDA {version} (it prints: {output}): it is "
            f"of another machine, or damaged: {cure}",
            code="nvcc-does-not-run",
        )


def nvcc_mismatch(home: Path, version: str, run: RunProgram) -> str:
    """Return "" if the nvcc in `home` runs here and is of a version; otherwise its output.

    The output is in one line, and "nothing" if it printed none.
    """
    output = run([str(home / "bin/nvcc"), "--version"])
    if parse_tool_version("nvcc", output) == version:
        return ""
    return output.strip().replace("\n", " ") or "nothing"


def _name_magma(offer: ProviderOffer, folder: Path, find_unserved: Unserved) -> str:
    """Return the name for a folder with MAGMA, "magma-2.6.1-cu118-7.0_8.6": it ends with its GPUs.

    The library itself says for which GPUs it has code. Raises SourceError if it is of another
    version, or does not serve the requested capabilities; InputError for a damaged library.
    """
    from torchmill.wheel.verify import device_code

    request = offer.request
    title = f"{request} from {offer.provider}"
    version = libraries.header_version(MAGMA, [folder / "include"])
    if version != request.version:
        if version:
            problem = f"{title} is version {version}: request that version"
        else:
            problem = f"{title} does not tell its version: {_CURE}"
        raise SourceError(problem, code="wrong-magma-version")
    library = folder / "lib/libmagma.a"  # torch's builds link it statically
    if not library.exists():
        library = folder / "lib/libmagma.so"
    code = device_code.common_arch_list(device_code.read_device_code(library))
    if not code:
        raise SourceError(
            f"{title} has no GPU code that all its objects share: {_CURE}",
            code="magma-without-gpu-code",
        )
    missing = find_unserved(code, request.capabilities)
    if missing:
        raise SourceError(
            f"{title} has GPU code for {code}, but none for {', '.join(missing)}: {_CURE}",
            code="magma-lacks-capability",
        )
    return f"{request.name}-{code.replace(';', '_')}"  # provisioned_magma reads this name
