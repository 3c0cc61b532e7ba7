"""This machine's system and architecture, and those of an executable file."""

import platform
import struct
import sys
from pathlib import Path

from torchmill.core.lenient_paths import read_text

_ELF = {0x3E: "x86_64", 0xB7: "aarch64"}
_MACH = {0x01000007: "x86_64", 0x0100000C: "arm64"}
_THIN, _FAT = 0xFEEDFACF, 0xCAFEBABE
_ENOUGH = 4096  # bytes: a fat file has one entry of 20 bytes for each machine
SYSTEMS = {"linux": "linux", "darwin": "macos", "win32": "windows"}
_OTHER_NAMES = {
    ("linux", "arm64"): "aarch64",
    ("windows", "AMD64"): "amd64",
}  # than those of platform tags
ARCHES = {"linux": ("x86_64", "aarch64"), "macos": ("arm64",), "windows": ("amd64",)}


def machines_of_binary(path: Path) -> frozenset[str]:
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
        names = [_ELF.get(struct.unpack_from(f"{order}H", start, 18)[0])]
    elif struct.unpack_from("<I", start)[0] == _THIN:
        names = [_MACH.get(struct.unpack_from("<I", start, 4)[0])]
    else:
        magic, count = struct.unpack_from(">II", start)
        is_fat = (
            magic == _FAT and count <= (len(start) - 8) // 20
        )  # a Java class has the same magic
        names = [
            _MACH.get(struct.unpack_from(">I", start, 8 + 20 * index)[0])
            for index in range(count * is_fat)
        ]
    return frozenset(filter(None, names))


def native_system() -> str:
    """Return "linux", "macos" or "windows"; another system under its own name."""
    return SYSTEMS.get(sys.platform, sys.platform)


def native_arch() -> str:
    """Return this machine's arch; one that we do not know is named so that it matches none."""
    system, machine = native_system(), platform.machine()
    arch = _OTHER_NAMES.get((system, machine), machine)
    return arch if arch in ARCHES.get(system, ()) else f"{system}_{machine}"


def container_arch(arch: str) -> str:
    """Return the arch of a machine in its containers, which are Linux: arm64 (macOS) and amd64 (Windows) are not."""
    return {"arm64": "aarch64", "amd64": "x86_64"}.get(arch, arch)


def processor_flags(root: Path = Path("/")) -> frozenset[str]:
    """Return what this machine's processor can do, as the kernel of Linux calls it; nothing elsewhere."""
    lines = (line.partition(":") for line in read_text(root / "proc" / "cpuinfo").splitlines())
    return frozenset(
        next(
            (words.split() for name, _, words in lines if name.strip() in {"flags", "Features"}), ()
        )
    )
