"""Cache digests of files and answers of programs for as long as the files look the same.

A file looks the same while its stat does: size, times and inode number. An entry of the cache is a
key, the stat of the files that decide the answer, and the answer. A lost entry costs time and
nothing else.
"""

import contextlib
import hashlib
import importlib.util
import json
import os
import time
from collections.abc import Callable, Container, Iterable, Sequence
from functools import cached_property
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple

from torchmill.core.atomic_writes import write_atomically
from torchmill.core.digests import hash_file
from torchmill.core.paths import PACKAGE
from torchmill.core.strict_json import load_object

_CODE_SUFFIXES = frozenset({".py", ".cpp", ".txt", ".toml"})

# A file that changed shortly before its stat was read may change again and still look the same:
# the clocks of file systems tick every few milliseconds, those of some every two seconds.
SETTLED_SECONDS = 2.0
# A cache of this size is read in 10 ms. A larger one is reduced to the entries that this run used.
MAX_BYTES = 1 << 21
_pack_stat = Struct("<qqqQ").pack  # size, two times, inode number
# The first bytes of programs on Linux, macOS (two), Windows.
_NATIVE = (b"\x7fELF", b"\xcf\xfa\xed\xfe", b"\xca\xfe\xba\xbe", b"MZ")


class FileStat(NamedTuple):
    """The stat of a file, or of a folder with all its files, as one text."""

    text: str  # differs if the content has changed
    changed_ns: int  # the time of the last change, in nanoseconds

    @property
    def is_settled(self) -> bool:
        """Tell whether the last change is so long ago that a later one would change the text.

        False if the clock of the file system is ahead of this machine's.
        """
        return self.changed_ns < (time.time() - SETTLED_SECONDS) * 1e9


class StatCache:
    """The cache in one file, read at the first lookup and written by `save`."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._used: set[str] = set()
        self._changed = False

    def digest(self, path: Path | str) -> str | None:
        """Return the sha256 of a file's content; None if it cannot be read."""
        key = str(Path(path).absolute())
        try:
            return self.remember(key, [stat_file(path)], lambda: hash_file(path))
        except OSError:
            return None

    def program_output(
        self, question: str, files: Iterable[Path | str], ask: Callable[[], str]
    ) -> str:
        """Return the answer of programs, from the cache if the programs' files look the same.

        `question` is the key in the cache, `files` are the programs, and `ask` runs them. If one of
        them is a script, `ask` is called each time, because a script may start any program.
        """
        stats: list[FileStat | None] = []
        for path in files:
            stats.append(stat_file(path) if is_native(path) else None)
        return self.remember(question, stats, ask)

    def remember(self, key: str, stats: Sequence[FileStat | None], ask: Callable[[], str]) -> str:
        """Return the result of `ask`, from the cache if the files that decide it look the same.

        `stats` are the stats of those files. `ask` is called each time if `stats` is empty, or if
        one of them is None because its file is missing or can tell nothing. It is called again if
        its last answer was "".
        """
        present = [stat for stat in stats if stat is not None]
        if not present or len(present) < len(stats):
            return ask()
        combined = FileStat(
            text=", ".join(stat.text for stat in present),
            changed_ns=max(stat.changed_ns for stat in present),
        )
        answer = self.lookup(key, combined)
        if not answer:  # "" is the answer of a program that did not run, and may run now
            answer = ask()
            self.store(key, combined, answer)
        return answer

    def lookup(self, key: str, stat: FileStat) -> str | None:
        """Return the stored answer if it was stored with the same stat; None otherwise."""
        self._used.add(key)
        entry = self._entries.get(key)
        if not isinstance(entry, list) or len(entry) <= 1:  # somebody has edited the file
            return None
        text, answer = entry[:2]
        return str(answer) if text == stat.text else None

    def store(self, key: str, stat: FileStat, answer: str) -> None:
        """Store an answer, unless its files changed just now."""
        if stat.is_settled:
            self._used.add(key)
            self._entries[key] = [stat.text, answer]
            self._changed = True

    def save(self) -> None:
        """Write the cache if it has changed. If it cannot be written, the new entries are lost."""
        if not self._changed:
            return
        text = json.dumps(self._entries, separators=(",", ":"))
        if len(text) > MAX_BYTES:
            used = {key: entry for key, entry in self._entries.items() if key in self._used}
            text = json.dumps(used, separators=(",", ":"))
        with contextlib.suppress(OSError):
            write_atomically(self.file, text)
        self._changed = False

    @cached_property
    def _entries(self) -> dict[str, Any]:  # key -> [text of the stat, answer]
        """Return the entries of the cache, which are read when they are first needed."""
        return load_object(self.file)


