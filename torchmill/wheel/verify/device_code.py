"""The code for GPUs in a library: which compute capabilities it is for, and how large it is.

nvcc puts what it made of one source file into a fatbin: machine code (SASS) and PTX, one piece for each
capability, each with a header that says what it is. They lie one behind the other in a section of the
library, so that they are read without any tool of CUDA, whose own refuse what is too old or too new for
them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count, groupby
from pathlib import Path

from torchmill.config.arch_list import ArchTarget, capability_key, format_arch_list, is_plain_target
from torchmill.config.arch_list import parse_arch_list as read_list
from torchmill.config.model import Facts, Plan
from torchmill.core.errors import BuildError
from torchmill.core.units import format_bytes
from torchmill.wheel.pack import elf
from torchmill.wheel.pack.elf import ElfImage, open_elf

FATBIN_SECTIONS = (".nv_fatbin", "__nv_relfatbin")  # the second: what nvlink or the driver has still to link
FATBIN_MAGIC = 0xBA55ED50
FATBIN_LAYOUT = "IHHQ"  # magic, version, size of this header, size of what follows it
# kind, …, size of this header, size of the piece, …, capability, …, flags, …, size when it is unpacked
ENTRY_LAYOUT = "HHIQIIHHIIIQQQ"
PADDING_BYTES = 8  # bytes: what is between two fatbins is a multiple of it
CODE_KINDS = {1: "ptx", 2: "sass", 8: "lto"}
ARCH_SPECIFIC_FLAG, FAMILY_SPECIFIC_FLAG = (
    1 << 20,
    1 << 21,
)  # flags of code with what only one capability has, or its family
SASS, PTX = "sass", "ptx"
Piece = tuple[str, str]  # kind and capability


@dataclass(frozen=True, slots=True)
class DeviceCode:
    """One piece of code for GPUs."""

    capability: str  # "8.6", "9.0a"
    kind: str  # "sass", "ptx", "lto": what a linker compiles; "kind 64": something else
    size: int  # bytes in the library, packed or not
    library: str
    fatbin: int  # of which it is a piece: the number of it in the library


def read_device_code(path: Path) -> tuple[DeviceCode, ...]:
    """Return the code for GPUs in an ELF file; raise BuildError where the file is damaged."""
    with open_elf(path) as image:
        return tuple(_device_code_of(path.name, [image]))


def read_static_device_code(path: Path) -> tuple[DeviceCode, ...]:
    """Return the code for GPUs in a static library; raise BuildError where the file is damaged."""
    try:
        return tuple(_device_code_of(path.name, elf.static_objects(path)))
    except (struct.error, ValueError, IndexError) as error:
        raise BuildError(f"{path}: an object in it is not sound ({error}): get it again") from None


def common_arch_list(found: Iterable[DeviceCode]) -> str:
    """Return for what all that was compiled has code, as TORCH_CUDA_ARCH_LIST is written: "7.0;8.6+PTX".

    PTX alone counts as its capability, too, for which a driver compiles it.
    """
    fatbins = _by_fatbin(found)
    pieces = [one for one in set.intersection(*fatbins) if one[0] in {SASS, PTX}] if fatbins else []
    plain_names = [(kind, name.rstrip("af"), name) for kind, name in pieces]
    return format_arch_list(
        ArchTarget(short, name.removeprefix(short), kind == PTX) for kind, short, name in plain_names
    )


def _device_code_of(library: str, images: Iterable[ElfImage]) -> Iterator[DeviceCode]:
    """Yield the code in the ELF files that make up a library."""
    numbers = count()
    for image in images:
        sections = [section for name in FATBIN_SECTIONS for section in image.sections_named(name)]
        for span in (span for each in sections for span in _fatbins(image, each.offset, each.end)):
            fatbin = next(numbers)
            for capability, kind, size in _pieces(image, *span):
                yield DeviceCode(capability, kind, size, library, fatbin)


def read_device_code_of_files(root: Path, names: Iterable[str]) -> tuple[DeviceCode, ...]:
    """Return the code for GPUs in those of some files below a folder that are ELF files."""
    return tuple(
        replace(code, library=name)
        for name in names
        if elf.is_elf(root / name)
        for code in read_device_code(root / name)
    )


def requested_targets(facts: Facts, plan: Plan) -> tuple[ArchTarget, ...] | None:
    """Return the compute capabilities that a plan asks for, and that its wheel can be looked through for.

    None where the list is left to the build or cannot be read, and for Windows, whose libraries cannot.
    """
    listed = "" if plan.platform_tag.startswith("win") else plan.set.get("TORCH_CUDA_ARCH_LIST", "")
    targets, unread = read_list(facts, listed, plan.release.torch_version)
    return None if unread else tuple(targets)


def device_code_problems(found: Iterable[DeviceCode], targets: Sequence[ArchTarget]) -> Iterator[str]:
    """Yield a clause for each library whose code is not that of a list of compute capabilities.

    What is linked in has a list of its own: of some fatbins, where it is NCCL or gloo; of all in a library,
    where that holds nothing but MAGMA. The largest library is judged in any case. A release may also give
    single kernels what only one capability has ("9.0a").
    """
    libraries = _by_library(found)
    if not libraries:
        yield "no library holds code for GPUs: the build left CUDA out; its log says why"
    asked = {(SASS, target.name) for target in targets} | {(PTX, one.name) for one in targets if one.ptx}
    largest = max(libraries, key=lambda name: sum(code.size for code in libraries[name]), default="")
    for library, codes in libraries.items():
        fatbins = _by_fatbin(codes)
        if library == largest or any(asked <= pieces for pieces in fatbins):
            yield from _library_problems(library, fatbins, asked)


def _library_problems(library: str, fatbins: Sequence[set[Piece]], asked: set[Piece]) -> Iterator[str]:
    if missing := asked - set[Piece]().union(*fatbins):
        yield f"{library} lacks {_format_pieces(missing)} of {_format_pieces(asked)}"
    others = [more for pieces in fatbins if (more := _surplus(pieces, asked))]
    if 2 * len(others) > len(fatbins):
        more = set[Piece]().union(*others)
        yield (
            f"{library} holds {_format_pieces(more)}, which was not asked for, beside {_format_pieces(asked)}"
        )


def device_code_sizes(found: Iterable[DeviceCode]) -> dict[str, dict[str, int]]:
    """Return the bytes of code by library, and in it by capability ("8.6", "8.6 PTX"), for the manifest."""
    told: dict[str, dict[str, int]] = {}
    for library, codes in _by_library(found).items():
        summed = told.setdefault(library, {})
        for code in sorted(codes, key=lambda one: _piece_order((one.kind, one.capability))):
            name = _piece_name(code.kind, code.capability)
            summed[name] = summed.get(name, 0) + code.size
    return told


def format_device_code(found: Mapping[str, Mapping[str, int]]) -> str:
    """Return what `sizes` returned in one line, all libraries together: "7.0 2.1 MiB, 8.6 PTX 0.4 MiB"."""
    whole: dict[str, int] = {}
    for library in found.values():
        for name, size in library.items():
            whole[name] = whole.get(name, 0) + size
    return ", ".join(f"{name} {format_bytes(size)}" for name, size in whole.items())


def _fatbins(image: ElfImage, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Yield where the pieces of each fatbin between two places begin and end."""
    while start + struct.calcsize("<" + FATBIN_LAYOUT) <= end:
        magic, _, header, size = image.unpack(FATBIN_LAYOUT, start)
        if magic == FATBIN_MAGIC:
            if start + header + size > end:
                raise ValueError("a fatbin goes beyond the end of its section")
            yield start + header, start + header + size
            start += header + size
        elif not any(image.data[start : start + PADDING_BYTES]):
            start += PADDING_BYTES
        else:
            raise ValueError(f"{start:#x} should begin a fatbin, and does not")


