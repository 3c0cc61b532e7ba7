"""A wheel as the index tells of it."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

from packaging.version import Version

from torchmill.deliver import distributions
from torchmill.deliver.distributions import Distribution

_TOLD: dict[str, Any] = {
    "size": int,
    "sha256": str,
    "metadata_sha256": str,
    "requires_python": str | None,
    "requires": Sequence,
    "extras": Sequence,
    "uploaded": str,
}


@dataclass(frozen=True, slots=True)
class Entry:
    """All that the pages say of a wheel."""

    file: str
    name: str  # normalised
    version: Version
    everywhere: bool  # belongs into the sub-index of every variant
    size: int  # bytes
    sha256: str
    metadata_sha256: str
    requires_python: str | None
    requires: tuple[str, ...]  # Requires-Dist
    extras: tuple[str, ...]  # Provides-Extra
    uploaded: str  # when the index first had it: "2026-11-22T10:40:00.000000Z"

    @property
    def variant(self) -> str | None:
        """Return the local label of the version."""
        return self.version.local

    @property
    def place(self) -> str:
        """Return where the wheel lies in the index: as in the official one, in the folder of its variant."""
        return f"{self.variant}/{self.file}" if self.variant else self.file

    def as_data(self) -> dict[str, Any]:
        """Return what the file's name does not say, for JSON."""
        return {key: getattr(self, key) for key in _TOLD}


def of(wheel: Distribution, uploaded: str) -> Entry:
    """Return what the index tells of a wheel."""
    headers = HeaderParser().parsestr(wheel.metadata.decode("utf-8", "replace"))
    told = {
        "size": wheel.size,
        "sha256": wheel.sha256,
        "metadata_sha256": hashlib.sha256(wheel.metadata).hexdigest(),
        "requires_python": wheel.requires_python,
        "requires": wheel.requires,
        "extras": sorted(headers.get_all("Provides-Extra", [])),
        "uploaded": uploaded,
    }
    return remembered(wheel.file, told)


def remembered(file: str, told: Mapping[str, Any]) -> Entry:
    """Return an entry from its file's name and `as_data`.

    Raises KeyError, TypeError or DeliveryError where that is not what `as_data` returned.
    """
    name, version, _, tags = distributions.named(Path(file))
    if not all(isinstance(told[key], kind) for key, kind in _TOLD.items()):
        raise TypeError("what is remembered is of another type")
    return Entry(
        file=file,
        name=name,
        version=version,
        everywhere=version.local is None and all(_of_all_variants(tag.platform) for tag in tags),
        **{key: told[key] for key in _TOLD if key not in {"requires", "extras"}},
        requires=tuple(told["requires"]),
        extras=tuple(told["extras"]),
    )


def _of_all_variants(platform: str) -> bool:
    """Tell whether wheels for a platform have no variants: on macOS there is no CUDA, and no label."""
    return platform == "any" or platform.startswith("macosx_")
