"""The kernel's emulation of other architectures, by its table of interpreters (binfmt_misc).

Linux runs a program for another processor if an emulator, such as QEMU, is registered for it. A
container has no table of its own: it uses the kernel's.
https://docs.kernel.org/admin-guide/binfmt-misc.html
"""

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from torchmill.cell.containers.engine import ARCHES_OF_ENGINES
from torchmill.core.lenient_paths import find_paths, read_text

# Numbers in the header of an ELF file: https://refspecs.linuxfoundation.org/elf/gabi4+/ch4.eheader.html
_ELF_MACHINES = {"x86_64": 0x3E, "aarch64": 0xB7}  # e_machine
_ELF_START = b"\x7fELF\x02\x01\x01" + bytes(9)  # 64 bits, little-endian
# e_type. A program has the type of a shared library if it may lie anywhere in memory.
_ELF_EXECUTABLE = 2
_ELF_SHARED = 3


@dataclass(frozen=True, slots=True)
class BinfmtHandler:
    """An entry of binfmt_misc: the interpreter of all files with a certain header."""

    name: str  # "qemu-aarch64"
    interpreter: str  # its path: "/usr/bin/qemu-aarch64-static"
    # Letters. With "F" the kernel opened the interpreter at registration, and so containers need
    # not have the file.
    flags: str
    magic: bytes  # the beginning of the header
    mask: bytes  # the bits of `magic` that count

    def handles(self, header: bytes) -> bool:
        """Tell whether the kernel runs a file with this header by the interpreter."""
        if len(header) < len(self.magic):
            return False
        for byte, expected, mask in zip(header, self.magic, self.mask, strict=False):
            if byte & mask != expected & mask:
                return False
        return True


def read_binfmt_entries(root: Path = Path("/")) -> dict[str, str]:
    """Return the kernel's description of each entry by name; none if binfmt_misc is not mounted.

    `root` is the folder in which /proc lies.
    """
    paths = find_paths(root / "proc/sys/fs/binfmt_misc", "*")
    controls = {"register", "status"}  # files by which the table is changed
    return {path.name: read_text(path) for path in paths if path.name not in controls}


def find_handler(arch: str, entries: Mapping[str, str]) -> BinfmtHandler | None:
    """Return the enabled entry that runs programs of an arch; None if there is none.

    `entries` are those of `read_binfmt_entries`. Of several, one that works in containers is
    preferred.
    """
    machine = _ELF_MACHINES[arch].to_bytes(2, "little")
    headers = []
    for elf_type in (_ELF_EXECUTABLE, _ELF_SHARED):
        headers.append(_ELF_START + elf_type.to_bytes(2, "little") + machine)
    fitting = []
    for name, description in entries.items():
        handler = _parse_handler(name, description)
        if handler is not None and all(handler.handles(header) for header in headers):
            fitting.append(handler)
    return max(fitting, key=lambda handler: "F" in handler.flags, default=None)


def explain_no_emulation(arch: str, entries: Mapping[str, str]) -> str | None:
    """Return why no container can run programs of an arch, with the fix; None if one can."""
    handler = find_handler(arch, entries)
    register = (
        f"`docker run --privileged --rm tonistiigi/binfmt --install {ARCHES_OF_ENGINES[arch]}`"
    )
    if handler is None:
        return (
            f"the kernel of this machine does not run programs for {arch}: register QEMU with it, "
            f"by {register}, or on Debian and Ubuntu "
            "`apt-get install qemu-user-static binfmt-support` "
            "(if /proc/sys/fs/binfmt_misc is empty, with "
            "`mount -t binfmt_misc none /proc/sys/fs/binfmt_misc` and "
            f"`update-binfmts --enable qemu-{arch}` after it)"
        )
    if "F" not in handler.flags:
        return (
            f"programs for {arch} are run by {handler.interpreter}, which containers cannot see: "
            "register one that is opened beforehand (flag F), as Debian's qemu-user-static is, or "
            f"{register}"
        )
    return None


def _parse_handler(name: str, description: str) -> BinfmtHandler | None:
    """Return an entry by the kernel's description of it.

    None if the entry is disabled, or goes by the extension of a file's name.
    """
    lines = description.splitlines()
    rows = {}  # "interpreter /usr/bin/qemu…", "flags: PF", "offset 0"
    for line in lines:
        key, _, value = line.partition(" ")
        rows[key.rstrip(":")] = value
    # KeyError: an entry for an extension has no magic. ValueError: a description that is cut off.
    with contextlib.suppress(KeyError, ValueError):
        magic = bytes.fromhex(rows["magic"])
        mask = b"\xff" * len(magic)
        if "mask" in rows:
            mask = bytes.fromhex(rows["mask"])
        if lines[0] == "enabled" and int(rows.get("offset", "0")) == 0:
            return BinfmtHandler(name, rows["interpreter"], rows.get("flags", ""), magic, mask)
    return None
