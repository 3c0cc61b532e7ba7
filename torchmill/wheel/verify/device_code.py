"""Read the GPU code in a library: for which compute capabilities it was compiled, and its size.

nvcc writes one fatbin for each source file. A fatbin has a header and then pieces: machine code
(SASS) or PTX for one capability each, which have headers of their own. Fatbins lie one after the
other in a section of the library. They are read here, because NVIDIA's cuobjdump is not installed
everywhere, and refuses code that is too old or too new for it.

Offsets are relative to the ELF file, or to the object that contains the fatbin, if a library is
static. The *name* of code is its capability with its kind: "8.6" is machine code, "8.6 PTX" is PTX.
"""

import mmap
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from millpress import elf
from millpress.elf import ElfImage, Section, open_elf

from torchmill.config.arch_list import (
    ArchTarget,
    capability_key,
    format_arch_list,
    is_plain_target,
    parse_arch_list,
)
from torchmill.config.facts import Facts
from torchmill.core.lenient_paths import real_path
from torchmill.core.units import format_bytes
from torchmill.wheel.planned_wheel import PlannedWheel

# The second is for code that calls code in other files: nvlink links it, in a later step.
FATBIN_SECTIONS = (".nv_fatbin", "__nv_relfatbin")
FATBIN_MAGIC = 0xBA55ED50
FATBIN_VERSION = 1
FATBIN_LAYOUT = "IHHQ"  # magic, version, size of this header, size of the pieces after it
FATBIN_BYTES = struct.calcsize("<" + FATBIN_LAYOUT)
# kind, …, size of this header, size of the piece, …, capability, …, flags, …, uncompressed size
PIECE_LAYOUT = "HHIQIIHHIIIQQQ"
PIECE_BYTES = struct.calcsize("<" + PIECE_LAYOUT)
PADDING_BYTES = 8  # the gap between two fatbins is a multiple of it
GAP_CHUNK_BYTES = 1 << 16  # how much of a gap is read in one step
MOST_PIECES = 1 << 10  # nvcc writes one or two for each capability
ARCH_SPECIFIC_FLAG = 1 << 20  # code for sm_90a
FAMILY_SPECIFIC_FLAG = 1 << 21  # code for the family of sm_100f
SASS = "sass"
PTX = "ptx"
LTO = "lto"
CODE_KINDS = {1: PTX, 2: SASS, 8: LTO}
# All GPU code in this library is MAGMA's, which was compiled for its own list of capabilities:
# torch's sources for it are C++ (from torch 1.13 on: native/cuda/linalg/*.cpp).
MAGMA_LIBRARY = "libtorch_cuda_linalg.so"
Unpack = Callable[[str, int], tuple[int, ...]]  # returns the numbers of a layout at an offset


@dataclass(frozen=True, slots=True)
class FatbinPiece:
    """One piece of a fatbin: code for one capability."""

    capability: str  # "8.6", "9.0a"
    kind: str  # "sass", "ptx", "lto" (compiled when it is linked); "kind 64" if unknown
    start: int  # offset of its header
    end: int
    size: int  # bytes without its header, compressed or not

    @property
    def name(self) -> str:
        """Return the name of this code: "8.6" of machine code, "8.6 PTX" of PTX."""
        if self.kind == SASS:
            return self.capability
        return f"{self.capability} {self.kind.upper()}"

    @property
    def target(self) -> ArchTarget:
        """Return the target that the piece was compiled for.

        Whatever is not machine code counts as PTX, because no GPU runs it as it is.
        """
        number = self.capability.rstrip("af")
        suffix = self.capability.removeprefix(number)
        return ArchTarget(number, suffix, self.kind != SASS)


@dataclass(frozen=True, slots=True)
class Fatbin:
    """A fatbin and its place."""

    start: int  # offset of its header
    code: int  # offset behind its header, at which the pieces begin
    pieces: tuple[FatbinPiece, ...]

    @property
    def code_names(self) -> set[str]:
        """Return the names of the code in its pieces: {"8.6", "8.6 PTX"}."""
        return {piece.name for piece in self.pieces}


