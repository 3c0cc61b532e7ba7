"""Bytes as people write them."""

import re

_UNITS = {
    "": 1,
    "b": 1,
    "kb": 10**3,
    "mb": 10**6,
    "gb": 10**9,
    "tb": 10**12,
    "kib": 2**10,
    "mib": 2**20,
    "gib": 2**30,
    "tib": 2**40,
    # a lone letter is binary, as for docker, systemd and Slurm
    "k": 2**10,
    "m": 2**20,
    "g": 2**30,
    "t": 2**40,
}
_QUANTITY = re.compile(r"\s*(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[a-z]*)\s*", re.IGNORECASE)
_STEP = 1024


def parse_bytes(text: str) -> int:
    """Return the bytes that "2.2 GiB", "500 MB", "8G" or "1024" stands for.

    Raise ValueError, whose message is part of a sentence, for anything else.
    """
    match = _QUANTITY.fullmatch(text)
    unit = match["unit"].lower() if match else None
    if match is None or unit not in _UNITS:
        raise ValueError(f'\'{text}\' is no quantity of bytes such as "2.2 GiB" or "500 MB"')
    return round(float(match["number"]) * _UNITS[unit])


def format_bytes(count: float) -> str:
    """Return `count` bytes in the largest binary unit of which there is one: "2.2 GiB"."""
    size = float(count)
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < _STEP:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= _STEP
    return f"{size:.1f} TiB"


def format_share(part: float, whole: float) -> str:
    """Return bytes of a number of bytes, in the unit of the whole: "5.2 of 7.8 GiB"."""
    text = format_bytes(whole)
    unit = text.split()[1]
    return f"{part / _UNITS[unit.lower()]:.1f} of {text}" if unit != "B" else f"{part:.0f} of {text}"
