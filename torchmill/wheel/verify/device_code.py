"""Read the GPU code in a library: for which compute capabilities it was compiled, and its size.

nvcc writes one fatbin for each source file: machine code (SASS) and PTX, one piece for each capability, each
with a header. Fatbins lie one after the other in a section of the library. They are read here, because
cuobjdump must be installed and refuses code that is too old or too new for it.
"""

import mmap
import struct
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain
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

FATBIN_SECTIONS = (".nv_fatbin", "__nv_relfatbin")  # the second is still to be linked
FATBIN_MAGIC = 0xBA55ED50
FATBIN_VERSION = 1
FATBIN_LAYOUT = "IHHQ"  # magic, version, size of this header, size of the pieces after it
FATBIN_BYTES = struct.calcsize("<" + FATBIN_LAYOUT)
# kind, …, size of this header, size of the piece, …, capability, …, flags, …, uncompressed size
ENTRY_LAYOUT = "HHIQIIHHIIIQQQ"
PADDING_BYTES = 8  # the gap between two fatbins is a multiple of it
LONGEST_LOOK_BYTES = 1 << 16
MOST_PIECES = 1 << 10  # nvcc writes one or two for each capability
ARCH_SPECIFIC_FLAG, FAMILY_SPECIFIC_FLAG = (
    1 << 20,
    1 << 21,
)  # code for sm_90a, for the family of sm_100f
SASS, PTX, LTO = "sass", "ptx", "lto"
CODE_KINDS = {1: PTX, 2: SASS, 8: LTO}
# its own sources are C++ (from torch 1.13 on: native/cuda/linalg/*.cpp), what it has for GPUs is MAGMA's
MAGMA_ALONE = "libtorch_cuda_linalg.so"


@dataclass(frozen=True, slots=True)
class FatbinPiece:
    """One piece of a fatbin, as it is in the file."""

    capability: str  # "8.6", "9.0a"
    kind: str  # "sass", "ptx", "lto" (compiled when it is linked), or "kind 64" of an unknown one
    start: int  # offset of its header
    end: int
    size: int  # bytes without its header, compressed or not

    @property
    def name(self) -> str:
        """Return "8.6" for machine code, "8.6 PTX" for PTX."""
        return self.capability if self.kind == SASS else f"{self.capability} {self.kind.upper()}"

    @property
    def target(self) -> ArchTarget:
        """Return what it was compiled for."""
        short = self.capability.rstrip("af")
        return ArchTarget(short, self.capability[len(short) :], self.kind != SASS)


@dataclass(frozen=True, slots=True)
class Fatbin:
    """A fatbin as it is in the file."""

    start: int
    code: int  # behind its header
    pieces: tuple[FatbinPiece, ...]

    @property
    def targets(self) -> set[str]:
        """Return the names of its pieces."""
        return {piece.name for piece in self.pieces}


LibraryCode = Mapping[
    str, Sequence[Fatbin]
]  # the fatbins with code of each library that has any, by its name


def read_device_code(path: Path) -> list[Fatbin]:
    """Return the fatbins in an ELF file or a static library. Raises BuildError where the file is damaged."""
    if elf.has_magic(real_path(path), elf.AR_MAGIC):
        with elf.refuse_damaged(path, elf.DAMAGED_OBJECT):
            return [each for image in elf.static_objects(path) for each in _image_fatbins(image)]
    with open_elf(path) as image:
        return list(_image_fatbins(image))


def common_arch_list(fatbins: Sequence[Fatbin]) -> str:
    """Return the capabilities that every fatbin has code for, as in TORCH_CUDA_ARCH_LIST: "7.0;8.6+PTX".

    PTX alone counts as its capability, too: a driver compiles it.
    """
    pieces = {
        piece.name: piece for each in fatbins for piece in each.pieces if piece.kind in {SASS, PTX}
    }
    common = (
        pieces.keys() & set.intersection(*(each.targets for each in fatbins)) if fatbins else ()
    )
    return format_arch_list(pieces[name].target for name in common)


