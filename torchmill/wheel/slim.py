"""Leave out of libraries the code for GPUs that none of some GPUs runs."""

import struct
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from millpress import elf, elf_cut
from millpress.elf import ElfImage, Section
from millpress.elf_cut import Cuts, Extent
from millpress.elf_edit import FileWrite

from torchmill.config.arch_list import capability_key
from torchmill.config.facts import Facts
from torchmill.config.gpu import Capability
from torchmill.config.served_gpus import code_runs, ptx_runs
from torchmill.wheel.verify.device_code import (
    CODE_KINDS,
    Fatbin,
    FatbinPiece,
    device_sections,
    list_fatbins,
)

WRAPPER_SECTION = ".nvFatBinSegment"
SIZE_AT = 8  # offset in the header of a fatbin
ALIGNMENT_BYTES = 256  # no fatbin needs more


@dataclass(frozen=True, slots=True)
class Request:
    """The GPUs that code is kept for."""

    facts: Facts
    gpus: tuple[tuple[Capability, bool], ...]  # and whether PTX is wanted for later ones


@dataclass
class LibraryPlan:
    """What of a library stays, and where."""

    size: int
    fatbins: int = 0
    code: Counter[str] = field(default_factory=Counter)  # bytes by capability: "8.6", "9.0 PTX"
    kept: Counter[str] = field(default_factory=Counter)
    served: Counter[str] = field(
        default_factory=Counter
    )  # fatbins with code for a GPU, by its capability
    extents: list[Extent] = field(default_factory=list)
    writes: list[FileWrite] = field(default_factory=list)  # both before anything is cut out
    headers: list[FileWrite] = field(default_factory=list)
    cuts: Cuts = field(default_factory=Cuts)
    read: int = 0  # how far it is planned

    def stay(self, end: int) -> None:
        """Keep what is between the last section of fatbins and an offset where it is."""
        self.extents.append(Extent(self.read, self.read, end - self.read))
        self.read = end


def kept_pieces(
    facts: Facts, gpu: Capability, ptx: bool, pieces: Sequence[FatbinPiece]
) -> list[FatbinPiece]:
    """Return the pieces of a fatbin that a driver may choose for a GPU.

    Of machine code: the newest that runs, and so of code for one capability or family alone, because nothing
    says which of them a driver prefers. PTX: where it was asked for, or where no machine code runs.
    """
    code = [each for each in pieces if not each.target.ptx and code_runs(facts, each.target, gpu)]
    kept: list[FatbinPiece] = []
    for suffix in ("", "a", "f"):
        kept += _newest([each for each in code if each.target.suffix == suffix])
    if ptx or not code:
        source = [each for each in pieces if each.target.ptx]
        below = [each for each in source if ptx_runs(facts, each.target, gpu)]
        kept += _newest(below)
        if ptx and not below:  # it serves later GPUs
            kept += source
    return kept


def _newest(pieces: Sequence[FatbinPiece]) -> list[FatbinPiece]:
    newest = max((capability_key(piece.target.capability) for piece in pieces), default=None)
    return [piece for piece in pieces if capability_key(piece.target.capability) == newest]


def plan_library(path: Path, request: Request) -> LibraryPlan | None:
    """Return what of a shared or static library or a program stays; None of one without code for GPUs.

    Raises BuildError where it is damaged, or holds code of a kind that is not known.
    """
    plan = LibraryPlan(path.stat().st_size)
    if elf.is_elf(path):
        with elf.open_elf(path) as image:
            shrunk = _add_image(plan, image, request)
            free = [
                (shrunk[each.at], each.end) for each in device_sections(image) if each.at in shrunk
            ]
            plan.cuts = elf_cut.choose_cuts(image, free, shrunk)
            if plan.cuts.ranges:
                plan.headers.extend(elf_cut.plan_headers(image, plan.cuts, shrunk))
    else:
        with elf.refuse_damaged(path, elf.DAMAGED_OBJECT):
            for image in elf.static_objects(path):
                _add_image(plan, image, request)
    plan.stay(plan.size)
    return plan if plan.fatbins else None


