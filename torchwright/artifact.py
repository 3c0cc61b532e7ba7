"""A verified wheel in dist/ and the manifest beside it."""

import errno
import json
import shutil
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torchwright.model import Artifact


def manifest_of(wheel: Path) -> Path:
    """Return where the manifest of a wheel lies."""
    return wheel.with_name(f"{wheel.name}.json")


def record(wheel: Path) -> dict[str, Any]:
    """Return the manifest of a wheel; an empty one where there is none, or it cannot be read."""
    try:
        found = json.loads(manifest_of(wheel).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return found if isinstance(found, dict) else {}


def withdraw(wheel: Path, to: Path) -> None:
    """Take a wheel that must be verified again out of dist/."""
    to.parent.mkdir(parents=True, exist_ok=True)
    _move(wheel, to)
    manifest_of(wheel).unlink(missing_ok=True)


def publish(packed: Path, wheel: Path, record: dict[str, Any]) -> Artifact:
    """Move a verified wheel into dist/; it appears whole, and its manifest with it."""
    wheel.parent.mkdir(parents=True, exist_ok=True)
    manifest = manifest_of(wheel)
    fresh = manifest.with_name(f".{manifest.name}.new")
    fresh.write_text(json.dumps(record, indent=1, default=_plain) + "\n", encoding="utf-8")
    # A wheel without a manifest is made again; a manifest of another wheel would be believed.
    manifest.unlink(missing_ok=True)
    _move(packed, wheel)
    fresh.replace(manifest)
    return Artifact(wheel, manifest)


def _move(file: Path, to: Path) -> None:
    """Move a file, to another disk too, on which dist/ may lie; it appears whole."""
    try:
        file.replace(to)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        fresh = to.with_name(f".{to.name}.new")
        shutil.copy2(file, fresh)
        fresh.replace(to)
        file.unlink()


def _plain(value: object) -> object:
    return str(value) if isinstance(value, Path) else asdict(value)  # type: ignore[call-overload]
