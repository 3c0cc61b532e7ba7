"""Extract the files of a wheel to edit them: all of them, or only those that repair may edit.

A raw wheel is one as the build leaves it. It is staged: a folder gets the files that may be edited,
and the wheel is packed from there.

Only a few dozen of some ten thousand files are edited. The others stay in the raw wheel until
packing: to write them out and read them back would take longer than everything else.
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
# Thin files, in both byte orders, and fat ones. "cafebabe" also begins class files of Java, which
# no wheel holds.
MACHO_MAGIC = {
    bytes.fromhex(magic)
    for magic in ("feedface", "cefaedfe", "feedfacf", "cffaedfe", "cafebabe", "cafebabf")
}
BINARY_MAGICS = {b"\x7fELF", *MACHO_MAGIC}  # of files that repair may edit
EXTRACTED_FOLDER_SUFFIXES = (".dist-info", ".data")  # all files in these folders are extracted


@dataclass(frozen=True, slots=True)
class StagedWheel:
    """A wheel of which all files, or those that may be edited, are in a folder."""

    raw_name: str  # file name of the raw wheel
    root: Path  # has the files at the places that they have below site-packages
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
    """Return an error to raise: a raw wheel, or a file of it, is not as a build leaves it."""
    return InputError(f"{file}: {problem}: build it again", code="invalid-raw-wheel")


def stage_wheel(raw: Path, into: Path, edited: Collection[str] | None = None) -> StagedWheel:
    """Extract the wheel `raw` into the empty folder `into`, with the modes it records.

    With `edited=None` all files are extracted. Otherwise those are extracted that may be edited
    before the wheel is packed again: libraries and programs, the files in .dist-info and .data, and
    the members that `edited` names. Compressed members are extracted, too, because packing can read
    only uncompressed ones from the raw wheel. The others are `unstaged`.

    Raises InputError if the file is not a sound wheel, OSError if the disk is full.

        raw = Path("raw/spam-1.0-cp312-cp312-linux_x86_64.whl")
        staged = millpress.stage_wheel(raw, Path("stage"), edited=())
        millpress.repair_staged(staged, "manylinux_2_28_x86_64")
        millpress.pack_wheel(staged.root, Path("dist/spam.whl"), unstaged=staged.unstaged)
    """
    try:
        with ZipFile(raw) as archive:
            members = archive.infolist()
        _require_extractable(raw, members)
        unstaged: tuple[MemberSource, ...] = ()
        if edited is not None:
            unstaged = tuple(_unstaged_members(raw, members, edited))
        unstaged_names = {member.name for member in unstaged}
        targets = [
            (member, f"{into}/{member.filename}")
            for member in members
            if member.filename not in unstaged_names
        ]
        with name_file(into):  # an OSError without a file name gets this one
            zip_archive.extract_members(raw, targets, EXTRACT_THREADS)
    except (OSError, *zip_archive.ARCHIVE_ERRORS) as error:
        if isinstance(error, OSError) and error.errno is not None:  # says nothing of the wheel
            raise
        raise InputError(
            f"{raw}: not a wheel ({error}): build it again", code="damaged-raw-wheel"
        ) from None
    dist_info = find_dist_info(into, raw.name)
    metadata = read_headers(dist_info / "METADATA")
    name = metadata.get("Name")
    version = metadata.get("Version")
    if not name or not version:
        raise invalid_raw_wheel(raw.name, "METADATA has no Name or no Version")
    member_names = [member.filename for member in members]
    package = _import_package(member_names, project=name, raw_name=raw.name)
    return StagedWheel(raw.name, into, dist_info, name, version, package, unstaged)


def _require_extractable(raw: Path, members: Sequence[ZipInfo]) -> None:
    """Raise BadZipFile if a name occurs twice, InputError if a member must not be extracted."""
    # If a name occurs twice, some programs extract the first member, others the last.
    for name, count in Counter(member.filename for member in members).items():
        if count > 1:
            raise BadZipFile(f"{name} is in the archive {count} times")
    for member in members:
        problem = zip_archive.unsafe_member(member)
        if problem:
            raise InputError(f"{raw}: {problem}: do not use it", code="unsafe-wheel")


def _unstaged_members(
    raw: Path, members: Sequence[ZipInfo], edited: Collection[str]
) -> Iterator[MemberSource]:
    """Yield the members that need not be extracted: nothing edits them before packing.

    `edited` names further members to extract. Raises BadZipFile if a member is not where the
    archive's directory says.
    """
    with raw.open("rb", buffering=READ_AHEAD_BYTES) as archive:
        for info in members:
            if not _can_stay(info) or info.filename in edited:
                continue
            # Libraries and programs are told by their first bytes: many have no suffix.
            start = zip_archive.data_offset(archive, info)
            archive.seek(start)
            if archive.read(MAGIC_BYTES) in BINARY_MAGICS:
                continue
            mode = zip_archive.member_mode(info.external_attr >> 16)
            yield MemberSource(info.filename, raw, info.file_size, mode, offset=start, crc=info.CRC)


def _can_stay(info: ZipInfo) -> bool:
    """Tell whether a member can be left in the raw wheel: packing reads it from there as it is.

    That is so for an uncompressed file outside of the folders that are always extracted.
    """
    name = info.filename
    is_encrypted = bool(info.flag_bits & zip_archive.ENCRYPTED_FLAG)
    is_stored = info.compress_type == ZIP_STORED and not is_encrypted
    # both sizes of an uncompressed member are equal, unless the archive is damaged
    is_sound = info.compress_size == info.file_size
    # False for a folder, whose name ends with a slash, and for spellings such as "./x" and "a//b".
    is_plain_file = normpath(name) == name
    is_always_extracted = name.partition("/")[0].endswith(EXTRACTED_FOLDER_SUFFIXES)
    return is_stored and is_sound and is_plain_file and not is_always_extracted


def read_headers(path: Path) -> Message:
    """Parse METADATA or WHEEL. Raises InputError if the file is missing or not text."""
    try:
        return Parser().parsestr(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise invalid_raw_wheel(path, "missing from the wheel") from None
    except UnicodeDecodeError as error:
        raise invalid_raw_wheel(path, f"not text in UTF-8 ({error.reason})") from None


def find_dist_info(tree: Path, wheel: str) -> Path:
    """Return the .dist-info folder of the wheel that is extracted into the folder `tree`.

    Raises InputError, which names the wheel by the text `wheel`, unless there is exactly one.
    """
    folders = [path for path in tree.glob("*.dist-info") if path.is_dir()]
    if len(folders) != 1:
        raise invalid_raw_wheel(wheel, f"has {len(folders)} .dist-info folders, not one")
    return folders[0]


def _import_package(member_names: Sequence[str], *, project: str, raw_name: str) -> str:
    """Return the name of the folder that an import of the project loads.

    It is the folder with the project's name, or else the only one with modules. Raises InputError,
    which names the raw wheel by `raw_name`, unless there is exactly one such folder.
    """
    folders = set()
    for path in map(PurePosixPath, member_names):
        is_in_folder = len(path.parts) == 2  # noqa: PLR2004 - folder and file
        if is_in_folder and path.suffix in {".py", ".so", ".pyd"}:
            folders.add(path.parent)
    packages = sorted(
        folder.name for folder in folders if folder.suffix not in {".dist-info", ".data", ".libs"}
    )
    normalized = canonicalize_name(project)
    candidates = [package for package in packages if canonicalize_name(package) == normalized]
    if not candidates:
        candidates = packages
    if not candidates:
        raise InputError(
            f"{raw_name}: no folder has modules of Python, so that {project} has no import "
            "package: build it again",
            code="ambiguous-import-package",
        )
    if len(candidates) > 1:
        listed = ", ".join(candidates)
        raise InputError(
            f"{raw_name}: cannot tell the import package of {project} (candidates: {listed}): "
            "rename one",
            code="ambiguous-import-package",
        )
    return candidates[0]
