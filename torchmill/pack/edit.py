"""What is to change in an ELF file."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Edit:
    """What changes in one file; the empty edit changes nothing."""

    replaced: tuple[tuple[str, str], ...] = ()  # needed name -> new name
    dropped: tuple[str, ...] = ()  # needed names
    soname: str | None = None
    rpath: tuple[str, ...] | None = None  # None: stays as it is
