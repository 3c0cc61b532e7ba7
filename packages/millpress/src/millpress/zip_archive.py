"""Read and write zip archives: members at their offsets, deflated in blocks by many threads.

A zip archive has its members one after the other, each behind a local header. The directory at the
end has a central header for each member, which repeats the local one and says where it is. An end
record says where the directory is. ZIP64 is the form of these headers for large numbers.

zipfile deflates in one thread and takes no compressed bytes. Here a file is compressed in blocks of
a fixed size; each begins with the window that the block before it leaves and ends on a byte, so
that they add up to one deflate stream and any number of threads gives the same bytes. Sizes above 4
GiB, and more members than 65535, get ZIP64 records. Data descriptors, comments and encryption are
never written.

The format: https://pkware.cachefly.net/webdocs/casestudies/APPNOTE.TXT
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
from typing import BinaryIO, NamedTuple, cast
from zipfile import ZIP_DEFLATED, ZIP_STORED, BadZipFile, ZipFile, ZipInfo

from millpress.errors import InputError

# Each structure begins with a mark of four bytes.
LOCAL_MARK = b"PK\3\4"
CENTRAL_MARK = b"PK\1\2"
END_MARK = b"PK\5\6"
END64_MARK = b"PK\6\6"
LOCATOR_MARK = b"PK\6\7"
DESCRIPTOR_MARK = b"PK\7\x08"
LOCAL_HEADER = struct.Struct("<4s5H3L2H")
CENTRAL_HEADER = struct.Struct("<4s2B5H3L5H2L")
END_RECORD = struct.Struct("<4s4H2LH")
END64_RECORD = struct.Struct("<4sQ2H2L4Q")
END64_LOCATOR = struct.Struct("<4sLQL")
ZIP64_FIELD = 1  # the kind of the extra field in a header that has wide numbers
# The ZIP64 end record states its own size without these bytes: its mark and that field.
UNCOUNTED_BYTES = 12
UNIX_SYSTEM = 3  # the system that a member is from: always this one, because of its modes
UTF8_FLAG = 0x800
PLAIN_VERSION = 20  # the version of the format that a reader needs
ZIP64_VERSION = 45
# In a field that is too narrow for its number, these say that the ZIP64 field or record has it.
ZIP64_SIZE = 0xFFFFFFFF
ZIP64_COUNT = 0xFFFF
REGULAR_FILE = 0o100000  # bits of a Unix mode
BLOCK_BYTES = 1 << 20  # the bytes of a wheel depend on it
WINDOW_BYTES = 1 << 15  # how far back deflate refers
RAW_WINDOW_BITS = -15  # without zlib's header and checksum
MEMORY_LEVEL = 8  # of nine; the default of all codecs
CHUNK_BYTES = 1 << 20
ENCRYPTED_FLAG = 1
# Checksum and sizes are in a descriptor behind the data, because the archive was written to a pipe.
DESCRIPTOR_FLAG = 8
DESCRIPTOR_BYTES = 24  # at most
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
READABLE_MODE = 0o644  # at least, of an extracted file
BATCH_FILES = 128  # that a thread extracts at a time
READING_THREADS = 2  # that read an archive: more wait for the disk, and for Python's lock
ExtractTarget = tuple[ZipInfo, str]  # a member and the path of its file


@dataclass(frozen=True, slots=True)
class Codec:
    """A library and the levels to deflate with."""

    name: str  # "zlib-ng"
    version: str  # of the library
    levels: tuple[int, ...]  # used by the blocks of a file in turn
    module: ModuleType  # zlib, or one with its interface

    def __str__(self) -> str:
        """Return all that a wheel's bytes depend on: "zlib-ng-2.2.4-level-1x9-7x6"."""
        levels = str(self.levels[0])
        if len(self.levels) > 1:
            runs = [f"{len(list(run))}x{level}" for level, run in groupby(self.levels)]
            levels = "-".join(runs)
        return f"{self.name}-{self.version}-level-{levels}"

    def compress(self, data: bytes) -> bytes:
        """Compress bytes as one block, with the last of the levels."""
        last_level = len(self.levels) - 1
        return self.compress_block(data, b"", number=last_level, last=True)

    def compress_block(self, data: bytes, before: bytes, *, number: int, last: bool) -> bytes:
        """Compress one block of a file; `number` counts the blocks from 0.

        `before` are the last bytes of the block before it (WINDOW_BYTES of them, none for the first
        block), to which deflate may refer. `last` says whether the stream ends with this block.
        """
        level = self.levels[number % len(self.levels)]
        settings = (level, zlib.DEFLATED, RAW_WINDOW_BITS, MEMORY_LEVEL, zlib.Z_DEFAULT_STRATEGY)
        if before:
            stream = self.module.compressobj(*settings, before)
        else:
            stream = self.module.compressobj(*settings)
        # Z_SYNC_FLUSH ends on a byte without ending the stream
        flush_mode = zlib.Z_FINISH if last else zlib.Z_SYNC_FLUSH
        packed: bytes = stream.compress(data) + stream.flush(flush_mode)
        return packed


