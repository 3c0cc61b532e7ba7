"""Extract the files of a wheel to edit them: all of them, or only those that repair may edit.

A few dozen of ten thousand files are edited. Writing the others to disk only to read them once more costs
more than anything else that is done with them, so they stay in the raw wheel until it is packed.
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
from torchmill.wheel.pack.zip_reader import ENCRYPTED_FLAG, ExtractTarget
from torchmill.wheel.pack.zip_writer import MemberSource

EXTRACT_THREADS = 4  # most of the work is the kernel's
READ_AHEAD_BYTES = 1 << 17  # most members are smaller, and follow one another
FILE_MODE, PROGRAM_MODE = 0o644, 0o755
MAGIC_BYTES = 4
# The magic numbers of ELF and Mach-O files, which repair may edit.
BINARY_MAGICS = {
    bytes.fromhex(magic)
    for magic in ("7f454c46", "cffaedfe", "cefaedfe", "feedfacf", "feedface", "cafebabe", "cafebabf")
}
EDITED_FOLDERS = (".dist-info", ".data")  # suffixes
# What zipfile raises for an archive that is damaged, encrypted, or compressed as no wheel is.
ARCHIVE_ERRORS = (BadZipFile, NotImplementedError, RuntimeError, EOFError, UnicodeDecodeError, struct.error)


@dataclass(frozen=True, slots=True)
class StagedWheel:
    """A wheel whose files are on disk, or some of them."""

    raw_name: str  # file name of the raw wheel
    root: Path  # stands for site-packages
    dist_info: Path
    name: str  # as METADATA spells it
    version: str
    package: str  # the import package, a folder of root
    unstaged: tuple[MemberSource, ...] = ()  # files that are still in the raw wheel

    @property
    def libraries(self) -> Path:
        """Return the folder of the shared libraries that the package builds."""
        return self.root / self.package / "lib"


def unpack_wheel(raw: Path, into: Path) -> StagedWheel:
    """Extract the whole wheel `raw` into the empty folder `into`, with the modes it records.

    Raises BuildError where the file is not a sound wheel, HostError where the disk is full.
    """
    return _extract_wheel(raw, into, lambda _: ())


def stage_wheel(raw: Path, into: Path, edited: Collection[str]) -> StagedWheel:
    """Extract the files to edit before `raw` is packed again: libraries, metadata, and the members `edited`.

    All other files that are not compressed stay in it. Raises as `unpack_wheel` does.
    """
    return _extract_wheel(raw, into, lambda infos: unstaged_members(raw, infos, edited))


def unstaged_members(
    raw: Path, members: Sequence[ZipInfo], edited: Collection[str]
) -> Iterator[MemberSource]:
    """Yield the `members` that the finished wheel has as the wheel `raw` has them, unless they are `edited`.

    Raises BadZipFile where a member is not where the directory says.
    """
    with raw.open("rb", buffering=READ_AHEAD_BYTES) as archive:
        for info in members:
            if _can_stay(info) and info.filename not in edited:
                start = zip_reader.data_offset(archive, info)
                archive.seek(start)
                if archive.read(MAGIC_BYTES) not in BINARY_MAGICS:
                    mode = PROGRAM_MODE if info.external_attr >> 16 & stat.S_IXUSR else FILE_MODE
                    yield MemberSource(info.filename, raw, info.file_size, mode, start, info.CRC)


def read_headers(path: Path) -> Message:
    """Parse METADATA or WHEEL. Raises BuildError where the file is missing or not text."""
    try:
        return Parser().parsestr(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BuildError(
            f"{path}: missing from the wheel: build it again", code="invalid-raw-wheel"
        ) from None
    except UnicodeDecodeError as error:
        raise BuildError(
            f"{path}: not text in UTF-8 ({error.reason}): build the wheel again", code="invalid-raw-wheel"
        ) from None


def _can_stay(info: ZipInfo) -> bool:
    """Tell whether a member is a file that is not compressed and not in a folder that is always edited."""
    name = info.filename
    stored = info.compress_type == ZIP_STORED and not info.flag_bits & ENCRYPTED_FLAG
    complete = info.compress_size == info.file_size
    is_file = normpath(name) == name  # the name of a folder ends with a slash
    return stored and complete and is_file and not name.partition("/")[0].endswith(EDITED_FOLDERS)


def _extract_wheel(
    raw: Path, into: Path, staying: Callable[[Sequence[ZipInfo]], Iterable[MemberSource]]
) -> StagedWheel:
    """Extract the members of `raw` without those that `staying` returns."""
    try:
        with ZipFile(raw) as archive:
            infos = archive.infolist()
        for name, count in Counter(info.filename for info in infos).items():
            if count > 1:
                raise BadZipFile(f"{name} is in it {count} times")
        targets = [ExtractTarget(info, f"{into}/{_safe_path(info, raw)}") for info in infos]
        left = {file.name: file for file in staying(infos)}
        staged = [target for target in targets if target.info.filename not in left]
        zip_reader.extract_members(raw, staged, EXTRACT_THREADS)
    except ARCHIVE_ERRORS as error:
        raise BuildError(f"{raw}: not a wheel ({error}): build it again", code="damaged-raw-wheel") from None
    except OSError as error:
        raise HostError(
            f"{raw}: cannot be unpacked into {into} ({error.strerror or error}): "
            "free some space or choose another folder",
            code="disk-full",
        ) from error
    return _describe_wheel(into, raw, [info.filename for info in infos], tuple(left.values()))


def _describe_wheel(
    root: Path, raw: Path, names: Sequence[str], left: tuple[MemberSource, ...]
) -> StagedWheel:
    """Read name and version of an extracted wheel. Raises BuildError where they are not there."""
    infos = sorted(root.glob("*.dist-info"))
    if len(infos) != 1:
        raise BuildError(
            f"{raw.name}: has {len(infos)} .dist-info folders, not one: build it again",
            code="invalid-raw-wheel",
        )
    metadata = read_headers(infos[0] / "METADATA")
    name, version = metadata.get("Name"), metadata.get("Version")
    if not name or not version:
        raise BuildError(
            f"{raw.name}: METADATA has no Name or no Version: build it again", code="invalid-raw-wheel"
        )
    return StagedWheel(raw.name, root, infos[0], name, version, _import_package(names, name, raw.name), left)


def _safe_path(info: ZipInfo, raw: Path) -> PurePosixPath:
    """Return the path of a member. Raises BuildError for one that leaves the wheel's folder."""
    if problem := zip_reader.unsafe_member(info):
        raise BuildError(f"{raw}: {problem}: do not use it", code="unsafe-wheel")
    return PurePosixPath(info.filename)


def _import_package(names: Sequence[str], name: str, raw: str) -> str:
    """Return the folder that the distribution is named after, or else the only one with modules."""
    paths = (PurePosixPath(each) for each in names if each.count("/") == 1)
    modules = {path.parent for path in paths if path.suffix in {".py", ".so", ".pyd"}}
    folders = sorted(path.name for path in modules if path.suffix not in {".dist-info", ".data", ".libs"})
    named = [folder for folder in folders if canonicalize_name(folder) == canonicalize_name(name)]
    candidates = named or folders
    if len(candidates) != 1:
        raise BuildError(
            f"{raw}: cannot tell the import package of {name} (candidates: "
            f"{', '.join(candidates) or 'none'}): rename one",
            code="ambiguous-import-package",
        )
    return candidates[0]
