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

WRAPPER_SECTION = ".nvFatBinSegment"  # of the structures by which the runtime finds fatbins
SIZE_AT = 8  # offset in the header of a fatbin
ALIGNMENT_BYTES = 256  # no fatbin needs more


@dataclass(frozen=True, slots=True)
class Request:
    """The GPUs that code is kept for."""

    facts: Facts
    gpus: tuple[tuple[Capability, bool], ...]  # and whether PTX is wanted for later ones


@dataclass
class LibraryPlan:
    """The parts of a library that stay, and their places in the new file."""

    size: int  # bytes, of the library as it is
    fatbins: int = 0
    code: Counter[str] = field(default_factory=Counter)  # bytes by capability: "8.6", "9.0 PTX"
    kept_code: Counter[str] = field(default_factory=Counter)  # the part of `code` that stays
    served: Counter[str] = field(
        default_factory=Counter
    )  # fatbins with code for a GPU, by its name
    # `extents` and `writes` are planned before whole pages are cut out, `headers` after that.
    extents: list[Extent] = field(default_factory=list)
    writes: list[FileWrite] = field(default_factory=list)
    headers: list[FileWrite] = field(default_factory=list)
    cuts: Cuts = field(default_factory=Cuts)
    planned_end: int = 0  # offset of the first byte that is not planned yet

    def keep_until(self, end: int) -> None:
        """Keep all bytes from the last section of fatbins to the offset `end` at their places."""
        self.extents.append(Extent(self.planned_end, self.planned_end, end - self.planned_end))
        self.planned_end = end


def kept_pieces(
    facts: Facts, gpu: Capability, ptx: bool, pieces: Sequence[FatbinPiece]
) -> list[FatbinPiece]:
    """Return the pieces of a fatbin that a driver may choose for a GPU.

    Of machine code: the newest that runs, and so for code that is specific to an architecture or a
    family, because nothing says which of them a driver prefers. PTX: if `ptx` asks for it, or if no
    machine code runs.
    """
    machine_code = []
    ptx_code = []
    for piece in pieces:
        if piece.target.ptx:
            ptx_code.append(piece)
        elif code_runs(facts, piece.target, gpu):
            machine_code.append(piece)
    chosen: list[FatbinPiece] = []
    for suffix in ("", "a", "f"):
        chosen += _newest([piece for piece in machine_code if piece.target.suffix == suffix])
    if ptx or not machine_code:
        runnable = [piece for piece in ptx_code if ptx_runs(facts, piece.target, gpu)]
        chosen += _newest(runnable)
        if ptx and not runnable:  # it serves later GPUs
            chosen += ptx_code
    return chosen


def _newest(pieces: Sequence[FatbinPiece]) -> list[FatbinPiece]:
    """Return the pieces for the newest capability among these."""
    newest = max((capability_key(piece.target.capability) for piece in pieces), default=None)
    return [piece for piece in pieces if capability_key(piece.target.capability) == newest]


def plan_library(path: Path, request: Request) -> LibraryPlan | None:
    """Return the parts that stay of a shared or static library or a program.

    None if it has no code for GPUs. Raises InputError if it is damaged, or holds code of an unknown
    kind.
    """
    plan = LibraryPlan(path.stat().st_size)
    if elf.is_elf(path):
        with elf.open_elf(path) as image:
            new_ends = _add_image(plan, image, request)
            free = [
                (new_ends[section.at], section.end)
                for section in device_sections(image)
                if section.at in new_ends
            ]
            plan.cuts = elf_cut.choose_cuts(image, free, new_ends)
            if plan.cuts.ranges:
                plan.headers.extend(elf_cut.plan_headers(image, plan.cuts, new_ends))
    else:
        with elf.refuse_damaged(path, elf.DAMAGED_OBJECT):
            for image in elf.static_objects(path):
                _add_image(plan, image, request)
    plan.keep_until(plan.size)
    return plan if plan.fatbins else None


