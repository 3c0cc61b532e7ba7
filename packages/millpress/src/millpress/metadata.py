"""Edit and normalize what a staged wheel declares in METADATA and WHEEL.

METADATA has headers, as mail has, and after an empty line the description of the project. WHEEL has
headers only.

Resolvers read the metadata of one wheel of a version and take it for all, so all must declare the
same, in one spelling, whatever Python and tools built them.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from email.parser import HeaderParser
from itertools import product
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import (
    InvalidWheelFilename,
    canonicalize_name,
    canonicalize_version,
)
from packaging.version import Version

from millpress import file_names, staging
from millpress.dependencies import project_of
from millpress.errors import InputError
from millpress.staging import StagedWheel, invalid_raw_wheel, read_headers

PYTHON_CLASSIFIER = re.compile(r"Classifier:\s*Programming Language :: Python :: 3\.\d+\s*")
# These come last and in this order: older tools had other orders.
TRAILING_HEADERS = ("Requires-Python", "Provides-Extra", "Requires-Dist")
GIT_VERSION = re.compile(r"^(?P<assignment>git_version\b[^=\n]*=)[^\n]*$", re.MULTILINE)
LICENCE_FILES_VERSION = Version("2.4")  # of METADATA, the first with License-File (PEP 639)


class _FileNameTags(NamedTuple):
    """The tags in a wheel's file name: the wheel is for each combination of them."""

    pythons: list[str]  # ["py2", "py3"] of "py2.py3"
    abis: list[str]
    platforms: list[str]


def set_platform_tag(staged: StagedWheel, platform_tag: str) -> str:
    """Write `platform_tag` into WHEEL and return the wheel's file name.

    The raw wheel's interpreter and ABI stay. `platform_tag` may be several tags joined by dots, as
    in a file name. WHEEL then declares the wheel as one with compiled modules, even if the build
    forgot to (`Root-Is-Purelib: false`). Raises InputError if the raw wheel's name has no tags.
    """
    path = staged.dist_info / "WHEEL"
    headers = read_headers(path)
    # deleted and set anew, so that there is one of each, and the tags come last
    del headers["Tag"]
    del headers["Root-Is-Purelib"]
    headers["Root-Is-Purelib"] = "false"
    tags = _raw_tags(staged)._replace(platforms=platform_tag.split("."))
    # WHEEL has a line for each combination of the tags
    for python, abi, platform in product(tags.pythons, tags.abis, tags.platforms):
        headers["Tag"] = f"{python}-{abi}-{platform}"
    text = "".join(f"{name}: {value}\n" for name, value in headers.items())
    path.write_text(text, encoding="utf-8", newline="\n")
    return wheel_file_name(staged, platform_tag)


def wheel_file_name(staged: StagedWheel, platform_tag: str) -> str:
    """Return the file name of the staged wheel for `platform_tag`, which may be several tags.

    A variant wheel keeps its label.
    """
    tags = _raw_tags(staged)._replace(platforms=[platform_tag])
    plain_name, variant = file_names.split_label(staged.raw_name)
    build = _build_number(plain_name)
    name = _join_file_name(staged.name, staged.version, build, tags)
    return file_names.with_label(name, variant)


def tree_file_name(tree: Path) -> str:
    """Return the file name of the wheel that the folder `tree` becomes, by its METADATA and WHEEL.

    Raises InputError if one of them is missing, or names no project, version or tag, and for the
    tree of a variant wheel, whose label only its file name has.
    """
    dist_info = staging.find_dist_info(tree, str(tree))
    if (dist_info / file_names.VARIANT_FILE).exists():
        problem = "it is a variant's tree, which does not say the label of the wheel's name"
        raise InputError(f"{tree}: {problem}: call `pack_wheel`", code="variant-without-label")
    metadata = read_headers(dist_info / "METADATA")
    headers = read_headers(dist_info / "WHEEL")
    combinations = [tag.strip().split("-") for tag in headers.get_all("Tag", [])]
    name = metadata.get("Name")
    version = metadata.get("Version")
    if not name or not version:
        raise invalid_raw_wheel(tree, "METADATA has no Name or no Version")
    tag_parts = len(_FileNameTags._fields)
    if not combinations or any(len(parts) != tag_parts for parts in combinations):
        raise invalid_raw_wheel(tree, "WHEEL has no valid Tag")
    build = headers.get("Build", "").strip()
    # WHEEL lists each combination: "py2.py3-none-any" is there as "py2-none-any" and
    # "py3-none-any". The name has each Python, ABI and platform once.
    pythons, abis, platforms = (
        list(dict.fromkeys(column)) for column in zip(*combinations, strict=True)
    )
    return _join_file_name(name, version, build, _FileNameTags(pythons, abis, platforms))


