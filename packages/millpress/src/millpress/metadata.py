"""Edit, normalize and compare what a wheel declares in METADATA and WHEEL.

Resolvers read the metadata of one wheel of a version and take it for all, so all must declare the same, in
one spelling, whatever Python and tools built them.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from email.parser import HeaderParser
from itertools import product

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import (
    InvalidWheelFilename,
    canonicalize_name,
    canonicalize_version,
    parse_wheel_filename,
)
from packaging.version import Version

from millpress.dependencies import project_of
from millpress.errors import InputError
from millpress.staging import StagedWheel, invalid_raw_wheel, read_headers

PYTHON_CLASSIFIER = re.compile(r"Classifier:\s*Programming Language :: Python :: 3\.\d+\s*")
TRAILING_HEADERS = (
    "Requires-Python",
    "Provides-Extra",
    "Requires-Dist",
)  # older tools had another order
GIT_VERSION = re.compile(r"^(?P<name>git_version\b[^=\n]*=)[^\n]*$", re.MULTILINE)


def set_platform_tag(staged: StagedWheel, platform_tag: str) -> str:
    """Write `platform_tag`, or each of several that a name has with dots between, into WHEEL; return the wheel's name.

    The raw wheel's interpreter and ABI stay. Raises InputError where its name has none.
    """
    path = staged.dist_info / "WHEEL"
    message = read_headers(path)
    for field in ("Tag", "Root-Is-Purelib"):
        del message[field]
    message["Root-Is-Purelib"] = "false"
    for tag in product(*_interpreter_tags(staged), platform_tag.split(".")):
        message["Tag"] = "-".join(tag)
    path.write_text(
        "".join(f"{name}: {value}\n" for name, value in message.items()),
        encoding="utf-8",
        newline="\n",
    )
    return wheel_file_name(staged, platform_tag)


def wheel_file_name(staged: StagedWheel, platform_tag: str) -> str:
    """Return the file name of the wheel for `platform_tag`."""
    pythons, abis = _interpreter_tags(staged)
    name = canonicalize_name(staged.name).replace("-", "_")
    version = staged.version.replace("-", "_")
    return f"{name}-{version}-{'.'.join(pythons)}-{'.'.join(abis)}-{platform_tag}.whl"


def set_git_version(staged: StagedWheel, file: str, commit: str) -> None:
    """Write the commit into the generated module `file` ("torch/version.py").

    Sources without git leave "Unknown" there. Raises InputError where the file has no line for it.
    """
    path = staged.root / file
    # Old sources are in other encodings: bytes that are no UTF-8 are written back as they are.
    text = path.read_text(encoding="utf-8", errors="surrogateescape") if path.is_file() else ""
    edited, count = GIT_VERSION.subn(rf"\g<name> '{commit}'", text)
    if count != 1:
        problem = f"{file} has {count} lines that set git_version, not one"
        raise InputError(f"{staged.raw_name}: {problem}: build it again", code="no-version-module")
    path.write_text(edited, encoding="utf-8", errors="surrogateescape", newline="\n")


def stamp_version(staged: StagedWheel, version: str, base: str | None) -> StagedWheel:
    """Write the full version, and the package under it, into a wheel whose build takes neither.

    `version` has the local label; `base` is a requirement such as "torch==2.11.0+cu130" that replaces
    others on that package. Raises InputError where the source is of another release.
    """
    public = Version(version).public
    if canonicalize_version(staged.version.partition("+")[0], strip_trailing_zero=False) != public:
        problem = f"the source is of version {staged.version}, not {public}"
        raise InputError(
            f"{staged.raw_name}: {problem}: fetch {public}", code="wrong-source-version"
        )
    project = canonicalize_name(Requirement(base).name) if base else None

    def stamp(head: str) -> str:
        lines = head.split("\n")
        if project is not None:
            lines = [
                line for line in lines if project_of(line.removeprefix("Requires-Dist:")) != project
            ]
        lines = [f"Version: {version}" if line.startswith("Version:") else line for line in lines]
        return "\n".join([*lines, *([f"Requires-Dist: {base}"] if base else [])])

    _edit_headers(staged, stamp)
    stem = f"{canonicalize_name(staged.name).replace('-', '_')}-{version}"
    info = staged.dist_info.rename(staged.root / f"{stem}.dist-info")
    for data in staged.root.glob("*.data"):
        data.rename(staged.root / f"{stem}.data")
    return replace(staged, dist_info=info, version=version)


def normalize_metadata(staged: StagedWheel, pythons: Iterable[str]) -> None:
    """Rewrite the METADATA of a staged wheel with `normalize_headers`, and name the licence files that it has."""
    _edit_headers(
        staged, lambda head: normalize_headers(_name_licence_files(staged, head), pythons)
    )


def _name_licence_files(staged: StagedWheel, head: str) -> str:
    """Return the headers with each file in licenses/, where they are of a version that names them (PEP 639)."""
    version = HeaderParser().parsestr(head).get("Metadata-Version", "1")
    if Version(version) < Version("2.4"):
        return head
    folder = staged.dist_info / "licenses"
    files = sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )
    lines = [line for line in head.split("\n") if not line.startswith("License-File:")]
    return "\n".join([*lines, *(f"License-File: {file}" for file in files)])


def normalize_headers(head: str, pythons: Iterable[str]) -> str:
    """Return the headers of METADATA in one spelling and order.

    Requirements are spelled as `packaging` does. Where classifiers name Pythons, they name those that the
    release supports: a setup.py may name only the one that runs it.
    """
    split = re.split(r"\n(?![ \t])", head)  # each header with its continuation lines
    fields = [_normalize_header(field) for field in split if field != "Platform: UNKNOWN"]
    trailing = tuple(f"{name}:" for name in TRAILING_HEADERS)
    last = [field for name in trailing for field in fields if field.startswith(name)]
    named = [field for field in fields if PYTHON_CLASSIFIER.fullmatch(field)]
    versions = sorted({python.rstrip("t") for python in pythons}, key=Version)
    ours = [f"Classifier: Programming Language :: Python :: {version}" for version in versions]
    first: list[str] = []
    for field in fields:
        if named and field == named[0]:
            first += ours or named
        elif field not in named and not field.startswith(trailing):
            first.append(field)
    return "\n".join([*first, *last])


def wheel_requirements(staged: StagedWheel) -> list[str]:
    """Return the valid requirements of the wheel, as METADATA spells them."""
    lines = read_headers(staged.dist_info / "METADATA").get_all("Requires-Dist", [])
    return [line for line in lines if project_of(line)]


def _edit_headers(staged: StagedWheel, edit: Callable[[str], str]) -> None:
    """Rewrite METADATA with other headers, and the description as it is."""
    path = staged.dist_info / "METADATA"
    head, blank, text = path.read_text(encoding="utf-8").partition("\n\n")
    # without a description, the last header ends with a newline
    path.write_text(
        edit(head.rstrip("\n")) + (blank or "\n") + text, encoding="utf-8", newline="\n"
    )


def _interpreter_tags(staged: StagedWheel) -> list[list[str]]:
    """Return the Pythons and ABIs in the raw wheel's name: ["cp310"], ["cp310"]."""
    try:
        parse_wheel_filename(staged.raw_name)
    except InvalidWheelFilename as error:
        raise invalid_raw_wheel(staged.raw_name, f"not the name of a wheel ({error})") from None
    return [list(dict.fromkeys(part.split("."))) for part in staged.raw_name.split("-")[-3:-1]]


def _normalize_header(field: str) -> str:
    name, _, value = field.partition(":")
    try:
        if name == "Requires-Dist":
            return f"{name}: {Requirement(value.strip())}"
        if name == "Requires-Python":
            return (
                f"{name}: {','.join(sorted(map(str, SpecifierSet(value.strip())), reverse=True))}"
            )
    except (
        InvalidRequirement,
        InvalidSpecifier,
    ):  # old setuptools wrote some that nothing parses any more
        return field
    return f"{name}: {canonicalize_name(value.strip())}" if name == "Provides-Extra" else field
