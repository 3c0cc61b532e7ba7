"""A verified wheel in dist/ and the files beside it: its manifest, its statement, its SBOM.

The manifest is torchmill's own JSON file about a wheel: its plan, its source, the stages of its
build and the results of its checks. The statement and the SBOM are composed from it, for other
programs; both are called documents here. These files, and signatures of the statement, are the
companions of the wheel. A wheel without a manifest does not count as built. An archive with debug
information may lie beside it, too (see `debug_archive`); it is not delivered with the wheel.
"""

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
STATEMENT_SUFFIX = ".intoto.json"  # how the wheel was built, unsigned (in-toto, SLSA)
SBOM_SUFFIX = ".cdx.json"  # CycloneDX
DOCUMENT_SUFFIXES = (STATEMENT_SUFFIX, SBOM_SUFFIX)
# The three forms of a signed statement.
ENVELOPE_SUFFIX = ".intoto.jsonl"  # signed with a key (DSSE)
BUNDLE_SUFFIX = ".sigstore.json"  # signed with an identity (Sigstore)
PROVENANCE_SUFFIX = ".provenance"  # for clients of indexes (PEP 740)
DEBUG_SUFFIX = ".debuginfo.zip"
SIGNATURE_SUFFIXES = (ENVELOPE_SUFFIX, BUNDLE_SUFFIX, PROVENANCE_SUFFIX)


def find_wheel(dist: Path, expected: PlannedWheel, *, contained: bool = False) -> Path:
    """Return the path of a planned wheel in `dist`; the wheel need not be built yet.

    The final platform tag may be known only after the build. Then this is the most recently built
    wheel whose manifest has the expected file name as "planned". If there is none, this is the path
    with the expected file name, which has the newest tag that is possible.

    `contained` says that the wheel is built in a container. Then any manylinux tag in "planned"
    matches, because it follows from the container's glibc and not from this machine's.
    """
    planned = dist / expected.file_name
    if not expected.tag_is_upper_bound:
        return planned
    stem = glob.escape(expected.stem)
    pattern = glob.escape(expected.file_name)
    if contained:
        pattern = f"{stem}manylinux_*_{expected.build.arch}.whl"
    # "planned" has the tag of the plan; the file's own name has the tag that its symbols allow.
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
    """Return the path of a wheel's companion with this suffix."""
    return wheel.with_name(f"{wheel.name}{suffix}")


def companion_paths(wheel: Path) -> tuple[Path, ...]:
    """Return the paths of all companions that a wheel may have.

    The manifest is the first, so that those who remove the files in this order begin with it: an
    interrupted removal then leaves a wheel that does not count as built.
    """
    suffixes = (MANIFEST_SUFFIX, *DOCUMENT_SUFFIXES, *SIGNATURE_SUFFIXES)
    return tuple(document_path(wheel, suffix) for suffix in suffixes)


def read_manifest(wheel: Path) -> dict[str, Any]:
    """Return the manifest of a wheel; an empty one if the file is missing or unreadable."""
    return load_object(manifest_path(wheel))


def proven_commit(manifest: Mapping[str, Any]) -> str:
    """Return the commit that a wheel is proven to be built from, unchanged; "" if it is not known.

    A commit is proven if the source's files were compared with its objects in git. "edits" are the
    files that a user changed after that.
    """
    # In other formats of the manifest "commit" may be a commit that was declared, not proven.
    if formats.judge_format(manifest, formats.MANIFEST) != "same" or manifest.get("edits"):
        return ""
    return str(manifest.get("commit") or "")


def compose_documents(manifest: Mapping[str, Any], wheel: Path) -> dict[str, bytes]:
    """Return the statement and the SBOM of a wheel, by suffix.

    The same manifest and wheel give the same bytes, on any machine and at any time.
    """
    # These modules are slow to load, and are not needed if the wheel is up to date.
    from millpress import record_file

    from torchmill.wheel import sbom, statement

    plain_manifest = json.loads(_manifest_text(manifest))
    metadata = record_file.read_dist_info_file(wheel, "METADATA") or b""
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
    *,
    debug_archive: Path | None = None,
) -> None:
    """Move a verified wheel, `packed`, to the path `wheel` in dist/, with its companions.

    `documents` are its statement and SBOM by suffix. Each file appears whole. Earlier companions at
    that path are removed, its signatures, too. `replaced` is the earlier wheel of the same cell,
    which is removed. Its name differs from the new wheel's if its platform tag does.
    `debug_archive` is moved with the wheel; without one, an archive that is beside the wheel stays
    only if it is of a wheel with the same bytes, or of a newer format.
    """
    wheel.parent.mkdir(parents=True, exist_ok=True)
    files = {document_path(wheel, suffix): content for suffix, content in (documents or {}).items()}
    # Files are renamed in the order of this mapping. The manifest is the last, because it is read
    # as the mark that all files are in place.
    files[manifest_path(wheel)] = _manifest_text(manifest).encode()
    for file, content in files.items():
        _temporary_path(file).write_bytes(content)
    # Before anything is removed, because the disk of dist/ may be too full for the wheel.
    move_file(packed, _temporary_path(wheel))
    archive = document_path(wheel, DEBUG_SUFFIX)
    if debug_archive is not None:
        move_file(debug_archive, archive)
    elif not _may_be_archive_of(archive, manifest):
        archive.unlink(missing_ok=True)
    # If the next lines are interrupted, a wheel without a manifest is only built again, but a new
    # wheel beside an old manifest would be taken for the old one.
    _remove_companions(wheel)
    for file in (wheel, *files):
        _temporary_path(file).replace(file)
    if replaced is not None and replaced != wheel:
        _remove_companions(replaced)
        document_path(replaced, DEBUG_SUFFIX).unlink(missing_ok=True)
        replaced.unlink(missing_ok=True)


def withdraw_wheel(wheel: Path, destination: Path) -> None:
    """Move a wheel out of dist/ to the path `destination`, and remove the files beside it.

    For a wheel that must be verified again: until then nobody may take it from dist/. Its archive
    with debug information moves along.
    """
    destination.parent.mkdir(parents=True, exist_ok=True)
    move_file(wheel, destination)
    _remove_companions(wheel)
    archive = document_path(wheel, DEBUG_SUFFIX)
    if archive.is_file():
        move_file(archive, document_path(destination, DEBUG_SUFFIX))


def _may_be_archive_of(archive: Path, manifest: Mapping[str, Any]) -> bool:
    """Tell whether an archive with debug information is of the wheel that a manifest describes.

    True also for an archive of a newer format, of which this torchmill cannot tell.
    """
    if not archive.is_file():
        return False
    from torchmill.wheel import debug_archive  # slow to load, and rarely needed

    return debug_archive.may_belong_to(archive, str(manifest.get("sha256")))


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
    """Return a path or dataclass in a manifest as JSON can hold it.

    Raises TypeError for any other value.
    """
    if isinstance(value, Path):
        return str(value)
    return asdict(value)


def move_file(file: Path, destination: Path) -> None:
    """Move a file, also to another disk (dist/ may be on one); it appears whole.

    A file at the destination is replaced.
    """
    try:
        file.replace(destination)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        with fresh_path(destination) as copy:
            shutil.copy2(file, copy)
            copy.replace(destination)
        file.unlink()
