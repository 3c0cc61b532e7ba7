"""Write a wheel: RECORD and the zip archive, with the same bytes for any number of threads.

Memory does not depend on the files: small ones are compressed in batches, large ones in blocks, and
few at a time. Both sizes are fixed, so the bytes do not depend on the number of threads.

Compressed bytes can be cached for the next wheel with the same library. A cached member is a file
whose path has the codec and the digest of the content; a batch of small files is cached as one. If
the file is missing, truncated, changed or unreadable, the content is compressed again, which takes
longer and gives the same bytes.
"""

import contextlib
import hashlib
import os
import stat
import struct
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, BinaryIO, NamedTuple, TypeVar
from zipfile import ZIP_DEFLATED, ZIP_STORED

from millpress import record_file, staging, zip_archive
from millpress.atomic_files import fresh_path, name_file
from millpress.errors import InputError, OptionError
from millpress.processors import usable_processors
from millpress.record_file import hash_file
from millpress.zip_archive import (
    BLOCK_BYTES,
    Codec,
    ContentDigest,
    MemberSource,
    ZipMember,
    ZipWriter,
)

EPOCH = "SOURCE_DATE_EPOCH"  # https://reproducible-builds.org/specs/source-date-epoch/
EPOCH_SECONDS = 315532800  # 1980-01-01, the first date of the zip format
END_SECONDS = 4354819200  # 2108-01-01, the first date beyond it
CACHE_MAGIC = b"twkept1\n"  # begins the file of a cached member
DIGEST_BYTES = hashlib.sha256().digest_size
LENGTH_BYTES = 4  # of each length in a cached batch
CACHED_FROM_BYTES = 1 << 16  # compressing less takes no longer than reading the cache
BATCH_FILES = 64  # on average
MAX_THREADS = 64  # each holds a block or two, and all of them are to need less than 300 MB
BLOCKS_AHEAD = 4  # that wait to be written, in addition to one block for each thread
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class PackedWheel:
    """A finished wheel."""

    path: Path
    sha256: str  # hexadecimal
    size: int  # bytes
    codec: str  # on which its bytes depend: "zlib-1.3.1-level-6"
    copied_bytes: int  # of members copied from the cache


def pack_wheel(
    tree: Path,
    destination: Path,
    *,
    unstaged: Sequence[MemberSource] = (),
    cache_folder: Path | None = None,
    threads: int | None = None,
    codec: Codec | None = None,
) -> PackedWheel:
    """Write the files below `tree` and the `unstaged` ones as the wheel `destination`.

    A file in `tree` replaces an `unstaged` one of the same name, and RECORD is written anew.
    Compressed members are kept in `cache_folder`, if it is given, and copied from there. By default
    there is one of the `threads` for each processor that this process may use. The date of all
    members is that of SOURCE_DATE_EPOCH, or 1980-01-01. Thus the bytes depend on the files, the
    `codec` and SOURCE_DATE_EPOCH only. The wheel appears whole or not at all.

    Raises InputError if the tree is not a wheel's or has a link, OptionError for an invalid
    SOURCE_DATE_EPOCH, OSError, for example if the disk is full.

        packed = millpress.pack_wheel(Path("tree"), Path("dist/spam-1.0-py3-none-any.whl"))
        print(packed.sha256, packed.size)
    """
    with name_file(destination), fresh_path(destination) as fresh:
        with fresh.open("wb") as sink, open_compressor(cache_folder, codec, threads) as compressor:
            _write_archive(sink, compressor, tree, unstaged)
        sha256 = hash_file(fresh)
        size = fresh.stat().st_size
        fresh.replace(destination)
    return PackedWheel(destination, sha256, size, str(compressor.codec), compressor.copied_bytes)


def member_source(name: str, path: Path, status: os.stat_result) -> MemberSource:
    """Return the file `path`, with this status, as the source of the member `name`."""
    return MemberSource(name, path, status.st_size, zip_archive.member_mode(status.st_mode))


def _scan_files(tree: Path) -> Iterator[MemberSource]:
    """Yield all files below `tree`, in any order. Raises InputError for a symbolic link."""
    for path in tree.rglob("*"):
        status = path.lstat()
        if stat.S_ISLNK(status.st_mode):
            raise InputError(
                f"{path} is a link, which wheels cannot hold: replace it with a copy",
                code="link-in-wheel",
            )
        if not stat.S_ISDIR(status.st_mode):  # wheels have no members for folders
            yield member_source(path.relative_to(tree).as_posix(), path, status)