def _join_file_name(name: str, version: str, build: str, tags: _FileNameTags) -> str:
    """Return the file name of a wheel; `build` is its build number, or "" (PEP 427)."""
    parts = [_file_name_stem(name, version)]
    if build:
        parts.append(build)
    parts += [".".join(tags.pythons), ".".join(tags.abis), ".".join(tags.platforms)]
    return f"{'-'.join(parts)}.whl"


def _file_name_stem(name: str, version: str) -> str:
    """Return the name and version as they begin the names of a wheel and of its .dist-info."""
    escaped_name = canonicalize_name(name).replace("-", "_")
    escaped_version = version.replace("-", "_")
    return f"{escaped_name}-{escaped_version}"


def set_git_version(staged: StagedWheel, file: str, commit: str) -> None:
    """Write the commit into the generated module `file` ("torch/version.py").

    Sources without git leave "Unknown" there. Raises InputError unless one line sets `git_version`.
    """
    path = staged.root / file
    text = ""
    if path.is_file():
        # Old sources are in other encodings: bytes that are not UTF-8 are written back unchanged.
        text = path.read_text(encoding="utf-8", errors="surrogateescape")
    edited, count = GIT_VERSION.subn(rf"\g<assignment> '{commit}'", text)
    if count != 1:
        problem = f"{file} has {count} lines that set git_version, not one"
        raise InputError(f"{staged.raw_name}: {problem}: build it again", code="no-version-module")
    path.write_text(edited, encoding="utf-8", errors="surrogateescape", newline="\n")


def stamp_version(staged: StagedWheel, version: str, base: str | None) -> StagedWheel:
    """Write a version and the requirement on the base package into a wheel; return the wheel anew.

    Some builds take neither of them as an option. `version` has the local label ("0.26.0+cu130").
    `base` is a requirement such as "torch==2.11.0+cu130", which replaces all others on that
    package, or None. Other requirements stay, those that `packaging` cannot parse included. The
    folders .dist-info and .data get names with the version. Raises InputError if the source is of
    another release than `version`.
    """
    public = Version(version).public
    staged_public = staged.version.partition("+")[0]
    if canonicalize_version(staged_public, strip_trailing_zero=False) != public:
        problem = f"the source is of version {staged.version}, not {public}"
        raise InputError(
            f"{staged.raw_name}: {problem}: fetch {public}", code="wrong-source-version"
        )
    base_project = None if base is None else project_of(base)

    def stamp(head: str) -> str:
        """Return the headers with the new version and requirement."""
        headers = []
        for header in _split_headers(head):
            name, _, value = header.partition(":")
            requirement = " ".join(value.split())  # in one line
            is_on_base = name == "Requires-Dist" and project_of(requirement) == base_project
            if name == "Version":
                headers.append(f"Version: {version}")
            elif not is_on_base:
                headers.append(header)
        if base is not None:
            headers.append(f"Requires-Dist: {base}")
        return "\n".join(headers)

    _edit_headers(staged, stamp)
    stem = _file_name_stem(staged.name, version)
    data = staged.dist_info.with_suffix(".data")  # of scripts and headers; few wheels have one
    if data.exists():
        data.rename(staged.root / f"{stem}.data")
    dist_info = staged.dist_info.rename(staged.root / f"{stem}.dist-info")
    return replace(staged, dist_info=dist_info, version=version)


def normalize_metadata(staged: StagedWheel, pythons: Iterable[str]) -> None:
    """Rewrite METADATA with `normalize_headers`, and list the wheel's licence files in it."""

    def normalize(head: str) -> str:
        return normalize_headers(_set_license_files(staged, head), pythons)

    _edit_headers(staged, normalize)


def _set_license_files(staged: StagedWheel, head: str) -> str:
    """Return the headers of METADATA, with a License-File for each file in .dist-info/licenses/.

    The build puts the project's licences there, and `licences` those of bundled libraries. Headers
    of a metadata version that has no such field are returned unchanged.
    """
    version = HeaderParser().parsestr(head).get("Metadata-Version", "1")
    if Version(version) < LICENCE_FILES_VERSION:
        return head
    folder = staged.dist_info / "licenses"
    files = []
    for path in folder.rglob("*"):
        if path.is_file():
            files.append(path.relative_to(folder).as_posix())
    headers = []
    for header in _split_headers(head):
        if not header.startswith("License-File:"):
            headers.append(header)
    for file in sorted(files):
        headers.append(f"License-File: {file}")
    return "\n".join(headers)