def stat_file(path: Path | str) -> FileStat | None:
    """Return the stat of a file, or None if it is missing."""
    try:
        status = os.stat(path)  # noqa: PTH116 - called for thousands of files
    except OSError:
        return None
    # Nobody restores size, both times and the inode number at once.
    text = f"{status.st_size} {status.st_mtime_ns} {status.st_ctime_ns} {status.st_ino}"
    return FileStat(text, changed_at_ns(status))


def stat_folder(folder: Path | str, skip: Container[str] = (".git",)) -> FileStat:
    """Return one stat of all files below a folder, except those in folders with a name in `skip`.

    Links are not followed. Folders that cannot be read count as empty.
    """
    digest = hashlib.blake2b(digest_size=16)
    newest = 0
    pending = [str(folder)]
    while pending:
        path = pending.pop()
        packed_stats: dict[str, bytes] = {}
        with contextlib.suppress(OSError), os.scandir(path) as entries:
            for entry in entries:
                if not entry.is_dir(follow_symlinks=False):
                    status = entry.stat(follow_symlinks=False)
                    newest = max(newest, changed_at_ns(status))
                    packed_stats[entry.name] = _pack_stat(
                        status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino
                    )
                elif entry.name not in skip:
                    pending.append(entry.path)
        pending.sort()  # scandir returns folders in any order
        digest.update(os.fsencode(f"{path}\0{len(packed_stats)}\0"))
        for name in sorted(packed_stats):
            digest.update(os.fsencode(f"{name}\0") + packed_stats[name])
    return FileStat(digest.hexdigest(), newest)


def changed_at_ns(status: os.stat_result) -> int:
    """Return when a file last changed, in nanoseconds.

    That is st_ctime, which no program can set. On Windows st_ctime is the time of creation, and
    st_mtime is taken.
    """
    if os.name == "nt":
        return status.st_mtime_ns
    return status.st_ctime_ns


def is_native(path: Path | str) -> bool:
    """Tell whether a file is a program of machine code, not a script."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 - called for many files
            return file.read(4).startswith(_NATIVE)
    except OSError:
        return False


def digest_data(value: object) -> str:
    """Return the sha256, in hexadecimal, of plain data (as JSON can hold it)."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def package_folder(name: str) -> Path:
    """Return the folder of an installed package, such as "millpress", without importing it.

    Raises FileNotFoundError if the package is not installed.
    """
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(f"the package {name} is not installed")
    return Path(spec.submodule_search_locations[0])


def digest_code(cache: StatCache, *places: str | Path) -> str:
    """Return a digest of the code in some folders and files, which changes if the code does.

    A place is a path in torchmill's package ("wheel/verify", "wheel/sbom.py"), or an absolute path
    elsewhere (`package_folder("millpress")`). Raises FileNotFoundError if a place has no code, as
    after a renaming: its digest would never change.
    """
    digests: list[tuple[str, str | None]] = []
    for place in places:
        root = PACKAGE / place  # an absolute place stays as it is
        files = [root]
        if root.is_dir():
            files = [file for file in root.rglob("*") if file.suffix in _CODE_SUFFIXES]
        if not files or not all(file.is_file() for file in files):
            raise FileNotFoundError(f"no code in {root}")
        base = root.parent if Path(place).is_absolute() else PACKAGE
        for file in files:
            digests.append((file.relative_to(base).as_posix(), cache.digest(file)))
    return digest_data(sorted(digests))
