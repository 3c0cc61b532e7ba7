"""This machine's system and architecture, and those of an executable file."""

import platform
import struct
import sys
from pathlib import Path

from torchmill.core.lenient_paths import read_text

# Machine numbers in the headers of executables: e_machine of ELF, cputype of Mach-O.
_ELF = {0x3E: "x86_64", 0xB7: "aarch64"}
_MACH = {0x01000007: "x86_64", 0x0100000C: "arm64"}
# The first word of a Mach-O file for one machine, and of one for several.
_THIN = 0xFEEDFACF
_FAT = 0xCAFEBABE
_FAT_HEADER = 8  # bytes
_FAT_ENTRY = 20  # bytes, for each machine
_SHORTEST_HEADER = 32  # bytes, of Mach-O
_READ_BYTES = 4096  # room for the entries of every machine there is
SYSTEMS = {"linux": "linux", "darwin": "macos", "win32": "windows"}
# Names of platform.machine() that platform tags write otherwise.
_OTHER_NAMES = {("linux", "arm64"): "aarch64", ("windows", "AMD64"): "amd64"}
ARCHES = {"linux": ("x86_64", "aarch64"), "macos": ("arm64",), "windows": ("amd64",)}


def machines_of_binary(path: Path) -> frozenset[str]:
    """Return the machines that an executable runs on natively; none for a script or other file."""
    try:
        with path.open("rb") as file:
            start = file.read(_READ_BYTES)
    except OSError:
        return frozenset()
    if len(start) < _SHORTEST_HEADER:
        return frozenset()
    if start.startswith(b"\x7fELF"):
        byte_order = "<" if start[5] == 1 else ">"
        (number,) = struct.unpack_from(f"{byte_order}H", start, 18)
        machines = {_ELF.get(number)}
    elif struct.unpack_from("<I", start)[0] == _THIN:
        (number,) = struct.unpack_from("<I", start, 4)
        machines = {_MACH.get(number)}
    else:
        machines = _machines_of_fat_binary(start)
    return frozenset(machine for machine in machines if machine)


def _machines_of_fat_binary(start: bytes) -> set[str | None]:
    """Return the machines of a Mach-O file for several; None stands for an unknown machine."""
    magic, count = struct.unpack_from(">II", start)
    # A Java class has the same magic, and a version in place of the count.
    if magic != _FAT or count > (len(start) - _FAT_HEADER) // _FAT_ENTRY:
        return set()
    machines: set[str | None] = set()
    for i in range(count):
        (number,) = struct.unpack_from(">I", start, _FAT_HEADER + _FAT_ENTRY * i)
        machines.add(_MACH.get(number))
    return machines


def native_system() -> str:
    """Return "linux", "macos" or "windows"; another system under its own name."""
    return SYSTEMS.get(sys.platform, sys.platform)


def native_arch() -> str:
    """Return this machine's arch; an unknown one gets a name that matches none: "linux_ppc64le"."""
    system = native_system()
    machine = platform.machine()
    arch = _OTHER_NAMES.get((system, machine), machine)
    return arch if arch in ARCHES.get(system, ()) else f"{system}_{machine}"


def container_arch(arch: str) -> str:
    """Return the arch of a machine in its containers.

    These are Linux: arm64 (macOS) is aarch64 in them, and amd64 (Windows) x86_64.
    """
    return {"arm64": "aarch64", "amd64": "x86_64"}.get(arch, arch)


def processor_flags(root: Path = Path("/")) -> frozenset[str]:
    """Return the features of this machine's processor, as Linux names them; none elsewhere."""
    for line in read_text(root / "proc" / "cpuinfo").splitlines():
        name, _, words = line.partition(":")
        # x86 has "flags", Arm "Features"; all cores have the same.
        if name.strip() in {"flags", "Features"}:
            return frozenset(words.split())
    return frozenset()
