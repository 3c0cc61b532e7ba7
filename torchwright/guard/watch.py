"""What a build used: memory while it runs, processor time when it is over."""

import contextlib
import os
import threading
from types import TracebackType
from typing import Self

import psutil

PERIOD = 0.5  # seconds between samples


class Watch:
    """Sample the memory of this process and all its descendants for as long as the context lasts.

    The sum of resident sizes counts shared pages once per process; compilers share few.
    """

    def __init__(self, period: float = PERIOD) -> None:
        self.current = 0  # bytes at the last sample
        self.peak = 0  # bytes at the largest sample
        self._period = period
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._sample_until_over, name="watch", daemon=True)
        self._cpu_before = 0.0
        self._cpu_after: float | None = None

    def __enter__(self) -> Self:
        self._cpu_before = _children_cpu()
        self._sample()
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        self._cpu_after = _children_cpu()

    @property
    def cpu_seconds(self) -> float:
        """Return the processor time, in seconds, of the children that ended within the context."""
        after = _children_cpu() if self._cpu_after is None else self._cpu_after
        return after - self._cpu_before

    def _sample_until_over(self) -> None:
        while not self._over.wait(self._period):
            self._sample()

    def _sample(self) -> None:
        self.current = tree_memory(psutil.Process())
        self.peak = max(self.peak, self.current)


def tree_memory(process: psutil.Process) -> int:
    """Return the resident bytes of a process and its descendants; those that ended take nothing."""
    total = 0
    with contextlib.suppress(psutil.NoSuchProcess):
        for member in [process, *process.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                total += int(member.memory_info().rss)
    return total


def _children_cpu() -> float:
    times = os.times()  # RUSAGE_CHILDREN, and on Windows, which has none, zeros
    return times.children_user + times.children_system
