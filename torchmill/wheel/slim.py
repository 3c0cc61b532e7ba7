"""Leave out of libraries the GPU code that the requested GPUs do not run.

Code for GPUs lies in sections of fatbins (see verify/device_code.py). The pieces of a fatbin that
no requested GPU needs are left out, and the rest moves together. Then the section ends earlier, and
the whole pages of memory (4 KiB or more) behind its new end are cut out of the file. Everything
else of the library keeps its address in memory, so that no code has to be changed. Only the words
that hold the address of a fatbin are written anew; they are in the wrappers, small structures by
which CUDA's runtime finds the fatbins.

Offsets are *old* (in the original file), *moved* (after the pieces moved together) or *new* (after
pages were cut out), as in `millpress.elf_cut`. Those of an image are relative to its beginning: an
image is an ELF file, or an object in a static library.
"""

import struct
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

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

WRAPPER_SECTION = ".nvFatBinSegment"  # of the wrappers
SIZE_AT = 8  # offset of the size of all pieces in the header of a fatbin
ALIGNMENT_BYTES = 256  # no fatbin needs more


@dataclass(frozen=True, slots=True)
class RequestedGpu:
    """The GPUs of a compute capability, for which code is kept."""

    capability: Capability
    with_ptx: bool = False  # keep PTX, too, which drivers of later GPUs compile


@dataclass(frozen=True, slots=True)
class SlimRequest:
    """All GPUs that code is kept for."""

    facts: Facts
    gpus: tuple[RequestedGpu, ...]


@dataclass
class LibraryPlan:
    """The parts of a library that stay, and their places in the new file."""

    size: int  # bytes, of the library as it is
    fatbins: int = 0
    code: Counter[str] = field(default_factory=Counter)  # bytes by capability: "8.6", "9.0 PTX"
    kept_code: Counter[str] = field(default_factory=Counter)  # the part of `code` that stays
    # How many fatbins have code that runs on a GPU, by the GPU's capability.
    served: Counter[str] = field(default_factory=Counter)
    # The same, of machine code alone, which no driver has to compile.
    served_natively: Counter[str] = field(default_factory=Counter)
    extents: list[Extent] = field(default_factory=list)  # ranges of bytes that are copied
    # New sizes and addresses of fatbins, at moved offsets.
    writes: list[FileWrite] = field(default_factory=list)
    # New tables of sections and segments, at new offsets.
    headers: list[FileWrite] = field(default_factory=list)
    cuts: Cuts = field(default_factory=Cuts)  # the pages that are cut out
    planned_end: int = 0  # old offset of the first byte that is not planned yet

    def keep_until(self, end: int) -> None:
        """Keep the bytes from `planned_end` to the offset `end`, which do not move."""
        start = self.planned_end
        self.extents.append(Extent(moved_offset=start, old_offset=start, size=end - start))
        self.planned_end = end


def kept_pieces(
    facts: Facts, gpu: RequestedGpu, pieces: Sequence[FatbinPiece]
) -> list[FatbinPiece]:
    """Return the pieces of a fatbin that a driver may choose for a GPU.

    There are three sorts of machine code: plain ("9.0"), specific to an architecture ("9.0a") and
    to a family ("10.0f"). It is not documented which of them a driver prefers, so the newest code
    of each sort that runs on the GPU is kept. PTX is kept if the request asks for it, or if no
    machine code runs on the GPU.
    """
    machine_code = []
    ptx_code = []
    for piece in pieces:
        if piece.target.ptx:
            ptx_code.append(piece)
        elif code_runs(facts, piece.target, gpu.capability):
            machine_code.append(piece)
    chosen: list[FatbinPiece] = []
    for suffix in ("", "a", "f"):
        chosen += _newest([piece for piece in machine_code if piece.target.suffix == suffix])
    if gpu.with_ptx or not machine_code:
        runnable = [piece for piece in ptx_code if ptx_runs(facts, piece.target, gpu.capability)]
        chosen += _newest(runnable)
        # PTX for a newer capability only: this GPU cannot run it, but later GPUs can.
        if gpu.with_ptx and not runnable:
            chosen += ptx_code
    return chosen


def _newest(pieces: Sequence[FatbinPiece]) -> list[FatbinPiece]:
    """Return the pieces that have the newest capability of all `pieces`."""
    newest = max((capability_key(piece.target.capability) for piece in pieces), default=None)
    return [piece for piece in pieces if capability_key(piece.target.capability) == newest]


