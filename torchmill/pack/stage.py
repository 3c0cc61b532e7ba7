"""Lay a wheel's files out on disk, to be edited there: all of them, or those that are."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from pathlib import Path, PurePosixPath
from zipfile import BadZipFile, ZipFile, ZipInfo

from packaging.utils import canonicalize_name

from torchmill.errors import BuildError, HostError
from torchmill.pack import members
from torchmill.pack.content import File
from torchmill.pack.extract import Target, extract
from torchmill.pack.rest import rest

THREADS = 4  # most of the work is the system's
# What zipfile raises of an archive that is damaged, encrypted, or compressed as no wheel is.
BROKEN = (BadZipFile, NotImplementedError, RuntimeError, EOFError, UnicodeDecodeError, struct.error)


@dataclass(frozen=True, slots=True)
class StagedWheel:
    """A wheel's files on disk, and what it says of itself."""

    raw: str  # file name of the wheel that was unpacked
    root: Path  # stands for site-packages
    dist_info: Path
    name: str  # as METADATA spells it
    version: str
    package: str  # the import package, a folder of root
    rest: tuple[File, ...] = ()  # what stayed in the raw wheel

    @property
    def libraries(self) -> Path:
        """Folder of the shared libraries that the package itself builds."""
        return self.root / self.package / "lib"


def unpack(raw: Path, into: Path) -> StagedWheel:
    """Extract the whole wheel `raw` into the empty folder `into`, with the modes it records.

    Raise BuildError where the file is no sound wheel, HostError where the disk refuses it.
    """
    return _laid(raw, into, lambda _: ())


def lay(raw: Path, into: Path, edited: Collection[str]) -> StagedWheel:
    """Extract what is edited before `raw` is packed again: libraries, metadata, and the members `edited`.

    Everything else stays in it, as far as it is not compressed. Raise as `unpack` does.
    """
    return _laid(raw, into, lambda infos: rest(raw, infos, edited))


def _laid(raw: Path, into: Path, staying: Callable[[Sequence[ZipInfo]], Iterable[File]]) -> StagedWheel:
    try:
        with ZipFile(raw) as archive:
            infos = archive.infolist()
        _assure_once(infos)
        root = str(into)
        targets = [Target(info, f"{root}/{_safe(info, raw)}") for info in infos]
        left = {file.name: file for file in staying(infos)}
        extract(raw, [target for target in targets if target.info.filename not in left], THREADS)
    except BROKEN as error:
        raise BuildError(f"{raw}: not a wheel ({error}): build it again") from None
    except OSError as error:
        raise HostError(
            f"{raw}: cannot be unpacked into {into} ({error.strerror or error}): "
            "free some space or choose another folder"
        ) from error
    return _described(into, raw, [info.filename for info in infos], tuple(left.values()))


def _described(root: Path, raw: Path, names: Sequence[str], left: tuple[File, ...]) -> StagedWheel:
    """Read what the wheel says of itself; raise BuildError where that is not enough."""
    found = sorted(root.glob("*.dist-info"))
    if len(found) != 1:
        raise BuildError(f"{raw.name}: has {len(found)} .dist-info folders, not one: build it again")
    metadata = headers(found[0] / "METADATA")
    name, version = metadata.get("Name"), metadata.get("Version")
    if not name or not version:
        raise BuildError(f"{raw.name}: METADATA has no Name or no Version: build it again")
    return StagedWheel(raw.name, root, found[0], name, version, _import_package(names, name, raw.name), left)


def headers(path: Path) -> Message:
    """Parse METADATA or WHEEL; raise BuildError where the file is missing or no text."""
    try:
        return Parser().parsestr(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BuildError(f"{path}: missing from the wheel: build it again") from None
    except UnicodeDecodeError as error:
        raise BuildError(f"{path}: not text in UTF-8 ({error.reason}): build the wheel again") from None


def _assure_once(infos: Iterable[ZipInfo]) -> None:
    for name, count in Counter(info.filename for info in infos).items():
        if count > 1:
            raise BadZipFile(f"{name} is in it {count} times")


def _safe(info: ZipInfo, raw: Path) -> PurePosixPath:
    """Return the member's path; a wheel has no business outside its own folder."""
    if trick := members.trick(info):
        raise BuildError(f"{raw}: {trick}: do not use it")
    return PurePosixPath(info.filename)


def _import_package(names: Sequence[str], name: str, raw: str) -> str:
    """Return the folder that the distribution is named after, or else the only one with modules."""
    paths = (PurePosixPath(each) for each in names if each.count("/") == 1)
    modules = {path.parent for path in paths if path.suffix in {".py", ".so", ".pyd"}}
    folders = sorted(path.name for path in modules if path.suffix not in {".dist-info", ".data", ".libs"})
    named = [folder for folder in folders if canonicalize_name(folder) == canonicalize_name(name)]
    candidates = named or folders
    if len(candidates) != 1:
        found = ", ".join(candidates) or "none"
        raise BuildError(f"{raw}: cannot tell the import package of {name} (found: {found}): rename one")
    return candidates[0]
