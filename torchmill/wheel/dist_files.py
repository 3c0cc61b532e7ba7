"""A verified wheel in dist/, and what stands beside it: its manifest, its statement, its SBOM."""

from __future__ import annotations

import errno
import glob
import json
import logging
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any
from zipfile import ZipFile

from torchmill.config.model import Artifact, Plan
from torchmill.core import files

# What names of documents add to a wheel's; `.intoto.jsonl` is for the envelope of who signs the statement.
STATEMENT_SUFFIX, SBOM_SUFFIX = ".intoto.json", ".cdx.json"
DOCUMENT_SUFFIXES = (STATEMENT_SUFFIX, SBOM_SUFFIX)


def find_wheel(dist: Path, plan: Plan) -> Path:
    """Return where the wheel of a plan lies, or will lie at the latest platform tag that it can get.

    Where the tag is computed, a wheel that is there already has the one that it got.
    """
    planned = dist / plan.wheel
    if not plan.computed:
        return planned
    stem = plan.wheel.removesuffix(f"{plan.platform_tag}.whl")
    every = dist.glob(f"{glob.escape(stem)}*.whl")
    made = [wheel for wheel in every if read_manifest(wheel).get("planned") == plan.wheel]
    return max(made, key=lambda wheel: wheel.stat().st_mtime_ns, default=planned)


def manifest_path(wheel: Path) -> Path:
    """Return where the manifest of a wheel lies."""
    return wheel.with_name(f"{wheel.name}.json")


def document_path(wheel: Path, suffix: str) -> Path:
    """Return where one of DOCUMENTS lies."""
    return wheel.with_name(f"{wheel.name}{suffix}")


def companion_paths(wheel: Path) -> tuple[Path, ...]:
    """Return where all that is told of a wheel lies; the manifest, by which it counts, comes first."""
    return (manifest_path(wheel), *(document_path(wheel, suffix) for suffix in DOCUMENT_SUFFIXES))


def as_read_back(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return a manifest as it is when it is read back."""
    read: dict[str, Any] = json.loads(_manifest_text(manifest))
    return read


def read_manifest(wheel: Path) -> dict[str, Any]:
    """Return the manifest of a wheel; an empty one where there is none, or it cannot be read."""
    try:
        return files.read_json_object(manifest_path(wheel))
    except (OSError, ValueError):
        return {}


def withdraw_wheel(wheel: Path, destination: Path) -> None:
    """Take a wheel that must be verified again out of dist/."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    _move_file(wheel, destination)
    _remove_companions(wheel)


def publish_wheel(
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
    manifest = manifest_path(wheel)
    every = {document_path(wheel, suffix): content for suffix, content in (documents or {}).items()}
    every[manifest] = _manifest_text(record).encode()  # the last: it says that all is there
    for file, content in every.items():
        _temporary_path(file).write_bytes(content)
    # A wheel without a manifest is made again; a manifest of another wheel would be believed.
    _remove_companions(wheel)
    _move_file(packed, wheel)
    for file in every:
        _temporary_path(file).replace(file)
    if replaced is not None and replaced != wheel:
        _remove_companions(replaced)
        replaced.unlink(missing_ok=True)
    return Artifact(wheel, manifest)


def _remove_companions(wheel: Path) -> None:
    """Remove what is told of a wheel."""
    for file in companion_paths(wheel):
        file.unlink(missing_ok=True)


def _temporary_path(file: Path) -> Path:
    """Return where a file is written before it appears."""
    return file.with_name(f".{file.name}.new")


def _manifest_text(manifest: Mapping[str, Any]) -> str:
    return json.dumps(manifest, indent=1, default=_json_default) + "\n"


def _move_file(file: Path, to: Path) -> None:
    """Move a file, to another disk too, on which dist/ may lie; it appears whole."""
    try:
        file.replace(to)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        fresh = _temporary_path(to)
        shutil.copy2(file, fresh)
        fresh.replace(to)
        file.unlink()


def _json_default(value: object) -> object:
    return str(value) if isinstance(value, Path) else asdict(value)  # type: ignore[call-overload]


# CycloneDX's library logs every class while it is imported, and nox shows people what libraries log.
logging.getLogger("py_serializable").setLevel(logging.WARNING)


def compose_documents(manifest: Mapping[str, Any], wheel: Path) -> dict[str, bytes]:
    """Return the statement and the SBOM of a wheel, by what their names add to the wheel's.

    `told` is its manifest. The same manifest and wheel give the same bytes, wherever and whenever.
    """
    from torchmill.wheel import sbom, statement

    metadata, record = read_metadata_and_record(wheel)
    plain = as_read_back(manifest)
    return {
        STATEMENT_SUFFIX: statement.canonical_json(statement.compose_statement(plain)),
        SBOM_SUFFIX: sbom.compose_sbom(plain, metadata, record),
    }


def read_metadata_and_record(wheel: Path) -> tuple[bytes, bytes]:
    """Return METADATA and RECORD of a wheel; nothing for a RECORD that is missing."""
    with ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if name.endswith(".dist-info/METADATA")]
        info = next(name for name in names if name.count("/") == 1).removesuffix("METADATA")
        recorded = f"{info}RECORD" in archive.namelist()
        return archive.read(f"{info}METADATA"), archive.read(f"{info}RECORD") if recorded else b""
