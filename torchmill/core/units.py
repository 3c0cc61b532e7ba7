"""Bytes, durations and long lists as people write them."""

import re
from collections.abc import Sequence

Bytes = int

_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate(
    "kmgt", 1
):  # a lone letter is binary, as for docker, systemd and Slurm
    _UNITS |= {f"{_letter}b": 1000**_power, f"{_letter}ib": 1024**_power, _letter: 1024**_power}
_QUANTITY = re.compile(r"\s*(?P<number>\d{1,20}(?:\.\d+)?)\s*(?P<unit>[a-z]*)\s*", re.IGNORECASE)
_STEP = 1024

_MINUTE, _HOUR, _DAY, _WEEK = 60, 3600, 86400, 604800
_SECONDS = {"s": 1, "m": _MINUTE, "min": _MINUTE, "h": _HOUR, "d": _DAY, "w": _WEEK}
_DURATION = re.compile(r"\s*(\d{1,20}(?:\.\d+)?)\s*(s|m|min|h|d|w)(?=\s|\d|$)\s*", re.IGNORECASE)
_NAMES = ((_WEEK, "week"), (_DAY, "day"), (_HOUR, "hour"), (_MINUTE, "minute"), (1, "second"))


def parse_bytes(text: str) -> int:
    """Return the bytes that "2.2 GiB", "500 MB", "8G" or "1024" stands for.

    Raise ValueError, whose message is part of a sentence, for anything else.
    """
    match = _QUANTITY.fullmatch(text)
    unit = match["unit"].lower() if match else None
    if match is None or unit not in _UNITS:
        raise ValueError(f'\'{text}\' is not a quantity of bytes such as "2.2 GiB" or "500 MB"')
    return round(float(match["number"]) * _UNITS[unit])


def format_bytes(count: float) -> str:
    """Return `count` bytes in the largest binary unit of which there is one: "2.2 GiB"."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if round(abs(size), 1) < _STEP:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= _STEP
    return f"{size:.1f} TiB"


def format_share(part: float, whole: float) -> str:
    """Return bytes of a number of bytes, in the unit of the whole: "5.2 of 7.8 GiB"."""
    text = format_bytes(whole)
    unit = text.split()[1]
    return (
        f"{part / _UNITS[unit.lower()]:.1f} of {text}" if unit != "B" else f"{part:.0f} of {text}"
    )


def parse_duration(text: str) -> float:
    """Return the seconds that "30d", "2 w", "12h", "5h20m" or "45min" stands for.

    Raise ValueError, whose message is part of a sentence, for anything else.
    """
    found = _DURATION.findall(text)
    alone = found[0][1].lower() if len(found) == 1 else ""
    if not found or _DURATION.sub("", text) or alone == "m":  # which may mean months
        raise ValueError(f"'{text}' is not a duration such as 30d, 2w, 12h, 5h20m or 45min")
    return sum(float(number) * _SECONDS[unit.lower()] for number, unit in found)


def format_duration(seconds: float) -> str:
    """Return a duration in the largest unit of which there are two: "13 days", "90 minutes"."""
    for length, name in _NAMES:
        if seconds >= 2 * length:
            return f"{seconds // length:.0f} {name}s"
    return "a second"


def first_problems(problems: Sequence[str], most: int = 3) -> str:
    """Return the first problems and the number of others, in one clause."""
    more = f"; and {len(problems) - most} more" if len(problems) > most else ""
    return f"{'; '.join(problems[:most])}{more}"


def name_few(names: Sequence[str], most: int = 5) -> str:
    """Return the first of many names, and how many more there are: "a, b and 3 more"."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