# The fatbins with code of each library that has any, by its name.
LibraryCode = Mapping[str, Sequence[Fatbin]]


def read_device_code(path: Path) -> list[Fatbin]:
    """Return the fatbins with code in an ELF file or a static library.

    Raises InputError if the file is damaged, or neither of the two.
    """
    fatbins: list[Fatbin] = []
    if elf.has_magic(real_path(path), elf.AR_MAGIC):
        with elf.refuse_damaged(path, elf.DAMAGED_OBJECT):
            for image in elf.static_objects(path):
                fatbins += _image_fatbins(image)
    else:
        with open_elf(path) as image:
            fatbins += _image_fatbins(image)
    return fatbins


def common_arch_list(fatbins: Sequence[Fatbin]) -> str:
    """Return the capabilities that every fatbin has code for, as an arch list: "7.0;8.6+PTX".

    A fatbin may have machine code or PTX for a capability: a driver compiles PTX. The list has
    "+PTX" if every fatbin has PTX. It is "" if the fatbins share no capability.
    """
    numbers: Counter[str] = Counter()  # fatbins with code, by capability: "8.6", "9.0a"
    ptx_numbers: Counter[str] = Counter()  # fatbins with PTX
    targets = {}
    for fatbin in fatbins:
        pieces = [piece for piece in fatbin.pieces if piece.kind in {SASS, PTX}]
        numbers.update({piece.capability for piece in pieces})
        ptx_numbers.update({piece.capability for piece in pieces if piece.kind == PTX})
        targets.update({piece.capability: piece.target for piece in pieces})
    common = []
    for capability, target in targets.items():
        if numbers[capability] == len(fatbins):
            common.append(replace(target, ptx=ptx_numbers[capability] == len(fatbins)))
    return format_arch_list(common)


def read_device_code_of_files(root: Path, names: Iterable[str]) -> LibraryCode:
    """Return the GPU code in the ELF files among the files `names` below a folder.

    Raises InputError if one is damaged.
    """
    code = {}
    for name in names:
        if elf.is_elf(root / name):
            fatbins = read_device_code(root / name)
            if fatbins:
                code[name] = fatbins
    return code


def requested_targets(
    facts: Facts, expected: PlannedWheel, arch_list: str
) -> tuple[ArchTarget, ...] | None:
    """Return the targets that an arch list names, which is that of a wheel's build.

    Returns None if the wheel's code cannot be compared with them: the list is "", because the build
    chooses the capabilities itself, or cannot be parsed, or the wheel is for Windows, whose
    libraries are not read.
    """
    if expected.platform_tag.startswith("win"):
        arch_list = ""
    targets, unread = parse_arch_list(facts, arch_list, expected.release.torch_version)
    return None if unread else tuple(targets)


def device_code_problems(libraries: LibraryCode, targets: Sequence[ArchTarget]) -> Iterator[str]:
    """Yield a clause for each library whose code does not match a list of compute capabilities.

    Two kinds of libraries are judged: the largest, which has torch's own kernels, and each with at
    least one fatbin that has all requested code. Others may consist of static libraries that were
    compiled for lists of their own (NCCL, gloo), or of kernels that the release compiles for a
    single capability ("9.0a"). MAGMA_LIBRARY can have more code than torch's own kernels, and does
    not count as the largest.
    """
    if all(_is_magma(name) for name in libraries):
        yield "no library has GPU code of torch: the build left CUDA out; its log says why"
    requested = {target.name for target in targets}
    requested |= {f"{target.name} PTX" for target in targets if target.ptx}
    largest = _largest_library(libraries)
    for library, fatbins in libraries.items():
        has_match = any(requested <= fatbin.code_names for fatbin in fatbins)
        if library == largest or has_match:
            yield from _library_problems(library, fatbins, requested)