def _write_archive(
    sink: BinaryIO, compressor: "Compressor", tree: Path, unstaged: Sequence[MemberSource]
) -> None:
    """Write the archive of a wheel: .dist-info behind all other files, and RECORD as the last."""
    archive = ZipWriter(sink, time.gmtime(source_date_epoch(os.environ)))
    dist_info = staging.find_dist_info(tree, str(tree)).name
    record = f"{dist_info}/RECORD"
    # files in the tree replace `unstaged` ones of the same name
    files = {file.name: file for file in unstaged}
    files |= {file.name: file for file in _scan_files(tree)}
    files.pop(record, None)

    def metadata_last(file: MemberSource) -> tuple[bool, str]:
        # PEP 427 recommends this order: metadata can be changed without moving gigabytes
        return file.name.startswith(f"{dist_info}/"), file.name

    compressor.add_recorded(archive, sorted(files.values(), key=metadata_last), record)
    archive.close()


def source_date_epoch(environ: Mapping[str, str]) -> int:
    """Return the seconds of SOURCE_DATE_EPOCH, or EPOCH_SECONDS if it is unset or earlier.

    Raises OptionError if it is not a number of seconds, or not before 2108.
    """
    epoch = environ.get(EPOCH, str(EPOCH_SECONDS))
    # the length is checked first: Python takes long to parse a million digits
    is_number = epoch.isdecimal() and len(epoch) <= len(str(END_SECONDS))
    if not is_number or int(epoch) >= END_SECONDS:
        raise OptionError(
            f"{EPOCH}={epoch[:40]}: not a number of seconds before the year 2108: "
            "unset it or correct it",
            code="invalid-source-date-epoch",
        )
    return max(EPOCH_SECONDS, int(epoch))


@dataclass(frozen=True, slots=True)
class MemberCache:
    """The cached members of one codec.

    Each is named by a SHA-256: of its uncompressed bytes or, for a batch, of the SHA-256s of its
    files. The methods take it as `sha256`. The file of a member has a magic number, the compressed
    bytes, and a digest of them. If the file cannot be opened, read or written, that counts as not
    cached, and raises nothing.
    """

    folder: Path | None  # None: nothing is cached
    codec: str

    def path(self, sha256: bytes) -> Path | None:
        """Return the path at which a member is cached; None without a folder."""
        if self.folder is None:
            return None
        name = sha256.hex()
        # folders of the first two digits, because some file systems are slow with large folders
        return self.folder / self.codec / name[:2] / name

    def find(self, sha256: bytes) -> Iterator[bytes] | None:
        """Return the compressed bytes in parts; None if the member is not cached, or was changed.

        The file is checked to its end before it is read again for the caller: no part of a changed
        file may get into an archive. A changed file is removed.
        """
        path = self.path(sha256)
        if path is None:
            return None
        try:
            file = path.open("rb")
        except OSError:  # not cached, or not readable
            return None
        with contextlib.suppress(OSError):  # another user's file, or another run has removed it
            os.utime(path)  # if the cache has a limit, the files used least recently go first
        digest = self._new_digest(sha256)
        with contextlib.suppress(OSError):
            for part in _read_parts(file):
                digest.update(part)
            if file.read() == digest.digest():
                return _read_parts(file, close=True)
        with contextlib.suppress(OSError):
            file.close()
            path.unlink()
        return None

    def store(self, sha256: bytes, parts: Iterable[bytes]) -> Iterator[bytes]:
        """Yield the compressed `parts` of a member, and cache them if the disk has room.

        The member is in the cache once the caller has exhausted the iterator.
        """
        path = self.path(sha256)
        file = None
        if path is not None:
            with contextlib.suppress(OSError):
                path.parent.mkdir(parents=True, exist_ok=True)
                file = tempfile.NamedTemporaryFile(prefix=".", dir=path.parent, delete=False)  # noqa: SIM115
        if path is None or file is None:
            yield from parts
            return
        digest = self._new_digest(sha256)
        try:
            is_whole = _try_write(file, CACHE_MAGIC)
            for part in parts:
                digest.update(part)
                is_whole = is_whole and _try_write(file, part)
                yield part
            with contextlib.suppress(OSError):
                if is_whole and _try_write(file, digest.digest()):
                    file.close()
                    Path(file.name).replace(path)
        finally:
            with contextlib.suppress(OSError):  # closing flushes
                file.close()
            with contextlib.suppress(OSError):
                Path(file.name).unlink()

    def _new_digest(self, sha256: bytes) -> "hashlib._Hash":
        """Return a new digest for a member's file, to be updated with the compressed bytes.

        It has the codec and the member's name already. Thus it does not match if the file has the
        bytes of another member.
        """
        return hashlib.sha256(self.codec.encode() + sha256)


