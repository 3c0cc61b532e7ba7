"""Read and write zip archives: members at their offsets, deflated in blocks by many threads.

zipfile deflates in one thread and takes no compressed bytes. Here a file is compressed in blocks of a fixed
size; each begins with the window that the block before it leaves and ends on a byte, so that they add up to
one deflate stream and any number of threads gives the same bytes. Sizes above 4 GiB, and more members than
65535, get ZIP64 records. Data descriptors, comments and encryption are never written.
"""

import contextlib
import hashlib
import importlib
import os
import stat
import struct
import time
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import cache, partial
from io import FileIO
from itertools import groupby, product
from pathlib import Path
from types import ModuleType
from typing import BinaryIO, cast
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from millpress.errors import InputError

LOCAL_HEADER = struct.Struct("<4s5H3L2H")
CENTRAL_HEADER = struct.Struct("<4s2B5H3L5H2L")
END_RECORD = struct.Struct("<4s4H2LH")
END64_RECORD = struct.Struct("<4sQ2H2L4Q")
END64_LOCATOR = struct.Struct("<4sLQL")
UNIX_SYSTEM = 3  # on every system, because the modes are Unix's
UTF8_FLAG = 0x800
PLAIN_VERSION, ZIP64_VERSION = 20, 45  # the version of the format that a reader needs
ZIP64_SIZE = 0xFFFFFFFF  # refers to the number in the ZIP64 record
ZIP64_COUNT = 0xFFFF
REGULAR_FILE = 0o100000  # bits of a Unix mode
BLOCK_BYTES = 1 << 20  # the bytes of a wheel depend on it
WINDOW_BYTES = 1 << 15  # how far back deflate refers
RAW_WINDOW_BITS = -15  # without zlib's header and checksum
MEMORY_LEVEL = 8  # of nine; the default of all codecs
CHUNK_BYTES = 1 << 20
ENCRYPTED_FLAG, DESCRIPTOR_FLAG = 1, 8
DESCRIPTOR_BYTES = 24  # after the data, at most
# What zipfile raises for an archive that is damaged, encrypted, or compressed as no wheel is.
ARCHIVE_ERRORS = (
    BadZipFile,
    zlib.error,
    RuntimeError,
    EOFError,
    ValueError,
    OverflowError,
    struct.error,
)
READABLE_MODE = 0o644
BATCH_FILES = 128
ExtractTarget = tuple[ZipInfo, str]  # a member and the path of its file


@dataclass(frozen=True, slots=True)
class Codec:
    """A library and the levels to deflate with."""

    name: str  # "zlib-ng"
    version: str  # of the library
    levels: tuple[int, ...]  # used by the blocks of a file in turn
    module: ModuleType  # zlib, or one with its interface

    def __str__(self) -> str:
        """Return what a wheel's bytes depend on: "zlib-1.3.1-level-6"."""
        counted = (f"{len(list(same))}x{level}" for level, same in groupby(self.levels))
        shown = str(self.levels[0]) if len(self.levels) == 1 else "-".join(counted)
        return f"{self.name}-{self.version}-level-{shown}"

    def compress(self, data: bytes) -> bytes:
        """Compress bytes as one block."""
        return self.compress_block(data, b"", number=-1, last=True)

    def compress_block(self, data: bytes, before: bytes, *, number: int, last: bool) -> bytes:
        """Compress one block; `before` is the window of the block before it."""
        level = self.levels[number % len(self.levels)]
        settings = (level, zlib.DEFLATED, RAW_WINDOW_BITS, MEMORY_LEVEL, zlib.Z_DEFAULT_STRATEGY)
        stream = self.module.compressobj(*settings, *([before] if before else []))
        packed: bytes = stream.compress(data) + stream.flush(
            zlib.Z_FINISH if last else zlib.Z_SYNC_FLUSH
        )
        return packed


