"""Limit how long a sender, such as a server, may be silent, or a program may take to answer.

A silent sender is reported after 15 seconds, and its connection is ended after 60. Variables of the
environment change these limits.
"""

import contextlib
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import Final, TypeVar

from torchmill.core.errors import ConfigError, NetworkError
from torchmill.core.plain_text import as_plain_text

REPORTED_AFTER_SECONDS = 15.0
ENDED_AFTER_SECONDS = 60.0
SILENCE_VARIABLE = "TORCHMILL_SILENCE"  # seconds, in place of ENDED_AFTER_SECONDS
# For a program that only prints information. To load it from a network disk takes some seconds.
ANSWER_SECONDS = 20.0
# Without its persistence daemon, nvidia-smi initialises every GPU of the machine first.
# https://docs.nvidia.com/deploy/driver-persistence/
_SLOW_PROGRAMS: Mapping[str, float] = {"nvidia-smi": 30.0}  # program -> seconds
ANSWER_VARIABLE = "TORCHMILL_ANSWER"  # seconds, in place of all limits for answers
LOWEST_RATE = 100  # bytes per second; a slower sender counts as silent for a part of the time
# Between two looks at the clock.
_POLL_SECONDS = 0.5
_QUEUE_ITEMS = 8

Item = TypeVar("Item")


class _NoItem:
    """Stands for no item yet. None may be an item."""


_NO_ITEM: Final = _NoItem()


class SilentError(NetworkError):
    """A sender was silent for too long."""

    retry_after = 0.0


def silence_limit(environ: Mapping[str, str] = os.environ) -> float:
    """Return the seconds of silence after which a connection is ended.

    Raises ConfigError if the variable is not a number of seconds.
    """
    return _read_seconds(
        environ, SILENCE_VARIABLE, ENDED_AFTER_SECONDS, "a silent connection is ended"
    )


def answer_limit(program: str, environ: Mapping[str, str] = os.environ) -> float:
    """Return the seconds that a program may take to answer; `program` is the name of its file.

    ANSWER_VARIABLE sets them for all programs. Raises ConfigError if the variable is not a number of seconds.
    """
    default = _SLOW_PROGRAMS.get(program.removesuffix(".exe"), ANSWER_SECONDS)
    event = "a program that only prints information is ended"
    return _read_seconds(environ, ANSWER_VARIABLE, default, event)


def _read_seconds(environ: Mapping[str, str], variable: str, default: float, event: str) -> float:
    """Return the seconds in a variable; `event` says in a message what happens after them."""
    text = environ.get(variable, "")
    try:
        seconds = float(text or default)
    except ValueError:
        seconds = 0.0
    # Python's locks raise OverflowError for longer waits. "nan" fails this comparison, too.
    if not 0 < seconds < threading.TIMEOUT_MAX:
        raise ConfigError(
            f"{variable} is '{text}': give the seconds after which {event}, such as {default:g}",
            code="invalid-silence",  # for both variables
        )
    return seconds


class _Silence:
    """The seconds that a sender has been silent: the sum of the times spent waiting for it.

    A clock would also count the time in which this process is stopped (Ctrl-Z) or works on an item.
    """

    def __init__(self, sender: str, limit: float) -> None:
        self._sender = sender
        self._limit = limit
        self._seconds = 0.0
        self._reported = False

    def add_waiting(self, seconds: float) -> None:
        """Add the seconds of a wait; it is longer than _POLL_SECONDS only if Ctrl-Z was pressed."""
        self._seconds += min(seconds, _POLL_SECONDS)

    def note_item(self, item_bytes: int | None) -> None:
        """Reduce the silence by an item: by the seconds that it takes at LOWEST_RATE.

        An item of unknown size (None) ends the silence.
        """
        if item_bytes is None:
            self._seconds = 0.0
        else:
            self._seconds = max(0.0, self._seconds - item_bytes / LOWEST_RATE)

    def report_or_raise(self) -> None:
        """Report a long silence once; raise SilentError if it is too long."""
        if self._seconds >= self._limit:
            complaint = self._complain(self._limit)
            raise SilentError(
                f"{complaint}: torchmill stopped waiting ({SILENCE_VARIABLE} sets the seconds)",
                code="silent",
            )
        is_long = self._seconds >= REPORTED_AFTER_SECONDS
        if is_long and not self._reported:
            complaint = self._complain(self._seconds)
            text = f"{complaint}; it is ended after {self._limit:g} s ({SILENCE_VARIABLE})"
            print(as_plain_text(text), file=sys.stderr, flush=True)  # noqa: T201 - at once
        self._reported = is_long

    def _complain(self, seconds: float) -> str:
        """Return a clause that says how long the sender has been silent."""
        return f"{self._sender} has sent nothing, or next to nothing, for {seconds:.0f} s"


def watch_for_silence(
    source: Iterable[Item], sender: str, size: Callable[[Item], int] | None = None
) -> Generator[Item]:
    """Yield the items of `source`, which is read in another thread, as long as they keep coming.

    `sender` names the source in messages. `size` returns the number of bytes of an item; without
    it, any item ends the silence. Raises SilentError after the seconds of `silence_limit`,
    ConfigError if the user's limit is invalid, and any error that `source` raises. If `source`
    never returns, its thread stays until the process ends.
    """
    silence = _Silence(sender, silence_limit())
    # The errors of the source, and the StopIteration at the end, go through the queue like items.
    items = queue.Queue[Item | BaseException](_QUEUE_ITEMS)
    abandoned = threading.Event()
    threading.Thread(
        target=_forward, args=(source, items, abandoned), daemon=True, name=f"wait for {sender}"
    ).start()
    try:
        while True:
            item: Item | BaseException | _NoItem = _NO_ITEM
            began = time.monotonic()
            with contextlib.suppress(queue.Empty):
                item = items.get(timeout=_POLL_SECONDS)
            silence.add_waiting(time.monotonic() - began)
            if isinstance(item, StopIteration):
                return
            if isinstance(item, BaseException):
                raise item
            if not isinstance(item, _NoItem):
                yield item
                silence.note_item(size(item) if size else None)
            silence.report_or_raise()
    finally:
        abandoned.set()


def _forward(
    source: Iterable[Item], items: queue.Queue[Item | BaseException], abandoned: threading.Event
) -> None:
    """Put the items of a source into a queue, and then a StopIteration, or the source's error."""

    def put(item: Item | BaseException) -> None:
        while not abandoned.is_set():
            with contextlib.suppress(queue.Full):
                items.put(item, timeout=_POLL_SECONDS)
                return

    try:
        for item in source:
            put(item)
            if abandoned.is_set():
                return
    except BaseException as error:  # noqa: BLE001 - raised in the thread that takes the items
        put(error)
    else:
        put(StopIteration())
    finally:
        if isinstance(source, Generator):
            source.close()