@cache
def available_codecs() -> Mapping[str, Codec]:
    """Return the installed codecs by name, the best first.

    isal is by far the fastest, but its wheels are a tenth larger: it is used only if zlib-ng is
    missing. zlib-ng's level 6 makes a wheel of torch 2 % larger than zlib's does; with every eighth
    block at level 9 it is less, and that is still faster than level 7 for all
    (docs/measurements/packing.md of torchmill).
    """
    codecs = {}
    with contextlib.suppress(ImportError, AttributeError):  # missing, or too old
        zlib_ng = importlib.import_module("zlib_ng.zlib_ng")
        levels = (9, 6, 6, 6, 6, 6, 6, 6)
        version = str(zlib_ng.ZLIBNG_RUNTIME_VERSION)
        codecs["zlib-ng"] = Codec("zlib-ng", version, levels, zlib_ng)
    with contextlib.suppress(ImportError, AttributeError):
        isal_version = importlib.import_module("isal").ISAL_VERSION
        isal_zlib = importlib.import_module("isal.isal_zlib")
        codecs["isal"] = Codec("isal", str(isal_version), (3,), isal_zlib)
    codecs["zlib"] = Codec("zlib", zlib.ZLIB_RUNTIME_VERSION, (6,), zlib)
    return codecs


def best_codec() -> Codec:
    """Return the codec that wheels are compressed with."""
    return next(iter(available_codecs().values()))


def crc32(data: bytes | memoryview, before: int = 0) -> int:
    """Return the checksum of zip archives; zlib-ng and isal are four times as fast as zlib."""
    checksum: int = best_codec().module.crc32(data, before)
    return checksum


@dataclass(frozen=True, slots=True)
class MemberSource:
    """The file, or the range of bytes in a file, that becomes a member."""

    name: str  # of the member
    path: Path
    size: int  # bytes, of the file or range
    mode: int  # 0o644 or 0o755
    offset: int = 0  # of the range, in the file `path`
    crc: int | None = None  # the checksum that the content must have; None: any


def member_mode(mode: int) -> int:
    """Return the mode of a member for that of a file: only whether its owner may run it counts."""
    return 0o755 if mode & stat.S_IXUSR else 0o644


@dataclass(frozen=True, slots=True)
class ContentDigest:
    """The SHA-256, checksum and size (bytes) of some content, computed in one reading."""

    sha256: bytes
    crc: int
    size: int


