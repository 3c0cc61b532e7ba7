"""Repeat a step that needs the network, after a pause, if it failed in a way that may pass.

The step must be safe to repeat: it only reads, or it finds out first what an earlier try has done.
A judge decides which failures may pass. The judges lie beside the steps that they judge: for HTTP
fetch/http_failures.py, for git in fetch/source/git_command.py, for buckets in
deliver/publish/bucket.py.

urllib3's Retry counts the tries, draws the pauses and parses Retry-After. tenacity was looked at,
too: it repeats any function, but is one more library, and does not know Retry-After.
"""

import os
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from typing import TYPE_CHECKING, TypeVar

from torchmill.core.errors import ConfigError
from torchmill.core.plain_text import as_plain_text

if TYPE_CHECKING:
    from urllib3.util import Retry

# Of a server that fails one request in five, one request in 400,000 fails so many times in a row.
TRIES = 8
TRIES_VARIABLE = "TORCHMILL_TRIES"  # a number of tries in place of TRIES
MOST_TRIES = 100
# The first repetition follows at once. The pauses before the others are 0.5, 1, 2, 4, … seconds and
# up to _JITTER_SECONDS more, so that machines that failed together do not return together.
_PAUSE_FACTOR = 0.25
_JITTER_SECONDS = 0.25
LONGEST_PAUSE_SECONDS = 8.0
# A server may ask for a longer pause (Retry-After), but not for a longer one than this.
LONGEST_REQUESTED_PAUSE_SECONDS = 120.0
# No try begins so long after the first one, or after the last that advanced. A server that takes
# each connection and stays silent is so tried three times.
LONGEST_SECONDS = 180.0

_Result = TypeVar("_Result")


@dataclass(frozen=True, slots=True)
class PassingFailure:
    """A failure that may pass."""

    reason: str  # a clause
    pause: float = 0.0  # seconds to wait at least, because the server asks for it


Judge = Callable[[Exception], PassingFailure | None]  # None for a failure that will not pass


def tries_allowed(environ: Mapping[str, str] = os.environ) -> int:
    """Return how many times a step is tried. Raises ConfigError if the user's number is wrong."""
    text = environ.get(TRIES_VARIABLE, "")
    if not text:
        return TRIES
    # int() would also accept other digits, signs and underscores.
    is_number = text.isascii() and text.isdecimal() and len(text) <= len(str(MOST_TRIES))
    if not is_number or not 1 <= int(text) <= MOST_TRIES:
        raise ConfigError(
            f"{TRIES_VARIABLE} is '{text[:40]}': give the number of times that a step is tried if "
            f"its connection breaks, from 1 to {MOST_TRIES}, such as {TRIES}",
            code="invalid-tries",
        )
    return int(text)


def judge_error(error: Exception) -> PassingFailure | None:
    """Return how an error of torchmill may pass, as whoever raised it has noted in it."""
    pause = getattr(error, "retry_after", None)
    if pause is None:
        return None
    # The end of a message says what the user can do, which is too early now.
    return PassingFailure(str(error).rpartition(": ")[0] or str(error), pause)


def repeat(
    step: Callable[[], _Result],
    judge: Judge,
    subject: str,
    *,
    advanced: Callable[[], bool] = lambda: False,
    sleep: Callable[[float], object] = time.sleep,
) -> _Result:
    """Return the result of a step, which is repeated as long as its failures may pass.

    `subject` names the step, or the host that it asks, in the line on standard error about each
    repetition. `advanced` is called after each failure and tells whether the step got nearer to its
    end since it was called last: the tries are then counted anew. Raises the error of the last try,
    or ConfigError if the user's number of tries is wrong.
    """
    retry = _new_retry()
    began = time.monotonic()
    tries = tries_allowed()
    while True:
        try:
            return step()
        except Exception as error:
            failure = judge(error)
            if failure is None:
                raise
            if advanced():
                retry = _new_retry()
                began = time.monotonic()
            count = len(retry.history) + 1
            if count >= tries:
                raise
            retry = retry.increment()
            pause = max(retry.get_backoff_time(), failure.pause)
            is_late = time.monotonic() + pause - began >= LONGEST_SECONDS
            if failure.pause > LONGEST_REQUESTED_PAUSE_SECONDS or is_late:
                raise
            text = f"{subject}: tried again ({count + 1} of {tries}): {failure.reason}"
        write_line(text)
        sleep(pause)


def write_line(text: str) -> None:
    """Write a line about a step on standard error, because standard output may be JSON."""
    sys.stderr.write(as_plain_text(f"{text}\n"))
    sys.stderr.flush()


def requested_pause(headers: Mapping[str, str]) -> float:
    """Return the seconds that the headers of a response ask to wait; 0.0 without such a header.

    Retry-After is a number of seconds or a date (RFC 9110, 10.2.3), to which the server's own date
    is compared, because the clock of this machine may be wrong.
    """
    from urllib3.exceptions import InvalidHeader

    text = headers.get("Retry-After")
    if text is None:
        return 0.0
    try:
        pause = _new_retry().parse_retry_after(text)
        if not text.strip().isdecimal() and "Date" in headers:
            wait = parsedate_to_datetime(text) - parsedate_to_datetime(headers["Date"])
            pause = wait.total_seconds()
    except (InvalidHeader, ValueError, TypeError, OverflowError):
        return 0.0
    return max(0.0, pause)


def _new_retry() -> "Retry":
    """Return the count of a step that has not failed yet."""
    from urllib3.util import Retry  # slow to load, and only needed where a network is

    return Retry(
        total=None,  # `repeat` ends it
        backoff_factor=_PAUSE_FACTOR,
        backoff_jitter=_JITTER_SECONDS,
        backoff_max=LONGEST_PAUSE_SECONDS,
    )
