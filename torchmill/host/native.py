"""The names of the system and the machine that this process runs on; nothing heavy is imported for them."""

import platform
import sys

SYSTEMS = {"linux": "linux", "darwin": "macos", "win32": "windows"}
_NAMES = {
    ("linux", "x86_64"): "x86_64",
    ("linux", "aarch64"): "aarch64",
    ("linux", "arm64"): "aarch64",
    ("macos", "arm64"): "arm64",
    ("windows", "AMD64"): "amd64",
}
ARCHES = {"linux": ("x86_64", "aarch64"), "macos": ("arm64",), "windows": ("amd64",)}


def native_system() -> str:
    """Return "linux", "macos" or "windows"; another system under its own name."""
    return SYSTEMS.get(sys.platform, sys.platform)


def native_arch() -> str:
    """Return this machine's arch; one that we do not know is named so that it matches none."""
    system, machine = native_system(), platform.machine()
    return _NAMES.get((system, machine), f"{system}_{machine}")
