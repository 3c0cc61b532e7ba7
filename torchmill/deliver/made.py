"""What was made of a verified wheel, and whether the same would be made again: by a record beside it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from torchmill import artifact, atomic
from torchmill.ledger import digest
from torchmill.recall import Recall

Parts = Mapping[str, str]  # all that can change a file, by names for people
SUITE = Path(__file__).parents[1]
MADE_OF = "made_of"  # the key of the record: a list, because several wheels can make the same bytes
_CODE = frozenset({".py", ".cpp", ".txt"})


@dataclass(frozen=True, slots=True)
class Product:
    """A file in dist/ that was made of a wheel."""

    file: Path
    kept: bool  # it was there, and nothing changed

    def __str__(self) -> str:
        """Return it as a sentence."""
        return f"{self.file} is there and nothing changed" if self.kept else f"{self.file} is made"


def kept(files: Iterable[Path], parts: Parts, recall: Recall) -> Path | None:
    """Return the file that was made of just these parts and is as it was then; None where there is none."""
    for file in files:
        told = artifact.record(file)
        if dict(parts) in _made_of(told) and recall.digest(file) == told.get("sha256"):
            return file
    return None


def note(file: Path, parts: Parts, sha256: str, told: Mapping[str, Any]) -> None:
    """Write beside a file what it was made of, and what is `told` of it.

    What another wheel was noted to make stays, as long as it is the same file. Raises OSError.
    """
    before = artifact.record(file)
    others = [one for one in _made_of(before) if one.get("wheel") != parts["wheel"]]
    same = others if before.get("sha256") == sha256 else []
    record = {"sha256": sha256, "size": file.stat().st_size, **told, MADE_OF: [*same, dict(parts)]}
    atomic.write(artifact.manifest_of(file), json.dumps(record, indent=1) + "\n")


def _made_of(told: Mapping[str, Any]) -> list[dict[str, str]]:
    found = told.get(MADE_OF)
    return [one for one in found if isinstance(one, dict)] if isinstance(found, list) else []


def of_wheel(wheel: Path, recall: Recall) -> dict[str, str]:
    """Return the parts that a wheel is: its name, which tells what it is for, and its bytes."""
    return {"wheel": wheel.name, "wheel_sha256": recall.digest(wheel) or ""}


def code(recall: Recall, *rooms: str) -> str:
    """Return a digest of the suite's code in some folders or files: "pack", "deliver/conda"."""
    roots = [SUITE / room for room in rooms]
    files = [file for root in roots for file in (root.rglob("*") if root.is_dir() else [root])]
    meant = sorted(file for file in files if file.suffix in _CODE)
    return digest([(file.relative_to(SUITE).as_posix(), recall.digest(file)) for file in meant])


def version(distribution: str) -> str:
    """Return the version of an installed package, "" where it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""
