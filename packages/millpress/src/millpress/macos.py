"""Repair wheels for macOS by delocate, and check Mach-O files against the platform tag."""

import contextlib
import logging
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

from millpress import elf
from millpress.bundling import BundledLibrary
from millpress.errors import RepairError, ToolError, first_problems
from millpress.record_file import hash_file
from millpress.staging import MACHO_MAGIC, StagedWheel

CPU_TYPES = {0x01000007: "x86_64", 0x0100000C: "arm64"}  # of <mach/machine.h>
VERSION_MIN, BUILD_VERSION = (
    0x24,
    0x32,
)  # LC_VERSION_MIN_MACOSX, LC_BUILD_VERSION of <mach-o/loader.h>
MACOS_TAG = re.compile(r"macosx_(?P<major>\d+)_(?P<minor>\d+)_(?P<arch>\w+)")
SYSTEM_FOLDERS = ("/usr/lib", "/System")
XCODE_TOOLS = ("otool", "install_name_tool", "codesign")
Slices = Mapping[
    str, tuple[int, int]
]  # for which machines a file is, and from which macOS on: "arm64": (14, 0)


def delocate_wheel(
    staged: StagedWheel, platform_tag: str, provided: frozenset[str]
) -> tuple[BundledLibrary, ...]:
    """Copy outside libraries into the package's .dylibs, let `@loader_path` lead there, and check the tag.

    `provided` names the libraries of the package that this one imports first. Returns the bundled libraries. Raises
    ToolError without delocate or Xcode's tools, RepairError where a library is nowhere, or newer than the tag.
    """
    try:
        from delocate.delocating import delocate_path
        from delocate.libsana import DelocationError
        from delocate.tools import set_install_id
    except ImportError:
        raise ToolError(
            "repairing wheels for macOS needs delocate, which is not installed: "
            f"run `{sys.executable} -m pip install delocate`",
            code="delocate-missing",
        ) from None
    if missing := ", ".join(tool for tool in XCODE_TOOLS if shutil.which(tool) is None):
        raise ToolError(
            f"{missing}: not found: run `xcode-select --install`", code="xcode-tools-missing"
        )
    package = staged.root / staged.package
    folder = package / ".dylibs"
    bundles = partial(must_bundle, provided=provided)
    with _delocate_errors() as errors:
        try:
            copied = delocate_path(
                str(package), str(folder), copy_filt_func=bundles, sanitize_rpaths=True
            )
        except DelocationError as error:
            reason = "; ".join(errors) or " ".join(str(error).split())
            raise RepairError(
                f"{reason}: install what provides the library, and build again",
                code="library-not-found",
            ) from None
    inside = folder.relative_to(staged.root).as_posix()
    bundled = tuple(
        BundledLibrary(source.name, f"{inside}/{source.name}", source, hash_file(source))
        for source in map(Path, sorted(copied))
    )
    for library in bundled:  # until now its install name is its path on this machine
        set_install_id(str(staged.root / library.path), f"/DLC/{library.path}")
    if not bundled:
        folder.rmdir()
    require_macos_tag(staged, platform_tag)
    return bundled


def must_bundle(library: str, provided: frozenset[str]) -> bool:
    """Tell whether a library is bundled: not the system's, nor those of the package under the wheel."""
    return not library.startswith(SYSTEM_FOLDERS) and Path(library).name not in provided


def require_macos_tag(staged: StagedWheel, platform_tag: str) -> None:
    """Raise RepairError where a file of the wheel is not for the tag's machine, or for a newer macOS."""
    _, major, minor, machine = platform_tag.split("_", 3)
    macos = int(major), int(minor)
    files = {
        path.relative_to(staged.root).as_posix(): path for path in sorted(staged.root.rglob("*"))
    }
    slices = {
        name: read_slices(path) for name, path in files.items() if elf.has_magic(path, *MACHO_MAGIC)
    }
    if problems := [
        each for name in slices for each in slice_problems(name, slices[name], macos, machine)
    ]:
        raise RepairError(
            f"{first_problems(problems)}: build on that system, or for it, with "
            "`--set MACOSX_DEPLOYMENT_TARGET=VERSION`",
            code="newer-than-tag",
        )


def read_slices(path: Path) -> Slices:
    """Return the parts of a file for each machine. Raises ValueError where it is damaged."""
    from macholib.MachO import MachO  # installed with delocate, which only macOS needs

    headers = [(each.header.cputype, each.commands) for each in MachO(str(path)).headers]
    return {
        CPU_TYPES.get(cpu, f"cpu {cpu:#x}"): _oldest_macos(commands) for cpu, commands in headers
    }


def slice_problems(
    name: str, slices: Slices, macos: tuple[int, int], machine: str
) -> Iterator[str]:
    """Yield how a file breaks the promise of a platform tag for this macOS and this machine."""
    if machine not in slices:
        yield f"{name} is built for {', '.join(sorted(slices))}, not for {machine}"
    newest = slices.get(
        machine, (0, 0)
    )  # that the part for Apple silicon needs macOS 11 says nothing of Intel's
    if newest > macos:
        yield f"{name} needs macOS {newest[0]}.{newest[1]}, and the tag says {macos[0]}.{macos[1]}"


def _oldest_macos(commands: Iterable[tuple[object, object, object]]) -> tuple[int, int]:
    """Return the oldest macOS that loads a part; (0, 0) where it does not say."""
    for load, command, _ in commands:
        kind = getattr(load, "cmd", None)
        if kind in {VERSION_MIN, BUILD_VERSION}:
            number = int(getattr(command, "version" if kind == VERSION_MIN else "minos"))
            return number >> 16, number >> 8 & 0xFF
    return 0, 0


@contextlib.contextmanager
def _delocate_errors() -> Iterator[list[str]]:
    """Collect what delocate only logs: which library is nowhere, and who needs it."""
    errors: list[str] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: errors.append(" ".join(record.getMessage().split()))  # type: ignore[method-assign]
    logger = logging.getLogger("delocate")
    logger.addHandler(handler)
    try:
        yield errors
    finally:
        logger.removeHandler(handler)
