"""Install a toolkit, a library or a compiler into the user's cache, or complete one that lacks parts."""

import contextlib
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torchmill.config.toolkit import ProviderPackage, ToolkitPart, ToolkitSource
from torchmill.core.console import ProgressBar, ProgressDisplay
from torchmill.core.errors import HostError, InterruptedBuildError, SourceError
from torchmill.core.files import link_file, load_object, nearest_existing, real_path
from torchmill.core.units import format_bytes
from torchmill.fetch.toolkit import conda
from torchmill.fetch.toolkit.request import (
    AskProvider,
    ProviderOffer,
    ProviderRefusal,
    ToolkitRequest,
    Unserved,
    candidate_sources,
    find_part_packages,
    refusal_message,
)
from torchmill.fetch.toolkit.store import PACKAGES, TARGETS, downloads_folder, make_in_store, placer
from torchmill.host import libraries, provisioned
from torchmill.host.cuda_toolkits import (
    FoundToolkit,
    format_part_names,
    is_spread_in_system,
    lacking_toolkit_parts,
)
from torchmill.host.programs import RunProgram, parse_tool_version
from torchmill.host.provisioned import COMPILER, MAGMA, TOOLKIT, ProvisionedFolder, ProvisionRecord

_OTHER = "use another provider (`--from`)"
_FOLDERS = ("bin", "nvvm", "include", "lib64", "lib")
_CUPTI = "extras/CUPTI"
_VERSION_FILES = ("version.json", "version.txt")


@dataclass(frozen=True, slots=True)
class ProvisionContext:
    """Where to install from, and where to."""

    providers: Mapping[str, AskProvider]  # in the order in which they are asked
    sources: Sequence[ToolkitSource]
    cache: Path
    run: RunProgram
    progress: ProgressDisplay
    parts: Sequence[ToolkitPart] = ()  # that a toolkit has which was completed
    unserved: Unserved = lambda *_: ()


def install_from_providers(request: ToolkitRequest, context: ProvisionContext) -> ProvisionedFolder:
    """Return what is requested, installed from the first provider that has it unless it is there already.

    Raises HostError that lists why no provider has it, or names a full disk; SourceError and NetworkError
    if the provider's files are incomplete or do not arrive; InterruptedBuildError if the user stops it.
    """
    if (installed := _installed(request, context)) is not None:
        return installed
    offer = _first_offer(request, context)
    if (installed := _installed(offer.request, context)) is not None:
        return installed
    _require_room(offer, context.cache)
    try:
        with contextlib.closing(
            context.progress.task(f"{offer.request} from {offer.provider}")
        ) as bar:
            return _install_offer(offer, context, bar)
    except KeyboardInterrupt:
        raise InterruptedBuildError(
            f"installing {offer.request} was interrupted: run the same command to resume it",
            code="interrupted",
        ) from None


def _installed(request: ToolkitRequest, context: ProvisionContext) -> ProvisionedFolder | None:
    """Return what is requested where it is installed: of MAGMA, one that serves the capabilities."""
    there = provisioned.list_provisioned(context.cache, request.arch)
    if request.kind != MAGMA:
        return there.get(request.name)
    every = provisioned.provisioned_magma(there, request.cuda or "")
    fitting = (one for one in every if one.version == request.version)
    return next(
        (
            there[one.name]
            for one in fitting
            if not context.unserved(one.code, request.capabilities)
        ),
        None,
    )


def _first_offer(request: ToolkitRequest, context: ProvisionContext) -> ProviderOffer:
    lacking = []
    for name, ask in context.providers.items():
        found = candidate_sources(request, name, context.sources, context.unserved)
        if not isinstance(found, ProviderRefusal):
            answer = ask(request, found, context.cache, context.progress)
            if not isinstance(answer, ProviderRefusal):
                return answer
            found = answer
        lacking.append(found)
    raise HostError(refusal_message(request, lacking), code="no-provider")


def _require_room(offer: ProviderOffer, cache: Path) -> None:
    """Raise HostError if the disk cannot hold both the downloads and their content."""
    there = [downloads_folder(cache, piece.provider) / piece.file for piece in offer.pieces]
    existing = nearest_existing(cache)
    needed = bytes_taken(offer.pieces) - sum(
        file.stat().st_size for file in there if file.is_file()
    )
    if offer.request.completes:
        needed += copied_bytes(Path(offer.request.completes), existing, offer.request.arch)
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise HostError(
            f"{offer.request} needs at least {format_bytes(needed)} in {cache}, whose disk has "
            f"{format_bytes(free)} free: make room (`invoke status` shows what is there, `invoke clean` "
            "removes it), or set XDG_CACHE_HOME to a folder on another disk",
            code="disk-full",
        )


