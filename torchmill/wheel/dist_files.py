"""A verified wheel in dist/ and the files beside it: its manifest, its statement, its SBOM."""

import errno
import glob
import json
import shutil
from collections.abc import Mapping
from dataclasses import asdict
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from torchmill.core import formats
from torchmill.core.atomic_writes import fresh_path
from torchmill.core.strict_json import load_object
from torchmill.wheel.planned_wheel import PlannedWheel

# Suffixes to the wheel's file name.
STATEMENT_SUFFIX, SBOM_SUFFIX = ".intoto.json", ".cdx.json"
MANIFEST_SUFFIX = ".json"
DOCUMENT_SUFFIXES = (STATEMENT_SUFFIX, SBOM_SUFFIX)
ENVELOPE_SUFFIX, BUNDLE_SUFFIX = ".intoto.jsonl", ".sigstore.json"
PROVENANCE_SUFFIX = (
    ".provenance"  # for clients of indexes, as packaging.python.org has it (PEP 740)
)
SIGNATURE_SUFFIXES = (ENVELOPE_SUFFIX, BUNDLE_SUFFIX, PROVENANCE_SUFFIX)


def find_wheel(dist: Path, expected: PlannedWheel, *, contained: bool = False) -> Path:
    """Return the path of a planned wheel, or the one that it will have if it gets the newest tag possible.

    Where the platform tag is computed, a wheel that exists already has its final name. One that is `contained` was
    built in a container, whose glibc decided on the tag.
    """
    planned = dist / expected.file_name
    if not expected.tag_is_upper_bound:
        return planned
    wheels = dist.glob(f"{glob.escape(expected.stem)}*.whl")
    pattern = (
        f"{glob.escape(expected.stem)}manylinux_*_{expected.build.arch}.whl"
        if contained
        else glob.escape(expected.file_name)
    )
    built = [
        wheel for wheel in wheels if fnmatchcase(str(read_manifest(wheel).get("planned")), pattern)
    ]
    return max(built, key=lambda wheel: wheel.stat().st_mtime_ns, default=planned)


def manifest_path(wheel: Path) -> Path:
    """Return the path of a wheel's manifest."""
    return document_path(wheel, MANIFEST_SUFFIX)


def document_path(wheel: Path, suffix: str) -> Path:
    """Return the path of the file about a wheel with one of the suffixes."""
    return wheel.with_name(f"{wheel.name}{suffix}")


def companion_paths(wheel: Path) -> tuple[Path, ...]:
    """Return the paths of all files about a wheel; first the manifest, without which it does not count."""
    suffixes = (MANIFEST_SUFFIX, *DOCUMENT_SUFFIXES, *SIGNATURE_SUFFIXES)
    return tuple(document_path(wheel, suffix) for suffix in suffixes)


def read_manifest(wheel: Path) -> dict[str, Any]:
    """Return the manifest of a wheel; an empty one where the file is missing or unreadable."""
    return load_object(manifest_path(wheel))


def proven_commit(manifest: Mapping[str, Any]) -> str:
    """Return the commit that a wheel was proven to be built from, unchanged; "" for none.

    Manifests of other formats may call a commit what nothing proved.
    """
    known = formats.judge_format(manifest, formats.MANIFEST) == "same" and not manifest.get("edits")
    return str(manifest.get("commit") or "") if known else ""


def compose_documents(manifest: Mapping[str, Any], wheel: Path) -> dict[str, bytes]:
    """Return the statement and the SBOM of a wheel, by suffix.

    The same manifest and wheel give the same bytes, on any machine and at any time.
    """
    from millpress import record_file

    from torchmill.wheel import sbom, statement  # slow to load

    plain, metadata = (
        json.loads(_manifest_text(manifest)),
        record_file.read_described(wheel, "METADATA") or b"",
    )
    return {
        STATEMENT_SUFFIX: statement.canonical_json(statement.compose_statement(plain)),
        SBOM_SUFFIX: sbom.compose_sbom(plain, metadata, record_file.recorded_digests(wheel)),
    }


def publish_wheel(
    packed: Path,
    wheel: Path,
    manifest: dict[str, Any],
    replaced: Path | None = None,
    documents: Mapping[str, bytes] | None = None,
) -> None:
    """Move a verified wheel into dist/, with its manifest and its `documents` by suffix, each file whole.

    `replaced` is the wheel of the same cell before; its name differs where its platform tag was another.
    """
    wheel.parent.mkdir(parents=True, exist_ok=True)
    files = {document_path(wheel, suffix): content for suffix, content in (documents or {}).items()}
    files[manifest_path(wheel)] = _manifest_text(
        manifest
    ).encode()  # last: it says that all files are there
    for file, content in files.items():
        _temporary_path(file).write_bytes(content)
    # A wheel without a manifest is built again; the manifest of another wheel would be believed.
    move_file(packed, _temporary_path(wheel))  # first: of another disk, which may be full
    _remove_companions(wheel)
    for file in (wheel, *files):
        _temporary_path(file).replace(file)
    if replaced is not None and replaced != wheel:
        _remove_companions(replaced)
        replaced.unlink(missing_ok=True)


def withdraw_wheel(wheel: Path, destination: Path) -> None:
    """Move a wheel that must be verified again out of dist/, and remove the files beside it."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    move_file(wheel, destination)
    _remove_companions(wheel)


def _remove_companions(wheel: Path) -> None:
    for file in companion_paths(wheel):
        file.unlink(missing_ok=True)


def _temporary_path(file: Path) -> Path:
    """Return where a file is written before it is renamed into place."""
    return file.with_name(f".{file.name}.new")


def _manifest_text(manifest: Mapping[str, Any]) -> str:
    return (
        json.dumps(
            manifest,
            indent=1,
            default=lambda one: str(one) if isinstance(one, Path) else asdict(one),
        )
        + "\n"
    )


def move_file(file: Path, destination: Path) -> None:
    """Move a file, also to another disk (dist/ may be on one); it appears whole."""
    try:
        file.replace(destination)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        with fresh_path(destination) as copy:
            shutil.copy2(file, copy)
            copy.replace(destination)
        file.unlink()