def read_device_code_of_files(root: Path, names: Iterable[str]) -> LibraryCode:
    """Return the GPU code in the ELF files among the files `names` below a folder."""
    found = {name: read_device_code(root / name) for name in names if elf.is_elf(root / name)}
    return {name: fatbins for name, fatbins in found.items() if fatbins}


def requested_targets(
    facts: Facts, expected: PlannedWheel, arch_list: str
) -> tuple[ArchTarget, ...] | None:
    """Return the compute capabilities that a list asks for and that can be checked in a planned wheel.

    None if the list is left to the build ("") or cannot be parsed, and for Windows, whose libraries are not read.
    """
    if expected.platform_tag.startswith("win"):
        arch_list = ""
    targets, unread = parse_arch_list(facts, arch_list, expected.release.torch_version)
    return None if unread else tuple(targets)


def device_code_problems(libraries: LibraryCode, targets: Sequence[ArchTarget]) -> Iterator[str]:
    """Yield a clause for each library whose code does not match a list of compute capabilities.

    Static libraries that are linked in were compiled for lists of their own: NCCL or gloo for some fatbins of a
    library, MAGMA for all of MAGMA_ALONE, which can be the largest. So only the largest of the others is always judged,
    and every library where a fatbin matches. A release may compile single kernels for one capability ("9.0a").
    """
    if all(name.rpartition("/")[2] == MAGMA_ALONE for name in libraries):
        yield "no library has GPU code of torch: the build left CUDA out; its log says why"
    requested = {target.name for target in targets} | {
        f"{target.name} PTX" for target in targets if target.ptx
    }
    own = [name for name in libraries if name.rpartition("/")[2] != MAGMA_ALONE]
    sizes = {
        name: sum(piece.size for each in libraries[name] for piece in each.pieces) for name in own
    }
    largest = max(own, key=sizes.__getitem__, default="")
    for library, fatbins in libraries.items():
        if library == largest or any(requested <= each.targets for each in fatbins):
            yield from _library_problems(library, [each.targets for each in fatbins], requested)


def device_code_sizes(libraries: LibraryCode) -> dict[str, dict[str, int]]:
    """Return the bytes of GPU code, by library and by capability ("8.6", "8.6 PTX"), for the manifest."""
    sizes: dict[str, dict[str, int]] = {}
    for library, fatbins in libraries.items():
        total: Counter[str] = Counter()
        for piece in (piece for each in fatbins for piece in each.pieces):
            total[piece.name] += piece.size
        sizes[library] = {name: total[name] for name in sorted(total, key=code_order)}
    return sizes


def format_device_code(sizes: Mapping[str, Mapping[str, int]]) -> str:
    """Return `device_code_sizes` in one line, all libraries added up: "7.0 2.1 MiB, 8.6 PTX 0.4 MiB"."""
    total = sum(map(Counter, sizes.values()), Counter[str]())
    return ", ".join(
        f"{name} {format_bytes(total[name])}" for name in sorted(total, key=code_order)
    )


def _library_problems(
    library: str, fatbins: Sequence[set[str]], requested: set[str]
) -> Iterator[str]:
    if missing := requested - set[str]().union(*fatbins):
        yield f"{library} lacks {_format_pieces(missing)} of {_format_pieces(requested)}"
    others = [more for pieces in fatbins if (more := _surplus(pieces, requested))]
    if 2 * len(others) > len(fatbins):
        more = set[str]().union(*others)
        yield f"{library} has {_format_pieces(more)}, not asked for, beside {_format_pieces(requested)}"


def _image_fatbins(image: ElfImage) -> Iterator[Fatbin]:
    """Yield the fatbins of an ELF file that have code."""
    found = (each for section in device_sections(image) for each in list_fatbins(image, section))
    return (each for each in found if each.pieces)


