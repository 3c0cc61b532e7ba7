"""What each unit needed when it ran: kept from build to build, shared by all builds of a user."""

from __future__ import annotations

import contextlib
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_PATIENCE = 1.0  # seconds for which another build's writing is waited for
_KEEPS = 0.9  # of a larger peak that was measured before
_SCHEMA = """
CREATE TABLE IF NOT EXISTS needs (key TEXT PRIMARY KEY, peak INTEGER, seconds REAL, half REAL) WITHOUT ROWID
"""


@dataclass(frozen=True, slots=True)
class Need:
    """What a unit needed."""

    peak: int  # bytes
    seconds: float  # that it ran
    half: float = 0.0  # share of them after which it had half of its peak; 0: not known


class History:
    """The units that were measured, by key.

    A file that is broken is begun anew; one that cannot be read or written costs what was learned, never
    the build.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._new: dict[str, Need] = {}
        try:
            self._known = self._read()
        except (sqlite3.Error, OSError) as error:
            self._known = {}
            if _useless(error):
                with contextlib.suppress(OSError):
                    file.unlink()

    def find(self, key: str) -> Need | None:
        """Return what a unit needed; None where it never ran."""
        return self._known.get(key)

    def learn(self, key: str, need: Need) -> None:
        """Take note of what a unit needed just now.

        Of a peak that was larger before a tenth is forgotten: what happened once may happen again.
        """
        before = self._known.get(key)
        if before is not None:
            kept = int(_KEEPS * before.peak + (1 - _KEEPS) * need.peak)
            half = min(filter(None, (before.half, need.half)), default=0.0)  # the steeper of what was seen
            need = Need(max(need.peak, kept), (before.seconds + need.seconds) / 2, half)
        self._known[key] = self._new[key] = need

    def save(self) -> str | None:
        """Write what was learned since the last time.

        Return None, or why it could not be written: it is then kept for the next time.
        """
        if not self._new:
            return None
        rows = [(key, need.peak, need.seconds, need.half) for key, need in self._new.items()]
        try:
            with self._opened() as base:
                base.executemany("INSERT OR REPLACE INTO needs VALUES (?, ?, ?, ?)", rows)
        except (sqlite3.Error, OSError) as error:
            return str(error)
        self._new.clear()
        return None

    def _read(self) -> dict[str, Need]:
        with self._opened() as base:
            rows = base.execute("SELECT key, peak, seconds, half FROM needs")
            return {key: Need(*need) for key, *need in rows}

    @contextlib.contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.closing(sqlite3.connect(self._file, timeout=_PATIENCE)) as base, base:
            base.execute(_SCHEMA)
            yield base


def _useless(error: Exception) -> bool:
    """Tell whether a file is no database, or one of another shape; one that is busy has its own error."""
    return type(error) is sqlite3.DatabaseError or "no such column" in str(error)
