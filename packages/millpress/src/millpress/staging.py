"""Extract the files of a wheel to edit them: all of them, or only those that repair may edit.

A few dozen of ten thousand files are edited. Writing the others to disk only to read them once more costs
more than anything else that is done with them, so they stay in the raw wheel until it is packed.
"""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from email.message import Message
from email.parser import Parser
from pathlib import Path, PurePosixPath
from posixpath import normpath
from zipfile import ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from packaging.utils import canonicalize_name

from millpress import zip_archive
from millpress.atomic_files import name_file
from millpress.errors import InputError
from millpress.zip_archive import MemberSource

EXTRACT_THREADS = 4  # most of the work is the kernel's
READ_AHEAD_BYTES = 1 << 17  # most members are smaller, and follow one another
MAGIC_BYTES = 4
# thin, in both byte orders, and fat; a fat file might also be a class file of Java, which no wheel holds
MACHO_MAGIC = {
    bytes.fromhex(one)
    for one in ("feedface", "cefaedfe", "feedfacf", "cffaedfe", "cafebabe", "cafebabf")
}
BINARY_MAGICS = {b"\x7fELF", *MACHO_MAGIC}  # of files that repair may edit
EDITED_FOLDERS = (".dist-info", ".data")  # suffixes


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


def invalid_raw_wheel(file: Path | str, problem: str) -> InputError:
    """Return the error that a raw wheel, or a file of it, is not as a build leaves it."""
    return InputError(f"{file}: {problem}: build it again", code="invalid-raw-wheel")


def _unstaged_members(
    raw: Path, members: Sequence[ZipInfo], edited: Collection[str]
) -> Iterator[MemberSource]:
    """Yield the `members` that the finished wheel has as the wheel `raw` has them, unless they are `edited`.

    Raises BadZipFile where a member is not where the directory says.
    """
    with raw.open("rb", buffering=READ_AHEAD_BYTES) as archive:
        for info in members:
            if _can_stay(info) and info.filename not in edited:
                start = zip_archive.data_offset(archive, info)
                archive.seek(start)
                if archive.read(MAGIC_BYTES) not in BINARY_MAGICS:
                    mode = zip_archive.member_mode(info.external_attr >> 16)
                    yield MemberSource(info.filename, raw, info.file_size, mode, start, info.CRC)


def read_headers(path: Path) -> Message:
    """Parse METADATA or WHEEL. Raises InputError where the file is missing or not text."""
    try:
        return Parser().parsestr(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise invalid_raw_wheel(path, "missing from the wheel") from None
    except UnicodeDecodeError as error:
        raise invalid_raw_wheel(path, f"not text in UTF-8 ({error.reason})") from None


def _can_stay(info: ZipInfo) -> bool:
    """Tell whether a member is a file that is not compressed and not in a folder that is always edited."""
    name = info.filename
    stored = info.compress_type == ZIP_STORED and not info.flag_bits & zip_archive.ENCRYPTED_FLAG
    complete = info.compress_size == info.file_size
    is_file = normpath(name) == name  # the name of a folder ends with a slash
    return stored and complete and is_file and not name.partition("/")[0].endswith(EDITED_FOLDERS)


def stage_wheel(raw: Path, into: Path, edited: Collection[str] | None = None) -> StagedWheel:
    """Extract the wheel `raw` into the empty folder `into`, with the modes it records.

    Where `edited` is given, only what is edited before the wheel is packed again: libraries, metadata, those
    members and what is compressed. Raises InputError where it is not a sound wheel, ToolError where the disk is full.
    """
    try:
        with ZipFile(raw) as archive:
            infos = archive.infolist()
        for member, count in Counter(info.filename for info in infos).items():
            if count > 1:
                raise BadZipFile(f"{member} is in it {count} times")
        if problem := next(filter(None, map(zip_archive.unsafe_member, infos)), None):
            raise InputError(f"{raw}: {problem}: do not use it", code="unsafe-wheel")
        unstaged = () if edited is None else tuple(_unstaged_members(raw, infos, edited))
        left = {file.name for file in unstaged}
        targets = [(info, f"{into}/{info.filename}") for info in infos if info.filename not in left]
        with name_file(into):
            zip_archive.extract_members(raw, targets, EXTRACT_THREADS)
    except (OSError, *zip_archive.ARCHIVE_ERRORS) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise InputError(
            f"{raw}: not a wheel ({error}): build it again", code="damaged-raw-wheel"
        ) from None
    dist_info = find_dist_info(into, raw.name)
    metadata = read_headers(dist_info / "METADATA")
    name, version = metadata.get("Name"), metadata.get("Version")
    if not name or not version:
        raise invalid_raw_wheel(raw.name, "METADATA has no Name or no Version")
    package = _import_package([info.filename for info in infos], name, raw.name)
    return StagedWheel(raw.name, into, dist_info, name, version, package, unstaged)


def find_dist_info(tree: Path, wheel: str) -> Path:
    """Return the .dist-info folder in an extracted wheel. Raises InputError where there is not one."""
    folders = list(tree.glob("*.dist-info"))
    if len(folders) != 1:
        raise invalid_raw_wheel(wheel, f"has {len(folders)} .dist-info folders, not one")
    return folders[0]


def _import_package(names: Sequence[str], name: str, raw: str) -> str:
    """Return the folder that the distribution is named after, or else the only one with modules."""
    paths = (PurePosixPath(each) for each in names if each.count("/") == 1)
    modules = {path.parent for path in paths if path.suffix in {".py", ".so", ".pyd"}}
    folders = sorted(
        path.name for path in modules if path.suffix not in {".dist-info", ".data", ".libs"}
    )
    candidates = [
        folder for folder in folders if canonicalize_name(folder) == canonicalize_name(name)
    ] or folders
    if len(candidates) != 1:
        listed = ", ".join(candidates) or "none"
        raise InputError(
            f"{raw}: cannot tell the import package of {name} (candidates: {listed}): rename one",
            code="ambiguous-import-package",
        )
    return candidates[0]
