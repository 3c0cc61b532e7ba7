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
MANIFEST_SUFFIX = ".json"
STATEMENT_SUFFIX = ".intoto.json"
SBOM_SUFFIX = ".cdx.json"
DOCUMENT_SUFFIXES = (STATEMENT_SUFFIX, SBOM_SUFFIX)
ENVELOPE_SUFFIX = ".intoto.jsonl"
BUNDLE_SUFFIX = ".sigstore.json"
PROVENANCE_SUFFIX = ".provenance"  # for clients of indexes (PEP 740)
SIGNATURE_SUFFIXES = (ENVELOPE_SUFFIX, BUNDLE_SUFFIX, PROVENANCE_SUFFIX)


def find_wheel(dist: Path, expected: PlannedWheel, *, contained: bool = False) -> Path:
    """Return where a planned wheel is, or would be, in `dist`.

    The final platform tag may be known only after the build. Then this is the most recently built
    wheel whose manifest names this plan; if there is none, the planned path, which has the newest
    tag that is possible. For a wheel that was built in a container any manylinux tag matches,
    because the container's glibc decided it.
    """
    planned = dist / expected.file_name
    if not expected.tag_is_upper_bound:
        return planned
    stem = glob.escape(expected.stem)
    pattern = glob.escape(expected.file_name)
    if contained:
        pattern = f"{stem}manylinux_*_{expected.build.arch}.whl"
    # the manifest says which tag was planned: the file's name has the one that was computed
    wheels = [
        wheel
        for wheel in dist.glob(f"{stem}*.whl")
        if fnmatchcase(str(read_manifest(wheel).get("planned")), pattern)
    ]
    return max(wheels, key=lambda wheel: wheel.stat().st_mtime_ns, default=planned)


def manifest_path(wheel: Path) -> Path:
    """Return the path of a wheel's manifest."""
    return document_path(wheel, MANIFEST_SUFFIX)


def document_path(wheel: Path, suffix: str) -> Path:
    """Return the path of a wheel's side file with this suffix."""
    return wheel.with_name(f"{wheel.name}{suffix}")


def companion_paths(wheel: Path) -> tuple[Path, ...]:
    """Return the paths of all files about a wheel.

    The manifest is the first: without it the wheel does not count.
    """
    suffixes = (MANIFEST_SUFFIX, *DOCUMENT_SUFFIXES, *SIGNATURE_SUFFIXES)
    return tuple(document_path(wheel, suffix) for suffix in suffixes)


def read_manifest(wheel: Path) -> dict[str, Any]:
    """Return the manifest of a wheel; an empty one if the file is missing or unreadable."""
    return load_object(manifest_path(wheel))


def proven_commit(manifest: Mapping[str, Any]) -> str:
    """Return the commit that a wheel was proven to be built from, unchanged; "" for none."""
    # in a manifest of another format, nothing may prove what it calls the commit
    if formats.judge_format(manifest, formats.MANIFEST) != "same" or manifest.get("edits"):
        return ""
    return str(manifest.get("commit") or "")


def compose_documents(manifest: Mapping[str, Any], wheel: Path) -> dict[str, bytes]:
    """Return the statement and the SBOM of a wheel, by suffix.

    The same manifest and wheel give the same bytes, on any machine and at any time.
    """
    # slow to load, and a session whose wheel is up to date goes without them
    from millpress import record_file

    from torchmill.wheel import sbom, statement

    plain_manifest = json.loads(_manifest_text(manifest))
    metadata = record_file.read_described(wheel, "METADATA") or b""
    digests = record_file.recorded_digests(wheel)
    return {
        STATEMENT_SUFFIX: statement.canonical_json(statement.compose_statement(plain_manifest)),
        SBOM_SUFFIX: sbom.compose_sbom(plain_manifest, metadata, digests),
    }


def publish_wheel(
    packed: Path,
    wheel: Path,
    manifest: dict[str, Any],
    replaced: Path | None = None,
    documents: Mapping[str, bytes] | None = None,
) -> None:
    """Move a verified wheel into dist/, with its manifest and its `documents` by suffix.

    Each file appears whole. `replaced` is the earlier wheel of the same cell; its name differs if
    its platform tag does.
    """
    wheel.parent.mkdir(parents=True, exist_ok=True)
    files = {document_path(wheel, suffix): content for suffix, content in (documents or {}).items()}
    # the manifest is renamed last: it says that all files are there
    files[manifest_path(wheel)] = _manifest_text(manifest).encode()
    for file, content in files.items():
        _temporary_path(file).write_bytes(content)
    # First, because this disk may be full: until then nothing is removed.
    move_file(packed, _temporary_path(wheel))
    # A wheel without a manifest is built again; the manifest of another wheel would be believed.
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
    """Return the path that a file is written to before it is renamed into place."""
    return file.with_name(f".{file.name}.new")


def _manifest_text(manifest: Mapping[str, Any]) -> str:
    text = json.dumps(manifest, indent=1, default=_plain_value)
    return f"{text}\n"


def _plain_value(value: Any) -> object:
    """Return a path or a dataclass in a manifest as JSON can hold it."""
    return str(value) if isinstance(value, Path) else asdict(value)


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
