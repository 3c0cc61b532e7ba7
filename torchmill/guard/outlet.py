"""A pipe that is written to without ever waiting for its reader: one who sleeps must not stop the guard."""

from __future__ import annotations

import os
import select
import time

KEPT = 2**20  # bytes for a reader that is late; what comes after them is lost to it
PATIENCE = 1.0  # seconds that it gets for the last of them


class Outlet:
    """Write lines to a descriptor: as much as it takes at once, and the rest the next time."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._read = True  # nobody who would read is gone
        self._kept = bytearray()

    def write(self, text: str, /) -> int:
        """Take a whole line."""
        if len(self._kept) < KEPT:
            self._kept += text.encode()
        return len(text)

    def flush(self) -> None:
        """Write what can be written now."""
        self._write(0.0)

    def close(self) -> None:
        """Give a late reader a moment."""
        until = time.monotonic() + PATIENCE
        while self._read and self._kept and time.monotonic() < until:
            self._write(until - time.monotonic())

    def _write(self, seconds: float) -> None:
        ready = select.poll()
        ready.register(self._descriptor, select.POLLOUT)
        while self._read and self._kept and ready.poll(1000 * seconds):
            try:  # a pipe that is ready takes this much without waiting
                written = os.write(self._descriptor, self._kept[: select.PIPE_BUF])
            except OSError:
                self._read = False
                self._kept.clear()
                return
            del self._kept[:written]