def _add_image(plan: LibraryPlan, image: ElfImage, request: Request) -> dict[int, int]:
    """Plan the parts of an ELF file that stay.

    Returns the new ends of sections whose fatbins moved together, by the offset of their headers.
    """
    sections = device_sections(image)
    fatbins = {section: list(list_fatbins(image, section)) for section in sections}
    pointers = fatbin_pointers(image, fatbins)
    new_ends = {}
    for section in sections:
        plan.keep_until(image.start + section.offset)
        at = section.offset
        for fatbin in fatbins[section]:
            if pointers is None:
                at = fatbin.start
            else:
                # as close to the one before as its alignment allows
                at += (fatbin.start - at) % ALIGNMENT_BYTES
                address = section.address + fatbin.start - section.offset
                new_address = section.address + at - section.offset
                packed_address = struct.pack(image.byte_order + "Q", new_address)
                plan.writes += [(word, packed_address) for word in pointers[address]]
            at = _add_fatbin(plan, image, fatbin, at, request)
        if pointers is not None:
            new_ends[section.at] = at
        plan.planned_end = image.start + section.end
    return new_ends


def _add_fatbin(
    plan: LibraryPlan, image: ElfImage, fatbin: Fatbin, at: int, request: Request
) -> int:
    """Plan the parts of a fatbin that stay, beginning at the offset `at`, and return their end."""
    unknown_kinds = {piece.kind for piece in fatbin.pieces}.difference(CODE_KINDS.values())
    if unknown_kinds:
        raise ValueError(f"it has code of {', '.join(sorted(unknown_kinds))}, which is not known")
    chosen: set[FatbinPiece] = set()
    for gpu, ptx in request.gpus:
        pieces = kept_pieces(request.facts, gpu, ptx, fatbin.pieces)
        if pieces:
            plan.served[gpu.name] += 1
        chosen.update(pieces)
    plan.fatbins += 1
    header_bytes = fatbin.code - fatbin.start
    base = image.start
    plan.extents.append(Extent(base + at, base + fatbin.start, header_bytes))
    end = at + header_bytes
    for piece in fatbin.pieces:
        plan.code[piece.name] += piece.size
        if piece in chosen:
            plan.kept_code[piece.name] += piece.size
            piece_bytes = piece.end - piece.start
            plan.extents.append(Extent(base + end, base + piece.start, piece_bytes))
            end += piece_bytes
    size = struct.pack(image.byte_order + "Q", end - at - header_bytes)
    plan.writes.append((base + at + SIZE_AT, size))
    return end


def fatbin_pointers(
    image: ElfImage, fatbins: Mapping[Section, Sequence[Fatbin]]
) -> dict[int, list[int]] | None:
    """Return the offsets of the words that hold each fatbin's address, by that address.

    None if the fatbins may not move. The runtime finds a fatbin by its wrapper, and nothing else
    refers to one; if anything does, or a fatbin has no wrapper, all stay at their places.
    """
    has_plain_relocations = elf.RELR not in dict(image.dynamic)
    is_known = image.is_64 and image.header[1] in elf.RELATIVE and has_plain_relocations
    if image.header[0] != elf.SHARED or not is_known:
        return None
    words: dict[int, list[int]] = {}
    for section, section_fatbins in fatbins.items():
        for fatbin in section_fatbins:
            words[section.address + fatbin.start - section.offset] = []
    if not _add_relocated_words(words, image, fatbins) or not all(words.values()):
        return None
    if any(_is_within(value, fatbins) for _, value in image.symbol_values(elf.DYNSYM)):
        return None
    # for debuggers; the runtime reads none of these
    for at, value in image.symbol_values(elf.SYMBOLS):
        if value in words:
            words[value].append(at)
    return words


def _add_relocated_words(
    words: dict[int, list[int]], image: ElfImage, sections: Iterable[Section]
) -> bool:
    """Add the offsets of the words in wrappers that hold the address of a fatbin.

    Returns False if anything but a wrapper holds an address in `sections`, or if an address there
    is not that of a fatbin.
    """
    wrappers = list(image.sections_named(WRAPPER_SECTION))
    for place, value, at in image.pointers():
        if not _is_within(value, sections):
            continue
        if value not in words or not _is_within(place, wrappers):
            return False
        words[value].append(at)
        # linkers differ in whether they write the value to its place, too
        word = image.file_offset(place)
        if image.unpack("Q", word) == (value,):
            words[value].append(word)
    return True


def _is_within(address: int, sections: Iterable[Section]) -> bool:
    """Tell whether an address is in one of the sections."""
    return any(section.address <= address < section.address + section.size for section in sections)


def write_library(path: Path, destination: Path, plan: LibraryPlan) -> None:
    """Write the parts of a library that stay."""
    elf_cut.write_extents(path, destination, plan.extents, plan.cuts)
    writes = [(plan.cuts.new_offset(at), data) for at, data in plan.writes]
    writes += plan.headers
    with destination.open("r+b") as file:
        for at, data in writes:
            file.seek(at)
            file.write(data)
