"""The program uv, which is among the requirements of torchmill."""

import sys


def uv_command() -> list[str]:
    """Return the command of uv: of this Python's package, whatever is on PATH."""
    return [sys.executable, "-P", "-m", "uv"]
