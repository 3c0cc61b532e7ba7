"""Repair wheels for macOS with delocate, and check Mach-O files against the platform tag.

Mach-O is the format of libraries and programs on macOS. A file for several machines, called
universal or fat, has a slice for each: a whole Mach-O file inside the file.
"""

import contextlib
import logging
import re
import shutil
import struct
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

from millpress import elf
from millpress.bundling import BundledLibrary
from millpress.errors import InputError, OptionError, RepairError, ToolError, first_problems
from millpress.record_file import hash_file
from millpress.staging import MACHO_MAGIC, StagedWheel

# Types and subtypes of processors, of <mach/machine.h>. The high byte of a subtype has flags.
CPU_TYPES = {0x01000007: "x86_64", 0x0100000C: "arm64"}
CPU_SUBTYPE_MASK = 0x00FFFFFF
CPU_SUBTYPE_ARM64E = 2
# Load commands of <mach-o/loader.h> that name the oldest macOS.
VERSION_MIN = 0x24  # LC_VERSION_MIN_MACOSX
BUILD_VERSION = 0x32  # LC_BUILD_VERSION
MACOS_TAG = re.compile(r"macosx_(?P<major>\d+)_(?P<minor>\d+)_(?P<arch>\w+)")
# The machines that a universal tag promises; a wheel must run on all of them:
# https://packaging.python.org/en/latest/specifications/platform-compatibility-tags/
UNIVERSAL_MACHINES = {"universal2": ("arm64", "x86_64")}
# The first macOS for Apple silicon: no older one runs there, whatever a tag says.
FIRST_ARM64_MACOS = (11, 0)
SYSTEM_FOLDERS = ("/usr/lib", "/System")
XCODE_TOOLS = ("otool", "install_name_tool", "codesign")
# The slices of a file: machine -> oldest macOS that loads the slice: "arm64": (14, 0).
Slices = Mapping[str, tuple[int, int]]


