"""A finished wheel: its metadata, and the manifest that torchmill wrote beside it."""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from millpress import wheel_file
from millpress.wheel_file import Wheel
from packaging.version import Version

from torchmill.wheel import dist_files

# part of the local version of a slim wheel: the GPUs whose code was left in it ("sm86", "ptx90")
SLIM_LABEL = re.compile(r"sm\d+|ptx\d+")


@dataclass(frozen=True, slots=True)
class FinishedWheel(Wheel):
    """A wheel and its manifest."""

    # Empty if the wheel has no manifest, or if the manifest has the digest of another file: the
    # wheel was replaced by hand then.
    manifest: Mapping[str, Any] = field(repr=False, compare=False)


def read_wheel(path: Path) -> FinishedWheel:
    """Return the description of a wheel, with its digest and the manifest beside it.

    Raises WheelError if the file is not a wheel, has paths that leave it, or contradicts its name.
    """
    wheel = wheel_file.read_wheel(path)
    manifest = dist_files.read_manifest(path)
    if manifest.get("sha256") != wheel.sha256:
        manifest = {}
    described = {part.name: getattr(wheel, part.name) for part in fields(wheel)}
    return FinishedWheel(**described, manifest=manifest)


def read_wheels(paths: Iterable[Path]) -> list[FinishedWheel]:
    """Return wheels, sorted by name, version and file name. Raises WheelError."""
    wheels = [read_wheel(path) for path in paths]
    return sorted(wheels, key=lambda wheel: (wheel.name, wheel.version, wheel.path.name))


def source_tag(version: Version, manifest: Mapping[str, Any]) -> str:
    """Return the tag of a wheel's source; without a manifest the usual one, "v1.13.1"."""
    return str(manifest.get("tag") or f"v{version.public}")
