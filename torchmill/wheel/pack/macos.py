"""Read Mach-O files: which machines they are for, which macOS they need."""

from __future__ import annotations

import contextlib
import logging
import re
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from torchmill.core.errors import HostError, VerifyError
from torchmill.core.files import hash_file
from torchmill.wheel.pack.bundling import BundledLibrary
from torchmill.wheel.pack.staging import StagedWheel

MACHO_MAGIC = {  # thin and fat, both byte orders; Java's class files begin alike, but no wheel holds one
    b"\xfe\xed\xfa\xce",
    b"\xce\xfa\xed\xfe",
    b"\xfe\xed\xfa\xcf",
    b"\xcf\xfa\xed\xfe",
    b"\xca\xfe\xba\xbe",
}
CPU_TYPES = {0x01000007: "x86_64", 0x0100000C: "arm64"}  # of <mach/machine.h>
VERSION_MIN, BUILD_VERSION = 0x24, 0x32  # LC_VERSION_MIN_MACOSX, LC_BUILD_VERSION of <mach-o/loader.h>


@dataclass(frozen=True, slots=True)
class MachoSlice:
    """What a file holds for one machine."""

    machine: str  # "arm64"
    macos: tuple[int, int]  # the oldest that loads it; (0, 0): it does not say


def is_macho(path: Path) -> bool:
    """Say whether `path` is a regular file that starts as Mach-O files do."""
    if path.is_symlink() or not path.is_file():
        return False
    with path.open("rb", buffering=0) as file:
        return file.read(4) in MACHO_MAGIC


def read_slices(path: Path) -> tuple[MachoSlice, ...]:
    """Return what the file holds for each machine; raise ValueError where it is damaged."""
    from macholib.MachO import MachO

    return tuple(
        MachoSlice(
            CPU_TYPES.get(one.header.cputype, f"cpu {one.header.cputype:#x}"), _oldest_macos(one.commands)
        )
        for one in MachO(str(path)).headers
    )


def slice_problems(
    name: str, slices: Iterable[MachoSlice], macos: tuple[int, int], machines: set[str]
) -> Iterator[str]:
    """Yield why a file does not hold what a platform tag of this macOS and these machines promises."""
    found = {one.machine: one for one in slices}
    for machine in sorted(machines - found.keys()):
        yield f"{name} is made for {', '.join(sorted(found))}, not for {machine}"
    newest = max((one.macos for one in found.values()), default=(0, 0))
    if newest > macos:
        yield f"{name} needs macOS {newest[0]}.{newest[1]}, and the tag says {macos[0]}.{macos[1]}"


def _oldest_macos(commands: Iterable[tuple[object, object, object]]) -> tuple[int, int]:
    for load, command, _ in commands:
        kind = getattr(load, "cmd", None)
        if kind in {VERSION_MIN, BUILD_VERSION}:
            number = int(getattr(command, "version" if kind == VERSION_MIN else "minos"))
            return number >> 16, number >> 8 & 0xFF
    return 0, 0


MACOS_TAG = re.compile(r"macosx_(?P<major>\d+)_(?P<minor>\d+)_(?P<arch>\w+)")
TAG_MACHINES = {"universal2": {"x86_64", "arm64"}}
SYSTEM_FOLDERS = ("/usr/lib", "/System")
XCODE_TOOLS = ("otool", "install_name_tool", "codesign")
_MOST_LISTED = 3  # problems, of all that there are


@dataclass(frozen=True, slots=True)
class DelocateResult:
    """What came along, and who needs it."""

    bundled: tuple[BundledLibrary, ...] = ()
    edited: tuple[str, ...] = field(default=())  # paths from the wheel's root


def delocate_wheel(staged: StagedWheel, platform_tag: str, provided: frozenset[str]) -> DelocateResult:
    """Bring outside libraries along into the package's .dylibs, have `@loader_path` lead there, and judge.

    `provided` names the libraries of the package that this one imports first. Raises HostError without
    delocate or Xcode's tools, VerifyError where a library is nowhere, or newer than the tag.
    """
    try:
        from delocate.delocating import delocate_path
        from delocate.libsana import DelocationError
        from delocate.tools import set_install_id
    except ImportError:
        raise HostError("delocate repairs wheels for macOS: run `pip install delocate`") from None
    if missing := [tool for tool in XCODE_TOOLS if shutil.which(tool) is None]:
        raise HostError(f"{', '.join(missing)}: not found: run `xcode-select --install`")
    package = staged.root / staged.package
    folder = package / ".dylibs"
    with _collect_delocate_errors() as heard:
        try:
            copied = delocate_path(
                str(package),
                str(folder),
                copy_filt_func=lambda path: must_bundle(path, provided),
                sanitize_rpaths=True,
            )
        except DelocationError as error:
            said = "; ".join(heard) or " ".join(str(error).split())
            raise VerifyError(f"{said}: install what provides the library, and build again") from None
    bundled = tuple(_bundled_library(staged, Path(source), folder) for source in sorted(copied))
    for one in bundled:  # each had the path on this machine as its own name
        set_install_id(str(staged.root / one.path), f"/DLC/{one.path}")
    if bundled == ():
        folder.rmdir()
    require_macos_tag(staged, platform_tag)
    users = {Path(user).relative_to(staged.root).as_posix() for users in copied.values() for user in users}
    return DelocateResult(bundled, tuple(sorted(users)))


@contextlib.contextmanager
def _collect_delocate_errors() -> Iterator[list[str]]:
    """Collect what delocate only logs: which library is nowhere, and who needs it."""
    heard: list[str] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: heard.append(" ".join(record.getMessage().split()))  # type: ignore[method-assign]
    logger = logging.getLogger("delocate")
    logger.addHandler(handler)
    try:
        yield heard
    finally:
        logger.removeHandler(handler)


def must_bundle(library: str, provided: frozenset[str]) -> bool:
    """Say whether a library that a file needs comes along: not the system's, nor those of the base."""
    return not library.startswith(SYSTEM_FOLDERS) and Path(library).name not in provided


def require_macos_tag(staged: StagedWheel, platform_tag: str) -> None:
    """Raise VerifyError where a file of the wheel is not for the tag's machines, or for a newer macOS."""
    match = MACOS_TAG.fullmatch(platform_tag)
    if match is None:
        raise VerifyError(f"{platform_tag}: not a platform tag of macOS: say one like macosx_11_0_arm64")
    macos = int(match["major"]), int(match["minor"])
    machines = TAG_MACHINES.get(match["arch"], {match["arch"]})
    if found := list(_file_problems(staged.root, macos, machines)):
        more = f"; and {len(found) - _MOST_LISTED} more" if len(found) > _MOST_LISTED else ""
        raise VerifyError(
            f"{'; '.join(found[:_MOST_LISTED])}{more}: build on that system, or for it, with "
            "`--set MACOSX_DEPLOYMENT_TARGET=VERSION`"
        )


def _file_problems(root: Path, macos: tuple[int, int], machines: set[str]) -> Iterator[str]:
    for path in sorted(root.rglob("*")):
        if is_macho(path):
            yield from slice_problems(path.relative_to(root).as_posix(), read_slices(path), macos, machines)


def _bundled_library(staged: StagedWheel, source: Path, folder: Path) -> BundledLibrary:
    copy = folder / source.name
    return BundledLibrary(copy.name, copy.relative_to(staged.root).as_posix(), source, hash_file(source))
