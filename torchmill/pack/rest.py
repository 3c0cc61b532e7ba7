"""Tell what of a raw wheel can stay in it until the wheel is packed.

Of ten thousand files a few dozen are edited. The others would be written to the disk only to be read again
once, and it is the making of so many files that costs most.
"""

from __future__ import annotations

import stat
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from posixpath import normpath
from zipfile import ZIP_STORED, ZipInfo

from torchmill.pack.content import File
from torchmill.pack.extract import ENCRYPTED, begin

AHEAD = 1 << 17  # bytes: most members are smaller, and lie one behind the other
ORDINARY, PROGRAM = 0o644, 0o755
MAGIC = 4  # bytes
BINARIES = {  # how files begin in which repair may correct something
    b"\x7fELF",
    *(
        bytes.fromhex(magic)
        for magic in ("cffaedfe", "cefaedfe", "feedfacf", "feedface", "cafebabe", "cafebabf")
    ),
}
EDITED = (".dist-info", ".data")  # folders, by their ends


def rest(raw: Path, members: Sequence[ZipInfo], edited: Collection[str]) -> Iterator[File]:
    """Yield those `members` that lie in the wheel `raw` as they will in the finished one, unless `edited`.

    Raise BadZipFile where a member is not where the directory says.
    """
    with raw.open("rb", buffering=AHEAD) as archive:
        for info in members:
            if _plain(info) and info.filename not in edited:
                start = begin(archive, info)
                archive.seek(start)
                if archive.read(MAGIC) not in BINARIES:
                    mode = PROGRAM if info.external_attr >> 16 & stat.S_IXUSR else ORDINARY
                    yield File(info.filename, raw, info.file_size, mode, start, info.CRC)


def _plain(info: ZipInfo) -> bool:
    """Tell whether it is a file that is not compressed, and is not edited in every wheel."""
    name = info.filename
    stored = info.compress_type == ZIP_STORED and not info.flag_bits & ENCRYPTED
    whole = info.compress_size == info.file_size
    plain = normpath(name) == name  # a folder ends with a slash
    return stored and whole and plain and not name.partition("/")[0].endswith(EDITED)
