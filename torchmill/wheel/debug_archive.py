"""The archive with the debug information of a wheel, which lies beside it in dist/.

It is a zip file in the layout that debuggers and debuginfod search: the debug file of the library
with the build ID abcdef… is .build-id/ab/cdef….debug. A zip, because one file can be taken out of
it without reading the others, and because Python and every system read it with nothing installed.
Its index, the first member, names the wheel and says which library has which build ID.

https://sourceware.org/gdb/current/onlinedocs/gdb.html/Separate-Debug-Files.html
"""

import json
import shutil
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from millpress.debug_info import StrippedFiles
from millpress.zip_archive import ARCHIVE_ERRORS

from torchmill.core import formats
from torchmill.core.atomic_writes import fresh_path
from torchmill.core.digests import hash_file
from torchmill.core.strict_json import LARGEST_JSON_BYTES, parse_json_object

INDEX = "index.json"
_OLDEST_TIME = (1980, 1, 1, 0, 0, 0)  # the first that a zip file can have
_FILE_MODE = 0o100644 << 16


def debug_file_name(build_id: str) -> str:
    """Return the path at which debuggers look for the debug file of a build ID, below a folder."""
    return f".build-id/{build_id[:2]}/{build_id[2:]}.debug"


def write_archive(
    file: Path, stripped: StrippedFiles, *, wheel: str, sha256: str, level: str, root: Path
) -> dict[str, Any]:
    """Write the archive of a wheel, and return its entry in the manifest.

    `wheel` is the wheel's file name, `sha256` its digest, `level` the value of `--debug-info`, and
    `root` the folder in which the wheel's files were stripped. They have their final build IDs
    (`settle_build_ids`). The same files give the same bytes. Raises OSError.
    """
    libraries = {}
    debug_files = {}
    for library in stripped.separated:
        libraries[library.path.relative_to(root).as_posix()] = library.build_id
        debug_files[debug_file_name(library.build_id)] = library.debug_file
    index = {
        formats.KEY: formats.DEBUG_ARCHIVE,
        "wheel": wheel,
        "wheel_sha256": sha256,
        "level": level,
        "libraries": libraries,
    }
    with fresh_path(file) as fresh:
        with zipfile.ZipFile(fresh, "w") as archive:
            text = json.dumps(index, indent=1, sort_keys=True)
            archive.writestr(_member(INDEX), f"{text}\n".encode())
            for name, debug_file in sorted(debug_files.items()):
                with (
                    archive.open(_member(name), "w", force_zip64=True) as member,
                    debug_file.open("rb") as content,
                ):
                    shutil.copyfileobj(content, member, 1 << 20)
        fresh.replace(file)
    return {
        "file": file.name,
        "sha256": hash_file(file),
        "size": file.stat().st_size,
        "level": level,
        "reduced": stripped.reduced,
        "libraries": libraries,
    }


def _member(name: str) -> zipfile.ZipInfo:
    """Return a deflated member without a time: sections of debug files are compressed, the rest not."""
    info = zipfile.ZipInfo(name, _OLDEST_TIME)
    info.compress_type = zipfile.ZIP_DEFLATED
    info.external_attr = _FILE_MODE
    info.create_system = 3  # Unix, whatever system writes it
    return info


def read_index(archive: Path) -> Mapping[str, Any]:
    """Return the index of an archive.

    Raises ValueError, with a clause that follows the file's name ("lacks …"), if it is no such
    archive, of another format, or lacks the debug file of a library; OSError.
    """
    index, names = _read_members(archive)
    age = formats.judge_format(index, formats.DEBUG_ARCHIVE)
    if age == "newer":
        raise ValueError(formats.newer_clause(index, formats.DEBUG_ARCHIVE))
    if age != "same":
        raise ValueError(
            f"has an index of format {index.get(formats.KEY)!r}, and this torchmill reads "
            f"{formats.DEBUG_ARCHIVE}"
        )
    libraries = index.get("libraries")
    if not isinstance(libraries, dict):
        raise ValueError("has an index without libraries")  # noqa: TRY004 - the file is wrong
    for path, build_id in libraries.items():
        if debug_file_name(str(build_id)) not in names:
            raise ValueError(f"lacks the debug file of {path}")
    return index


def _read_members(archive: Path) -> tuple[Mapping[str, Any], set[str]]:
    """Return the index of an archive, of any format, and the names of all members.

    Raises ValueError, with a clause, if there is no index; OSError.
    """
    if archive.exists() and not archive.is_file():  # reading a pipe would wait for ever
        raise ValueError("is not a file")
    try:
        with zipfile.ZipFile(archive) as file:
            # Few bytes of an archive can stand for gigabytes of its index.
            if file.getinfo(INDEX).file_size > LARGEST_JSON_BYTES:
                raise ValueError(f"has an index of more than {LARGEST_JSON_BYTES} bytes")
            return parse_json_object(file.read(INDEX)), set(file.namelist())
    except (KeyError, *ARCHIVE_ERRORS) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        raise ValueError(f"cannot be read as an archive with debug information ({error})") from None


def newer_clause(archive: Path) -> str:
    """Return a clause on an archive of a newer format, of which nobody here can tell the wheel.

    "" for any other file, and if there is none.
    """
    try:
        index, _ = _read_members(archive)
    except (ValueError, OSError):
        return ""
    if formats.judge_format(index, formats.DEBUG_ARCHIVE) != "newer":
        return ""
    return formats.newer_clause(index, formats.DEBUG_ARCHIVE)


def may_belong_to(archive: Path, sha256: str) -> bool:
    """Tell whether an archive is of the wheel with this digest, or of a newer format.

    False if it cannot be read.
    """
    try:
        return read_index(archive).get("wheel_sha256") == sha256
    except (ValueError, OSError):
        return bool(newer_clause(archive))


def archive_problems(archive: Path, sha256: str, recorded: object) -> Iterator[str]:
    """Yield at most one clause: the first way in which an archive is not that of a wheel.

    `sha256` is the digest of the wheel, `recorded` the archive's entry in its manifest. Without
    an entry (None), the archive's own digest is not compared.
    """
    try:
        index = read_index(archive)
    except (ValueError, OSError) as error:
        yield f"{archive.name} {error}"
        return
    if index.get("wheel_sha256") != sha256:
        yield (
            f"{archive.name} belongs to another build: to the wheel with sha256 "
            f"{index.get('wheel_sha256')}, while this wheel has {sha256}"
        )
    elif isinstance(recorded, dict) and recorded.get("sha256") != hash_file(archive):
        yield f"{archive.name} is not the file that the manifest describes: make it again"
