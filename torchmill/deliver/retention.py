"""Keep the newest releases: tell which wheels are older, and remove published ones.

Releases are counted for each kind of wheel by itself: the same package, variant, Python and
platform. Pre-releases, such as release candidates, are a kind of their own, so that they do not
count as newer releases than a final one. A place is a target of `invoke publish` from which files
can be removed.
"""

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from millpress import wheel_file
from millpress.errors import WheelError
from packaging.version import Version

from torchmill.core.errors import TorchmillError, require_count
from torchmill.core.strict_json import parse_json_object
from torchmill.core.system_errors import report_unwritable
from torchmill.deliver.agreement import DOCUMENT_ERRORS
from torchmill.deliver.publish.upload_set import PublishTarget, StoredFile
from torchmill.wheel import dist_files, statement
from torchmill.wheel.finished_wheel import FinishedWheel

# Nobody keeps more releases than this: a larger number was meant as something else.
_MAX_RELEASES = 1000

# The part of a platform tag that names the oldest system: "manylinux_2_28", "macosx_11_0". It is
# cut down to its first word, because a newer build that needs a newer system is of the same kind.
_SYSTEM = re.compile(r"(?:many)?(linux|musllinux|macosx)_?\d+(?:_\d+)?(?=_)")

# The suffixes of a wheel and the files beside it, in the order of removal. The statement proves
# that the other files were published by torchmill, so it goes last: a run that was stopped halfway
# can then be repeated.
_SUFFIXES = (
    "",
    dist_files.MANIFEST_SUFFIX,
    *dist_files.SIGNATURE_SUFFIXES,
    *(suffix for suffix in dist_files.DOCUMENT_SUFFIXES if suffix != dist_files.STATEMENT_SUFFIX),
    dist_files.STATEMENT_SUFFIX,
)


class WheelKind(NamedTuple):
    """The properties that wheels have in common if their releases are counted together."""

    package: str
    variant: str | None  # the local label of the version: "cu118"
    is_prerelease: bool
    # Interpreter, ABI and system of each tag: ("cp310", "cp310", "linux_x86_64").
    platforms: frozenset[tuple[str, str, str]]


def parse_keep(text: str) -> int:
    """Return the number of releases that --keep gives; 0 without the option: all are kept.

    Raises ConfigError for anything but a number from 1 to 1000.
    """
    if not text:
        return 0
    return require_count("--keep", text, least=1, most=_MAX_RELEASES, code="invalid-keep")


def _parse_release(wheel_name: str) -> tuple[WheelKind, Version]:
    """Return the kind and the version of a wheel, from the name of its file.

    Raises WheelError if that is not the name of a wheel.
    """
    file_name = wheel_file.parse_file_name(Path(wheel_name))
    version = file_name.version
    platforms = set()
    for tag in file_name.tags:
        platforms.add((tag.interpreter, tag.abi, _SYSTEM.sub(r"\1", tag.platform)))
    kind = WheelKind(
        package=file_name.project,
        variant=version.local,
        is_prerelease=version.is_prerelease,
        platforms=frozenset(platforms),
    )
    return kind, version


def older_wheels(wheel_names: Iterable[str], keep: int, yanked: Collection[str] = ()) -> list[str]:
    """Return the names of the wheels that are older than the newest `keep` releases of their kind.

    The list is empty if `keep` is 0. The wheels in `yanked` do not count as one of the `keep`
    releases, but older ones of them are returned, too. Raises WheelError for a name that is no
    wheel's.
    """
    if not keep:
        return []
    kinds: dict[WheelKind, dict[str, Version]] = defaultdict(dict)
    for wheel_name in wheel_names:
        kind, version = _parse_release(wheel_name)
        kinds[kind][wheel_name] = version
    older = []
    for versions in kinds.values():
        counted = {version for name, version in versions.items() if name not in yanked}
        if len(counted) < keep:  # all releases of this kind are among the newest
            continue
        oldest_kept = sorted(counted, reverse=True)[keep - 1]
        older += [name for name, version in versions.items() if version < oldest_kept]
    return sorted(older)


class RetentionPlan(NamedTuple):
    """The changes after which a place has the newest releases of each kind of wheel."""

    recent: list[FinishedWheel]  # to publish
    too_old: list[str]  # file names of wheels that are not published
    stale: list[StoredFile]  # files of older releases to remove, in this order


def plan_retention(
    target: PublishTarget, wheels: Sequence[FinishedWheel], keep: int
) -> RetentionPlan:
    """Return what to publish and to remove, so that a place has the newest `keep` releases.

    Releases are counted for each kind of the `wheels`, which are to be published; with 0 all are
    kept. Raises TorchmillError if the place cannot be read.
    """
    if not keep:
        return RetentionPlan(list(wheels), [], [])
    names = {wheel.path.name for wheel in wheels}
    kinds = {_parse_release(name)[0] for name in names}
    published = _find_published(target, kinds)
    old = older_wheels(names | published.keys(), keep)
    stale = []
    for wheel_name in old:
        stale += published.get(wheel_name, [])
    return RetentionPlan(
        recent=[wheel for wheel in wheels if wheel.path.name not in old],
        too_old=sorted(names.intersection(old) - published.keys()),
        stale=stale,
    )


def _find_published(
    target: PublishTarget, kinds: Collection[WheelKind]
) -> dict[str, list[StoredFile]]:
    """Return the stored files of wheels that torchmill published, of some kinds, by wheel.

    The files of a wheel are in the order in which they are to be removed.
    """
    sets: dict[str, dict[str, StoredFile]] = defaultdict(dict)
    for file in target.stored_files():
        # "torch-….whl.cdx.json" is the wheel "torch-….whl" and the suffix ".cdx.json".
        stem, extension, suffix = file.name.rpartition(".whl")
        wheel_name = stem + extension
        if suffix not in _SUFFIXES:
            continue
        try:
            kind, _ = _parse_release(wheel_name)
        except WheelError:  # not the name of a wheel
            continue
        if kind in kinds:
            sets[wheel_name][suffix] = file
    published = {}
    for wheel_name, files in sets.items():
        if _is_published(wheel_name, files):
            published[wheel_name] = [files[suffix] for suffix in _SUFFIXES if suffix in files]
    return published


def _is_published(wheel_name: str, files: Mapping[str, StoredFile]) -> bool:
    """Tell if torchmill published a wheel: its statement is torchmill's and names its bytes.

    `files` are the wheel and the files beside it, by suffix. The wheel itself may be gone, if an
    earlier removal was stopped.
    """
    try:
        content = b"".join(files[dist_files.STATEMENT_SUFFIX].read())
        document: Any = parse_json_object(content)
        [subject] = document["subject"]
        if "" in files:
            sha256 = files[""].digest()
        else:
            sha256 = subject["digest"]["sha256"]
        build_type = document["predicate"]["buildDefinition"]["buildType"]
    except (*DOCUMENT_ERRORS, OSError):
        return False
    if build_type != statement.BUILD_TYPE:
        return False
    return bool(subject == {"name": wheel_name, "digest": {"sha256": sha256}})


def remove_files(files: Sequence[StoredFile]) -> None:
    """Remove files from a place, after everything was uploaded to it.

    If a removal fails, its TorchmillError also says that, and names the files that were removed
    before.
    """
    removed: list[str] = []
    for file in files:
        try:
            with report_unwritable(Path(file.name)):
                file.remove()
        except TorchmillError as error:
            names = ", ".join(removed) or "nothing"
            # Not a new error: the constructors of some classes take other arguments.
            error.args = (f"{error} (everything is uploaded; removed: {names})",)
            raise
        removed.append(file.name)