def _read_parts(file: IO[bytes], *, close: bool = False) -> Iterator[bytes]:
    """Yield the compressed bytes of a cached member, between its magic number and its digest.

    With `close` the file is closed after the last part; else it stays open at the digest.
    """
    remaining = file.seek(0, os.SEEK_END) - len(CACHE_MAGIC) - DIGEST_BYTES
    file.seek(0)
    if file.read(len(CACHE_MAGIC)) == CACHE_MAGIC:
        while remaining > 0:
            part = file.read(min(zip_archive.CHUNK_BYTES, remaining))
            if not part:
                break
            remaining -= len(part)
            yield part
    if close:
        file.close()


def _try_write(file: IO[bytes], part: bytes) -> bool:
    """Write a part and return True; if the disk refuses it, empty the file and return False."""
    try:
        file.write(part)
    except OSError:
        with contextlib.suppress(OSError):
            os.truncate(file.fileno(), 0)  # the wheel itself may need the room
        return False
    return True


class AddedFile(NamedTuple):
    """A file that was added to an archive."""

    name: str  # in the archive
    content: ContentDigest


@dataclass(slots=True)
class Compressor:
    """Compresses files with a pool of threads."""

    pool: ThreadPoolExecutor
    threads: int
    codec: Codec
    cache: MemberCache
    copied_bytes: int = 0  # of members from the cache

    def add_files(self, archive: ZipWriter, files: Sequence[MemberSource]) -> Iterator[AddedFile]:
        """Add the files to the archive in their order, and yield each when it is added.

        The pool's threads digest and compress; the caller's thread writes what they return, and
        only while the caller iterates.
        """
        # a unit is a large file, or a batch of small ones
        units = list(_group_files(files))
        large_files = [unit for unit in units if isinstance(unit, MemberSource)]
        batches = [unit for unit in units if isinstance(unit, list)]
        # The largest files first: otherwise one thread might read one of them at the end while the
        # others have nothing to do.
        large_files.sort(key=lambda file: -file.size)
        digests: dict[str, Future[ContentDigest]] = {}
        for file in large_files:
            digests[file.name] = self.pool.submit(zip_archive.digest_source, file)
        compressed_batches = self._in_order(
            partial(self._compress_batch, batch) for batch in batches
        )
        for unit in units:
            if isinstance(unit, MemberSource):
                content = digests.pop(unit.name).result()
                self._add_large_file(archive, unit, content)
                yield AddedFile(unit.name, content)
            else:
                batch = next(compressed_batches)
                for added in batch.members:
                    archive.add(added.member, added.archived)
                    if batch.is_cached:
                        self.copied_bytes += len(added.archived)
                    yield AddedFile(added.member.name, added.content)

    def _add_large_file(
        self, archive: ZipWriter, file: MemberSource, content: ContentDigest
    ) -> None:
        """Add a large file: its bytes in the cache, or else compressed in blocks by all threads."""
        member = ZipMember(file.name, file.mode, content.size, content.crc)
        cached_parts = self.cache.find(content.sha256)
        if cached_parts is not None:
            self.copied_bytes += archive.add_parts(member, cached_parts)
        else:
            blocks = self._in_order(zip_archive.block_tasks(self.codec, file))
            archive.add_parts(member, self.cache.store(content.sha256, blocks))

    def add_recorded(
        self,
        archive: ZipWriter,
        files: Sequence[MemberSource],
        record: str,
        rows: Iterable[Sequence[object]] = (),
    ) -> None:
        """Add the files, then RECORD under the name `record`.

        RECORD has the given `rows`, which are those of members already in the archive, then a row
        for each file, and one for itself. Files that would be its signatures are left out: they are
        of an earlier RECORD.
        """
        all_rows = list(rows)
        signatures = {f"{record}{suffix}" for suffix in record_file.SIGNATURE_SUFFIXES}
        kept_files = [file for file in files if file.name not in signatures]
        for file in self.add_files(archive, kept_files):
            digest = record_file.record_digest(file.content.sha256)
            all_rows.append((file.name, digest, file.content.size))
        all_rows.append((record, "", ""))
        self.add_bytes(archive, record, record_file.format_record(all_rows).encode())

    def add_bytes(self, archive: ZipWriter, name: str, data: bytes) -> None:
        """Add the bytes `data` as a compressed member, without a file on the disk."""
        member = ZipMember(name, 0o644, len(data), zip_archive.crc32(data))
        archive.add(member, self.codec.compress(data))

    def _compress_batch(self, files: Sequence[MemberSource]) -> "_Batch":
        """Return small files with their compressed bytes, all from the cache or all made anew."""
        contents = list(zip_archive.read_sources(files))
        key = hashlib.sha256(b"".join(content.sha256 for _, content in contents)).digest()
        uses_cache = sum(content.size for _, content in contents) >= CACHED_FROM_BYTES
        deflated_files = None
        if uses_cache:
            joined = b"".join(self.cache.find(key) or ())
            deflated_files = _split_parts(joined, len(contents))
        is_cached = deflated_files is not None
        if deflated_files is None:
            deflated_files = [self.codec.compress(data) for data, _ in contents]
            if uses_cache:
                # `store` works while its parts are taken, and nobody else takes them here
                for _ in self.cache.store(key, [_join_parts(deflated_files)]):
                    pass
        members = []
        for file, (data, content), deflated in zip(files, contents, deflated_files, strict=True):
            method = ZIP_DEFLATED
            archived = deflated
            if len(deflated) >= len(data):  # images, for example, are compressed already
                method = ZIP_STORED
                archived = data
            member = ZipMember(file.name, file.mode, content.size, content.crc, method)
            members.append(_BatchMember(member, content, archived))
        return _Batch(members, is_cached)

    def _in_order(self, tasks: Iterable[Callable[[], Result]]) -> Iterator[Result]:
        """Yield the results of the tasks in order, with only a few computed ahead.

        Thus only a few results are in memory, however long the caller takes with each.
        """
        waiting: deque[Future[Result]] = deque()
        for task in tasks:
            waiting.append(self.pool.submit(task))
            if len(waiting) > self.threads + BLOCKS_AHEAD:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


