"""Take the members of a zip archive out, several at a time.

A raw wheel of torch has ten thousand members, most of them headers of a few hundred bytes: what costs is not
the data, but what the standard library does around each member.
"""

from __future__ import annotations

import os
import struct
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipInfo

from torchmill.pack.deflate import crc32

LOCAL = struct.Struct("<26x2H")  # before a member's data: how long its name is, and what follows it
ENCRYPTED = 1
ORDINARY = 0o644
CHUNK = 1 << 20
BATCH_FILES, BATCH_BYTES = 128, 16 * CHUNK


@dataclass(frozen=True, slots=True)
class Target:
    """A member, and the file that it becomes."""

    info: ZipInfo
    path: str


def extract(archive: Path, targets: Sequence[Target], threads: int) -> None:
    """Write the targets, which must not exist yet, with the modes that the archive records.

    Raise BadZipFile where the archive does not hold what its directory says, OSError where the disk refuses.
    """
    files = [target for target in targets if not target.info.is_dir()]
    folders = {os.path.dirname(target.path) for target in files}  # noqa: PTH120 - ten thousand of them
    folders |= {target.path for target in targets if target.info.is_dir()}
    for folder in sorted(folders):
        os.makedirs(folder, exist_ok=True)  # noqa: PTH103
    pool = ThreadPoolExecutor(threads)
    try:
        for waiting in [pool.submit(_extract, archive, batch) for batch in _batches(files)]:
            waiting.result()
    finally:
        pool.shutdown(cancel_futures=True)


def _batches(files: Iterable[Target]) -> Iterator[list[Target]]:
    batch: list[Target] = []
    size = 0
    for file in files:
        batch.append(file)
        size += file.info.file_size
        if len(batch) == BATCH_FILES or size > BATCH_BYTES:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


def _extract(archive: Path, batch: Sequence[Target]) -> None:
    with archive.open("rb", buffering=0) as source:
        for target in batch:
            with open(target.path, "xb", buffering=0) as sink:  # noqa: PTH123
                _copy(source, target.info, sink)
            os.chmod(target.path, ORDINARY | (target.info.external_attr >> 16 & 0o777))  # noqa: PTH101


def _copy(source: BinaryIO, info: ZipInfo, sink: BinaryIO) -> None:
    """Write the member's data as it was before it was compressed."""
    crc, size = 0, 0
    try:
        for part in _inflated(_held(source, info), info):
            crc = crc32(part, crc)
            size += sink.write(part)
    except zlib.error as error:
        raise BadZipFile(f"{info.filename} is damaged: {error}") from None
    if (crc, size) != (info.CRC, info.file_size):
        raise BadZipFile(f"{info.filename} is not what the directory says of it")


def begin(source: BinaryIO, info: ZipInfo) -> int:
    """Return where in the archive the member's data begin; raise BadZipFile where nothing says so."""
    source.seek(info.header_offset)
    header = source.read(LOCAL.size)
    if len(header) != LOCAL.size or not header.startswith(b"PK\3\4"):
        raise BadZipFile(f"{info.filename} has no header where the directory says")
    name, extra = LOCAL.unpack(header)
    return info.header_offset + LOCAL.size + int(name) + int(extra)


def _held(source: BinaryIO, info: ZipInfo) -> Iterator[bytes]:
    """Yield the member's data as the archive holds it."""
    source.seek(begin(source, info))
    left = info.compress_size
    while left > 0:
        part = source.read(min(CHUNK, left))
        if not part:
            raise BadZipFile(f"{info.filename} is cut short")
        left -= len(part)
        yield part


def _inflated(parts: Iterable[bytes], info: ZipInfo) -> Iterator[bytes]:
    if info.flag_bits & ENCRYPTED or info.compress_type not in {ZIP_STORED, ZIP_DEFLATED}:
        raise BadZipFile(f"{info.filename} is encrypted, or compressed as no wheel is")
    if info.compress_type == ZIP_STORED:
        yield from parts
        return
    stream = zlib.decompressobj(-zlib.MAX_WBITS)
    for part in parts:
        rest = part
        while rest:
            yield stream.decompress(rest, CHUNK)
            rest = stream.unconsumed_tail
    yield stream.flush()