class ImageCode(NamedTuple):
    """The code for GPUs in an image."""

    fatbins: Mapping[Section, Sequence[Fatbin]]  # by their section
    pointers: Mapping[int, Sequence[int]] | None  # as `fatbin_pointers` returns them


def plan_library(path: Path, request: SlimRequest) -> LibraryPlan | None:
    """Return the parts of a shared or static library, or of a program, that stay.

    Returns None if the file has no code for GPUs. Raises InputError if the file is damaged, or has
    code of an unknown kind.
    """
    return plan_for_each(path, [request])[0]


def plan_for_each(path: Path, requests: Sequence[SlimRequest]) -> list[LibraryPlan | None]:
    """Return what `plan_library` returns for each of some requests; the file is read once."""
    plans = [LibraryPlan(path.stat().st_size) for _ in requests]
    if elf.is_elf(path):
        with elf.open_elf(path) as image:
            code = _read_code(image)
            for plan, request in zip(plans, requests, strict=True):
                content_ends = _add_image(plan, image, code, request)
                plan.cuts = elf_cut.choose_cuts(image, content_ends)
                plan.headers.extend(elf_cut.plan_headers(image, plan.cuts, content_ends))
    else:
        # The objects in a static library keep their sizes: nothing can be cut out, but the bytes
        # that are left out become zeros, which take no space in a compressed wheel.
        with elf.refuse_damaged(path, elf.DAMAGED_OBJECT):
            for image in elf.static_objects(path):
                code = _read_code(image)
                for plan, request in zip(plans, requests, strict=True):
                    _add_image(plan, image, code, request)
    for plan in plans:
        plan.keep_until(plan.size)
    return [plan if plan.fatbins else None for plan in plans]


def _read_code(image: ElfImage) -> ImageCode:
    """Return the code for GPUs in an image, and the words that refer to it."""
    fatbins = {section: list(list_fatbins(image, section)) for section in device_sections(image)}
    return ImageCode(fatbins, fatbin_pointers(image, fatbins))


def _add_image(
    plan: LibraryPlan, image: ElfImage, code: ImageCode, request: SlimRequest
) -> dict[int, int]:
    """Add the parts of an image before and in its sections of fatbins that stay to the plan.

    Returns the moved offset at which the content of each section of fatbins ends, by the section's
    `header_offset`. The mapping is empty if the fatbins may not move: then each begins where it
    was, and only its pieces move together.
    """
    pointers = code.pointers
    content_ends = {}
    for section, fatbins in code.fatbins.items():
        plan.keep_until(image.start + section.offset)
        content_end = section.offset  # moved offset behind the fatbins that are planned
        for fatbin in fatbins:
            if pointers is None:
                moved_start = fatbin.start
            else:
                # Close to the fatbin before it, at an offset with the same remainder: so it keeps
                # any alignment that it has.
                moved_start = content_end + (fatbin.start - content_end) % ALIGNMENT_BYTES
                address = _loaded_address(section, fatbin.start)
                new_address = _loaded_address(section, moved_start)
                packed_address = struct.pack(image.byte_order + "Q", new_address)
                plan.writes += [(offset, packed_address) for offset in pointers[address]]
            content_end = _add_fatbin(plan, image, fatbin, moved_start, request)
        if pointers is not None:
            content_ends[section.header_offset] = content_end
        plan.planned_end = image.start + section.end
    return content_ends


def _loaded_address(section: Section, offset: int) -> int:
    """Return the address to which the content at an offset in a section is loaded."""
    return section.address + offset - section.offset


