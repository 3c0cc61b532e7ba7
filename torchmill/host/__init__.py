"""What a machine that builds has: measured here, or described in a file for any other.

Only `native_arch` runs while the noxfile loads; everything heavy is imported where it is used.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from torchmill.host.native import native_arch, native_system

if TYPE_CHECKING:
    from torchmill.model import Host
    from torchmill.recall import Recall

__all__ = ["basis", "describe", "load", "measure", "native_arch", "native_system", "save"]


def measure(
    builds: Path,
    environ: Mapping[str, str] = os.environ,
    root: Path = Path("/"),
    home: Path | None = None,
) -> Host:
    """Measure this machine; `builds` is where builds will happen, for the room on its disk."""
    from torchmill.host import measuring  # noqa: PLC0415

    return measuring.measure(builds, environ, root, home or Path.home())


def basis(
    recall: Recall,
    environ: Mapping[str, str] = os.environ,
    root: Path = Path("/"),
    home: Path | None = None,
) -> Host:
    """Measure what the plan of a build without CUDA follows from; no compiler is asked twice."""
    from torchmill.host import measuring, programs  # noqa: PLC0415

    return measuring.basis(environ, root, home or Path.home(), programs.remembered(environ, recall))


def load(path: Path) -> Host:
    """Read a host from a TOML file; raise ConfigError with all its mistakes."""
    from torchmill.host import described  # noqa: PLC0415

    return described.load(path)


def describe(host: Host) -> str:
    """Return the TOML from which `load` reads this host again."""
    from torchmill.host import described  # noqa: PLC0415

    return described.describe(host)


def save(host: Host, path: Path) -> None:
    """Write a host to a TOML file; raise ConfigError where it cannot be written."""
    from torchmill.host import described  # noqa: PLC0415

    described.save(host, path)