def bytes_taken(pieces: Sequence[ProviderPackage]) -> int:
    """Return the bytes that some pieces take at least while they are unpacked."""
    return int(sum(piece.size * (1 + PACKAGES["unpacked"][piece.provider]) for piece in pieces))


def _install_offer(
    offer: ProviderOffer, context: ProvisionContext, bar: ProgressBar
) -> ProvisionedFolder:
    request, count = offer.request, len(offer.pieces)
    what = f"{count} package{'s' if count > 1 else ''}, {format_bytes(sum(piece.size for piece in offer.pieces))}"

    def fill(folder: Path) -> tuple[str, ProvisionRecord]:
        bar.update(0, None, what)
        offer.fill(folder)
        _require_complete(offer, folder, context)
        whose = offer.full, offer.provider, tuple(offer.pieces)
        name = (
            _name_magma(offer, folder, context.unserved) if request.kind == MAGMA else request.name
        )
        return name, ProvisionRecord(request.kind, request.version, *whose, request.completes)

    def note(text: str) -> None:
        context.progress.task(text).close()

    made = make_in_store(context.cache, request, lambda: _installed(request, context), fill, note)
    for piece in offer.pieces:
        (downloads_folder(context.cache, piece.provider) / piece.file).unlink(missing_ok=True)
    bar.update(0, None, f"{what}, in {made.home}")
    return made


def _require_complete(offer: ProviderOffer, folder: Path, context: ProvisionContext) -> None:
    """Raise SourceError if files are missing, or nvcc does not run as the version that was requested."""
    request, what = offer.request, f"{offer.request} from {offer.provider}"
    compiler = (str(provisioned.provisioned_cxx(folder, request.version).relative_to(folder)),)
    signs = (compiler,) if request.kind == COMPILER else PACKAGES["required"][request.kind]
    missing = [group[0] for group in signs if not any((folder / name).exists() for name in group)]
    if request.completes:
        left = lacking_toolkit_parts(folder, request.version, context.parts)
        missing += [part.called for part in left if not part.without]
    if missing:
        raise SourceError(
            f"{what} has no {', '.join(missing)}: {_OTHER}", code="incomplete-toolkit"
        )
    if request.kind == TOOLKIT and (
        output := _unexpected_nvcc(folder, request.version, context.run)
    ):
        raise SourceError(
            f"the nvcc of {what} does not run here as that version (it prints: {output}): {_OTHER}",
            code="nvcc-does-not-run",
        )


def _unexpected_nvcc(home: Path, version: str, run: RunProgram) -> str:
    """Return what nvcc prints if it does not run here as a version; "" if it does."""
    output = run([str(home / "bin/nvcc"), "--version"])
    if parse_tool_version("nvcc", output) == version:
        return ""
    return output.strip().replace("\n", " ") or "nothing"


def _name_magma(offer: ProviderOffer, folder: Path, unserved: Unserved) -> str:
    """Return the name under which to install the MAGMA in a folder, by the GPUs that its code is for.

    Raises SourceError where it is of another version, or has no code for the capabilities asked for; BuildError
    for a broken library.
    """
    from torchmill.wheel.verify import device_code

    request = offer.request
    what, version = (
        f"what {offer.provider} has as {request}",
        libraries.header_version(MAGMA, [folder / "include"]),
    )
    if version != request.version:
        raise SourceError(
            f"{what} is version {version or 'unknown'}: request that version",
            code="wrong-magma-version",
        )
    library = next(
        one for one in (folder / "lib/libmagma.a", folder / "lib/libmagma.so") if one.exists()
    )
    code = device_code.common_arch_list(device_code.read_device_code(library))
    if not code:
        raise SourceError(
            f"{what} has no GPU code that all its objects share: {_OTHER}",
            code="magma-without-gpu-code",
        )
    if missed := unserved(code, request.capabilities):
        raise SourceError(
            f"{what} has GPU code for {code}, but none for {', '.join(missed)}: {_OTHER}",
            code="magma-lacks-capability",
        )
    return f"{request.name}-{code.replace(';', '_')}"  # as provisioned_magma reads it