@cache
def available_codecs() -> Mapping[str, Codec]:
    """Return the installed codecs by name, the best first.

    isal is by far the fastest, but its wheels are a tenth larger: it is used only where zlib-ng is missing.
    zlib-ng's level 6 makes a wheel of torch 2 % larger than zlib's does; with every eighth block at level 9
    it is less, and that is still faster than level 7 for all (docs/measurements/packing.md).
    """
    codecs = {}
    for name, module, package, version, levels in (
        ("zlib-ng", "zlib_ng.zlib_ng", "zlib_ng.zlib_ng", "ZLIBNG_RUNTIME_VERSION", (9, *[6] * 7)),
        ("isal", "isal.isal_zlib", "isal", "ISAL_VERSION", (3,)),
        ("zlib", "zlib", "zlib", "ZLIB_RUNTIME_VERSION", (6,)),
    ):
        with contextlib.suppress(ImportError, AttributeError):  # missing, or too old
            number = str(getattr(importlib.import_module(package), version))
            codecs[name] = Codec(name, number, levels, importlib.import_module(module))
    return codecs


def best_codec() -> Codec:
    """Return the codec that wheels are compressed with."""
    return next(iter(available_codecs().values()))


def crc32(data: bytes | memoryview, before: int = 0) -> int:
    """Return the checksum of zip archives; zlib-ng and isal compute it four times as fast as zlib."""
    checksum: int = best_codec().module.crc32(data, before)
    return checksum


@dataclass(frozen=True, slots=True)
class MemberSource:
    """The file, or part of one, that becomes a member."""

    name: str  # in the wheel
    path: Path
    size: int  # bytes
    mode: int  # 0o644
    offset: int = 0  # in `path`
    crc: int | None = None  # expected; None accepts any


def member_mode(mode: int) -> int:
    """Return the mode of a member that is made of a file: of its own, only whether it is a program."""
    return 0o755 if mode & stat.S_IXUSR else 0o644


@dataclass(frozen=True, slots=True)
class ContentDigest:
    """The digest, checksum and size (bytes) of some content, computed in one reading."""

    sha256: bytes
    crc: int
    size: int


def read_sources(files: Iterable[MemberSource]) -> Iterator[tuple[bytes, ContentDigest]]:
    """Yield the content of small files; consecutive parts of one file are read in one opening.

    Raises InputError where one has another size or checksum than expected.
    """
    for path, parts in groupby(files, key=lambda file: file.path):
        with _open_source(path) as source:
            for part in parts:
                source.seek(part.offset)
                data = source.read(part.size)
                content = ContentDigest(hashlib.sha256(data).digest(), crc32(data), len(data))
                _require_sound(part, content)
                yield data, content


def digest_source(file: MemberSource) -> ContentDigest:
    """Return the digest of a source. Raises InputError where size or checksum are not as expected."""
    sha256, crc, left = hashlib.sha256(), 0, file.size
    buffer = memoryview(bytearray(CHUNK_BYTES))
    with _open_source(file.path) as source:
        source.seek(file.offset)
        while count := source.readinto(buffer[:left]):
            sha256.update(buffer[:count])
            crc = crc32(buffer[:count], crc)
            left -= count
    content = ContentDigest(sha256.digest(), crc, file.size - left)
    _require_sound(file, content)
    return content


def block_tasks(codec: Codec, file: MemberSource) -> Iterator[Callable[[], bytes]]:
    """Yield for each block of a source, at least one, a function that reads and compresses it."""
    for number in range(max(1, -(-file.size // BLOCK_BYTES))):
        yield partial(_compress_block, codec, file, number)


def _compress_block(codec: Codec, file: MemberSource, number: int) -> bytes:
    start, window = number * BLOCK_BYTES, WINDOW_BYTES if number else 0
    left = file.size - start
    with file.path.open("rb", buffering=0) as source:
        source.seek(file.offset + start - window)
        data = source.read(window + min(BLOCK_BYTES, left))
    return codec.compress_block(
        data[window:], data[:window], number=number, last=left <= BLOCK_BYTES
    )


def _open_source(path: Path) -> FileIO:
    try:
        return path.open("rb", buffering=0)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror}): build it again", code="unreadable-file"
        ) from None


