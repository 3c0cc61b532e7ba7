"""How long what others send may stay away: told after 15 seconds, ended after 60; and how long an answer may."""

import contextlib
import os
import queue
import sys
import threading
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from typing import TypeVar

from torchmill.core.errors import ConfigError, NetworkError
from torchmill.core.plain_text import as_plain_text

TOLD_AFTER_SECONDS = 15.0
ENDED_AFTER_SECONDS = 60.0
VARIABLE = "TORCHMILL_SILENCE"  # seconds, in place of 60
ANSWER_SECONDS = (
    20.0  # for a program that only tells something: one from a cold network disk needs some seconds
)
# Without its persistence daemon, nvidia-smi initialises every GPU of the machine first.
# https://docs.nvidia.com/deploy/driver-persistence/
_ANSWER_SECONDS: Mapping[str, float] = {"nvidia-smi": 30.0}
ANSWER_VARIABLE = "TORCHMILL_ANSWER"  # seconds, in place of both
LOWEST_RATE = 100  # bytes per second; what comes more slowly is silent for a part of the time
_LOOK_SECONDS = 0.5
_QUEUED = 8  # items that may wait to be taken

Item = TypeVar("Item")


class SilentError(NetworkError):
    """What should have sent something did not."""


def silence_limit(environ: Mapping[str, str] = os.environ) -> float:
    """Return the seconds of silence after which something is ended. Raises ConfigError."""
    return _seconds(environ, VARIABLE, ENDED_AFTER_SECONDS, "a silent connection is ended")


def answer_limit(program: str, environ: Mapping[str, str] = os.environ) -> float:
    """Return the seconds that a program has, by its file's name, to tell something. Raises ConfigError."""
    usual = _ANSWER_SECONDS.get(program, ANSWER_SECONDS)
    return _seconds(environ, ANSWER_VARIABLE, usual, "a program that only tells something is ended")


def _seconds(environ: Mapping[str, str], variable: str, usual: float, what: str) -> float:
    text = environ.get(variable, "")
    try:
        seconds = float(text or usual)
    except ValueError:
        seconds = 0.0
    if not 0 < seconds < threading.TIMEOUT_MAX:
        told = f"{variable} is '{text}': give the seconds after which {what}, such as {usual:g}"
        raise ConfigError(told, code="invalid-silence")
    return seconds


def until_silent(
    source: Iterable[Item], who: str, size: Callable[[Item], int] | None = None
) -> Generator[Item]:
    """Yield what `source` does, which is waited for in a thread of its own.

    `size` is how many bytes an item has; None: each shows that all is well, however small. Raises SilentError
    after the limit of `silence_limit`, and what `source` raises. A source that never answers keeps its thread.
    """
    limit, box, gone = (
        silence_limit(),
        queue.Queue[Item | BaseException](_QUEUED),
        threading.Event(),
    )
    threading.Thread(
        target=_pass_on, args=(source, box, gone), daemon=True, name=f"wait for {who}"
    ).start()
    silent, told = 0.0, False  # seconds, counted: the clock goes on while this process is stopped
    try:
        while True:
            item: Item | BaseException | None = None
            began = time.monotonic()
            with contextlib.suppress(queue.Empty):
                item = box.get(timeout=_LOOK_SECONDS)
            silent += min(time.monotonic() - began, _LOOK_SECONDS)
            if isinstance(item, StopIteration):
                return
            if isinstance(item, BaseException):
                raise item
            if item is not None:
                yield item
                silent = max(0.0, silent - size(item) / LOWEST_RATE) if size else 0.0
            if silent >= limit:
                raise SilentError(f"{_complaint(who, limit)}: it was ended", code="silent")
            if silent >= TOLD_AFTER_SECONDS and not told:
                told = True
                said = f"{_complaint(who, silent)}; it is ended after {limit:g} s ({VARIABLE})"
                print(as_plain_text(said), file=sys.stderr, flush=True)  # noqa: T201 - while it is waited for
            told = told and silent >= TOLD_AFTER_SECONDS
    finally:
        gone.set()


def _complaint(who: str, seconds: float) -> str:
    return f"{who} has sent nothing, or next to nothing, for {seconds:.0f} s"


def _pass_on(
    source: Iterable[Item], box: queue.Queue[Item | BaseException], gone: threading.Event
) -> None:
    def put(item: Item | BaseException) -> None:
        while not gone.is_set():
            with contextlib.suppress(queue.Full):
                box.put(item, timeout=_LOOK_SECONDS)
                return

    try:
        for item in source:
            put(item)
            if gone.is_set():
                return
    except BaseException as error:  # noqa: BLE001 - raised where the items are taken
        put(error)
    else:
        put(StopIteration())
    finally:
        if isinstance(source, Generator):
            source.close()
