"""Lines for a place where nothing can be drawn over, such as the log of a CI job: few of them."""

import time
from collections.abc import Callable
from typing import TextIO

EVERY = 30.0  # seconds between lines that say how far something is
Clock = Callable[[], float]


class Sparse:
    """A file that gets few lines."""

    def __init__(self, file: TextIO, clock: Clock = time.monotonic) -> None:
        self._file, self._clock = file, clock
        self._at = clock()

    def always(self, text: str) -> None:
        """Write a line."""
        self._at = self._clock()
        self._file.write(f"{text}\n")
        self._file.flush()

    def sometimes(self, text: Callable[[], str]) -> None:
        """Write a line if the last one is old."""
        if self._clock() - self._at >= EVERY:
            self.always(text())
