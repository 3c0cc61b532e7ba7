"""The entries of an index: all that its pages have of a wheel.

An index has a sub-index for each variant ("cpu", "cu118"), with the wheels whose versions have that
local label. Wheels without a variant are in all of them.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from millpress import dependencies, wheel_file
from millpress.dependencies import WheelNeeds
from packaging.tags import Tag
from packaging.version import Version

from torchmill.config.wheel_variants import WheelVariant, parse_property
from torchmill.wheel.finished_wheel import FinishedWheel

# The fields of an entry that its file's name does not have, and their types in JSON.
_FIELDS: dict[str, Any] = {
    "size": int,
    "sha256": str,
    "metadata_sha256": str,
    "requires_python": str | None,
    "requires": Sequence,
    "extras": Sequence,
    "uploaded": str,
}
_PROPERTIES = "properties"  # of a wheel variant; plain wheels lack this field


@dataclass(frozen=True, slots=True)
class IndexEntry:
    """Everything that the pages have of a wheel."""

    file: str
    name: str  # normalised
    version: Version
    everywhere: bool  # it is in the sub-indexes of all variants
    size: int  # bytes
    sha256: str
    metadata_sha256: str
    requires_python: str | None
    requires: tuple[str, ...]  # Requires-Dist
    extras: tuple[str, ...]  # Provides-Extra
    uploaded: str  # when the index first had it: "2026-11-22T10:40:00.000000Z"
    tags: frozenset[Tag]
    variant: WheelVariant | None = None  # None: a plain wheel

    @property
    def label(self) -> str:
        """Return the label of a variant, "" of a plain wheel."""
        return self.variant.label if self.variant else ""

    @property
    def place(self) -> str:
        """Return the path in the index: in the folder of the variant, as in the official one."""
        return f"{self.version.local}/{self.file}" if self.version.local else self.file

    def as_data(self) -> dict[str, Any]:
        """Return the fields for JSON that the file's name does not have."""
        data = {key: getattr(self, key) for key in _FIELDS}
        if self.variant is not None:
            data[_PROPERTIES] = [str(required) for required in self.variant.properties]
        return data


@dataclass(frozen=True, slots=True)
class ReferredWheel:
    """A wheel at another index, which this index lists by reference."""

    entry: IndexEntry
    url: str
    provenance: str  # the address of its attestations (PEP 740), "" if it has none
    metadata: bool  # METADATA lies beside it there


def make_entry(
    wheel: FinishedWheel, uploaded: str, variant: WheelVariant | None = None
) -> IndexEntry:
    """Return the entry of a wheel; `variant` is what it is a variant for."""
    headers = wheel_file.parse_headers(wheel.metadata)
    data = {
        "size": wheel.size,
        "sha256": wheel.sha256,
        "metadata_sha256": hashlib.sha256(wheel.metadata).hexdigest(),
        "requires_python": wheel.requires_python,
        "requires": wheel.requires,
        "extras": sorted(headers.get_all("Provides-Extra", [])),
        "uploaded": uploaded,
    }
    if variant is not None:
        data[_PROPERTIES] = [str(required) for required in variant.properties]
    return restore_entry(wheel.path.name, data)


def entry_of_metadata(
    file: str, metadata: bytes, sha256: str, size: int, uploaded: str
) -> IndexEntry:
    """Return the entry of a plain wheel that is elsewhere, from its METADATA."""
    headers = wheel_file.parse_headers(metadata)
    requires_python = " ".join(headers.get("Requires-Python", "").split()) or None
    data = {
        "size": size,
        "sha256": sha256,
        "metadata_sha256": hashlib.sha256(metadata).hexdigest(),
        "requires_python": requires_python,
        "requires": [" ".join(line.split()) for line in headers.get_all("Requires-Dist", [])],
        "extras": sorted(headers.get_all("Provides-Extra", [])),
        "uploaded": uploaded,
    }
    return restore_entry(file, data)


def restore_entry(file: str, data: Mapping[str, Any]) -> IndexEntry:
    """Return the entry of a wheel's file from the `data` that `as_data` returned.

    Raises KeyError, TypeError, ValueError or WheelError if these are not those of an entry.
    """
    file_name = wheel_file.parse_file_name(Path(file))
    version = file_name.version
    for key, kind in _FIELDS.items():
        if not isinstance(data[key], kind):
            raise TypeError("an entry of the state has a field of another type")
    variant = None
    if file_name.variant:
        properties = tuple(map(parse_property, data[_PROPERTIES]))
        variant = WheelVariant(file_name.variant, properties)
    # Wheels for macOS have no variants, because there is no CUDA, and therefore no label.
    all_variants = all(
        tag.platform == "any" or tag.platform.startswith("macosx_") for tag in file_name.tags
    )
    return IndexEntry(
        file=file,
        name=file_name.project,
        version=version,
        everywhere=version.local is None and all_variants,
        size=data["size"],
        sha256=data["sha256"],
        metadata_sha256=data["metadata_sha256"],
        requires_python=data["requires_python"],
        requires=tuple(data["requires"]),
        extras=tuple(data["extras"]),
        uploaded=data["uploaded"],
        tags=file_name.tags,
        variant=variant,
    )


def requirement_differences(entries: Iterable[IndexEntry]) -> Iterator[str]:
    """Yield a sentence for each version whose wheels differ in their requirements.

    Resolvers read one wheel of a version, and take its requirements for those of all.
    """
    versions: dict[tuple[str, str], list[IndexEntry]] = defaultdict(list)
    for entry in entries:
        versions[entry.name, str(entry.version)].append(entry)
    for (name, version), wheels in versions.items():
        first, *further = map(_declared_needs, wheels)
        differences = (dependencies.needs_difference(first, other) for other in further)
        difference = next(filter(None, differences), "")
        if difference:
            yield f"{name} {version}: {difference}"


def _declared_needs(entry: IndexEntry) -> WheelNeeds:
    """Return the requirements of an entry, as `needs_difference` compares them."""
    needs = dependencies.declared_needs(entry.requires_python, entry.requires, entry.extras)
    return WheelNeeds(entry.file, needs)
