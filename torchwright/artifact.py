"""A verified wheel in dist/ and the manifest beside it."""

import hashlib
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torchwright.model import Artifact


def manifest_of(wheel: Path) -> Path:
    """Return where the manifest of a wheel lies."""
    return wheel.with_name(f"{wheel.name}.json")


def find(wheel: Path, key: str) -> Artifact | None:
    """Return the artifact if it was made for this key and its bytes are still those; else None."""
    record = manifest_of(wheel)
    try:
        known = json.loads(record.read_text(encoding="utf-8"))
        with wheel.open("rb") as file:
            sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    except (FileNotFoundError, ValueError):
        return None
    same = isinstance(known, dict) and (known.get("key"), known.get("sha256")) == (key, sha256)
    return Artifact(wheel, record) if same else None


def publish(packed: Path, wheel: Path, record: dict[str, Any]) -> Artifact:
    """Move a verified wheel into dist/; it appears whole, and its manifest with it."""
    wheel.parent.mkdir(parents=True, exist_ok=True)
    manifest = manifest_of(wheel)
    fresh = manifest.with_name(f".{manifest.name}.new")
    fresh.write_text(json.dumps(record, indent=1, default=_plain) + "\n", encoding="utf-8")
    # A wheel without a manifest is made again; a manifest of another wheel would be believed.
    manifest.unlink(missing_ok=True)
    packed.replace(wheel)
    fresh.replace(manifest)
    return Artifact(wheel, manifest)


def _plain(value: object) -> object:
    return str(value) if isinstance(value, Path) else asdict(value)  # type: ignore[call-overload]
