"""Record how the memory of one compile or link changes over its time, in few numbers.

The policy adds such curves up, to find units whose peaks do not meet (see `policy`).
"""

from collections.abc import Sequence
from itertools import accumulate
from math import ceil

from millguard.policy import CURVE_PARTS, FLAT_CURVE

_SHORTEST_PART = 0.05  # seconds
_MOST_PARTS = (
    8 * CURVE_PARTS
)  # of a recording, so that its parts are shorter than those of the curve
_STEPS = 100  # to which shares are rounded up, so that files of costs stay short


class CurveRecorder:
    """The most memory of one run in equal parts of its time.

    Nobody knows beforehand how long a run will take. Whenever there are too many parts, two become
    one.
    """

    def __init__(self) -> None:
        self._part_seconds = _SHORTEST_PART
        self._parts: list[int] = []  # bytes; 0 in a part in which nobody looked

    def add(self, ran: float, used: int) -> None:
        """Record the bytes that the processes of a unit had after so many seconds of its run."""
        while ran >= self._part_seconds * _MOST_PARTS:
            self._parts = [max(self._parts[at : at + 2]) for at in range(0, len(self._parts), 2)]
            self._part_seconds *= 2
        index = int(ran / self._part_seconds)
        self._parts.extend([0] * (index + 1 - len(self._parts)))
        self._parts[index] = max(self._parts[index], used)

    def curve(self, seconds: float, peak: int) -> tuple[float, ...]:
        """Return the curve of a run that took `seconds` and had at most `peak` bytes.

        Its shares are of the most that was seen. FLAT_CURVE if nobody saw half of the peak: compilers
        can take memory between two looks, and then the kernel alone knows of it.
        """
        highest = max(self._parts, default=0)
        if 2 * highest < peak or not highest:
            return FLAT_CURVE
        parts = _without_gaps(self._parts)
        parts_per_second = 1 / self._part_seconds
        last = len(parts) - 1
        shares = []
        for index in range(CURVE_PARTS):
            begin = min(last, int(seconds * index / CURVE_PARTS * parts_per_second))
            end = min(last, int(seconds * (index + 1) / CURVE_PARTS * parts_per_second))
            share = max(parts[begin : end + 1]) / highest
            shares.append(ceil(share * _STEPS) / _STEPS)
        return tuple(shares)


def _without_gaps(parts: Sequence[int]) -> list[int]:
    """Return the parts; the larger of its neighbours for one in which nobody looked."""
    before = accumulate(parts, _last_seen)
    after = accumulate(reversed(parts), _last_seen)
    return [max(pair) for pair in zip(before, reversed(list(after)), strict=True)]


def _last_seen(last: int, part: int) -> int:
    return part or last
