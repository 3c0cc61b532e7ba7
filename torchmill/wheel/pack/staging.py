"""Tell what of a raw wheel can stay in it until the wheel is packed.

Of ten thousand files a few dozen are edited. The others would be written to the disk only to be read again
once, and it is the making of so many files that costs most.
"""

from __future__ import annotations

import stat
import struct
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from pathlib import Path, PurePosixPath
from posixpath import normpath
from zipfile import ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from packaging.utils import canonicalize_name

from torchmill.core.errors import BuildError, HostError
from torchmill.wheel.pack import zip_reader
from torchmill.wheel.pack.zip_reader import ENCRYPTED_FLAG, ExtractTarget, data_offset, extract_members
from torchmill.wheel.pack.zip_writer import MemberSource

READ_AHEAD_BYTES = 1 << 17  # bytes: most members are smaller, and lie one behind the other
FILE_MODE, PROGRAM_MODE = 0o644, 0o755
MAGIC_BYTES = 4  # bytes
BINARY_MAGICS = {  # how files begin in which repair may correct something
    b"\x7fELF",
    *(
        bytes.fromhex(magic)
        for magic in ("cffaedfe", "cefaedfe", "feedfacf", "feedface", "cafebabe", "cafebabf")
    ),
}
EDITED_FOLDERS = (".dist-info", ".data")  # folders, by their ends


def unstaged_members(
    raw: Path, members: Sequence[ZipInfo], edited: Collection[str]
) -> Iterator[MemberSource]:
    """Yield those `members` that lie in the wheel `raw` as they will in the finished one, unless `edited`.

    Raise BadZipFile where a member is not where the directory says.
    """
    with raw.open("rb", buffering=READ_AHEAD_BYTES) as archive:
        for info in members:
            if _stays_unstaged(info) and info.filename not in edited:
                start = data_offset(archive, info)
                archive.seek(start)
                if archive.read(MAGIC_BYTES) not in BINARY_MAGICS:
                    mode = PROGRAM_MODE if info.external_attr >> 16 & stat.S_IXUSR else FILE_MODE
                    yield MemberSource(info.filename, raw, info.file_size, mode, start, info.CRC)


def _stays_unstaged(info: ZipInfo) -> bool:
    """Tell whether it is a file that is not compressed, and is not edited in every wheel."""
    name = info.filename
    stored = info.compress_type == ZIP_STORED and not info.flag_bits & ENCRYPTED_FLAG
    whole = info.compress_size == info.file_size
    plain = normpath(name) == name  # a folder ends with a slash
    return stored and whole and plain and not name.partition("/")[0].endswith(EDITED_FOLDERS)


EXTRACT_THREADS = 4  # most of the work is the system's
# What zipfile raises of an archive that is damaged, encrypted, or compressed as no wheel is.
ARCHIVE_ERRORS = (BadZipFile, NotImplementedError, RuntimeError, EOFError, UnicodeDecodeError, struct.error)


@dataclass(frozen=True, slots=True)
class StagedWheel:
    """A wheel's files on disk, and what it says of itself."""

    raw_name: str  # file name of the wheel that was unpacked
    root: Path  # stands for site-packages
    dist_info: Path
    name: str  # as METADATA spells it
    version: str
    package: str  # the import package, a folder of root
    unstaged: tuple[MemberSource, ...] = ()  # what stayed in the raw wheel

    @property
    def libraries(self) -> Path:
        """Folder of the shared libraries that the package itself builds."""
        return self.root / self.package / "lib"


def unpack_wheel(raw: Path, into: Path) -> StagedWheel:
    """Extract the whole wheel `raw` into the empty folder `into`, with the modes it records.

    Raise BuildError where the file is no sound wheel, HostError where the disk refuses it.
    """
    return _extract_wheel(raw, into, lambda _: ())


def stage_wheel(raw: Path, into: Path, edited: Collection[str]) -> StagedWheel:
    """Extract what is edited before `raw` is packed again: libraries, metadata, and the members `edited`.

    Everything else stays in it, as far as it is not compressed. Raise as `unpack` does.
    """
    return _extract_wheel(raw, into, lambda infos: unstaged_members(raw, infos, edited))


def _extract_wheel(
    raw: Path, into: Path, staying: Callable[[Sequence[ZipInfo]], Iterable[MemberSource]]
) -> StagedWheel:
    try:
        with ZipFile(raw) as archive:
            infos = archive.infolist()
        _require_unique(infos)
        root = str(into)
        targets = [ExtractTarget(info, f"{root}/{_safe_path(info, raw)}") for info in infos]
        left = {file.name: file for file in staying(infos)}
        extract_members(
            raw, [target for target in targets if target.info.filename not in left], EXTRACT_THREADS
        )
    except ARCHIVE_ERRORS as error:
        raise BuildError(f"{raw}: not a wheel ({error}): build it again") from None
    except OSError as error:
        raise HostError(
            f"{raw}: cannot be unpacked into {into} ({error.strerror or error}): "
            "free some space or choose another folder"
        ) from error
    return _describe_wheel(into, raw, [info.filename for info in infos], tuple(left.values()))


def _describe_wheel(
    root: Path, raw: Path, names: Sequence[str], left: tuple[MemberSource, ...]
) -> StagedWheel:
    """Read what the wheel says of itself; raise BuildError where that is not enough."""
    found = sorted(root.glob("*.dist-info"))
    if len(found) != 1:
        raise BuildError(f"{raw.name}: has {len(found)} .dist-info folders, not one: build it again")
    metadata = read_headers(found[0] / "METADATA")
    name, version = metadata.get("Name"), metadata.get("Version")
    if not name or not version:
        raise BuildError(f"{raw.name}: METADATA has no Name or no Version: build it again")
    return StagedWheel(raw.name, root, found[0], name, version, _import_package(names, name, raw.name), left)


def read_headers(path: Path) -> Message:
    """Parse METADATA or WHEEL; raise BuildError where the file is missing or no text."""
    try:
        return Parser().parsestr(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BuildError(f"{path}: missing from the wheel: build it again") from None
    except UnicodeDecodeError as error:
        raise BuildError(f"{path}: not text in UTF-8 ({error.reason}): build the wheel again") from None


def _require_unique(infos: Iterable[ZipInfo]) -> None:
    for name, count in Counter(info.filename for info in infos).items():
        if count > 1:
            raise BadZipFile(f"{name} is in it {count} times")


def _safe_path(info: ZipInfo, raw: Path) -> PurePosixPath:
    """Return the member's path; a wheel has no business outside its own folder."""
    if trick := zip_reader.unsafe_member(info):
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
