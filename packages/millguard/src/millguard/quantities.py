"""Bytes, times and names as people read them."""

_UNITS = ("B", "KiB", "MiB", "GiB")
_STEP = 1024


def format_bytes(count: float) -> str:
    """Return `count` bytes in the largest binary unit that holds at least one: "2.2 GiB"."""
    size = float(count)
    for unit in _UNITS:
        if round(abs(size), 1) < _STEP:
            return f"{size:.0f} B" if unit == "B" else f"{size:.1f} {unit}"
        size /= _STEP
    return f"{size:.1f} TiB"


def printable(text: str) -> str:
    r"""Return a text with `\x1b` in place of characters that are not printed.

    Such characters steer a terminal, or hide others, and names of files may hold them.
    """
    return "".join(
        character if character.isprintable() else f"\\x{ord(character):02x}" for character in text
    )


def format_clock(seconds: float) -> str:
    """Return seconds as minutes and seconds, with hours if there are any: "2:05", "1:02:05"."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
