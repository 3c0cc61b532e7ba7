"""A verified wheel in dist/, and what stands beside it: its manifest, its statement, its SBOM."""

import errno
import glob
import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torchmill import jsonobject
from torchmill.model import Artifact, Plan

# What names of documents add to a wheel's; `.intoto.jsonl` is for the envelope of who signs the statement.
STATEMENT, SBOM = ".intoto.json", ".cdx.json"
DOCUMENTS = (STATEMENT, SBOM)


def place(dist: Path, plan: Plan) -> Path:
    """Return where the wheel of a plan lies, or will lie at the latest platform tag that it can get.

    Where the tag is computed, a wheel that is there already has the one that it got.
    """
    planned = dist / plan.wheel
    if not plan.computed:
        return planned
    stem = plan.wheel.removesuffix(f"{plan.platform_tag}.whl")
    every = dist.glob(f"{glob.escape(stem)}*.whl")
    made = [wheel for wheel in every if record(wheel).get("planned") == plan.wheel]
    return max(made, key=lambda wheel: wheel.stat().st_mtime_ns, default=planned)


def manifest_of(wheel: Path) -> Path:
    """Return where the manifest of a wheel lies."""
    return wheel.with_name(f"{wheel.name}.json")


def document_of(wheel: Path, suffix: str) -> Path:
    """Return where one of DOCUMENTS lies."""
    return wheel.with_name(f"{wheel.name}{suffix}")


def beside(wheel: Path) -> tuple[Path, ...]:
    """Return where all that is told of a wheel lies; the manifest, by which it counts, comes first."""
    return (manifest_of(wheel), *(document_of(wheel, suffix) for suffix in DOCUMENTS))


def plain(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return a manifest as it is when it is read back."""
    read: dict[str, Any] = json.loads(_text(record))
    return read


def record(wheel: Path) -> dict[str, Any]:
    """Return the manifest of a wheel; an empty one where there is none, or it cannot be read."""
    try:
        return jsonobject.read(manifest_of(wheel))
    except (OSError, ValueError):
        return {}


def withdraw(wheel: Path, to: Path) -> None:
    """Take a wheel that must be verified again out of dist/."""
    to.parent.mkdir(parents=True, exist_ok=True)
    _move(wheel, to)
    _forget(wheel)


def publish(
    packed: Path,
    wheel: Path,
    record: dict[str, Any],
    replaced: Path | None = None,
    documents: Mapping[str, bytes] | None = None,
) -> Artifact:
    """Move a verified wheel into dist/; it appears whole, and with it its manifest and `documents` by suffix.

    `replaced` is the wheel of the same cell before: where its platform tag was another, so was its name.
    """
    wheel.parent.mkdir(parents=True, exist_ok=True)
    manifest = manifest_of(wheel)
    every = {document_of(wheel, suffix): content for suffix, content in (documents or {}).items()}
    every[manifest] = _text(record).encode()  # the last: it says that all is there
    for file, content in every.items():
        _fresh(file).write_bytes(content)
    # A wheel without a manifest is made again; a manifest of another wheel would be believed.
    _forget(wheel)
    _move(packed, wheel)
    for file in every:
        _fresh(file).replace(file)
    if replaced is not None and replaced != wheel:
        _forget(replaced)
        replaced.unlink(missing_ok=True)
    return Artifact(wheel, manifest)


def _forget(wheel: Path) -> None:
    """Remove what is told of a wheel."""
    for file in beside(wheel):
        file.unlink(missing_ok=True)


def _fresh(file: Path) -> Path:
    """Return where a file is written before it appears."""
    return file.with_name(f".{file.name}.new")


def _text(record: Mapping[str, Any]) -> str:
    return json.dumps(record, indent=1, default=_plain) + "\n"


def _move(file: Path, to: Path) -> None:
    """Move a file, to another disk too, on which dist/ may lie; it appears whole."""
    try:
        file.replace(to)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        fresh = _fresh(to)
        shutil.copy2(file, fresh)
        fresh.replace(to)
        file.unlink()


def _plain(value: object) -> object:
    return str(value) if isinstance(value, Path) else asdict(value)  # type: ignore[call-overload]
