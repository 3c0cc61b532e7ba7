"""METADATA in one spelling: all wheels of a version say the same, whatever Python and tools made them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from email.message import Message
from itertools import product

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from torchmill.core.errors import BuildError
from torchmill.wheel.pack.staging import StagedWheel, read_headers

PYTHON_CLASSIFIER = re.compile(r"Programming Language :: Python :: 3\.\d+")
TRAILING_HEADERS = (
    "Requires-Python",
    "Provides-Extra",
    "Requires-Dist",
)  # in this order, as older tools did not


def normalize_metadata(staged: StagedWheel, pythons: Iterable[str]) -> None:
    """Write the METADATA of a staged wheel as `unified` has it."""
    path = staged.dist_info / "METADATA"
    head, blank, text = path.read_text(encoding="utf-8").partition("\n\n")
    whole = normalize_headers(
        head.rstrip("\n"), pythons
    )  # without a text, the last header ends in a line's end
    path.write_text(whole + (blank or "\n") + text, encoding="utf-8", newline="\n")


def normalize_headers(head: str, pythons: Iterable[str]) -> str:
    """Return the headers of METADATA in one spelling and order.

    Requirements are spelled as `packaging` does. Where classifiers name Pythons, those that the release
    supports are named: a setup.py may name the one that runs it.
    """
    fields = [_normalize_header(field) for field in _split_headers(head) if field != "Platform: UNKNOWN"]
    first = [
        field for field in fields if not field.startswith(tuple(f"{name}:" for name in TRAILING_HEADERS))
    ]
    last = [field for name in TRAILING_HEADERS for field in fields if field.startswith(f"{name}:")]
    return "\n".join([*_with_python_classifiers(first, pythons), *last])


def _split_headers(head: str) -> Iterator[str]:
    """Yield each header with the lines that continue it."""
    field: list[str] = []
    for line in head.split("\n"):
        if field and not line.startswith((" ", "\t")):
            yield "\n".join(field)
            field = []
        field.append(line)
    if field:
        yield "\n".join(field)


def _normalize_header(field: str) -> str:
    name, _, value = field.partition(":")
    try:
        if name == "Requires-Dist":
            return f"{name}: {Requirement(value.strip())}"
        if name == "Requires-Python":
            listed = sorted(map(str, SpecifierSet(value.strip())), reverse=True)
            return f"{name}: {','.join(listed)}"
    except (InvalidRequirement, InvalidSpecifier):  # setuptools of old wrote some that no one reads any more
        return field
    return f"{name}: {canonicalize_name(value.strip())}" if name == "Provides-Extra" else field


def _with_python_classifiers(fields: Sequence[str], pythons: Iterable[str]) -> list[str]:
    """Return the fields with a classifier for each of the Pythons in the place of those that name one."""
    named = [field for field in fields if PYTHON_CLASSIFIER.fullmatch(_classifier_value(field))]
    if not named:
        return list(fields)
    numbers = sorted({python.rstrip("t") for python in pythons}, key=Version)
    ours = [f"Classifier: Programming Language :: Python :: {number}" for number in numbers]
    place = fields.index(named[0])
    others = [field for field in fields[place:] if field not in named]
    return [*fields[:place], *(ours or named), *others]


def _classifier_value(field: str) -> str:
    name, _, value = field.partition(":")
    return value.strip() if name == "Classifier" else ""


GIT_VERSION = re.compile(r"^(?P<name>git_version\b[^=\n]*=)[^\n]*$", re.MULTILINE)


def set_platform_tag(staged: StagedWheel, platform_tag: str) -> str:
    """Write `platform_tag` into WHEEL and return the file name of the finished wheel.

    The raw wheel's interpreter and ABI stay. Raise BuildError where its name says none.
    """
    pairs = _interpreter_tags(staged)
    path = staged.dist_info / "WHEEL"
    message = read_headers(path)
    for field in ("Tag", "Root-Is-Purelib"):
        del message[field]
    message["Root-Is-Purelib"] = "false"
    for python, abi in pairs:
        message["Tag"] = f"{python}-{abi}-{platform_tag}"
    lines = "".join(f"{name}: {value}\n" for name, value in message.items())
    path.write_text(lines, encoding="utf-8", newline="\n")
    return wheel_file_name(staged, platform_tag)


def wheel_file_name(staged: StagedWheel, platform_tag: str) -> str:
    """Return the name of the wheel for `platform_tag`."""
    pairs = _interpreter_tags(staged)
    pythons = ".".join(dict.fromkeys(python for python, _ in pairs))
    abis = ".".join(dict.fromkeys(abi for _, abi in pairs))
    name = canonicalize_name(staged.name).replace("-", "_")
    return f"{name}-{staged.version.replace('-', '_')}-{pythons}-{abis}-{platform_tag}.whl"


def set_git_version(staged: StagedWheel, file: str, commit: str) -> None:
    """Make the generated module `file` ("torch/version.py") name the commit it was built from.

    Sources without git leave "Unknown" there. Raise BuildError where the file has no such line.
    """
    path = staged.root / file
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise BuildError(f"{staged.raw_name}: has no {file}: build it again") from None
    edited, count = GIT_VERSION.subn(rf"\g<name> '{commit}'", text)
    if count != 1:
        raise BuildError(
            f"{staged.raw_name}: {file} has {count} lines that set git_version, not one: build it again"
        )
    path.write_text(edited, encoding="utf-8", newline="\n")


def stamp_version(staged: StagedWheel, version: str, base: str | None) -> StagedWheel:
    """Write into a wheel, whose build could not be told, its whole version and the package under it.

    `version` has the local label; `base` is a requirement such as "torch==2.11.0+cu130", and takes the place
    of others on that package. Raise BuildError where the source is of another release.
    """
    public = Version(version).public
    if _public_version(staged.version) != public:
        raise BuildError(
            f"{staged.raw_name}: the source calls itself {staged.version}, but {public} was asked "
            f"for: fetch that"
        )
    about = canonicalize_name(Requirement(base).name) if base else None
    path = staged.dist_info / "METADATA"
    head, blank, text = path.read_text(encoding="utf-8").partition("\n\n")
    lines = [line for line in head.splitlines() if about is None or _required_project(line) != about]
    lines = [f"Version: {version}" if line.startswith("Version:") else line for line in lines]
    lines += [f"Requires-Dist: {base}"] if base else []
    path.write_text("\n".join(lines) + (blank or "\n") + text, encoding="utf-8", newline="\n")
    return _rename_dist_info(staged, version)


def _public_version(version: str) -> str | None:
    try:
        return Version(version).public
    except InvalidVersion:
        return None


def _required_project(line: str) -> str | None:
    """Return the project that a line of METADATA requires."""
    field, _, value = line.partition(":")
    return _project_of(value.strip()) if field == "Requires-Dist" else None


def _rename_dist_info(staged: StagedWheel, version: str) -> StagedWheel:
    """Give the folders that are named after the version the new one's name."""
    stem = f"{canonicalize_name(staged.name).replace('-', '_')}-{version}"
    info = staged.dist_info.rename(staged.root / f"{stem}.dist-info")
    for data in staged.root.glob("*.data"):
        data.rename(staged.root / f"{stem}.data")
    return replace(staged, dist_info=info, version=version)


