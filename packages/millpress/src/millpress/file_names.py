"""Parse the file names of wheels: project, version, build number, tags, and a variant's label.

The name of a plain wheel is "torch-1.13.1-1-cp310-cp310-linux_x86_64.whl", with or without the
build number (PEP 427). A variant wheel is one of several for the same tags, each for other
hardware; its label follows the tags: "torch-1.13.1-cp310-cp310-linux_x86_64-x86_64_v3.whl"
(https://peps.python.org/pep-0825/, a draft). What a label means is in the wheel's variant.json,
which nothing here reads.
"""

import re
from typing import NamedTuple

from packaging.tags import Tag
from packaging.utils import parse_wheel_filename
from packaging.version import Version

# The build number of a wheel, as `packaging` parses it: (1, "a") of "1a", () without a number.
BuildTag = tuple[int, str] | tuple[()]

SUFFIX = ".whl"
NULL_LABEL = "null"  # of the variant that runs on any hardware
VARIANT_FILE = "variant.json"  # in the .dist-info of a variant wheel
_LABEL = re.compile(r"[0-9a-z._]+")
# Platform tags of all systems begin so. Without this, a wheel whose build number does not begin
# with a digit ("torch-1.0-rc1-cp310-cp310-linux_x86_64.whl") would pass for a variant.
_PLATFORM = re.compile(
    r"any|(linux|manylinux|musllinux|macosx|win|ios|android|freebsd|pyodide|emscripten)\w*"
)
_PLAIN_PARTS = (5, 6)  # without and with a build number


class WheelFileName(NamedTuple):
    """The parts of a wheel's file name: "torch-1.13.1-1-cp310-cp310-linux_x86_64.whl"."""

    project: str  # normalized (PEP 503): "torch-scatter"
    version: Version
    build: BuildTag
    tags: frozenset[Tag]
    variant: str = ""  # the label of a variant wheel, "" of a plain one


def parse_name(name: str) -> WheelFileName:
    """Return the parts of a wheel's file name. Raises packaging's InvalidWheelFilename."""
    plain_name, label = split_label(name)
    return WheelFileName(*parse_wheel_filename(plain_name), variant=label)


def split_label(name: str) -> tuple[str, str]:
    """Return the file name without a variant's label, and the label: "" of a plain wheel.

    A name that no variant can have is returned unchanged.
    """
    stem = name.removesuffix(SUFFIX)
    *plain_parts, label = stem.split("-")
    if len(plain_parts) not in _PLAIN_PARTS or not _LABEL.fullmatch(label):
        return name, ""
    build = plain_parts[2:-3]
    # A build number begins with a digit, which a Python tag must not (PEP 825).
    has_build_number = stem.split("-")[2][:1].isdigit()
    is_variant = name.endswith(SUFFIX) and has_build_number == bool(build)
    platforms = plain_parts[-1].split(".")
    if not is_variant or not all(map(_PLATFORM.fullmatch, platforms)):
        return name, ""
    return f"{'-'.join(plain_parts)}{SUFFIX}", label


def with_label(name: str, label: str) -> str:
    """Return the file name of the variant `label` of a wheel; "" returns the plain wheel's name.

    A label that `name` has already is replaced.
    """
    plain_name, _ = split_label(name)
    if not label:
        return plain_name
    return f"{plain_name.removesuffix(SUFFIX)}-{label}{SUFFIX}"


def platform_part(name: str) -> str:
    """Return the platform tags in a wheel's file name, as they stand there, joined by dots."""
    plain_name, _ = split_label(name)
    return plain_name.removesuffix(SUFFIX).rpartition("-")[2]