def read_sources(files: Iterable[MemberSource]) -> Iterator[tuple[bytes, ContentDigest]]:
    """Yield the content and the digest of each source, which is read into memory.

    Sources are small: Linux returns at most 2 GiB of a larger one. Consecutive sources in one file
    are read with one opening of it. Raises InputError if a source has another size or checksum than
    expected.
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
    """Return the digest of a source. Raises InputError for an unexpected size or checksum."""
    sha256 = hashlib.sha256()
    crc = 0
    remaining = file.size
    buffer = memoryview(bytearray(CHUNK_BYTES))
    with _open_source(file.path) as source:
        source.seek(file.offset)
        while True:
            count = source.readinto(buffer[:remaining])
            if not count:  # nothing remains, or the file has become shorter
                break
            sha256.update(buffer[:count])
            crc = crc32(buffer[:count], crc)
            remaining -= count
    content = ContentDigest(sha256.digest(), crc, file.size - remaining)
    _require_sound(file, content)
    return content


def block_tasks(codec: Codec, file: MemberSource) -> Iterator[Callable[[], bytes]]:
    """Yield for each block of a source, at least one, a function that reads and compresses it."""
    block_count = max(1, -(-file.size // BLOCK_BYTES))
    for number in range(block_count):
        yield partial(_compress_block, codec, file, number)


def _compress_block(codec: Codec, file: MemberSource, number: int) -> bytes:
    """Read and compress the block of a source with this number, counted from 0."""
    start = number * BLOCK_BYTES
    window = WINDOW_BYTES if number else 0
    remaining = file.size - start
    with file.path.open("rb", buffering=0) as source:
        source.seek(file.offset + start - window)
        data = source.read(window + min(BLOCK_BYTES, remaining))
    is_last = remaining <= BLOCK_BYTES
    return codec.compress_block(data[window:], data[:window], number=number, last=is_last)


def _open_source(path: Path) -> FileIO:
    """Open the file of a source. Raises InputError if it cannot be read."""
    try:
        return path.open("rb", buffering=0)
    except OSError as error:
        raise InputError(
            f"{path}: cannot be read ({error.strerror}): build it again", code="unreadable-file"
        ) from None


def _require_sound(file: MemberSource, content: ContentDigest) -> None:
    """Raise InputError if the content of a source has another size or checksum than expected."""
    if content.size != file.size or file.crc not in {None, content.crc}:
        raise InputError(
            f"{file.path}: {file.name} is damaged, or was changed while it was packed: build it again",
            code="damaged-raw-wheel",
        )


@dataclass(frozen=True, slots=True)
class ZipMember:
    """A member as its headers describe it; `ZipWriter` sets the last two fields."""

    name: str
    mode: int  # 0o644 or 0o755
    size: int  # bytes, uncompressed
    crc: int
    method: int = ZIP_DEFLATED
    offset: int = 0  # of its local header
    packed: int = 0  # bytes, compressed


class _CommonFields(NamedTuple):
    """The fields that the local and the central header of a member have in common."""

    version: int  # of the format
    numbers: tuple[int, ...]  # from the flags to the lengths of the texts
    texts: bytes  # behind the fields of fixed size: the name, and the ZIP64 field if one is needed


@dataclass
class ZipWriter:
    """An archive that is being written to a seekable file."""

    sink: BinaryIO
    stamp: time.struct_time  # date and time of every member
    # From this size and number of members on, ZIP64 is needed; tests set smaller ones.
    size_limit: int = ZIP64_SIZE
    count_limit: int = ZIP64_COUNT
    members: list[ZipMember] = field(default_factory=list)

    def add(self, member: ZipMember, data: bytes) -> None:
        """Append a member with its compressed bytes."""
        added = replace(member, offset=self.sink.tell(), packed=len(data))
        self.members.append(added)
        self.sink.write(self._local_header(added))
        self.sink.write(data)

    def add_parts(self, member: ZipMember, parts: Iterable[bytes]) -> int:
        """Append a member whose compressed bytes come in parts; return how many bytes they have.

        The local header is written twice, because it states the compressed size.
        """
        start = self.sink.tell()
        self.sink.write(self._local_header(member))
        packed = 0
        for part in parts:
            packed += self.sink.write(part)
        added = replace(member, offset=start, packed=packed)
        self.members.append(added)
        self.sink.seek(start)
        self.sink.write(self._local_header(added))
        self.sink.seek(packed, os.SEEK_CUR)
        return packed

    def close(self) -> None:
        """Append the directory; the file stays open."""
        start = self.sink.tell()
        for member in self.members:
            self.sink.write(self._central_header(member))
        end = self.sink.tell()
        count = len(self.members)
        size = end - start
        if count >= self.count_limit or max(start, size) >= self.size_limit:
            self._write_zip64_end(count=count, size=size, start=start, end=end)
        if count >= self.count_limit:
            count = ZIP64_COUNT
        if size >= self.size_limit:
            size = ZIP64_SIZE
        if start >= self.size_limit:
            start = ZIP64_SIZE
        # the first disk of one, all members on it, and a comment of no bytes
        self.sink.write(END_RECORD.pack(END_MARK, 0, 0, count, count, size, start, 0))

    def _write_zip64_end(self, *, count: int, size: int, start: int, end: int) -> None:
        """Write the end record with wide numbers, and the locator that leads to it.

        The directory has `count` members and `size` bytes, from the offset `start` to `end`.
        """
        record_bytes = END64_RECORD.size - UNCOUNTED_BYTES
        made_by = ZIP64_VERSION | UNIX_SYSTEM << 8
        # its size, both versions of the format, and the first disk of one
        leading_fields = (record_bytes, made_by, ZIP64_VERSION, 0, 0)
        self.sink.write(END64_RECORD.pack(END64_MARK, *leading_fields, count, count, size, start))
        self.sink.write(END64_LOCATOR.pack(LOCATOR_MARK, 0, end, 1))

    def _local_header(self, member: ZipMember) -> bytes:
        """Return the header in front of a member's data."""
        fields = self._common_fields(member)
        return LOCAL_HEADER.pack(LOCAL_MARK, fields.version, *fields.numbers) + fields.texts

    def _central_header(self, member: ZipMember) -> bytes:
        """Return the header of a member in the directory, with the offset of its local header."""
        offset = member.offset
        if offset >= self.size_limit:
            fields = self._common_fields(member, wide_offset=offset)
            offset = ZIP64_SIZE
        else:
            fields = self._common_fields(member)
        numbers = (
            fields.version,  # of the writer
            UNIX_SYSTEM,
            fields.version,  # that a reader needs
            *fields.numbers,
            0,  # bytes of a comment
            0,  # number of the disk
            0,  # internal attributes
            (REGULAR_FILE | member.mode) << 16,  # external attributes
            offset,
        )
        return CENTRAL_HEADER.pack(CENTRAL_MARK, *numbers) + fields.texts

    def _common_fields(self, member: ZipMember, wide_offset: int | None = None) -> _CommonFields:
        """Return the fields that both headers of a member have.

        `wide_offset` is the offset of the local header, if it has to be in the ZIP64 field.
        """
        name = member.name.encode()
        # Whether sizes are wide must not depend on the compressed size: `add_parts` writes the
        # header before it is known. Deflate grows incompressible data by less than this.
        largest_packed = member.size + (member.size >> 6) + 64
        sizes = (member.packed, member.size)
        wide_numbers = []
        if largest_packed >= self.size_limit:
            wide_numbers += [member.size, member.packed]
            sizes = (ZIP64_SIZE, ZIP64_SIZE)
        if wide_offset is not None:
            wide_numbers.append(wide_offset)
        extra = b""
        if wide_numbers:
            extra = struct.pack("<2H", ZIP64_FIELD, 8 * len(wide_numbers))
            extra += struct.pack(f"<{len(wide_numbers)}Q", *wide_numbers)
        # the format of MS-DOS, whose seconds are even
        year, month, day, hour, minute, second = self.stamp[:6]
        dos_time = hour << 11 | minute << 5 | second // 2
        dos_date = year - 1980 << 9 | month << 5 | day
        flags = 0 if name.isascii() else UTF8_FLAG
        version = ZIP64_VERSION if wide_numbers else PLAIN_VERSION
        numbers = (
            flags,
            member.method,
            dos_time,
            dos_date,
            member.crc,
            *sizes,
            len(name),
            len(extra),
        )
        return _CommonFields(version, numbers, name + extra)