def _add_fatbin(
    plan: LibraryPlan, image: ElfImage, fatbin: Fatbin, moved_start: int, request: SlimRequest
) -> int:
    """Add the parts of a fatbin that stay to the plan; return the moved offset of their end.

    The fatbin begins at the offset `moved_start`. It and the returned offset are relative to the
    image; offsets in the plan are relative to the file. Raises ValueError for code of an unknown
    kind.
    """
    unknown_kinds = {piece.kind for piece in fatbin.pieces}.difference(CODE_KINDS.values())
    if unknown_kinds:
        raise ValueError(f"it has code of {', '.join(sorted(unknown_kinds))}, which is not known")
    chosen: set[FatbinPiece] = set()
    for gpu in request.gpus:
        pieces = kept_pieces(request.facts, gpu, fatbin.pieces)
        if pieces:
            plan.served[gpu.capability.name] += 1
        if any(not piece.target.ptx for piece in pieces):
            plan.served_natively[gpu.capability.name] += 1
        chosen.update(pieces)
    plan.fatbins += 1
    header_bytes = fatbin.code - fatbin.start
    base = image.start
    plan.extents.append(
        Extent(
            moved_offset=base + moved_start,
            old_offset=base + fatbin.start,
            size=header_bytes,
        )
    )
    moved_end = moved_start + header_bytes
    for piece in fatbin.pieces:
        plan.code[piece.name] += piece.size
        if piece in chosen:
            plan.kept_code[piece.name] += piece.size
            piece_bytes = piece.end - piece.start
            plan.extents.append(
                Extent(
                    moved_offset=base + moved_end,
                    old_offset=base + piece.start,
                    size=piece_bytes,
                )
            )
            moved_end += piece_bytes
    # The headers of pieces stay as they are; the fatbin's header has the size of all of them.
    pieces_bytes = moved_end - moved_start - header_bytes
    packed_size = struct.pack(image.byte_order + "Q", pieces_bytes)
    plan.writes.append((base + moved_start + SIZE_AT, packed_size))
    return moved_end


def fatbin_pointers(
    image: ElfImage, fatbins: Mapping[Section, Sequence[Fatbin]]
) -> dict[int, list[int]] | None:
    """Return the old offsets of the words that hold a fatbin's address, by the address.

    `fatbins` are those in each section of fatbins. Returns None if they may not move: if the image
    is not a 64-bit shared library whose relocations can be read, if a fatbin has no wrapper, or if
    anything else than wrappers and symbols for debuggers refers to an address in these sections.
    """
    if image.header.kind != elf.SHARED or not image.is_64:
        return None
    # Relocations are read in DT_RELA only, and only for processors whose numbers are known.
    if image.header.machine not in elf.RELATIVE or elf.RELR in dict(image.dynamic):
        return None
    words: dict[int, list[int]] = {}
    for section, section_fatbins in fatbins.items():
        for fatbin in section_fatbins:
            words[_loaded_address(section, fatbin.start)] = []
    if not _add_relocated_words(words, image, fatbins) or not all(words.values()):
        return None
    if any(_is_within(symbol.value, fatbins) for symbol in image.symbol_values(elf.DYNSYM)):
        return None
    # Symbols for debuggers move with the fatbins; nothing reads them when a program runs.
    for symbol in image.symbol_values(elf.SYMBOLS):
        if symbol.value in words:
            words[symbol.value].append(symbol.offset)
    return words


def _add_relocated_words(
    words: dict[int, list[int]], image: ElfImage, sections: Iterable[Section]
) -> bool:
    """Add the offsets of the words by which wrappers refer to fatbins.

    `words` has a key for the address of each fatbin. Returns whether the fatbins may move, as far
    as relocations tell: False if anything but a wrapper refers to an address in `sections`, or if
    a wrapper refers to an address at which no fatbin begins.
    """
    wrappers = list(image.sections_named(WRAPPER_SECTION))
    for pointer in image.pointers():
        if not _is_within(pointer.target, sections):
            continue
        if pointer.target not in words or not _is_within(pointer.place, wrappers):
            return False
        words[pointer.target].append(pointer.target_offset)
        # Some linkers write the address to its place, too, and others leave zeros there.
        place_offset = image.file_offset(pointer.place)
        if image.unpack("Q", place_offset) == (pointer.target,):
            words[pointer.target].append(place_offset)
    return True


def _is_within(address: int, sections: Iterable[Section]) -> bool:
    """Tell whether an address is in one of the sections."""
    return any(section.address <= address < section.address + section.size for section in sections)


def write_library(path: Path, destination: Path, plan: LibraryPlan) -> None:
    """Write the parts of a library that stay to a new file, `destination`; its mode is the usual one.

    `plan` is of `path`, which must not have changed since.
    """
    elf_cut.write_extents(path, destination, plan.extents, plan.cuts)
    writes = [(plan.cuts.new_offset(offset), content) for offset, content in plan.writes]
    writes += plan.headers
    with destination.open("r+b") as file:
        for offset, content in writes:
            file.seek(offset)
            file.write(content)
