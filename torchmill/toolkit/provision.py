"""Bring a toolkit, a library or a compiler into the user's cache, from the first provider that has it."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from torchmill.errors import HostError, InterruptedBuildError, SourceError
from torchmill.host.kept import COMPILER, TOOLKIT, Kept, Record, cxx, kept
from torchmill.host.parts import lacking
from torchmill.host.programs import Run, version_in
from torchmill.model import Part, Piece, ToolkitSource
from torchmill.quantity import format_bytes
from torchmill.source.request import Bar, Progress
from torchmill.toolkit import magma
from torchmill.toolkit.choosing import candidates, refusal
from torchmill.toolkit.inherited import copied
from torchmill.toolkit.pieces import downloads
from torchmill.toolkit.store import make
from torchmill.toolkit.wanted import MAGMA, Lacking, Offer, Provider, Wanted

# What is in everything that is whole: of each group one, below its folder.
_SIGNS = {
    TOOLKIT: (
        ("bin/nvcc",),
        ("include/cuda_runtime_api.h",),
        ("lib64/libcudart.so", "lib64/libcudart_static.a"),
    ),
    "cudnn": (("include/cudnn.h",), ("lib/libcudnn.so", "lib/libcudnn_static.a")),
    "nccl": (("include/nccl.h",), ("lib/libnccl.so", "lib/libnccl_static.a")),
    "cusparselt": (("include/cusparseLt.h",), ("lib/libcusparseLt.so", "lib/libcusparseLt_static.a")),
    MAGMA: (("include/magma_v2.h",), ("lib/libmagma.a", "lib/libmagma.so")),
}
# Bytes on the disk for each that is downloaded: about what was measured, of CUDA 11.8 and gcc-11
# (debian: 3.4), and of CUDA 13.0, cuDNN and NCCL (pypi: 1.7, 1.6, 1.4). conda's archives hold the same, about
# as dense as Debian's.
_GROWTH = {"conda": 2.5, "debian": 3.3, "pypi": 1.6}


def _nothing(code: str, wanted: str) -> Sequence[str]:  # noqa: ARG001 (as `unserved`)
    return ()


@dataclass(frozen=True, slots=True)
class Shop:
    """Where things are brought from, and where to."""

    providers: Mapping[str, Provider]  # in the order in which they are asked
    sources: Sequence[ToolkitSource]
    cache: Path
    run: Run
    progress: Progress
    parts: Sequence[Part] = ()  # that a toolkit has which was completed
    unserved: magma.Unserved = _nothing


def bring(wanted: Wanted, shop: Shop) -> Kept:
    """Return what is wanted, brought from the first provider that has it where it is not kept yet.

    Raises HostError that lists why no provider has it, or names a full disk; SourceError and NetworkError
    where the one that has it does not give it whole; InterruptedBuildError where the user stops it.
    """
    if (there := _kept(wanted, shop)) is not None:
        return there
    offer = _offer(wanted, shop)
    if (there := _kept(offer.wanted, shop)) is not None:
        return there
    _assure_room(offer, shop.cache)
    bar = shop.progress.task(f"{offer.wanted} from {offer.provider}")
    try:
        return _made(offer, shop, bar)
    except KeyboardInterrupt:
        raise InterruptedBuildError(
            f"bringing {offer.wanted} was interrupted: run the same command to go on from what was downloaded"
        ) from None
    finally:
        bar.close()


def _kept(wanted: Wanted, shop: Shop) -> Kept | None:
    there = kept(shop.cache, wanted.arch)
    return magma.serving(there, wanted, shop.unserved) if wanted.kind == MAGMA else there.get(wanted.name)


def _offer(wanted: Wanted, shop: Shop) -> Offer:
    """Return the offer of the first provider that has it."""
    lacking = []
    for name, provider in shop.providers.items():
        found = _able(wanted, name, candidates(wanted, name, shop.sources), shop.unserved)
        if not isinstance(found, Lacking):
            answer = provider.offer(wanted, found, shop.cache, shop.progress)
            if not isinstance(answer, Lacking):
                return answer
            found = answer
        lacking.append(found)
    raise HostError(refusal(wanted, lacking))


def _able(
    wanted: Wanted, name: str, found: tuple[ToolkitSource, ...] | Lacking, unserved: magma.Unserved
) -> tuple[ToolkitSource, ...] | Lacking:
    """Return those sources of a provider whose code for GPUs serves what is wanted, as far as is known."""
    if isinstance(found, Lacking) or not wanted.capabilities:
        return found
    code = {one: ";".join(one.capabilities) for one in found}
    able = tuple(one for one in found if not code[one] or not unserved(code[one], wanted.capabilities))
    missed = unserved(code[found[0]], wanted.capabilities)
    return able or Lacking(name, f"its code is for {code[found[0]]}, and none for {', '.join(missed)}")


def _assure_room(offer: Offer, cache: Path) -> None:
    """Raise HostError where the disk cannot hold both what is downloaded and what is in it."""
    there = [downloads(cache, piece.provider) / piece.file for piece in offer.pieces]
    existing = next(folder for folder in (cache, *cache.parents) if folder.is_dir())
    needed = taken(offer.pieces) - sum(file.stat().st_size for file in there if file.is_file())
    if offer.wanted.completes:
        needed += copied(Path(offer.wanted.completes), existing, offer.wanted.arch)
    free = shutil.disk_usage(existing).free
    if free < needed:
        raise HostError(
            f"{offer.wanted} needs at least {format_bytes(needed)} in {cache}, whose disk has "
            f"{format_bytes(free)} free: make room (`invoke status` shows what is kept, `invoke clean` "
            "removes it), or let XDG_CACHE_HOME name a folder on another disk"
        )


def taken(pieces: Sequence[Piece]) -> int:
    """Return the bytes that some pieces take at least while they are unpacked."""
    return int(sum(piece.size * (1 + _GROWTH.get(piece.provider, 1)) for piece in pieces))


def _made(offer: Offer, shop: Shop, bar: Bar) -> Kept:
    count, total = len(offer.pieces), format_bytes(sum(piece.size for piece in offer.pieces))
    what = f"{count} package{'s' if count > 1 else ''}, {total}"

    def fill(folder: Path) -> Record:
        bar.update(0, None, what)
        offer.fill(folder)
        _assure_whole(offer, folder, shop)
        wanted, pieces = offer.wanted, tuple(offer.pieces)
        return Record(wanted.kind, wanted.version, offer.full, offer.provider, pieces, wanted.completes)

    def note(text: str) -> None:
        shop.progress.task(text).close()

    def named(folder: Path) -> str:
        if offer.wanted.kind != MAGMA:
            return offer.wanted.name
        return magma.named(offer.wanted, folder, shop.unserved, f"{offer.provider} has")

    wanted = offer.wanted
    made = make(shop.cache, wanted.name, wanted.arch, fill, note, lambda: _kept(wanted, shop), named)
    for piece in offer.pieces:
        (downloads(shop.cache, piece.provider) / piece.file).unlink(missing_ok=True)
    bar.update(0, None, f"{what}, in {made.home}")
    return made


def _assure_whole(offer: Offer, folder: Path, shop: Shop) -> None:
    """Raise SourceError where what was unpacked is not what it should be."""
    wanted = offer.wanted
    compiler = (str(cxx(folder, wanted.version).relative_to(folder)),)
    signs = (compiler,) if wanted.kind == COMPILER else _SIGNS[wanted.kind]
    missing = [group[0] for group in signs if not any((folder / name).exists() for name in group)]
    if wanted.completes:
        left = lacking(folder, wanted.version, shop.parts)
        missing += [part.called for part in left if not part.without]
    if missing:
        raise SourceError(
            f"what {offer.provider} has as {wanted} holds no {', '.join(missing)}: take it from another "
            "provider (`--from`)"
        )
    if wanted.kind == TOOLKIT:
        said = shop.run([str(folder / "bin/nvcc"), "--version"])
        if version_in("nvcc", said) != wanted.version:
            shown = said.strip().replace("\n", " ") or "nothing"
            raise SourceError(
                f"the nvcc that {offer.provider} has as {wanted} does not run here as that version (it says: "
                f"{shown}): take it from another provider (`--from`)"
            )
