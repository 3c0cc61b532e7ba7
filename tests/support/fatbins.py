"""Code for GPUs as nvcc leaves it in libraries, made up: the headers are as they are, the code is none."""

import struct
from collections.abc import Mapping
from pathlib import Path

PTX, SASS = 1, 2
OWN, FAMILY = 1 << 20, 1 << 21
PACKED = 0x8011  # flags that tell of 64 bits, Linux and zstd


def piece(arch: int, kind: int = SASS, size: int = 64, flags: int = 0, header: int = 64) -> bytes:
    """Return a piece of a fatbin with as many bytes of code, below a header of as many."""
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
    """Write a shared library that has nothing but sections."""
    names = b"\0" + b"".join(name.encode() + b"\0" for name in (*sections, ".shstrtab"))
    contents = [*sections.values(), names]
    offsets = [64 + sum(map(len, contents[:number])) for number in range(len(contents))]
    table = struct.pack("<IIQQQQIIQQ", *([0] * 10))
    for name, offset, content in zip((*sections, ".shstrtab"), offsets, contents, strict=True):
        table += struct.pack(
            "<IIQQQQIIQQ", names.index(name.encode()), 1, 0, 0, offset, len(content), 0, 0, 8, 0
        )
    identity = b"\x7fELF\x02\x01\x01".ljust(16, b"\0")
    start = 64 + sum(map(len, contents))
    count = len(contents) + 1
    header = struct.pack(
        "<HHIQQQIHHHHHH", 3, 62, 1, 0, 0, start, 0, 64, 56, 0, 64, count, count - 1
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(identity + header + b"".join(contents) + table)
    return path