def _pieces(image: ElfImage, start: int, end: int) -> Iterator[tuple[str, str, int]]:
    """Yield capability, kind and size of each piece of a fatbin."""
    while start < end:
        row = image.unpack(ENTRY_LAYOUT, start)
        kind, header, size, arch, flags = row[0], row[2], row[3], row[8], row[11]
        if header < struct.calcsize("<" + ENTRY_LAYOUT) or start + header + size > end:
            raise ValueError("a piece of a fatbin goes beyond its end")
        suffix = "a" if flags & ARCH_SPECIFIC_FLAG else "f" if flags & FAMILY_SPECIFIC_FLAG else ""
        yield f"{arch // 10}.{arch % 10}{suffix}", CODE_KINDS.get(kind, f"kind {kind}"), size
        start += header + size


def _by_library(found: Iterable[DeviceCode]) -> dict[str, list[DeviceCode]]:
    libraries: dict[str, list[DeviceCode]] = {}
    for code in found:
        libraries.setdefault(code.library, []).append(code)
    return libraries


def _by_fatbin(codes: Iterable[DeviceCode]) -> list[set[Piece]]:
    """Return what the pieces of each fatbin of one library are."""
    return [
        {(code.kind, code.capability) for code in pieces}
        for _, pieces in groupby(codes, key=lambda code: code.fatbin)
    ]


def _surplus(there: Iterable[Piece], asked: set[Piece]) -> set[Piece]:
    """Return what was not asked for, but for what only a capability has that was."""
    return {
        (kind, name)
        for kind, name in there
        if (kind, name) not in asked and not (not is_plain_target(name) and (SASS, name[:-1]) in asked)
    }


def _format_pieces(names: Iterable[Piece]) -> str:
    return ", ".join(_piece_name(*one) for one in sorted(names, key=_piece_order)) or "nothing"


def _piece_name(kind: str, capability: str) -> str:
    return capability if kind == SASS else f"{capability} {kind.upper()}"


def _piece_order(one: Piece) -> tuple[bool, str, tuple[int, int], str]:
    """Order machine code before PTX, and each from the oldest capability to the newest."""
    kind, name = one
    return kind != SASS, kind, capability_key(name.rstrip("af")), name
