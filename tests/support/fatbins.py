"""Made-up code for GPUs in libraries: the headers are as nvcc writes them, the code is filler."""

import struct
from collections.abc import Mapping
from pathlib import Path

PTX = 1
SASS = 2
# Flags of code that is specific to an architecture ("9.0a") or a family ("10.0f").
OWN = 1 << 20
FAMILY = 1 << 21
PACKED = 0x8011  # flags for 64 bits, Linux and zstd


def piece(arch: int, kind: int = SASS, size: int = 64, flags: int = 0, header: int = 64) -> bytes:
    """Return a piece of a fatbin: a header of `header` bytes, and `size` bytes of code."""
    head = struct.pack(
        "<HHIQIIHHIIIQQQ",
        kind,
        0x101,
        header,
        size,
        size,
        0,
        1,
        7,
        arch,
        0,
        0,
        PACKED | flags,
        0,
        4 * size,
    )
    return head.ljust(header, b"\0") + bytes([arch % 256]) * size


def fatbin(*pieces: bytes) -> bytes:
    """Return a fatbin of some pieces."""
    code = b"".join(pieces)
    return struct.pack("<IHHQ", 0xBA55ED50, 1, 16, len(code)) + code


def library(path: Path, sections: Mapping[str, bytes]) -> Path:
    """Write a shared library (ELF, x86_64) that has nothing but these sections."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name in (*sections, ".shstrtab"))
    contents = [*sections.values(), names]
    offsets = [64 + sum(map(len, contents[:number])) for number in range(len(contents))]
    table = struct.pack("<IIQQQQIIQQ", *([0] * 10))
    for name, offset, content in zip((*sections, ".shstrtab"), offsets, contents, strict=True):
        name_at = names.index(name.encode())
        table += struct.pack("<IIQQQQIIQQ", name_at, 1, 0, 0, offset, len(content), 0, 0, 8, 0)
    identity = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    start = 64 + sum(map(len, contents))
    count = len(contents) + 1
    header = struct.pack(
        "<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, start, 0, 64, 56, 0, 64, count, count - 1
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(identity + header + b"".join(contents) + table)
    return path
