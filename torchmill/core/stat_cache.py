"""Remember digests of files and answers of programs for as long as the files look the same.

A memory that is lost, or does not fit, costs time and nothing else.
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

_CODE = frozenset({".py", ".cpp", ".txt", ".toml"})

# A file that changed so short a time before it was read may change again and look the same: the clocks of
# file systems tick every few milliseconds, those of some every two seconds.
SETTLED_SECONDS = 2.0
MAX_BYTES = (
    1 << 21
)  # of a memory, which is read in 10 ms; of a larger one, what this run used is kept
_packed = Struct("<qqqQ").pack
_NATIVE = (
    b"\x7fELF",
    b"\xcf\xfa\xed\xfe",
    b"\xca\xfe\xba\xbe",
    b"MZ",
)  # Linux, macOS (two), Windows


class FileStat(NamedTuple):
    """How something looks, and when it came to look so (nanoseconds)."""

    text: str
    since: int

    @property
    def settled(self) -> bool:
        """Tell whether it has looked so for long enough; not so where its clock is ahead of ours."""
        return self.since < (time.time() - SETTLED_SECONDS) * 1e9


class StatCache:
    """The memory in one file, read when first asked and written by `save`."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self._used: set[str] = set()
        self._changed = False

    def digest(self, path: Path | str) -> str | None:
        """Return the sha256 of a file's content; None where it cannot be read."""
        try:
            return self.remember(
                str(Path(path).absolute()), [stat_file(path)], lambda: hash_file(path)
            )
        except OSError:
            return None

    def program_output(
        self, question: str, files: Iterable[Path | str], ask: Callable[[], str]
    ) -> str:
        """Return what `ask` returns, asked once for as long as the files that decide it look the same.

        A script decides nothing, for it may lead anywhere: where one is among them, it is asked anew.
        """
        return self.remember(
            question, [stat_file(path) if is_native(path) else None for path in files], ask
        )

    def remember(self, what: str, looks: Sequence[FileStat | None], ask: Callable[[], str]) -> str:
        """Return what `ask` returns, asked once for as long as everything that decides it looks the same.

        It is asked anew where nothing decides it, or something that is not there.
        """
        present = [look for look in looks if look is not None]
        if not present or len(present) < len(looks):
            return ask()
        seen = FileStat(
            ", ".join(look.text for look in present), max(look.since for look in present)
        )
        answer = self.lookup(what, seen)
        if not answer:  # "" is of a program that did not run, and may do so now
            answer = ask()
            self.store(what, seen, answer)
        return answer

    def lookup(self, what: str, seen: FileStat) -> str | None:
        """Return what was kept of something that looked like this; None where nothing was."""
        self._used.add(what)
        kept = self._memory.get(what)
        return (
            str(kept[1])
            if isinstance(kept, list) and len(kept) > 1 and kept[0] == seen.text
            else None
        )

    def store(self, what: str, seen: FileStat, answer: str) -> None:
        """Keep an answer, unless what it is about changed just now."""
        if seen.settled:
            self._used.add(what)
            self._memory[what] = [seen.text, answer]
            self._changed = True

    def save(self) -> None:
        """Write what is new; where that is impossible, it is forgotten."""
        if not self._changed:
            return
        text = json.dumps(self._memory, separators=(",", ":"))
        if len(text) > MAX_BYTES:
            used = {what: answer for what, answer in self._memory.items() if what in self._used}
            text = json.dumps(used, separators=(",", ":"))
        with contextlib.suppress(OSError):
            write_atomically(self.file, text)
        self._changed = False

    @cached_property
    def _memory(self) -> dict[str, Any]:  # what -> [look, answer]
        return load_object(self.file)


def stat_file(path: Path | str) -> FileStat | None:
    """Return how a file looks: size, times, number; None where there is none."""
    try:
        seen = os.stat(path)  # noqa: PTH116 (a thousand times)
    except OSError:
        return None
    # what changes when a file does: nobody sets back size, both times and number at once
    return FileStat(
        f"{seen.st_size} {seen.st_mtime_ns} {seen.st_ctime_ns} {seen.st_ino}", changed_at_ns(seen)
    )


def stat_folder(folder: Path | str, skip: Container[str] = (".git",)) -> FileStat:
    """Return how all files below a folder look together, without the folders to skip; links are not followed."""
    whole = hashlib.blake2b(digest_size=16)
    newest = 0
    waiting = [str(folder)]
    while waiting:
        found = {}
        path = waiting.pop()
        with contextlib.suppress(OSError), os.scandir(path) as entries:
            for entry in entries:
                if not entry.is_dir(follow_symlinks=False):
                    seen = entry.stat(follow_symlinks=False)
                    newest = max(newest, changed_at_ns(seen))
                    found[entry.name] = _packed(
                        seen.st_size, seen.st_mtime_ns, seen.st_ctime_ns, seen.st_ino
                    )
                elif entry.name not in skip:
                    waiting.append(entry.path)
        waiting.sort()  # folders come in any order
        whole.update(os.fsencode(f"{path}\0{len(found)}\0"))
        for name in sorted(found):
            whole.update(os.fsencode(f"{name}\0") + found[name])
    return FileStat(whole.hexdigest(), newest)


def changed_at_ns(seen: os.stat_result) -> int:
    """Return when a file came to look so, in nanoseconds; anybody may set the time that Windows has."""
    return seen.st_mtime_ns if os.name == "nt" else seen.st_ctime_ns


def is_native(path: Path | str) -> bool:
    """Tell whether a file is a program itself, and no script that starts others."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123 (as above)
            return file.read(4).startswith(_NATIVE)
    except OSError:
        return False


def digest_data(value: object) -> str:
    """Return a digest of plain data."""
    return hashlib.sha256(json.dumps(value, sort_keys=True, default=str).encode()).hexdigest()


def package_folder(name: str) -> Path:
    """Return the folder of an installed package, such as "millpress", without importing it."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise FileNotFoundError(f"the package {name} is not installed")
    return Path(spec.submodule_search_locations[0])


def digest_code(cache: StatCache, *places: str | Path) -> str:
    """Return a digest of the code in some folders and files.

    A place is a path in this package ("wheel/verify", "wheel/sbom.py"), or the absolute folder of another
    one (`package_folder("millpress")`). Raises FileNotFoundError if a place holds no code: the digest of
    nothing would never change.
    """
    digests: list[tuple[str, str | None]] = []
    for place in places:
        root = PACKAGE / place
        files = [root]
        if root.is_dir():
            files = [file for file in root.rglob("*") if file.suffix in _CODE]
        if not files or not all(file.is_file() for file in files):
            raise FileNotFoundError(f"no code in {root}")
        base = root.parent if Path(place).is_absolute() else PACKAGE
        digests += [(file.relative_to(base).as_posix(), cache.digest(file)) for file in files]
    return digest_data(sorted(digests))
