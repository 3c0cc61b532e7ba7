"""Edit and read what a staged wheel says of itself."""

from __future__ import annotations

import re
from dataclasses import replace
from email.message import Message
from itertools import product

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from torchmill.errors import BuildError
from torchmill.pack.stage import StagedWheel, headers

GIT_VERSION = re.compile(r"^(?P<name>git_version\b[^=\n]*=)[^\n]*$", re.MULTILINE)


def set_platform(staged: StagedWheel, platform_tag: str) -> str:
    """Write `platform_tag` into WHEEL and return the file name of the finished wheel.

    The raw wheel's interpreter and ABI stay. Raise BuildError where its name says none.
    """
    pairs = _interpreter_tags(staged)
    path = staged.dist_info / "WHEEL"
    message = headers(path)
    for field in ("Tag", "Root-Is-Purelib"):
        del message[field]
    message["Root-Is-Purelib"] = "false"
    for python, abi in pairs:
        message["Tag"] = f"{python}-{abi}-{platform_tag}"
    lines = "".join(f"{name}: {value}\n" for name, value in message.items())
    path.write_text(lines, encoding="utf-8", newline="\n")
    return file_name(staged, platform_tag)


def file_name(staged: StagedWheel, platform_tag: str) -> str:
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
        raise BuildError(f"{staged.raw}: has no {file}: build it again") from None
    edited, count = GIT_VERSION.subn(rf"\g<name> '{commit}'", text)
    if count != 1:
        raise BuildError(
            f"{staged.raw}: {file} has {count} lines that set git_version, not one: build it again"
        )
    path.write_text(edited, encoding="utf-8", newline="\n")


def stamp(staged: StagedWheel, version: str, base: str | None) -> StagedWheel:
    """Write into a wheel, whose build could not be told, its whole version and the package under it.

    `version` has the local label; `base` is a requirement such as "torch==2.11.0+cu130", and takes the place
    of others on that package. Raise BuildError where the source is of another release.
    """
    public = Version(version).public
    if _public(staged.version) != public:
        raise BuildError(
            f"{staged.raw}: the source calls itself {staged.version}, but {public} was asked for: fetch that"
        )
    about = canonicalize_name(Requirement(base).name) if base else None
    path = staged.dist_info / "METADATA"
    head, blank, text = path.read_text(encoding="utf-8").partition("\n\n")
    lines = [line for line in head.splitlines() if about is None or _required_by(line) != about]
    lines = [f"Version: {version}" if line.startswith("Version:") else line for line in lines]
    lines += [f"Requires-Dist: {base}"] if base else []
    path.write_text("\n".join(lines) + (blank or "\n") + text, encoding="utf-8", newline="\n")
    return _renamed(staged, version)


def _public(version: str) -> str | None:
    try:
        return Version(version).public
    except InvalidVersion:
        return None


def _required_by(line: str) -> str | None:
    """Return the project that a line of METADATA requires."""
    field, _, value = line.partition(":")
    return _about(value.strip()) if field == "Requires-Dist" else None


def _renamed(staged: StagedWheel, version: str) -> StagedWheel:
    """Give the folders that are named after the version the new one's name."""
    stem = f"{canonicalize_name(staged.name).replace('-', '_')}-{version}"
    info = staged.dist_info.rename(staged.root / f"{stem}.dist-info")
    for data in staged.root.glob("*.data"):
        data.rename(staged.root / f"{stem}.data")
    return replace(staged, dist_info=info, version=version)


def requirements(staged: StagedWheel) -> list[str]:
    """Return all that the wheel requires and that can be read, as METADATA spells it."""
    lines = headers(staged.dist_info / "METADATA").get_all("Requires-Dist", [])
    return [line for line in lines if _about(line)]


def requires(staged: StagedWheel, name: str) -> list[str]:
    """Return the requirements on the distribution `name`, as METADATA spells them."""
    return requirements_on(headers(staged.dist_info / "METADATA"), name)


def requirements_on(metadata: Message, name: str) -> list[str]:
    """Return those `Requires-Dist` of `metadata` that are about `name`."""
    return [line for line in metadata.get_all("Requires-Dist", []) if _about(line) == canonicalize_name(name)]


def _about(requirement: str) -> str | None:
    try:
        return canonicalize_name(Requirement(requirement).name)
    except InvalidRequirement:  # setuptools of old wrote some that no one reads any more
        return None


def _interpreter_tags(staged: StagedWheel) -> list[tuple[str, str]]:
    try:
        parse_wheel_filename(staged.raw)
    except InvalidWheelFilename as error:
        raise BuildError(f"{staged.raw}: not the name of a wheel ({error}): build it again") from None
    pythons, abis = staged.raw.removesuffix(".whl").split("-")[-3:-1]
    return list(product(pythons.split("."), abis.split(".")))