def _add_image(plan: LibraryPlan, image: ElfImage, request: Request) -> dict[int, int]:
    """Plan what of an ELF file stays. Return where sections end whose fatbins moved together, by their headers."""
    sections = device_sections(image)
    fatbins = {section: list(list_fatbins(image, section)) for section in sections}
    pointers = fatbin_pointers(image, fatbins)
    ends = {}
    for section in sections:
        plan.stay(image.start + section.offset)
        at = section.offset
        for fatbin in fatbins[section]:
            at = fatbin.start if pointers is None else at + (fatbin.start - at) % ALIGNMENT_BYTES
            for word in (
                ()
                if pointers is None
                else pointers[section.address + fatbin.start - section.offset]
            ):
                plan.writes.append(
                    (
                        word,
                        struct.pack(image.byte_order + "Q", section.address + at - section.offset),
                    )
                )
            at = _add_fatbin(plan, image, fatbin, at, request)
        if pointers is not None:
            ends[section.at] = at
        plan.read = image.start + section.end
    return ends


def _add_fatbin(
    plan: LibraryPlan, image: ElfImage, fatbin: Fatbin, at: int, request: Request
) -> int:
    """Plan what of a fatbin stays, beginning at an offset, and return where it ends."""
    if unknown := {each.kind for each in fatbin.pieces} - {*CODE_KINDS.values()}:
        raise ValueError(f"it has code of {', '.join(sorted(unknown))}, which is not known")
    kept: set[FatbinPiece] = set()
    for gpu, ptx in request.gpus:
        own = kept_pieces(request.facts, gpu, ptx, fatbin.pieces)
        plan.served[gpu.name] += bool(own)
        kept.update(own)
    plan.fatbins += 1
    base, end = image.start, at + fatbin.code - fatbin.start
    plan.extents.append(Extent(base + at, base + fatbin.start, end - at))
    for piece in fatbin.pieces:
        plan.code[piece.name] += piece.size
        if piece in kept:
            plan.kept[piece.name] += piece.size
            plan.extents.append(Extent(base + end, base + piece.start, piece.end - piece.start))
            end += piece.end - piece.start
    size = end - at - (fatbin.code - fatbin.start)
    plan.writes.append((base + at + SIZE_AT, struct.pack(image.byte_order + "Q", size)))
    return end


def fatbin_pointers(
    image: ElfImage, fatbins: Mapping[Section, Sequence[Fatbin]]
) -> dict[int, list[int]] | None:
    """Return the offsets of the words that hold each fatbin's address, by it; None where they may not move.

    The runtime finds a fatbin by its wrapper, nothing else refers to one; where anything does, or a fatbin
    has no wrapper, all stay where they are.
    """
    readable = (
        image.is_64 and image.header[1] in elf.RELATIVE and elf.RELR not in dict(image.dynamic)
    )
    if image.header[0] != elf.SHARED or not readable:
        return None
    wrappers = list(image.sections_named(WRAPPER_SECTION))

    def is_within(address: int, places: Iterable[Section]) -> bool:
        return any(each.address <= address < each.address + each.size for each in places)

    found: dict[int, list[int]] = {
        section.address + each.start - section.offset: []
        for section, own in fatbins.items()
        for each in own
    }
    for place, value, at in image.pointers():
        if is_within(value, fatbins):
            if value not in found or not is_within(place, wrappers):
                return None
            word = image.file_offset(place)
            found[value] += [at, word] if image.unpack("Q", word) == (value,) else [at]
    if not all(found.values()) or any(
        is_within(value, fatbins) for _, value in image.symbol_values(elf.DYNSYM)
    ):
        return None
    for at, value in image.symbol_values(elf.SYMBOLS):  # for debuggers; the runtime reads none
        if value in found:
            found[value].append(at)
    return found


def write_library(path: Path, destination: Path, plan: LibraryPlan) -> None:
    """Write what of a library stays."""
    elf_cut.write_extents(path, destination, plan.extents, plan.cuts)
    with destination.open("r+b") as file:
        for at, data in [
            *((plan.cuts.new_offset(at), data) for at, data in plan.writes),
            *plan.headers,
        ]:
            file.seek(at)
            file.write(data)