def _is_magma(library: str) -> bool:
    return library.rpartition("/")[2] == MAGMA_LIBRARY


def _largest_library(libraries: LibraryCode) -> str:
    """Return the library, other than MAGMA_LIBRARY, with the most bytes of code, or ""."""
    sizes = {}
    for name, fatbins in libraries.items():
        if not _is_magma(name):
            sizes[name] = sum(_code_sizes(fatbins).values())
    return max(sizes, key=sizes.__getitem__, default="")


def _code_sizes(fatbins: Iterable[Fatbin]) -> Counter[str]:
    """Return the bytes of code by capability."""
    sizes: Counter[str] = Counter()
    for fatbin in fatbins:
        for piece in fatbin.pieces:
            sizes[piece.name] += piece.size
    return sizes


def device_code_sizes(libraries: LibraryCode) -> dict[str, dict[str, int]]:
    """Return the bytes of GPU code, by library and by capability ("8.6", "8.6 PTX").

    That is the form of the manifest.
    """
    table = {}
    for library, fatbins in libraries.items():
        sizes = _code_sizes(fatbins)
        table[library] = {name: sizes[name] for name in sorted(sizes, key=code_order)}
    return table


def format_device_code(sizes: Mapping[str, Mapping[str, int]]) -> str:
    """Return `device_code_sizes` of all libraries in one line: "7.0 2.1 MiB, 8.6 PTX 0.4 MiB"."""
    total: Counter[str] = Counter()
    for library_sizes in sizes.values():
        total.update(library_sizes)
    parts = [f"{name} {format_bytes(total[name])}" for name in sorted(total, key=code_order)]
    return ", ".join(parts)


def _library_problems(
    library: str, fatbins: Sequence[Fatbin], requested: set[str]
) -> Iterator[str]:
    """Yield a clause if a library lacks requested code, or if most fatbins have other code, too.

    `requested` are names of code.
    """
    present = set[str]().union(*(fatbin.code_names for fatbin in fatbins))
    missing = requested - present
    if missing:
        yield f"{library} lacks {_join_names(missing)} of {_join_names(requested)}"
    surpluses = [_surplus(fatbin.code_names, requested) for fatbin in fatbins]
    surplus_count = sum(1 for surplus in surpluses if surplus)
    if 2 * surplus_count > len(fatbins):
        surplus = set[str]().union(*surpluses)
        listed = _join_names(surplus)
        yield f"{library} has {listed}, not asked for, beside {_join_names(requested)}"


def _surplus(names: set[str], requested: set[str]) -> set[str]:
    """Return the names of code that was not requested.

    Arch-specific code ("9.0a") does not count if its capability was requested ("9.0").
    """
    surplus = set()
    for name in names - requested:
        capability = name.partition(" ")[0]
        is_specific = not is_plain_target(capability) and capability[:-1] in requested
        if not is_specific:
            surplus.add(name)
    return surplus


def _join_names(names: Iterable[str]) -> str:
    return ", ".join(sorted(names, key=code_order)) or "nothing"


def code_order(name: str) -> tuple[str, tuple[int, int], str]:
    """Return the key that sorts names of code, "9.0a" or "8.6 PTX".

    Machine code comes first, each kind from the oldest capability on.
    """
    capability, _, kind = name.partition(" ")
    return kind, capability_key(capability.rstrip("af")), name


def _image_fatbins(image: ElfImage) -> Iterator[Fatbin]:
    """Yield the fatbins of an ELF file that have code."""
    for section in device_sections(image):
        for fatbin in list_fatbins(image, section):
            if fatbin.pieces:
                yield fatbin