def extract_members(archive: Path, targets: Sequence[ExtractTarget], threads: int) -> None:
    """Extract members to their targets: files that must not exist yet, and folders.

    Files get the modes that the archive records, and are readable in any case.

    Raises BadZipFile if the archive contradicts its directory, OSError if the disk is full.
    """
    files = []
    folders = set()
    for info, path in targets:
        if info.is_dir():
            folders.add(path)
        else:
            files.append((info, path))
            folders.add(os.path.dirname(path))  # noqa: PTH120 - ten thousand of them
    for folder in sorted(folders):
        os.makedirs(folder, exist_ok=True)  # noqa: PTH103
    batches = [[file] for file in files if file[0].file_size > CHUNK_BYTES]
    small = [file for file in files if file[0].file_size <= CHUNK_BYTES]
    batches += [small[start : start + BATCH_FILES] for start in range(0, len(small), BATCH_FILES)]
    with ThreadPoolExecutor(threads) as pool:
        results = pool.map(partial(_extract_batch, archive), batches)
        list(results)  # raises the first error


def _extract_batch(archive: Path, batch: Sequence[ExtractTarget]) -> None:
    """Write some targets, in a thread of its own."""
    with archive.open("rb", buffering=0) as source:
        for info, path in batch:
            with open(path, "xb", buffering=0) as sink:  # noqa: PTH123
                _write_member(source, info, sink)
            os.chmod(path, READABLE_MODE | (info.external_attr >> 16 & 0o777))  # noqa: PTH101