class _BatchMember(NamedTuple):
    """A small file, ready to be added to the archive."""

    member: ZipMember
    content: ContentDigest
    archived: bytes  # compressed, unless the file itself is no longer than that


@dataclass(frozen=True, slots=True)
class _Batch:
    """Small files that are cached together; each is compressed alone."""

    members: Sequence[_BatchMember]
    is_cached: bool  # the compressed bytes are from the cache


@contextmanager
def open_compressor(
    cache: Path | None, codec: Codec | None = None, threads: int | None = None
) -> Iterator[Compressor]:
    """Yield a compressor, whose threads end with the block.

    It has MAX_THREADS threads at most, by default one for each processor that this process may use.
    It caches members in the folder `cache`; None: nowhere.
    """
    codec = codec or zip_archive.best_codec()
    count = min(threads or usable_processors(), MAX_THREADS)
    pool = ThreadPoolExecutor(count)
    try:
        yield Compressor(pool, count, codec, MemberCache(cache, str(codec)))
    finally:
        # after an error, blocks that nobody will write need not be compressed
        pool.shutdown(cancel_futures=True)


def _join_parts(parts: Sequence[bytes]) -> bytes:
    """Return the lengths of the parts and then the parts, as bytes; `_split_parts` undoes it."""
    lengths = [len(part) for part in parts]
    return struct.pack(f"<{len(parts)}L", *lengths) + b"".join(parts)


def _split_parts(joined: bytes, count: int) -> list[bytes] | None:
    """Return the `count` parts that `_join_parts` joined; None if the bytes have other lengths."""
    start = LENGTH_BYTES * count
    if len(joined) < start:
        return None
    parts = []
    for length in struct.unpack_from(f"<{count}L", joined):
        parts.append(joined[start : start + length])
        start += length
    if start != len(joined):
        return None
    return parts


def _group_files(files: Iterable[MemberSource]) -> Iterator[MemberSource | list[MemberSource]]:
    """Yield large files alone and small ones in batches, in order.

    A batch ends where the name of the next file says so, not after a number of files. Thus an
    additional file changes the batch that it is in, and those behind it are mostly found in the
    cache. A batch also ends before a large file, and before it becomes too large itself.
    """
    batch: list[MemberSource] = []
    size = 0
    for file in files:
        is_large = file.size > BLOCK_BYTES
        begins_batch = zip_archive.crc32(file.name.encode()) % BATCH_FILES == 0
        if batch and (is_large or begins_batch or size + file.size > BLOCK_BYTES):
            yield batch
            batch = []
            size = 0
        if is_large:
            yield file
        else:
            batch.append(file)
            size += file.size
    if batch:
        yield batch
