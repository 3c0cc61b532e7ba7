"""Write a zip archive, member after member, into a file that can be sought in.

The standard library's own deflates in one thread and cannot take what is compressed already. This one writes
what it is given: headers, the members' bytes, the directory. Sizes above 4 GiB, and more members than 65535,
get ZIP64 records; data descriptors, comments and encryption are never written.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import BinaryIO

LOCAL = struct.Struct("<4s5H3L2H")
CENTRAL = struct.Struct("<4s2B5H3L5H2L")
END = struct.Struct("<4s4H2LH")
END64 = struct.Struct("<4sQ2H2L4Q")
LOCATOR = struct.Struct("<4sLQL")
UNIX = 3  # wherever this runs: the modes are Unix's
UTF8 = 0x800
PLAIN, WIDE = 20, 45  # the version of the format that a reader needs
FULL = 0xFFFFFFFF  # says: the number stands in the ZIP64 record
FULL_COUNT = 0xFFFF
REGULAR = 0o100000


class Method(IntEnum):
    """How a member is held."""

    STORED = 0
    DEFLATED = 8


@dataclass(frozen=True, slots=True)
class Limits:
    """From where on ZIP64 is needed; tests have smaller ones."""

    size: int = FULL
    count: int = FULL_COUNT


@dataclass(frozen=True, slots=True)
class Member:
    """What the headers say of a member, but for where it lies and how small it became."""

    name: str
    mode: int  # 0o644
    size: int  # bytes, uncompressed
    crc: int
    method: Method = Method.DEFLATED


@dataclass(frozen=True, slots=True)
class _Entry:
    member: Member
    offset: int
    packed: int  # bytes
    wide: bool


@dataclass
class Archive:
    """The archive in the making."""

    sink: BinaryIO
    stamp: time.struct_time  # of every member
    limits: Limits = Limits()
    entries: list[_Entry] = field(default_factory=list)

    def add(self, member: Member, data: bytes) -> None:
        """Append a member whose bytes are at hand."""
        entry = _Entry(member, self.sink.tell(), len(data), self._wide(member))
        self.sink.write(self._local(entry))
        self.sink.write(data)
        self.entries.append(entry)

    def stream(self, member: Member, parts: Iterable[bytes]) -> int:
        """Append a member whose bytes come in parts, and return how many they were.

        Where the parts end in an error, nothing of the member is left.
        """
        start, wide = self.sink.tell(), self._wide(member)
        self.sink.write(self._local(_Entry(member, start, 0, wide)))
        try:
            packed = sum(self.sink.write(part) for part in parts)
        except BaseException:
            self.sink.seek(start)
            self.sink.truncate()
            raise
        entry = _Entry(member, start, packed, wide)
        end = self.sink.tell()
        self.sink.seek(start)
        self.sink.write(self._local(entry))
        self.sink.seek(end)
        self.entries.append(entry)
        return packed

    def close(self) -> None:
        """Append the directory; the sink stays open."""
        start = self.sink.tell()
        for entry in self.entries:
            self.sink.write(self._central(entry))
        end, count = self.sink.tell(), len(self.entries)
        size, large, many = end - start, self.limits.size, self.limits.count
        if count >= many or max(start, size) >= large:
            versions = (WIDE | UNIX << 8, WIDE)
            self.sink.write(
                END64.pack(b"PK\6\6", END64.size - 12, *versions, 0, 0, count, count, size, start)
            )
            self.sink.write(LOCATOR.pack(b"PK\6\7", 0, end, 1))
        count = FULL_COUNT if count >= many else count
        size, start = (FULL if number >= large else number for number in (size, start))
        self.sink.write(END.pack(b"PK\5\6", 0, 0, count, count, size, start, 0))

    def _wide(self, member: Member) -> bool:
        """Say whether the sizes may need 64 bits; it must not depend on how small the member becomes."""
        return member.size + (member.size >> 6) + 64 >= self.limits.size

    def _local(self, entry: _Entry) -> bytes:
        extra = _extra(entry.member.size, entry.packed) if entry.wide else b""
        common = self._common(entry, extra)
        name = entry.member.name.encode()
        return LOCAL.pack(b"PK\3\4", WIDE if extra else PLAIN, *common) + name + extra

    def _central(self, entry: _Entry) -> bytes:
        member, far = entry.member, entry.offset >= self.limits.size
        numbers = ((member.size, entry.packed) if entry.wide else ()) + ((entry.offset,) if far else ())
        extra = _extra(*numbers) if numbers else b""
        needs = WIDE if extra else PLAIN
        where = ((REGULAR | member.mode) << 16, FULL if far else entry.offset)
        common = self._common(entry, extra)
        fixed = CENTRAL.pack(b"PK\1\2", needs, UNIX, needs, *common, 0, 0, 0, *where)
        return fixed + member.name.encode() + extra

    def _common(self, entry: _Entry, extra: bytes) -> tuple[int, ...]:
        """Return what both headers of a member say alike."""
        member, name = entry.member, entry.member.name.encode()
        flags = 0 if name.isascii() else UTF8
        sizes = (FULL, FULL) if entry.wide else (entry.packed, member.size)
        return (flags, member.method, *self._time(), member.crc, *sizes, len(name), len(extra))

    def _time(self) -> tuple[int, int]:
        year, month, day, hour, minute, second = self.stamp[:6]
        return hour << 11 | minute << 5 | second // 2, year - 1980 << 9 | month << 5 | day


def _extra(*numbers: int) -> bytes:
    """Return the ZIP64 field with these numbers."""
    return struct.pack(f"<2H{len(numbers)}Q", 1, 8 * len(numbers), *numbers)
