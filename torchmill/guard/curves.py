"""How the memory of an imagined unit grows: the share of its time that has passed, to that of its peak."""

from __future__ import annotations

from collections.abc import Callable, Sequence

Curve = Callable[[float], float]

_STEPS = 1000


def linear(share: float) -> float:
    """Grow evenly, nearly to the end."""
    return min(1.0, 0.05 + share)


def early(share: float) -> float:
    """Rise to the peak in the first tenth."""
    return min(1.0, 0.05 + 10 * share)


def late(share: float) -> float:
    """Stay small, and rise to the peak in the last tenth."""
    return max(0.2, 1 - 8 * (1 - share))


def sawtooth(share: float) -> float:
    """Rise and fall three times, as the passes of a compiler do."""
    return 0.3 + 0.7 * (3 * share % 1)


def recorded(points: Sequence[float]) -> Curve:
    """Return the curve through points that lie evenly over the time, the last at its end."""
    known = (0.0, *points)

    def curve(share: float) -> float:
        before = min(int(share * len(points)), len(points) - 1)
        part = share * len(points) - before
        return known[before] + (known[before + 1] - known[before]) * part

    return curve


def half(curve: Curve) -> float:
    """Return the share of its time after which a unit has half of its peak."""
    return next((step / _STEPS for step in range(_STEPS) if 2 * curve(step / _STEPS) >= 1), 1.0)