def scattered_fatbins(
    data: mmap.mmap | bytes, sections: Sequence[Section] = ()
) -> Iterator[Fatbin]:
    """Yield the fatbins with code outside the sections for them: cuFFT 12 keeps nearly all of its kernels so.

    Nothing says where they are: what begins as a fatbin does, and holds together, is taken for one.
    """

    def unpack(layout: str, at: int) -> tuple[int, ...]:
        return struct.unpack_from(f"<{layout}", data, at)

    mark = struct.pack("<IHH", FATBIN_MAGIC, FATBIN_VERSION, FATBIN_BYTES)
    start = data.find(mark)
    while start >= 0:
        inside = next((each for each in sections if each.offset <= start < each.end), None)
        following = inside.end if inside else start + len(mark)
        if inside is None:
            with suppress(ValueError, struct.error):
                code = start + FATBIN_BYTES
                pieces = tuple(_pieces(unpack, code, code + unpack(FATBIN_LAYOUT, start)[3]))
                if pieces:
                    yield Fatbin(start, code, pieces)
                    following = pieces[-1].end
        start = data.find(mark, following)


def device_sections(image: ElfImage) -> list[Section]:
    """Return the sections of fatbins, in the order of the file."""
    found = sorted(
        chain.from_iterable(map(image.sections_named, FATBIN_SECTIONS)),
        key=lambda each: each.offset,
    )
    ends = [0, *(each.end for each in found)]
    if any(each.offset < end for each, end in zip(found, ends, strict=False)) or ends[-1] > len(
        image.data
    ):
        raise ValueError("sections overlap, or go beyond the end of the file")
    return found


def list_fatbins(image: ElfImage, section: Section) -> Iterator[Fatbin]:
    """Yield the fatbins of a section. Raises ValueError where one is damaged."""
    start, end = section.offset, section.end
    while start + FATBIN_BYTES <= end:
        magic, version, header, size = image.unpack(FATBIN_LAYOUT, start)
        if magic == FATBIN_MAGIC:
            code, stop = start + header, start + header + size
            if version != FATBIN_VERSION or header < FATBIN_BYTES or stop > end:
                raise ValueError(
                    f"the fatbin at {start:#x} goes beyond its section, or is of version {version}"
                )
            yield Fatbin(start, code, tuple(_pieces(image.unpack, code, stop)))
            start = stop
            image.release()
        else:
            ahead = image.data[start : min(end, start + LONGEST_LOOK_BYTES)]
            zeros = len(ahead) - len(ahead.lstrip(b"\0"))
            if zeros < PADDING_BYTES:
                raise ValueError(f"no fatbin begins at {start:#x}")
            start += zeros // PADDING_BYTES * PADDING_BYTES


def _pieces(
    unpack: Callable[[str, int], tuple[int, ...]], start: int, end: int
) -> Iterator[FatbinPiece]:
    for _ in range(MOST_PIECES):
        if start == end:
            return
        row = unpack(ENTRY_LAYOUT, start)
        kind, header, size, arch, flags = row[0], row[2], row[3], row[8], row[11]
        stop = start + header + size
        if header < struct.calcsize("<" + ENTRY_LAYOUT) or stop > end:
            raise ValueError("a piece of a fatbin goes beyond its end")
        suffix = "a" if flags & ARCH_SPECIFIC_FLAG else "f" if flags & FAMILY_SPECIFIC_FLAG else ""
        name = f"{arch // 10}.{arch % 10}{suffix}"
        yield FatbinPiece(name, CODE_KINDS.get(kind, f"kind {kind}"), start, stop, size)
        start = stop
    raise ValueError(f"a fatbin has more than {MOST_PIECES} pieces")


def _surplus(names: set[str], requested: set[str]) -> set[str]:
    """Return the code that was not asked for, without arch-specific code of a capability that was."""
    specific = {name: name.partition(" ")[0] for name in names}
    accepted = {
        name for name, one in specific.items() if not is_plain_target(one) and one[:-1] in requested
    }
    return names - requested - accepted


def _format_pieces(names: Iterable[str]) -> str:
    return ", ".join(sorted(names, key=code_order)) or "nothing"


def code_order(name: str) -> tuple[str, tuple[int, int], str]:
    """Sort names of code, "9.0a" or "8.6 PTX": machine code first, each from the oldest capability on."""
    capability, _, kind = name.partition(" ")
    return kind, capability_key(capability.rstrip("af")), name