def normalize_headers(head: str, pythons: Iterable[str]) -> str:
    """Return the headers of METADATA in one spelling and order.

    Requirements are spelled as `packaging` does. If classifiers name Pythons, they name all of
    `pythons` ("3.10", "3.13t"), which the release supports: a setup.py may name only the Python
    that runs it.
    """
    fields = []
    for header in _split_headers(head):
        # Old setuptools wrote "UNKNOWN" for a field that the project leaves empty.
        if header != "Platform: UNKNOWN":
            fields.append(_normalize_header(header))
    trailing: list[str] = []
    for name in TRAILING_HEADERS:
        trailing += [field for field in fields if field.startswith(f"{name}:")]
    old_classifiers = [field for field in fields if PYTHON_CLASSIFIER.fullmatch(field)]
    versions = sorted({python.rstrip("t") for python in pythons}, key=Version)
    new_classifiers = []
    for version in versions:
        new_classifiers.append(f"Classifier: Programming Language :: Python :: {version}")
    leading: list[str] = []
    has_classifiers = False
    for field in fields:
        if field in old_classifiers:
            # all new ones at the place of the first old one
            if not has_classifiers:
                leading += new_classifiers or old_classifiers
            has_classifiers = True
        elif field not in trailing:
            leading.append(field)
    return "\n".join(leading + trailing)


def wheel_requirements(staged: StagedWheel) -> list[str]:
    """Return the valid requirements of the wheel, as METADATA spells them."""
    lines = read_headers(staged.dist_info / "METADATA").get_all("Requires-Dist", [])
    return [line for line in lines if project_of(line)]


def _edit_headers(staged: StagedWheel, edit: Callable[[str], str]) -> None:
    """Replace the headers of METADATA by the text that `edit` returns for them.

    The description stays as it is.
    """
    path = staged.dist_info / "METADATA"
    head, blank, description = path.read_text(encoding="utf-8").partition("\n\n")
    if not blank:  # no description: the last header ends with one newline
        blank = "\n"
    text = edit(head.rstrip("\n")) + blank + description
    path.write_text(text, encoding="utf-8", newline="\n")


def _split_headers(head: str) -> list[str]:
    """Return the headers, each with its continuation lines, which begin with a space or a tab."""
    return re.split(r"\n(?![ \t])", head)


def _raw_tags(staged: StagedWheel) -> _FileNameTags:
    """Return the tags in the raw wheel's name. Raises InputError if that is not a wheel's name."""
    try:
        file_names.parse_name(staged.raw_name)
    except InvalidWheelFilename as error:
        raise invalid_raw_wheel(staged.raw_name, f"not the name of a wheel ({error})") from None
    # the last three parts of a name; some tools write the same tag twice into one of them
    plain_name, _ = file_names.split_label(staged.raw_name)
    last_parts = plain_name.removesuffix(".whl").split("-")[-3:]
    pythons, abis, platforms = (list(dict.fromkeys(part.split("."))) for part in last_parts)
    return _FileNameTags(pythons, abis, platforms)


def _build_number(file_name: str) -> str:
    """Return the build number in the valid name of a plain wheel, "" if it has none."""
    parts = file_name.split("-")
    return parts[2] if len(parts) == 6 else ""  # noqa: PLR2004 - five without a build number


def _normalize_header(field: str) -> str:
    """Return a header as `packaging` spells it.

    A header that `packaging` cannot parse stays as it is: old setuptools wrote some of this kind.
    """
    name, _, value = field.partition(":")
    try:
        if name == "Requires-Dist":
            return f"{name}: {Requirement(value.strip())}"
        if name == "Requires-Python":
            # backwards, so that the lower limit comes first: ">=3.10,<4"
            specifiers = sorted(map(str, SpecifierSet(value.strip())), reverse=True)
            return f"{name}: {','.join(specifiers)}"
    except (InvalidRequirement, InvalidSpecifier):
        return field
    if name == "Provides-Extra":
        return f"{name}: {canonicalize_name(value.strip())}"
    return field