def wheel_requirements(staged: StagedWheel) -> list[str]:
    """Return all that the wheel requires and that can be read, as METADATA spells it."""
    lines = read_headers(staged.dist_info / "METADATA").get_all("Requires-Dist", [])
    return [line for line in lines if _project_of(line)]


def requirements_of_wheel_on(staged: StagedWheel, name: str) -> list[str]:
    """Return the requirements on the distribution `name`, as METADATA spells them."""
    return requirements_on(read_headers(staged.dist_info / "METADATA"), name)


def requirements_on(metadata: Message, name: str) -> list[str]:
    """Return those `Requires-Dist` of `metadata` that are about `name`."""
    return [
        line for line in metadata.get_all("Requires-Dist", []) if _project_of(line) == canonicalize_name(name)
    ]


def _project_of(requirement: str) -> str | None:
    try:
        return canonicalize_name(Requirement(requirement).name)
    except InvalidRequirement:  # setuptools of old wrote some that no one reads any more
        return None


def _interpreter_tags(staged: StagedWheel) -> list[tuple[str, str]]:
    try:
        parse_wheel_filename(staged.raw_name)
    except InvalidWheelFilename as error:
        raise BuildError(f"{staged.raw_name}: not the name of a wheel ({error}): build it again") from None
    pythons, abis = staged.raw_name.removesuffix(".whl").split("-")[-3:-1]
    return list(product(pythons.split("."), abis.split(".")))


DeclaredNeeds = frozenset[str]


def declared_needs(
    requires_python: str | None, requires: Iterable[str], extras: Iterable[str]
) -> DeclaredNeeds:
    """Return Requires-Python, Requires-Dist and Provides-Extra, so spelled that the same is equal."""
    python = ",".join(sorted("".join((requires_python or "").split()).split(",")))
    lines = {_normalize_requirement(line) for line in requires} | {
        f"extra {canonicalize_name(one)}" for one in extras
    }
    return frozenset(lines | ({f"Python {python}"} if python else set()))


def needs_difference(one: tuple[str, DeclaredNeeds], other: tuple[str, DeclaredNeeds]) -> str:
    """Return a sentence where two wheels, each with its file's name, need different things; else ""."""
    (first, mine), (second, theirs) = one, other
    more, less = sorted(theirs - mine), sorted(mine - theirs)
    parts = [f"also {', '.join(more)}"] if more else []
    parts += [f"not {', '.join(less)}"] if less else []
    if not parts:
        return ""
    return (
        f"{second} says otherwise than {first} what it needs: {', but '.join(parts)}; uv asks one of them, "
        "and believes it of all: build them alike, with markers for what differs"
    )


def _normalize_requirement(line: str) -> str:
    try:
        found = Requirement(line)
    except InvalidRequirement:
        return line
    found.name = canonicalize_name(found.name)
    return str(found)
