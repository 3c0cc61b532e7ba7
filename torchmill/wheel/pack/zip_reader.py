"""Extract members of a zip archive with several threads, and refuse members that must not be extracted.

A raw wheel of torch has ten thousand members, most of them headers of a few hundred bytes: zipfile spends
more time around each member than on its data.
"""

from __future__ import annotations

import os
import stat
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import BinaryIO
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipInfo

from torchmill.wheel.pack.zip_writer import crc32

LOCAL_NAME_LENGTHS = struct.Struct("<26x2H")  # local header: lengths of the name and of the extra field
ENCRYPTED_FLAG = 1
# What zipfile raises for an archive that is damaged, encrypted, or compressed as no wheel is.
ARCHIVE_ERRORS = (
    *(BadZipFile, zlib.error, NotImplementedError, RuntimeError, EOFError, UnicodeDecodeError, struct.error),
)
READABLE_MODE = 0o644
CHUNK_BYTES = 1 << 20
BATCH_FILES = 128


ExtractTarget = tuple[ZipInfo, str]  # a member and the path of its file


def extract_members(archive: Path, targets: Sequence[ExtractTarget], threads: int) -> None:
    """Write the targets, which must not exist yet, with the modes that the archive records.

    Raises BadZipFile where the archive contradicts its directory, OSError where the disk is full.
    """
    files = [target for target in targets if not target[0].is_dir()]
    folders = {os.path.dirname(path) for _, path in files}  # noqa: PTH120 - ten thousand of them
    folders |= {path for info, path in targets if info.is_dir()}
    for folder in sorted(folders):
        os.makedirs(folder, exist_ok=True)  # noqa: PTH103
    pool = ThreadPoolExecutor(threads)
    try:
        for future in [pool.submit(_extract_batch, archive, batch) for batch in _batches(files)]:
            future.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _batches(files: Sequence[ExtractTarget]) -> list[list[ExtractTarget]]:
    """Return large files alone, and small ones in batches."""
    large = [[file] for file in files if file[0].file_size > CHUNK_BYTES]
    small = [file for file in files if file[0].file_size <= CHUNK_BYTES]
    return [*large, *(small[start : start + BATCH_FILES] for start in range(0, len(small), BATCH_FILES))]


def _extract_batch(archive: Path, batch: Sequence[ExtractTarget]) -> None:
    with archive.open("rb", buffering=0) as source:
        for info, path in batch:
            with open(path, "xb", buffering=0) as sink:  # noqa: PTH123
                _write_member(source, info, sink)
            os.chmod(path, READABLE_MODE | (info.external_attr >> 16 & 0o777))  # noqa: PTH101


def _write_member(source: BinaryIO, info: ZipInfo, sink: BinaryIO) -> None:
    """Write the uncompressed data of a member."""
    crc, size = 0, 0
    try:
        for part in _inflate(_stored_parts(source, info), info):
            crc = crc32(part, crc)
            size += sink.write(part)
    except zlib.error as error:
        raise BadZipFile(f"{info.filename} is damaged: {error}") from None
    if (crc, size) != (info.CRC, info.file_size):
        raise BadZipFile(f"{info.filename} has not the checksum and size in the directory")


def data_offset(source: BinaryIO, info: ZipInfo) -> int:
    """Return the offset of a member's data. Raises BadZipFile where the member has no local header."""
    source.seek(info.header_offset)
    header = source.read(LOCAL_NAME_LENGTHS.size)
    if len(header) != LOCAL_NAME_LENGTHS.size or not header.startswith(b"PK\3\4"):
        raise BadZipFile(f"{info.filename} has no header where the directory says")
    name, extra = LOCAL_NAME_LENGTHS.unpack(header)
    return info.header_offset + LOCAL_NAME_LENGTHS.size + int(name) + int(extra)


def _stored_parts(source: BinaryIO, info: ZipInfo) -> Iterator[bytes]:
    """Yield the data of a member as stored in the archive."""
    source.seek(data_offset(source, info))
    left = info.compress_size
    while left > 0:
        part = source.read(min(CHUNK_BYTES, left))
        if not part:
            raise BadZipFile(f"{info.filename} is truncated")
        left -= len(part)
        yield part


def _inflate(parts: Iterable[bytes], info: ZipInfo) -> Iterator[bytes]:
    if info.flag_bits & ENCRYPTED_FLAG or info.compress_type not in {ZIP_STORED, ZIP_DEFLATED}:
        raise BadZipFile(f"{info.filename} is encrypted, or compressed as no wheel is")
    if info.compress_type == ZIP_STORED:
        yield from parts
        return
    stream = zlib.decompressobj(-zlib.MAX_WBITS)
    for part in parts:
        remaining = part
        while remaining:
            yield stream.decompress(remaining, CHUNK_BYTES)
            remaining = stream.unconsumed_tail
    yield stream.flush()


def leaves_folder(name: str) -> bool:
    """Tell whether a member's name leads out of the folder that it is extracted into, on any system."""
    first, *_ = parts = name.split("/")
    return first == "" or ".." in parts or ":" in first or "\\" in name or "\0" in name


def unsafe_member(info: ZipInfo) -> str:
    """Return a clause about a member of a zip archive that must not be extracted; "" for all others."""
    name = info.orig_filename  # `filename` is cut at a NUL, and has this system's separators replaced
    if leaves_folder(name):
        return f"the member {name!r} leaves the wheel"
    if not name.isprintable():  # it could control the terminal of those who list it
        return f"the member {name!r} has a name that cannot be printed"
    return f"the member {name!r} is a link" if stat.S_ISLNK(info.external_attr >> 16) else ""