def _write_member(source: BinaryIO, info: ZipInfo, sink: BinaryIO) -> None:
    """Write the content of a member to `sink`.

    Raises BadZipFile if it is damaged, or has another checksum or size than the directory says.
    """
    crc = 0
    size = 0
    try:
        for part in _inflate(stored_parts(source, info), info):
            crc = crc32(part, crc)
            size += len(part)
            if size > info.file_size:  # a few megabytes may inflate until the disk is full
                break
            rest = memoryview(part)
            # an unbuffered write may write less, if the disk fills up; the next one raises the error
            while rest:
                rest = rest[sink.write(rest) :]
    except zlib.error as error:
        raise BadZipFile(f"{info.filename} is damaged: {error}") from None
    if (crc, size) != (info.CRC, info.file_size):
        raise BadZipFile(f"{info.filename} does not have the checksum and size in the directory")


def data_offset(source: BinaryIO, info: ZipInfo) -> int:
    """Return the offset of a member's data, which begins behind the member's own header.

    `info` is the member as the directory describes it. Raises BadZipFile if its own header says
    something else: programs differ in which of the two they believe.
    """
    if info.header_offset < 0:
        raise BadZipFile(f"{info.filename} begins before the file, which lacks a part")
    source.seek(info.header_offset)
    header = source.read(LOCAL_HEADER.size)
    if len(header) != LOCAL_HEADER.size or not header.startswith(LOCAL_MARK):
        raise BadZipFile(f"{info.filename} has no header where the directory says")
    fields = LOCAL_HEADER.unpack(header)
    _, _, flags, method, _, _, crc, packed, size, name_bytes, extra_bytes = fields
    encoding = "utf-8" if flags & UTF8_FLAG else "cp437"
    name = source.read(name_bytes).decode(encoding, "replace")
    try:
        wide = _zip64_sizes(source.read(extra_bytes))
    except struct.error:
        raise BadZipFile(f"{info.filename} has a ZIP64 field that is cut short") from None
    if packed == ZIP64_SIZE:
        packed = wide.packed
    if size == ZIP64_SIZE:
        size = wide.size
    numbers = (crc, packed, size)
    is_same = numbers == (info.CRC, info.compress_size, info.file_size)
    # with a descriptor behind the data, the header in front of it has zeros
    is_deferred = bool(flags & DESCRIPTOR_FLAG) and not any(numbers)
    has_name = (name, method) == (info.orig_filename, info.compress_type)
    if not has_name or not (is_same or is_deferred):
        raise BadZipFile(
            f"{info.filename} has another name, size or checksum in its own header "
            "than in the directory"
        )
    return info.header_offset + LOCAL_HEADER.size + int(name_bytes) + int(extra_bytes)


