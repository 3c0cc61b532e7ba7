"""Which releases are kept: the newest of each package, variant, Python and platform; what a place has of the others."""

import contextlib
import re
from collections import defaultdict
from collections.abc import Collection, Hashable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.version import Version

from torchmill.core.errors import DeliveryError, TorchmillError, require_count
from torchmill.core.files import parse_json_object, report_unwritable
from torchmill.deliver.agreement import DOCUMENT_ERRORS
from torchmill.deliver.publish.upload_set import PublishTarget, StoredFile
from torchmill.wheel import dist_files, statement, wheel_file
from torchmill.wheel.wheel_file import Distribution

_MOST = 1000  # releases; what is meant to be more is no number of them
_SYSTEM = re.compile(
    r"(?:many)?(linux|musllinux|macosx)_?\d+(?:_\d+)?(?=_)"
)  # which system a platform tag needs
# Of a wheel and the files beside it, in the order of removal: the statement, which proves that they are ours, last.
_SUFFIXES = (
    "",
    dist_files.MANIFEST_SUFFIX,
    *dist_files.SIGNATURE_SUFFIXES,
    *reversed(dist_files.DOCUMENT_SUFFIXES),
)


def parse_keep(text: str) -> int:
    """Return how many releases --keep keeps; 0, for all of them, where it is not given. Raises ConfigError."""
    return require_count("--keep", text, 1, _MOST, "invalid-keep") if text else 0


def _parse_release(wheel: str) -> tuple[Hashable, Version]:
    """Return what a file's name says but how new it is or its system must be, and the version."""
    name, version, _, tags = wheel_file.parse_file_name(Path(wheel))
    kinds = frozenset((tag.interpreter, tag.abi, _SYSTEM.sub(r"\1", tag.platform)) for tag in tags)
    return (name, version.local, version.is_prerelease, kinds), version


def older_wheels(wheels: Iterable[str], keep: int, uncounted: Collection[str] = ()) -> list[str]:
    """Return the wheels that are not of the newest `keep` releases of their kind, by versions; none where that is 0.

    Those `uncounted`, which are yanked, are no release of the `keep`.
    """
    kinds: dict[Hashable, dict[str, Version]] = defaultdict(dict)
    for wheel in wheels:
        kind, version = _parse_release(wheel)
        kinds[kind][wheel] = version
    older = []
    for versions in kinds.values():
        counted = sorted(
            {version for wheel, version in versions.items() if wheel not in uncounted}, reverse=True
        )
        if 0 < keep <= len(counted):
            older += [wheel for wheel, version in versions.items() if version < counted[keep - 1]]
    return sorted(older)


def plan_retention(
    target: PublishTarget, wheels: Sequence[Distribution], keep: int
) -> tuple[list[Distribution], list[str], list[StoredFile]]:
    """Return the wheels to publish where the newest `keep` releases stay, those too old for that, and what to remove.

    To remove are the files of older releases of these wheels' kinds. Raises TorchmillError.
    """
    ours = {wheel.path.name for wheel in wheels}
    there = _find_published(target, {_parse_release(wheel)[0] for wheel in ours}) if keep else {}
    old = older_wheels(ours | there.keys(), keep)
    stale = [file for wheel in old for file in there.get(wheel, ())]
    late = sorted(ours.intersection(old) - there.keys())
    return [wheel for wheel in wheels if wheel.path.name not in old], late, stale


def _find_published(
    target: PublishTarget, kinds: Collection[Hashable]
) -> dict[str, list[StoredFile]]:
    """Return the files of the wheels of some kinds that torchmill brought to a place, in the order of removal."""
    sets: dict[str, dict[str, StoredFile]] = defaultdict(dict)
    for file in target.stored_files():
        name, end, suffix = file.name.rpartition(".whl")
        with contextlib.suppress(DeliveryError):  # not the name of a wheel
            if suffix in _SUFFIXES and _parse_release(name + end)[0] in kinds:
                sets[name + end][suffix] = file
    found = {wheel: files for wheel, files in sets.items() if _is_published(wheel, files)}
    return {
        wheel: [files[end] for end in _SUFFIXES if end in files] for wheel, files in found.items()
    }


def _is_published(wheel: str, files: Mapping[str, StoredFile]) -> bool:
    """Tell whether the statement beside a wheel, which may be removed already, is torchmill's and names its bytes."""
    try:
        document: Any = parse_json_object(b"".join(files[dist_files.STATEMENT_SUFFIX].read()))
        [subject] = document["subject"]
        sha256 = files[""].digest() if "" in files else subject["digest"]["sha256"]
        kind = document["predicate"]["buildDefinition"]["buildType"]
        return bool(
            kind == statement.BUILD_TYPE
            and subject == {"name": wheel, "digest": {"sha256": sha256}}
        )
    except (*DOCUMENT_ERRORS, OSError):
        return False


def remove_files(files: Sequence[StoredFile]) -> None:
    """Remove files from a place to which all is uploaded. Raises TorchmillError that names those that are gone."""
    for number, file in enumerate(files):
        try:
            with report_unwritable(Path(file.name)):
                file.remove()
        except TorchmillError as error:
            gone = ", ".join(one.name for one in files[:number]) or "nothing"
            raise type(error)(
                f"{error} (everything is uploaded; removed: {gone})", code=error.code
            ) from None
