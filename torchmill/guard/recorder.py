"""Where the guard's records go: to whoever started it, and into the timeline's file."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path
from typing import TextIO

from torchmill.guard.outlet import Outlet
from torchmill.guard.timeline import SHARE, Event, Pen, Record

READY = '{"record":"ready"}\n'


class Recorder:
    """Write each record to a descriptor and to a file.

    A file that cannot be written, or no longer, costs the timeline and nothing else; an event says so.
    `clock` gives the seconds since the start of the build.
    """

    def __init__(self, descriptor: int, file: Path, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._out = Outlet(descriptor)
        self._told = Pen(self._out)
        self._file: TextIO | None = None
        self._kept: Pen | None = None
        try:
            file.parent.mkdir(parents=True, exist_ok=True)
            self._file = file.open("w", encoding="utf-8")
            self._kept = Pen(self._file, SHARE)
        except OSError as error:
            self._lose(error)

    def ready(self) -> None:
        """Say that gates may come."""
        self._out.write(READY)
        self._out.flush()

    def take(self, record: Record) -> None:
        """Write a record."""
        self._told.write(record)
        if self._kept is not None:
            try:
                self._kept.write(record)
            except OSError as error:
                self._lose(error)

    def close(self) -> None:
        """Write what was held back."""
        self._told.finish()
        self._out.close()
        with contextlib.suppress(OSError):
            if self._kept is not None:
                self._kept.finish()
            if self._file is not None:
                self._file.close()

    def _lose(self, error: OSError) -> None:
        self._kept = None
        self._told.write(Event(self._clock(), "no timeline", "", str(error)))