class _WideSizes(NamedTuple):
    """The sizes in a ZIP64 field, in the order of the field."""

    size: int  # bytes, uncompressed
    packed: int  # bytes, compressed


def _zip64_sizes(extra: bytes) -> _WideSizes:
    """Return the sizes in the first ZIP64 field of a local header, or zeros without that field.

    `extra` has fields one after the other. Each begins with its kind and its length, which have two
    bytes each. Raises struct.error if the ZIP64 field is shorter than it says.
    """
    while extra and not extra.startswith(struct.pack("<H", ZIP64_FIELD)):
        length = int.from_bytes(extra[2:4], "little")
        extra = extra[4 + length :]  # the next field
    # in a local header the field has both sizes and nothing else
    if not extra.startswith(struct.pack("<2H", ZIP64_FIELD, 16)):
        return _WideSizes(0, 0)
    return _WideSizes(*struct.unpack("<2Q", extra[4:20]))


def stored_parts(source: BinaryIO, info: ZipInfo) -> Iterator[bytes]:
    """Yield the data of a member as stored in the archive. Raises BadZipFile if it is damaged."""
    source.seek(data_offset(source, info))
    remaining = info.compress_size
    while remaining > 0:
        part = source.read(min(CHUNK_BYTES, remaining))
        if not part:
            raise BadZipFile(f"{info.filename} is truncated")
        remaining -= len(part)
        yield part


def _inflate(parts: Iterable[bytes], info: ZipInfo) -> Iterator[bytes]:
    """Yield the content of a member, in parts, from its stored data."""
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
        while remaining:  # in steps, because a kilobyte may inflate to a megabyte
            yield stream.decompress(remaining, CHUNK_BYTES)
            remaining = stream.unconsumed_tail
    yield stream.flush()


def leaves_folder(name: str) -> bool:
    """Tell whether a member's name leads out of the folder that it is extracted into."""
    parts = name.split("/")
    is_absolute = parts[0] == "" or ":" in parts[0]  # "C:" on Windows
    return is_absolute or ".." in parts or "\\" in name or "\0" in name


_SPECIAL_KINDS = {
    stat.S_IFLNK: "a link",
    stat.S_IFIFO: "a pipe",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFSOCK: "a socket",
}


def unsafe_member(info: ZipInfo) -> str:
    """Return a clause about a member that must not be extracted; "" for all others."""
    # not `filename`, which is cut at a NUL, and has this system's separators replaced
    name = info.orig_filename
    if leaves_folder(name):
        return f"the member {name!r} leaves the wheel"
    if _has_unicode_path(info) or {"", "."} & set(name.removesuffix("/").split("/")):
        return f"the member {name!r} has another name where it is extracted"
    if not name.isprintable():  # it could control the terminal of those who list it
        return f"the member {name!r} has a name that cannot be printed"
    mode = info.external_attr >> 16
    if mode & (stat.S_ISUID | stat.S_ISGID):
        return f"the member {name!r} would run with the rights of its owner (setuid or setgid)"
    kind = _SPECIAL_KINDS.get(stat.S_IFMT(mode))
    if kind is not None:
        return f"the member {name!r} is {kind}"
    return ""


