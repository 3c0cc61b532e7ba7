"""Bytes as people read them."""

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
