"""The metadata of wheel variants in an index: NAME-VERSION-variants.json for each version.

A client reads it to choose one of the variants of a version without fetching any. Clients that do
not know variants skip the names of such wheels and of this file, so that they take the plain wheel:
https://peps.python.org/pep-0825/#index-level-metadata (a draft).

Pages name the file's digest, and uv installs nothing if it differs. So the file of other variants
lies in another folder, and one that a page names never changes.
"""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from millpress.file_names import NULL_LABEL
from packaging.tags import Tag
from packaging.version import Version

from torchmill.config.wheel_variants import WheelVariant
from torchmill.core.errors import DeliveryError
from torchmill.core.units import name_few
from torchmill.deliver.index.entries import IndexEntry
from torchmill.wheel import variant_metadata

SUFFIX = "-variants.json"
_DIGITS = 16  # of the digest that names the folder

# A version of a project: ("torch", Version("2.15.0")).
Release = tuple[str, Version]


@dataclass(frozen=True, slots=True)
class VariantsFile:
    """The metadata of all variants of a version."""

    file: str  # "torch-2.15.0-variants.json"
    folder: str  # of the page of its project: "torch", "cpu/torch"
    text: str

    @property
    def place(self) -> str:
        """Return its path in the index: "torch/0123456789abcdef/torch-2.15.0-variants.json"."""
        return f"{self.folder}/{self.sha256[:_DIGITS]}/{self.file}"

    @property
    def size(self) -> int:
        """Return its size in bytes."""
        return len(self.text.encode())

    @property
    def sha256(self) -> str:
        """Return its digest, hexadecimal."""
        return hashlib.sha256(self.text.encode()).hexdigest()


def compose_variants_files(entries: Iterable[IndexEntry]) -> dict[Release, VariantsFile]:
    """Return the metadata of each version that has variants.

    Raises DeliveryError if variants of a version contradict each other.
    """
    variants: dict[Release, dict[WheelVariant, None]] = defaultdict(dict)
    for entry in entries:
        if entry.variant is not None:
            # wheels for other Pythons have the same variants
            variants[entry.name, entry.version][entry.variant] = None
    files = {}
    for (name, version), described in variants.items():
        file = f"{name.replace('-', '_')}-{version}{SUFFIX}"
        folder = f"{version.local}/{name}" if version.local else name
        content = variant_metadata.compose_metadata(list(described), file)
        files[name, version] = VariantsFile(file, folder, content.decode())
    return files


def missing_fallbacks(entries: Iterable[IndexEntry]) -> Iterator[str]:
    """Yield a sentence for each version that lacks what clients need beside its variants.

    That is a null variant, for machines that no variant is for, and a plain wheel, for clients that
    do not know variants; both for the same Python and platform.
    """
    labels: dict[tuple[Release, frozenset[Tag]], set[str]] = defaultdict(set)
    for entry in entries:
        labels[(entry.name, entry.version), entry.tags].add(entry.label)
    for ((name, version), tags), known in labels.items():
        platform = ", ".join(sorted(map(str, tags)))
        if known != {""} and "" not in known:
            yield f"{name} {version} for {platform} has no plain wheel, which pip would take"
        elif known != {""} and NULL_LABEL not in known:
            yield f"{name} {version} for {platform} has no null variant, for machines without others"


def require_fallbacks(entries: Iterable[IndexEntry]) -> None:
    """Raise DeliveryError unless all that have variants also have a plain wheel and a null variant."""
    problems = list(missing_fallbacks(entries))
    if problems:
        raise DeliveryError(
            f"{name_few(problems)}: put it beside the variants, or leave them out; `invoke index "
            "--variants` makes null variants of plain wheels",
            code="variant-without-fallback",
        )
