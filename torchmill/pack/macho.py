"""Read Mach-O files: which machines they are for, which macOS they need."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

MAGIC = {  # thin and fat, both byte orders; a fat file may also be a class file of Java, which no wheel holds
    b"\xfe\xed\xfa\xce",
    b"\xce\xfa\xed\xfe",
    b"\xfe\xed\xfa\xcf",
    b"\xcf\xfa\xed\xfe",
    b"\xca\xfe\xba\xbe",
}
MACHINES = {0x01000007: "x86_64", 0x0100000C: "arm64"}  # of <mach/machine.h>
VERSION_MIN, BUILD_VERSION = 0x24, 0x32  # LC_VERSION_MIN_MACOSX, LC_BUILD_VERSION of <mach-o/loader.h>


@dataclass(frozen=True, slots=True)
class Slice:
    """What a file holds for one machine."""

    machine: str  # "arm64"
    macos: tuple[int, int]  # the oldest that loads it; (0, 0): it does not say


def is_macho(path: Path) -> bool:
    """Say whether `path` is a regular file that starts as Mach-O files do."""
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb", buffering=0) as file:
        return file.read(4) in MAGIC


def read(path: Path) -> tuple[Slice, ...]:
    """Return what the file holds for each machine; raise ValueError where it is damaged."""
    from macholib.MachO import MachO  # noqa: PLC0415 - comes with delocate, which only macOS needs

    return tuple(
        Slice(MACHINES.get(one.header.cputype, f"cpu {one.header.cputype:#x}"), _macos(one.commands))
        for one in MachO(str(path)).headers
    )


def too_new(name: str, slices: Iterable[Slice], macos: tuple[int, int], machines: set[str]) -> Iterator[str]:
    """Yield why a file does not hold what a platform tag of this macOS and these machines promises."""
    found = {one.machine: one for one in slices}
    for machine in sorted(machines - found.keys()):
        yield f"{name} is made for {', '.join(sorted(found))}, not for {machine}"
    newest = max((one.macos for one in found.values()), default=(0, 0))
    if newest > macos:
        yield f"{name} needs macOS {newest[0]}.{newest[1]}, and the tag says {macos[0]}.{macos[1]}"


def _macos(commands: Iterable[tuple[object, object, object]]) -> tuple[int, int]:
    for load, command, _ in commands:
        kind = getattr(load, "cmd", None)
        if kind in {VERSION_MIN, BUILD_VERSION}:
            number = int(getattr(command, "version" if kind == VERSION_MIN else "minos"))
            return number >> 16, number >> 8 & 0xFF
    return 0, 0