def base_toolkit(version: str, here: Sequence[FoundToolkit]) -> FoundToolkit:
    """Return the toolkit of a version that builds use. Raises HostError if there is none to complete."""
    found = next((one for one in here if one.version == version), None)
    if found is None:
        there = ", ".join(f"CUDA {one.version} in {one.home}" for one in here) or "none"
        raise HostError(
            f"--complete {version}: no toolkit of that version is installed (found: {there}): install a "
            f"complete one with `invoke toolkit --cuda {version}`",
            code="no-toolkit-to-complete",
        )
    if is_spread_in_system(found.home):
        raise HostError(
            f"--complete {version}: its files in {found.home} cannot be told from the system's: install a "
            f"complete one with `invoke toolkit --cuda {version}`",
            code="toolkit-spread-in-system",
        )
    return found


def complete_lacking(
    found: FoundToolkit, lacks: Sequence[ToolkitPart], arch: str, context: ProvisionContext
) -> ProvisionedFolder:
    """Return a complete toolkit made of one that lacks parts, which builds then use instead.

    Raises HostError for a compiler that does not run here, and for missing parts that every build needs and
    no package has; otherwise as `install_from_providers`.
    """
    if output := _unexpected_nvcc(found.home, found.version, context.run):
        raise HostError(
            f"the nvcc in {found.home}/bin does not run here as CUDA {found.version} (it prints: {output}): "
            "it is of another machine, or damaged: install a complete toolkit with "
            f"`invoke toolkit --cuda {found.version}`",
            code="nvcc-does-not-run",
        )
    packages, left = find_part_packages(found.version, arch, lacks, context.sources)
    stopping = [part for part in left if not part.without]
    if stopping or not packages:
        raise HostError(
            f"CUDA {found.version} in {found.home} lacks {format_part_names(stopping or left)}, which no "
            f"package on PyPI has for that version and {arch}: install a complete toolkit with "
            f"`invoke toolkit --cuda {found.version}`",
            code="part-not-on-pypi",
        )
    source = ToolkitSource("pypi", TOOLKIT, (found.version,), packages, (arch,), (), None, "")
    request = ToolkitRequest(
        TOOLKIT, found.version, None, arch, completes=str(real_path(found.home))
    )
    return install_from_providers(request, replace(context, sources=(source,)))


def inherited_files(home: Path, arch: str) -> Iterator[tuple[str, Path]]:
    """Yield where each file of a toolkit goes below CUDA_HOME, and the file: the first of two for one place.

    Of a conda environment only NVIDIA's packages count; of a toolkit for several machines only one's files.
    """
    seen, place = set(), placer(conda.PROVIDER)
    for path in _conda(home) if (home / "conda-meta").is_dir() else _walked(home, arch):
        where = path if path in _VERSION_FILES else place(path.removeprefix(f"{_CUPTI}/"))
        if where is not None and where not in seen and (home / path).is_file():
            seen.add(where)
            yield where, home / path


def place_inherited(home: Path, folder: Path, arch: str) -> None:
    """Put the files of a toolkit into a folder: links to the same contents where that can be, or copies."""
    for where, file in inherited_files(home, arch):
        target = folder / where
        target.parent.mkdir(parents=True, exist_ok=True)
        if file.is_symlink() and len((to := file.readlink()).parts) == 1:
            target.symlink_to(to)
        elif not link_file(real_path(file), target):  # on another disk, or another user's
            shutil.copy(file, target)


def copied_bytes(home: Path, where: Path, arch: str) -> int:
    """Return the bytes that `place_inherited` will copy to a folder on the disk of `where`."""
    there = (file.stat() for _, file in inherited_files(home, arch) if not file.is_symlink())
    mine = (where.stat().st_dev, os.geteuid())
    return sum(one.st_size for one in there if (one.st_dev, one.st_uid) != mine)


def _walked(home: Path, arch: str) -> Iterator[str]:
    """Yield the paths of a toolkit's files below its folder."""
    target = f"targets/{TARGETS[arch]}"
    heads = [*_FOLDERS, *(f"{base}/{name}" for base in (target, _CUPTI) for name in _FOLDERS)]
    seen: set[Path] = set()
    for head in heads:
        for folder, inside, names in os.walk(home / head, followlinks=True):
            if (real := real_path(folder)) in seen:  # folders of a toolkit lead to each other
                inside.clear()
                continue
            seen.add(real)
            yield from (Path(folder, name).relative_to(home).as_posix() for name in sorted(names))
    yield from _VERSION_FILES


def _conda(prefix: Path) -> Iterator[str]:
    """Yield the paths of the files that NVIDIA's packages have put into an environment."""
    for file in sorted((prefix / "conda-meta").glob("*.json")):
        package = load_object(file)  # an empty one where conda was ended while it wrote
        if conda.is_toolkit_package(package.get("name", "")):
            yield from package.get("files", ())