def scattered_fatbins(
    data: mmap.mmap | bytes, sections: Sequence[Section] = ()
) -> Iterator[Fatbin]:
    """Yield the fatbins with code outside of the sections for them.

    cuFFT 12 keeps nearly all of its kernels outside of these sections, and no header says where. So
    all bytes of `data` are searched for the beginning of a fatbin, and bytes behind it count as a
    fatbin if its pieces can be read to their end. `sections` are those for fatbins, and left out.
    """

    def unpack(layout: str, at: int) -> tuple[int, ...]:
        return struct.unpack_from(f"<{layout}", data, at)

    mark = struct.pack("<IHH", FATBIN_MAGIC, FATBIN_VERSION, FATBIN_BYTES)
    start = data.find(mark)
    while start >= 0:
        following = start + len(mark)
        holders = [section for section in sections if section.offset <= start < section.end]
        if holders:
            following = holders[0].end
        else:
            # Bytes that only look like a header have an impossible size, or end in no whole piece.
            with suppress(ValueError, struct.error):
                code = start + FATBIN_BYTES
                size = unpack(FATBIN_LAYOUT, start)[3]
                pieces = tuple(_list_pieces(unpack, code, code + size))
                if pieces and code + size <= len(data):
                    yield Fatbin(start, code, pieces)
                    following = pieces[-1].end
        start = data.find(mark, following)


def device_sections(image: ElfImage) -> list[Section]:
    """Return the sections of fatbins, in the order of their offsets.

    Raises ValueError if they overlap, or go beyond the end of the file.
    """
    sections: list[Section] = []
    for name in FATBIN_SECTIONS:
        sections += image.sections_named(name)
    sections.sort(key=lambda section: section.offset)
    end = 0
    for section in sections:
        if section.offset < end or section.end > len(image.data):
            raise ValueError("sections overlap, or go beyond the end of the file")
        end = section.end
    return sections


def list_fatbins(image: ElfImage, section: Section) -> Iterator[Fatbin]:
    """Yield the fatbins of a section. Raises ValueError if one is damaged."""
    start = section.offset
    while start + FATBIN_BYTES <= section.end:
        magic, version, header_bytes, size = image.unpack(FATBIN_LAYOUT, start)
        if magic == FATBIN_MAGIC:
            code = start + header_bytes
            end = code + size
            if version != FATBIN_VERSION or header_bytes < FATBIN_BYTES or end > section.end:
                raise ValueError(
                    f"the fatbin at {start:#x} goes beyond its section, or is of version {version}"
                )
            yield Fatbin(start, code, tuple(_list_pieces(image.unpack, code, end)))
            start = end
            image.release()
        else:
            gap = image.data[start : min(section.end, start + GAP_CHUNK_BYTES)]
            zeros = len(gap) - len(gap.lstrip(b"\0"))
            if zeros < PADDING_BYTES:
                raise ValueError(f"no fatbin begins at {start:#x}")
            start += zeros // PADDING_BYTES * PADDING_BYTES


def _list_pieces(unpack: Unpack, start: int, end: int) -> Iterator[FatbinPiece]:
    """Yield the pieces of a fatbin, which lie between two offsets.

    Raises ValueError if one is damaged.
    """
    piece_count = 0
    while start != end:
        if piece_count == MOST_PIECES:
            raise ValueError(f"a fatbin has more than {MOST_PIECES} pieces")
        piece_count += 1
        fields = unpack(PIECE_LAYOUT, start)
        kind, _version, header_bytes, size = fields[:4]
        arch = fields[8]
        flags = fields[11]
        piece_end = start + header_bytes + size
        if header_bytes < PIECE_BYTES or piece_end > end:
            raise ValueError("a piece of a fatbin goes beyond its end")
        suffix = ""
        if flags & ARCH_SPECIFIC_FLAG:
            suffix = "a"
        elif flags & FAMILY_SPECIFIC_FLAG:
            suffix = "f"
        capability = f"{arch // 10}.{arch % 10}{suffix}"  # 103 is 10.3
        kind_name = CODE_KINDS.get(kind, f"kind {kind}")
        yield FatbinPiece(capability, kind_name, start, piece_end, size)
        start = piece_end
