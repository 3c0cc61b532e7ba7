"""Bytes, durations and long lists as people write them."""

import re
from collections.abc import Sequence

Bytes = int

# A lone letter is binary, as in docker, systemd and Slurm.
_UNITS = {"": 1, "b": 1}
for _power, _letter in enumerate("kmgt", start=1):
    _UNITS[f"{_letter}b"] = 1000**_power
    _UNITS[f"{_letter}ib"] = 1024**_power
    _UNITS[_letter] = 1024**_power
_QUANTITY = re.compile(r"\s*(?P<number>\d{1,20}(?:\.\d+)?)\s*(?P<unit>[a-z]*)\s*", re.IGNORECASE)
_STEP = 1024

_MINUTE = 60
_HOUR = 60 * _MINUTE
_DAY = 24 * _HOUR
_WEEK = 7 * _DAY
_SECONDS = {"s": 1, "m": _MINUTE, "min": _MINUTE, "h": _HOUR, "d": _DAY, "w": _WEEK}
_DURATION = re.compile(r"\s*(\d{1,20}(?:\.\d+)?)\s*(s|m|min|h|d|w)(?=\s|\d|$)\s*", re.IGNORECASE)
_NAMES = ((_WEEK, "week"), (_DAY, "day"), (_HOUR, "hour"), (_MINUTE, "minute"), (1, "second"))


def parse_bytes(text: str) -> int:
    """Return the number of bytes of "2.2 GiB", "500 MB", "8G" or "1024".

    Raises ValueError for anything else; its message is part of a sentence.
    """
    match = _QUANTITY.fullmatch(text)
    if match is None or match["unit"].lower() not in _UNITS:
        raise ValueError(f'\'{text}\' is not a quantity of bytes such as "2.2 GiB" or "500 MB"')
    return round(float(match["number"]) * _UNITS[match["unit"].lower()])


def format_bytes(count: float) -> str:
    """Return `count` bytes in the largest binary unit that gives at least one: "2.2 GiB"."""
    size = float(count)
    if round(abs(size), 1) < _STEP:
        return f"{size:.0f} B"
    for unit in ("KiB", "MiB", "GiB"):
        size /= _STEP
        if round(abs(size), 1) < _STEP:
            return f"{size:.1f} {unit}"
    return f"{size / _STEP:.1f} TiB"


def format_share(part: float, whole: float) -> str:
    """Return `part` bytes of `whole` bytes, in the unit of the whole: "5.2 of 7.8 GiB"."""
    text = format_bytes(whole)
    unit = text.split()[1]
    if unit == "B":
        return f"{part:.0f} of {text}"
    return f"{part / _UNITS[unit.lower()]:.1f} of {text}"


def parse_duration(text: str) -> float:
    """Return the seconds of "30d", "2 w", "12h", "5h20m" or "45min".

    Raises ValueError for anything else, also for "3m" alone, which may mean months. Its message is
    part of a sentence.
    """
    parts = _DURATION.findall(text)
    is_whole = not _DURATION.sub("", text)
    # In "5h3m", the m cannot mean months.
    is_ambiguous = len(parts) == 1 and parts[0][1].lower() == "m"
    if not parts or not is_whole or is_ambiguous:
        raise ValueError(f"'{text}' is not a duration such as 30d, 2w, 12h, 5h20m or 45min")
    return sum(float(number) * _SECONDS[unit.lower()] for number, unit in parts)


def format_duration(seconds: float) -> str:
    """Return a duration in the largest unit that gives at least two: "13 days", "90 minutes".

    Anything shorter than two seconds is "a second".
    """
    for length, name in _NAMES:
        if seconds >= 2 * length:
            return f"{seconds // length:.0f} {name}s"
    return "a second"


def first_problems(problems: Sequence[str], most: int = 3) -> str:
    """Return the first problems and the number of the rest, in one clause."""
    text = "; ".join(problems[:most])
    if len(problems) > most:
        text += f"; and {len(problems) - most} more"
    return text


def name_few(names: Sequence[str], most: int = 5) -> str:
    """Return the first names of a list, and the number of the rest: "a, b and 3 more"."""
    text = ", ".join(names[:most])
    if len(names) > most:
        text += f" and {len(names) - most} more"
    return text