def _require_sound(file: MemberSource, content: ContentDigest) -> None:
    if content.size != file.size or file.crc not in {None, content.crc}:
        raise InputError(
            f"{file.path}: {file.name} is damaged, or changed meanwhile: build it again",
            code="damaged-raw-wheel",
        )


@dataclass(frozen=True, slots=True)
class ZipMember:
    """A member as its headers describe it; the archive says where it is, and how large."""

    name: str
    mode: int  # 0o644
    size: int  # bytes, uncompressed
    crc: int
    method: int = ZIP_DEFLATED
    offset: int = 0  # of its header
    packed: int = 0  # bytes, compressed


@dataclass
class ZipWriter:
    """An archive that is being written to a seekable file."""

    sink: BinaryIO
    stamp: time.struct_time  # of every member
    size_limit: int = (
        ZIP64_SIZE  # from this size and number of members on ZIP64 is needed; smaller in tests
    )
    count_limit: int = ZIP64_COUNT
    members: list[ZipMember] = field(default_factory=list)

    def add(self, member: ZipMember, data: bytes) -> None:
        """Append a member with its compressed bytes."""
        self.members.append(replace(member, offset=self.sink.tell(), packed=len(data)))
        self.sink.write(self._local_header(self.members[-1]))
        self.sink.write(data)

    def add_parts(self, member: ZipMember, parts: Iterable[bytes]) -> int:
        """Append a member whose compressed bytes come in parts, and return their number."""
        start = self.sink.tell()
        self.sink.write(self._local_header(member))
        packed = sum(self.sink.write(part) for part in parts)
        self.members.append(replace(member, offset=start, packed=packed))
        self.sink.seek(start)
        self.sink.write(self._local_header(self.members[-1]))
        self.sink.seek(packed, os.SEEK_CUR)
        return packed

    def close(self) -> None:
        """Append the directory; the file stays open."""
        start = self.sink.tell()
        for member in self.members:
            self.sink.write(self._central_header(member))
        end, count = self.sink.tell(), len(self.members)
        size, large, many = end - start, self.size_limit, self.count_limit
        if count >= many or max(start, size) >= large:
            fixed = (END64_RECORD.size - 12, ZIP64_VERSION | UNIX_SYSTEM << 8, ZIP64_VERSION, 0, 0)
            self.sink.write(END64_RECORD.pack(b"PK\6\6", *fixed, count, count, size, start))
            self.sink.write(END64_LOCATOR.pack(b"PK\6\7", 0, end, 1))
        count = ZIP64_COUNT if count >= many else count
        size, start = (ZIP64_SIZE if number >= large else number for number in (size, start))
        self.sink.write(END_RECORD.pack(b"PK\5\6", 0, 0, count, count, size, start, 0))

    def _local_header(self, member: ZipMember) -> bytes:
        needs, common, rest = self._common_fields(member)
        return LOCAL_HEADER.pack(b"PK\3\4", needs, *common) + rest

    def _central_header(self, member: ZipMember) -> bytes:
        far = member.offset >= self.size_limit
        needs, common, rest = self._common_fields(member, *([member.offset] if far else []))
        where = ((REGULAR_FILE | member.mode) << 16, ZIP64_SIZE if far else member.offset)
        return (
            CENTRAL_HEADER.pack(b"PK\1\2", needs, UNIX_SYSTEM, needs, *common, 0, 0, 0, *where)
            + rest
        )

    def _common_fields(self, member: ZipMember, *offset: int) -> tuple[int, tuple[int, ...], bytes]:
        """Return what both headers of a member have: the version, the numbers, and name and ZIP64 field."""
        name = member.name.encode()
        # independent of the compressed size, which the first header is written without
        wide = member.size + (member.size >> 6) + 64 >= self.size_limit
        long = (*((member.size, member.packed) if wide else ()), *offset)
        extra = struct.pack(f"<2H{len(long)}Q", 1, 8 * len(long), *long) if long else b""
        year, month, day, hour, minute, second = self.stamp[:6]
        moment = hour << 11 | minute << 5 | second // 2, year - 1980 << 9 | month << 5 | day
        sizes = (ZIP64_SIZE, ZIP64_SIZE) if wide else (member.packed, member.size)
        flags = 0 if name.isascii() else UTF8_FLAG
        numbers = (flags, member.method, *moment, member.crc, *sizes, len(name), len(extra))
        return ZIP64_VERSION if long else PLAIN_VERSION, numbers, name + extra


