"""Small files in which the kernel says something, read fast: some of them are read many times a second."""

from __future__ import annotations

import os
from pathlib import Path

_BLOCK = 2**16  # bytes


def read(file: Path) -> str:
    """Return a kernel file's text; raise OSError where it is not there, or not for us."""
    handle = os.open(file, os.O_RDONLY)  # in half the time of Path.read_text
    try:
        blocks = iter(lambda: os.read(handle, _BLOCK), b"")  # the kernel gives long files in pieces
        return b"".join(blocks).decode(errors="replace").strip()
    finally:
        os.close(handle)


def text(file: Path) -> str:
    """Return a kernel file's text; nothing where it is not there, or not for us."""
    try:
        return read(file)
    except OSError:
        return ""


def number(said: str) -> int | None:
    """Return the number that a text is; None where it is none ("max")."""
    try:
        return int(said)
    except ValueError:
        return None


def table(said: str) -> dict[str, int]:
    """Return the rows of a table of names and numbers, such as memory.stat; others are left out."""
    rows = (line.partition(" ") for line in said.splitlines())
    return {name: found for name, _, value in rows if (found := number(value)) is not None}


def members(said: str) -> int:
    """Return how many processors a list such as "0-3,8" names; 0 where it is no such list."""
    count = 0
    for part in said.split(","):
        low, dash, high = part.partition("-")
        first, last = number(low), number(high if dash else low)
        if first is None or last is None:
            return 0
        count += last - first + 1
    return count
