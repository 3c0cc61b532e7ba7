"""Repair for macOS, by delocate's rules: what lies outside the wheel and outside the system comes along."""

from __future__ import annotations

import contextlib
import logging
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from torchmill.digests import sha256
from torchmill.errors import HostError, VerifyError
from torchmill.pack import macho
from torchmill.pack.bundling import Bundled
from torchmill.pack.stage import StagedWheel

TAG = re.compile(r"macosx_(?P<major>\d+)_(?P<minor>\d+)_(?P<arch>\w+)")
MACHINES = {"universal2": {"x86_64", "arm64"}}
SYSTEM = ("/usr/lib", "/System")
TOOLS = ("otool", "install_name_tool", "codesign")
_TOLD = 3  # problems, of all that there are


@dataclass(frozen=True, slots=True)
class Delocated:
    """What came along, and who needs it."""

    bundled: tuple[Bundled, ...] = ()
    edited: tuple[str, ...] = field(default=())  # paths from the wheel's root


def repair(staged: StagedWheel, platform_tag: str, provided: frozenset[str]) -> Delocated:
    """Bring outside libraries along into the package's .dylibs, have `@loader_path` lead there, and judge.

    `provided` names the libraries of the package that this one imports first. Raises HostError without
    delocate or Xcode's tools, VerifyError where a library is nowhere, or newer than the tag.
    """
    try:
        from delocate.delocating import delocate_path  # noqa: PLC0415 - macOS alone needs it
        from delocate.libsana import DelocationError  # noqa: PLC0415
        from delocate.tools import set_install_id  # noqa: PLC0415
    except ImportError:
        raise HostError("delocate repairs wheels for macOS: run `pip install delocate`") from None
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        raise HostError(f"{', '.join(missing)}: not found: run `xcode-select --install`")
    package = staged.root / staged.package
    folder = package / ".dylibs"
    with _listening() as heard:
        try:
            copied = delocate_path(
                str(package),
                str(folder),
                copy_filt_func=lambda path: comes_along(path, provided),
                sanitize_rpaths=True,
            )
        except DelocationError as error:
            said = "; ".join(heard) or " ".join(str(error).split())
            raise VerifyError(f"{said}: install what provides the library, and build again") from None
    bundled = tuple(_bundled(staged, Path(source), folder) for source in sorted(copied))
    for one in bundled:  # each had the path on this machine as its own name
        set_install_id(str(staged.root / one.path), f"/DLC/{one.path}")
    if bundled == ():
        folder.rmdir()
    judge(staged, platform_tag)
    users = {Path(user).relative_to(staged.root).as_posix() for users in copied.values() for user in users}
    return Delocated(bundled, tuple(sorted(users)))


@contextlib.contextmanager
def _listening() -> Iterator[list[str]]:
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


def comes_along(library: str, provided: frozenset[str]) -> bool:
    """Say whether a library that a file needs comes along: not the system's, nor those of the base."""
    return not library.startswith(SYSTEM) and Path(library).name not in provided


def judge(staged: StagedWheel, platform_tag: str) -> None:
    """Raise VerifyError where a file of the wheel is not for the tag's machines, or for a newer macOS."""
    match = TAG.fullmatch(platform_tag)
    if match is None:
        raise VerifyError(f"{platform_tag}: not a platform tag of macOS: say one like macosx_11_0_arm64")
    macos = int(match["major"]), int(match["minor"])
    machines = MACHINES.get(match["arch"], {match["arch"]})
    if found := list(_problems(staged.root, macos, machines)):
        more = f"; and {len(found) - _TOLD} more" if len(found) > _TOLD else ""
        raise VerifyError(
            f"{'; '.join(found[:_TOLD])}{more}: build on that system, or for it, with "
            "`--set MACOSX_DEPLOYMENT_TARGET=VERSION`"
        )


def _problems(root: Path, macos: tuple[int, int], machines: set[str]) -> Iterator[str]:
    for path in sorted(root.rglob("*")):
        if macho.is_macho(path):
            yield from macho.too_new(path.relative_to(root).as_posix(), macho.read(path), macos, machines)


def _bundled(staged: StagedWheel, source: Path, folder: Path) -> Bundled:
    copy = folder / source.name
    return Bundled(copy.name, copy.relative_to(staged.root).as_posix(), source, sha256(source))