def extract_members(archive: Path, targets: Sequence[ExtractTarget], threads: int) -> None:
    """Write the targets, which must not exist yet, with the modes that the archive records.

    Raises BadZipFile where the archive contradicts its directory, OSError where the disk is full.
    """
    files = [target for target in targets if not target[0].is_dir()]
    folders = {os.path.dirname(path) for _, path in files}  # noqa: PTH120 - ten thousand of them
    folders |= {path for info, path in targets if info.is_dir()}
    for folder in sorted(folders):
        os.makedirs(folder, exist_ok=True)  # noqa: PTH103
    large = [[file] for file in files if file[0].file_size > CHUNK_BYTES]
    small = [file for file in files if file[0].file_size <= CHUNK_BYTES]
    batches = (small[start : start + BATCH_FILES] for start in range(0, len(small), BATCH_FILES))
    with ThreadPoolExecutor(threads) as pool:
        list(
            pool.map(partial(_extract_batch, archive), (*large, *batches))
        )  # raises what the first one raised


def _extract_batch(archive: Path, batch: Sequence[ExtractTarget]) -> None:
    with archive.open("rb", buffering=0) as source:
        for info, path in batch:
            with open(path, "xb", buffering=0) as sink:  # noqa: PTH123
                _write_member(source, info, sink)
            os.chmod(path, READABLE_MODE | (info.external_attr >> 16 & 0o777))  # noqa: PTH101


def _write_member(source: BinaryIO, info: ZipInfo, sink: BinaryIO) -> None:
    crc, size = 0, 0
    try:
        for part in _inflate(stored_parts(source, info), info):
            crc = crc32(part, crc)
            size += len(part)
            rest = memoryview(part)
            while rest:  # the system takes less where a disk fills up, and refuses the next
                rest = rest[sink.write(rest) :]
    except zlib.error as error:
        raise BadZipFile(f"{info.filename} is damaged: {error}") from None
    if (crc, size) != (info.CRC, info.file_size):
        raise BadZipFile(f"{info.filename} does not have the checksum and size in the directory")


def data_offset(source: BinaryIO, info: ZipInfo) -> int:
    """Return the offset of a member's data. Raises BadZipFile where its own header is not as the directory says."""
    if info.header_offset < 0:
        raise BadZipFile(f"{info.filename} begins before the file, which lacks a part")
    source.seek(info.header_offset)
    header = source.read(LOCAL_HEADER.size)
    if len(header) != LOCAL_HEADER.size or not header.startswith(b"PK\3\4"):
        raise BadZipFile(f"{info.filename} has no header where the directory says")
    _, _, flags, method, _, _, *sizes, long_name, extra = LOCAL_HEADER.unpack(header)
    name, long = (
        source.read(long_name).decode("utf-8" if flags & UTF8_FLAG else "cp437", "replace"),
        source.read(extra),
    )
    pairs = zip(
        sizes, (None, *_zip64_sizes(long)), strict=True
    )  # as who reads the archive as a stream has them
    here = [far if near == ZIP64_SIZE and far is not None else near for near, far in pairs]
    told = here == [info.CRC, info.compress_size, info.file_size] or (
        flags & DESCRIPTOR_FLAG and not any(here)
    )
    if (name, method) != (info.orig_filename, info.compress_type) or not told:
        raise BadZipFile(
            f"{info.filename} has another name, size or checksum in its own header than in the directory"
        )
    return info.header_offset + LOCAL_HEADER.size + int(long_name) + int(extra)


