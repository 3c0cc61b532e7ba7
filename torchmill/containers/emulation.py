"""Whether this kernel runs programs of another architecture: what is registered with binfmt_misc."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

FOLDER = "proc/sys/fs/binfmt_misc"
_MACHINES = {"x86_64": 0x3E, "aarch64": 0xB7}  # e_machine in an ELF file
_QEMU = {"x86_64": "qemu-x86_64", "aarch64": "qemu-aarch64"}  # as Debian's update-binfmts calls them
_TONISTIIGI = {"x86_64": "amd64", "aarch64": "arm64"}  # as docker calls them
_PROGRAM, _LIBRARY = 2, 3  # e_type: a program is either, by whether it can lie anywhere in memory


@dataclass(frozen=True, slots=True)
class Handler:
    """An entry of binfmt_misc: what runs the files that begin in a certain way."""

    name: str
    interpreter: str
    flags: str  # "F": the interpreter was opened when it was registered, so that containers need not have it
    enabled: bool
    magic: bytes
    mask: bytes

    def takes(self, header: bytes) -> bool:
        """Tell whether a file with this header is run by it."""
        meant = zip(header, self.magic, self.mask, strict=False)
        return len(self.magic) <= len(header) and all(one & mask == two & mask for one, two, mask in meant)


def entries(root: Path = Path("/")) -> dict[str, str]:
    """Return what the kernel says of each entry, by name; none where binfmt_misc is not mounted."""
    found = {}
    with contextlib.suppress(OSError):
        for path in sorted((root / FOLDER).iterdir()):
            if path.name not in {"register", "status"}:
                found[path.name] = path.read_text(encoding="utf-8", errors="replace")
    return found


def handler(arch: str, said: Mapping[str, str]) -> Handler | None:
    """Return the enabled entry that runs programs of an arch; None where there is none."""
    known = (_handler(name, text) for name, text in said.items())
    able = [one for one in known if one and one.enabled and all(map(one.takes, _headers(arch)))]
    return max(able, key=lambda one: "F" in one.flags, default=None)


def refusal(arch: str, said: Mapping[str, str]) -> str | None:
    """Return why no container can run programs of an arch here, with the cure; None where one can."""
    found = handler(arch, said)
    if found is None:
        return (
            f"the kernel of this machine does not run programs for {arch}: register QEMU with it, by "
            f"`docker run --privileged --rm tonistiigi/binfmt --install {_TONISTIIGI[arch]}`, or on Debian "
            "and Ubuntu `apt-get install qemu-user-static binfmt-support` (where /proc/sys/fs/binfmt_misc is "
            "empty, with `mount -t binfmt_misc none /proc/sys/fs/binfmt_misc` and "
            f"`update-binfmts --enable {_QEMU[arch]}` after it)"
        )
    if "F" not in found.flags:
        return (
            f"programs for {arch} are run by {found.interpreter}, which a container does not see: register "
            "one that is opened beforehand (flag F), as Debian's qemu-user-static does, or "
            f"`docker run --privileged --rm tonistiigi/binfmt --install {_TONISTIIGI[arch]}`"
        )
    return None


def _headers(arch: str) -> list[bytes]:
    """Return how the programs of an arch begin: 64 bits, little-endian."""
    start = b"\x7fELF\x02\x01\x01" + bytes(9)
    machine = _MACHINES[arch].to_bytes(2, "little")
    return [start + kind.to_bytes(2, "little") + machine for kind in (_PROGRAM, _LIBRARY)]


def _handler(name: str, text: str) -> Handler | None:
    """Return an entry as the kernel describes it; None where that is not by how a file begins."""
    lines = text.splitlines()
    said = {key.rstrip(":"): value for key, _, value in (line.partition(" ") for line in lines)}
    try:
        magic = bytes.fromhex(said["magic"])
        mask = bytes.fromhex(said["mask"]) if "mask" in said else b"\xff" * len(magic)
        offset = int(said.get("offset", "0"))
        interpreter = said["interpreter"]
    except (KeyError, ValueError):
        return None
    enabled = lines[0] == "enabled" and offset == 0
    return Handler(name, interpreter, said.get("flags", ""), enabled, magic, mask)
