"""Measure this machine or load a description of another; imports nothing heavy until it is called.

Only `native_arch` runs while the noxfile loads; everything heavy is imported where it is used.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torchmill.config.model import Host
    from torchmill.core.stat_cache import StatCache


def measure_host(
    builds: Path,
    environ: Mapping[str, str] = os.environ,
    root: Path = Path("/"),
    home: Path | None = None,
) -> Host:
    """Measure this machine; `builds` is where builds will happen, for the room on its disk."""
    from torchmill.host import measurement

    return measurement.measure_machine(builds, environ, root, home or Path.home())


def measure_basic_host(
    recall: StatCache,
    environ: Mapping[str, str] = os.environ,
    root: Path = Path("/"),
    home: Path | None = None,
) -> Host:
    """Measure what the plan of a build without CUDA follows from; no compiler is asked twice."""
    from torchmill.host import measurement, programs

    return measurement.measure_basis(
        environ, root, home or Path.home(), programs.make_caching_runner(environ, recall)
    )


def load_host(path: Path) -> Host:
    """Read a host from a TOML file; raise ConfigError with all its mistakes."""
    from torchmill.host import description

    return description.load_description(path)


def describe_host(host: Host) -> str:
    """Return the TOML from which `load` reads this host again."""
    from torchmill.host import description

    return description.describe_machine(host)


def save_host(host: Host, path: Path) -> None:
    """Write a host to a TOML file; raise ConfigError where it cannot be written."""
    from torchmill.host import description

    description.save_description(host, path)
