"""Which machine an executable was made for, told by its first bytes: it is not run."""

import struct
from pathlib import Path

_ELF = {0x3E: "x86_64", 0xB7: "aarch64"}
_MACH = {0x01000007: "x86_64", 0x0100000C: "arm64"}
_THIN, _FAT = 0xFEEDFACF, 0xCAFEBABE
_ENOUGH = 4096  # bytes: a fat file has one entry of 20 bytes for each machine


def machines(path: Path) -> frozenset[str]:
    """Return the machines that an executable runs on natively; none for a script or an unknown format."""
    try:
        with path.open("rb") as file:
            start = file.read(_ENOUGH)
    except OSError:
        return frozenset()
    if len(start) < 32:  # noqa: PLR2004 (the shortest of the headers)
        return frozenset()
    if start.startswith(b"\x7fELF"):
        order = "<" if start[5] == 1 else ">"
        return _known(_ELF, struct.unpack_from(f"{order}H", start, 18)[0])
    if struct.unpack_from("<I", start)[0] == _THIN:
        return _known(_MACH, struct.unpack_from("<I", start, 4)[0])
    magic, count = struct.unpack_from(">II", start)
    if magic == _FAT and count <= (len(start) - 8) // 20:  # a Java class has the same magic
        kinds = (struct.unpack_from(">I", start, 8 + 20 * index)[0] for index in range(count))
        return frozenset(_MACH[kind] for kind in kinds if kind in _MACH)
    return frozenset()


def _known(names: dict[int, str], number: int) -> frozenset[str]:
    return frozenset({names[number]} if number in names else ())