def _has_unicode_path(info: ZipInfo) -> bool:
    """Tell whether a member has a Unicode path: a second name, by which some programs extract it.

    It is in the extra field 0x7075, which Python reads from 3.12 on. A second name that equals the
    first counts, too.
    """
    encoding = "utf-8" if info.flag_bits & UTF8_FLAG else "cp437"
    raw_name = info.orig_filename.encode(encoding, "replace")
    # the field begins with its version, 1, and the checksum of the name that it replaces
    return struct.pack("<BL", 1, zlib.crc32(raw_name)) in info.extra


def has_stray_bytes(archive: ZipFile) -> bool:
    """Tell whether an archive has bytes that belong neither to a member nor to its directory.

    These may be another directory: programs read such an archive differently.
    """
    file = cast("BinaryIO", archive.fp)
    # The offsets at which the next member, or the directory, may begin: several, because there are
    # several forms of the descriptor behind a member's data.
    expected_starts = {0}
    for info in sorted(archive.infolist(), key=lambda member: member.header_offset):
        if info.header_offset not in expected_starts:
            return True
        end = file.seek(data_offset(file, info) + info.compress_size)
        following = file.read(DESCRIPTOR_BYTES)
        descriptors: Iterable[bytes] = [b""]
        if info.flag_bits & DESCRIPTOR_FLAG:
            descriptors = _descriptors(info)
        expected_starts = {
            end + len(descriptor) for descriptor in descriptors if following.startswith(descriptor)
        }
    if archive.start_dir not in expected_starts:
        return True
    file.seek(archive.start_dir)
    return not _ends_with_directory(file.read(), archive.start_dir, len(archive.infolist()))


def _descriptors(info: ZipInfo) -> Iterator[bytes]:
    """Yield each form that the descriptor behind a member's data can have: its checksum and sizes.

    Programs write it with or without a mark, and with short or long sizes.
    """
    for mark, size_layout in product((b"", DESCRIPTOR_MARK), "LQ"):
        with contextlib.suppress(struct.error):  # a size too large for the short form
            layout = f"<L2{size_layout}"
            yield mark + struct.pack(layout, info.CRC, info.compress_size, info.file_size)


def _ends_with_directory(tail: bytes, start: int, count: int) -> bool:
    """Tell whether `tail` is a directory of `count` members and its end records, and nothing else.

    `tail` is the end of an archive, from the offset `start` on. Each end record must say that the
    directory begins at `start` and ends where the first end record begins. An archive has the short
    record; one in ZIP64 has a wide record and a locator, which leads to it, before the short one.
    """
    is_zip64 = tail[-END_RECORD.size - END64_LOCATOR.size :].startswith(LOCATOR_MARK)
    directory_bytes = len(tail) - END_RECORD.size
    if is_zip64:
        directory_bytes -= END64_RECORD.size + END64_LOCATOR.size
    # on the first disk, and without a comment
    expected_short = (END_MARK, 0, 0, count, count, directory_bytes, start, 0)
    short_record = END_RECORD.unpack(tail[-END_RECORD.size :])
    for value, expected in zip(short_record, expected_short, strict=True):
        refers_to_wide = is_zip64 and value in {ZIP64_COUNT, ZIP64_SIZE}
        if value != expected and not refers_to_wide:
            return False
    if not is_zip64:
        return True
    # Some programs believe the wide record and others the short one. Some look for the wide record
    # behind the directory and others where the locator says. All must find the same.
    _mark, _bytes, _made_by, _version, *wide_record = END64_RECORD.unpack_from(
        tail, directory_bytes
    )
    _mark, *locator = END64_LOCATOR.unpack_from(tail, directory_bytes + END64_RECORD.size)
    leads_to_directory = wide_record == [0, 0, count, count, directory_bytes, start]
    leads_to_record = locator == [0, start + directory_bytes, 1]
    return leads_to_directory and leads_to_record