def _zip64_sizes(extra: bytes) -> tuple[int, int]:
    """Return compressed and plain size in the first ZIP64 field of a member's own header; 0 where it has none."""
    while extra and not extra.startswith(b"\1\0"):
        extra = extra[4 + int.from_bytes(extra[2:4], "little") :]
    plain, packed = struct.unpack(
        "<2Q", extra[4:20] if extra.startswith(b"\1\0\x10\0") else bytes(16)
    )
    return packed, plain


def stored_parts(source: BinaryIO, info: ZipInfo) -> Iterator[bytes]:
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
        raise BadZipFile(
            f"{info.filename} is encrypted, or compressed in a way not used for wheels"
        )
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


_SPECIAL_KINDS = {
    stat.S_IFLNK: "a link",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def unsafe_member(info: ZipInfo) -> str:
    """Return a clause about a member of a zip archive that must not be extracted; "" for all others."""
    name = (
        info.orig_filename
    )  # `filename` is cut at a NUL, and has this system's separators replaced
    if leaves_folder(name):
        return f"the member {name!r} leaves the wheel"
    raw = name.encode("utf-8" if info.flag_bits & UTF8_FLAG else "cp437", "replace")
    renamed = (
        struct.pack("<BL", 1, zlib.crc32(raw)) in info.extra
    )  # field 0x7075, which Python from 3.12 on reads
    if renamed or {"", "."} & set(name.removesuffix("/").split("/")):
        return f"the member {name!r} has another name where it is extracted"
    if not name.isprintable():  # it could control the terminal of those who list it
        return f"the member {name!r} has a name that cannot be printed"
    mode = info.external_attr >> 16
    if mode & (stat.S_ISUID | stat.S_ISGID):
        return f"the member {name!r} would run with the rights of its owner (setuid or setgid)"
    kind = _SPECIAL_KINDS.get(stat.S_IFMT(mode))
    return f"the member {name!r} is {kind}" if kind else ""


def has_stray_bytes(archive: ZipFile) -> bool:
    """Tell whether an open archive has bytes of no member, or two directories, so that programs read it differently."""
    file, ends = cast("BinaryIO", archive.fp), {0}
    for info in sorted(archive.infolist(), key=lambda one: one.header_offset):
        if info.header_offset not in ends:
            return True
        end = file.seek(data_offset(file, info) + info.compress_size)
        after = file.read(DESCRIPTOR_BYTES)
        forms = _descriptors(info) if info.flag_bits & DESCRIPTOR_FLAG else [b""]
        ends = {end + len(one) for one in forms if after.startswith(one)}
    file.seek(archive.start_dir)
    return archive.start_dir not in ends or not _ends_well(
        file.read(), archive.start_dir, len(archive.infolist())
    )


def _descriptors(info: ZipInfo) -> Iterator[bytes]:
    """Yield what may stand behind a member's data: its checksum and sizes, with or without a signature and ZIP64."""
    for mark, wide in product((b"", b"PK\7\x08"), "LQ"):
        with contextlib.suppress(struct.error):  # too large for the short form
            yield mark + struct.pack(f"<L2{wide}", info.CRC, info.compress_size, info.file_size)


def _ends_well(rest: bytes, start: int, count: int) -> bool:
    """Tell whether an archive whose directory begins at `start` ends with that directory and what leads to it alone."""
    large = rest[-END_RECORD.size - END64_LOCATOR.size :].startswith(b"PK\6\7")
    size = len(rest) - END_RECORD.size - large * (END64_RECORD.size + END64_LOCATOR.size)
    facts = b"PK\5\6", 0, 0, count, count, size, start, 0
    told = zip(END_RECORD.unpack(rest[-END_RECORD.size :]), facts, strict=True)
    sound = all(
        said == fact or (large and said in {ZIP64_COUNT, ZIP64_SIZE}) for said, fact in told
    )
    if large:  # some programs believe this record, others the short one, or look for it where the locator says
        long = (
            *END64_RECORD.unpack_from(rest, size)[4:],
            *END64_LOCATOR.unpack_from(rest, size + END64_RECORD.size)[1:],
        )
        return sound and long == (0, 0, count, count, size, start, 0, start + size, 1)
    return sound