def repair_for_macos(
    staged: StagedWheel, platform_tag: str, provided: frozenset[str]
) -> tuple[BundledLibrary, ...]:
    """Bundle libraries from outside the wheel, check the tag, and return what was copied.

    The copies are in the package's .dylibs. `provided` names the libraries of the package that this
    one imports first. Raises ToolError without delocate or Xcode's tools, RepairError if a library
    is missing or needs a newer macOS than the tag names, OptionError for an invalid tag, InputError
    for a damaged library.
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
    missing_tools = [tool for tool in XCODE_TOOLS if shutil.which(tool) is None]
    if missing_tools:
        raise ToolError(
            f"{', '.join(missing_tools)}: not found: run `xcode-select --install`",
            code="xcode-tools-missing",
        )
    package = staged.root / staged.package
    folder = package / ".dylibs"
    with _delocate_errors() as errors:
        try:
            copied = delocate_path(
                str(package),
                str(folder),
                copy_filt_func=partial(must_bundle, provided=provided),
                sanitize_rpaths=True,
            )
        except DelocationError as error:
            reason = "; ".join(errors) or " ".join(str(error).split())
            raise RepairError(
                f"{reason}: install what provides the library, and build again",
                code="library-not-found",
            ) from None
    folder_in_wheel = folder.relative_to(staged.root).as_posix()
    bundled = []
    for source in map(Path, sorted(copied)):
        path = f"{folder_in_wheel}/{source.name}"
        bundled.append(BundledLibrary(source.name, path, source, hash_file(source)))
        # The install name, by which other libraries refer to it, still is its path on this machine.
        # delocate gives copied libraries the prefix /DLC/; the name only has to be unique.
        set_install_id(str(staged.root / path), f"/DLC/{path}")
    # delocate creates the folder in any case, and the package may have brought one with files
    if not any(folder.iterdir()):
        folder.rmdir()
    require_macos_tag(staged, platform_tag)
    return tuple(bundled)


def must_bundle(library: str, provided: frozenset[str]) -> bool:
    """Tell whether a library is bundled: not one of the system or of the base package."""
    return not library.startswith(SYSTEM_FOLDERS) and Path(library).name not in provided


def require_macos_tag(staged: StagedWheel, platform_tag: str) -> None:
    """Raise RepairError if a file is for another machine or a newer macOS than the tag names.

    Raises OptionError for an invalid tag, InputError for a damaged file.
    """
    match = MACOS_TAG.fullmatch(platform_tag)
    arches = {*CPU_TYPES.values(), *UNIVERSAL_MACHINES}
    if match is None or match["arch"] not in arches:
        raise OptionError(
            f"{platform_tag}: not a platform tag of macOS wheels for {', '.join(sorted(arches))}: "
            "use one like macosx_11_0_arm64",
            code="invalid-platform-tag",
        )
    macos = (int(match["major"]), int(match["minor"]))
    machines = UNIVERSAL_MACHINES.get(match["arch"], (match["arch"],))
    problems: list[str] = []
    for path in sorted(staged.root.rglob("*")):
        if elf.has_magic(path, *MACHO_MAGIC):
            name = path.relative_to(staged.root).as_posix()
            slices = read_slices(path)
            for machine in machines:
                problems += slice_problems(name, slices, macos, machine)
    if problems:
        raise RepairError(
            f"{first_problems(problems)}: build on the machine that the tag names, and for its macOS "
            "with MACOSX_DEPLOYMENT_TARGET=VERSION",
            code="newer-than-tag",
        )


def read_slices(path: Path) -> Slices:
    """Return the slices of a Mach-O file. Raises InputError if it is damaged."""
    from macholib.MachO import MachO  # installed with delocate, which only macOS needs

    try:
        headers = MachO(str(path)).headers
    except (ValueError, struct.error) as error:
        raise InputError(
            f"{path}: not a sound Mach-O file ({error}): build it again", code="damaged-library"
        ) from None
    slices = {}
    for header in headers:
        cpu = header.header.cputype
        machine = CPU_TYPES.get(cpu, f"cpu {cpu:#x}")
        subtype = header.header.cpusubtype & CPU_SUBTYPE_MASK
        # A file may have a slice for arm64 and another for arm64e, of the same processor type.
        if machine == "arm64" and subtype == CPU_SUBTYPE_ARM64E:
            machine = "arm64e"
        slices[machine] = _oldest_macos(header.commands)
    return slices


def slice_problems(
    name: str, slices: Slices, macos: tuple[int, int], machine: str
) -> Iterator[str]:
    """Yield a clause if a file does not run on `machine`, or only on a newer macOS than `macos`."""
    if machine not in slices:
        yield f"{name} is built for {', '.join(sorted(slices))}, not for {machine}"
        return
    # Only the slice of this machine counts: the arm64 slice always needs macOS 11, and the x86_64
    # slice may need less.
    oldest = slices[machine]
    if machine == "arm64" and oldest <= FIRST_ARM64_MACOS:
        return
    if oldest > macos:
        yield f"{name} needs macOS {oldest[0]}.{oldest[1]}, and the tag says {macos[0]}.{macos[1]}"


def _oldest_macos(commands: Iterable[tuple[object, object, object]]) -> tuple[int, int]:
    """Return the oldest macOS that loads a slice, by its load commands; (0, 0) without one."""
    for load, command, _ in commands:
        kind = getattr(load, "cmd", None)
        if kind == VERSION_MIN:
            number = int(getattr(command, "version"))  # noqa: B009 - of an object without types
        elif kind == BUILD_VERSION:
            number = int(getattr(command, "minos"))  # noqa: B009
        else:
            continue
        # X.Y.Z takes 16, 8 and 8 bits
        return number >> 16, number >> 8 & 0xFF
    return 0, 0


@contextlib.contextmanager
def _delocate_errors() -> Iterator[list[str]]:
    """Collect what delocate only logs: which library is missing, and what needs it."""
    errors: list[str] = []
    handler = logging.Handler(logging.ERROR)
    handler.emit = lambda record: errors.append(" ".join(record.getMessage().split()))  # type: ignore[method-assign]
    logger = logging.getLogger("delocate")
    logger.addHandler(handler)
    try:
        yield errors
    finally:
        logger.removeHandler(handler)
