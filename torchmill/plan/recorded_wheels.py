"""Recorded wheels of packages: what their names say, and which go with a torch and a machine.

The local version of a wheel often says what it was made for: "2.8.3+cu12torch2.8cxx11abiTRUE",
"2.1.2+pt28cu128", "0.21.0+torch270cu128". The facts beside a wheel (`WheelFiles`) say what its name
does not. If nothing tells the torch or the toolkit, the wheel is not ruled out, but neither is it
known to fit; a wheel that is known to fit is preferred (`best_wheel`).

gcc's standard library has two C++ ABIs, an old and a new one, which differ in strings. A library
with one does not load into a torch with the other:
https://gcc.gnu.org/onlinedocs/libstdc++/manual/using_dual_abi.html
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import product

from packaging.specifiers import SpecifierSet
from packaging.tags import Tag
from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import Version

from torchmill.config.facts import Facts
from torchmill.config.official_wheels import platform_of_tag
from torchmill.config.package_wheels import WheelFiles, WheelSource
from torchmill.config.toolkit import Toolkit
from torchmill.config.versions import is_within, labelled_cuda, python_key
from torchmill.core.errors import ConfigError

_BRACES = re.compile(r"\{([^{}]*)\}")
# "torch2.8", "torch270" and "pt28": without full stops, the last digit after "torch" is the number
# of the patch release, and after "pt" there is no such number (whl.natten.org, data.pyg.org).
_TORCH = re.compile(
    r"torch(?P<dotted>\d+\.\d+(\.\d+)?)|torch(?P<whole>\d{3,})|pt(?P<short>\d{2,})(?![\d.])"
)
_VARIANT = re.compile(r"(?P<variant>cu\d+|cpu)")
_CXX11_ABI = re.compile(r"cxx11abi(?P<new>true|false)")
_INTERPRETER = re.compile(r"(py|cp)(\d)(\d*)")
_PATCH_VERSION_PARTS = 3  # of a version with the number of its patch release, "2.9.1"


@dataclass(frozen=True, slots=True)
class RecordedWheel:
    """One wheel of a package, as its name and the facts beside it describe it."""

    file: str  # its name
    package: str  # in the normal form of PyPI: "flash-attn"
    version: Version  # with the local part
    tags: frozenset[Tag]
    place: WheelSource  # that has it
    group: WheelFiles  # that it is one of
    torch: SpecifierSet | None  # that it goes with; None: not known
    torch_version: str  # for addresses: "2.8.0"; "": not a single one
    variant: str  # "cu128", "cu12" for all of CUDA 12, "cpu"; "": not known
    has_new_abi: bool | None  # the new C++ ABI; None: its name does not say it

    @property
    def arguments(self) -> str:
        """Return the arguments, as a text, with which `pip install` installs the wheel."""
        return self.place.install.format(
            file=self.file,
            version=self.version,
            release=self.version.public,
            torch=self.torch_version,
            variant=self.variant,
        )

    @property
    def says_its_torch(self) -> bool:
        """Tell whether the torch and the toolkit that the wheel goes with are known."""
        return self.torch is not None and bool(self.variant)

    @property
    def is_pure(self) -> bool:
        """Tell whether the wheel has no compiled code: pip installs it on any machine."""
        return all(tag.platform == "any" for tag in self.tags)

    @property
    def is_listed(self) -> bool:
        """Tell whether somebody has seen the wheel in a list of files, and so knows it exists."""
        return self.place.evidence == "listed"


def expand_braces(pattern: str) -> Iterator[str]:
    """Yield the texts that a pattern stands for: "a-{b,c}" for "a-b" and "a-c"."""
    alternatives: list[list[str]] = []
    for number, part in enumerate(_BRACES.split(pattern)):
        # Every second part is the inside of braces; the others have no alternatives.
        is_in_braces = number % 2 == 1
        alternatives.append(part.split(",") if is_in_braces else [part])
    for choice in product(*alternatives):
        yield "".join(choice)


def recorded_wheels(facts: Facts, package: str) -> Sequence[RecordedWheel]:
    """Return all recorded wheels of a package.

    Raises ConfigError if the facts have the name of a file that is not the name of a wheel.
    """
    wheels: list[RecordedWheel] = []
    for place in facts.package_wheels.get(package, ()):
        wheels.extend(_wheels_of_place(place))
    return wheels


@cache
def _wheels_of_place(place: WheelSource) -> tuple[RecordedWheel, ...]:
    """Return all wheels that a place is recorded to have."""
    wheels: list[RecordedWheel] = []
    for group in place.wheels:
        for pattern in group.files:
            wheels.extend(_describe_wheel(name, place, group) for name in expand_braces(pattern))
    return tuple(wheels)


def _describe_wheel(file: str, place: WheelSource, group: WheelFiles) -> RecordedWheel:
    """Return the wheel with a file's name, described by that name and by the facts of its group.

    If the two differ, the facts count. Raises ConfigError if it is not the name of a wheel.
    """
    try:
        package, version, _, tags = parse_wheel_filename(file)
    except InvalidWheelFilename as error:
        raise ConfigError(
            f"build_configs/package_wheels has '{file}', which is not the name of a wheel: {error}",
            code="facts-invalid",
        ) from None
    label = version.local or ""
    torch_version = _torch_in_label(label)
    torch = group.torch
    if torch is None and torch_version:
        torch = _specifier_of(torch_version)
    elif torch is not None:
        torch_version = _single_version(torch)
    variant_in_label = _VARIANT.search(label)
    variant = group.variant
    if not variant and variant_in_label:
        variant = variant_in_label["variant"]
    abi = _CXX11_ABI.search(label)
    return RecordedWheel(
        file=file,
        package=package,
        version=version,
        tags=tags,
        place=place,
        group=group,
        torch=torch,
        torch_version=_with_patch_number(torch_version),
        variant=variant,
        has_new_abi=abi["new"] == "true" if abi else None,
    )


def _torch_in_label(label: str) -> str:
    """Return the version of torch that a local version names, "2.8" or "2.7.0"; "" if none."""
    match = _TORCH.search(label)
    if match is None:
        return ""
    if match["dotted"]:
        return match["dotted"]
    if match["whole"]:
        digits = match["whole"]
        return f"{digits[0]}.{digits[1:-1]}.{digits[-1]}"
    digits = match["short"]
    return f"{digits[0]}.{digits[1:]}"


def _specifier_of(version: str) -> SpecifierSet:
    """Return the releases of torch that a version stands for: "2.8" for all of 2.8.*."""
    if version.count(".") + 1 < _PATCH_VERSION_PARTS:
        return SpecifierSet(f"=={version}.*")
    return SpecifierSet(f"=={version}")


def _single_version(torch: SpecifierSet) -> str:
    """Return the version in a specifier "==2.9.1" or "==2.9.*"; "" for any other."""
    specifiers = list(torch)
    if len(specifiers) != 1 or specifiers[0].operator != "==":
        return ""
    return specifiers[0].version.removesuffix(".*")


def _with_patch_number(version: str) -> str:
    """Return "2.8.0" for "2.8"; other texts as they are."""
    return f"{version}.0" if version.count(".") == 1 else version


def fits_python(wheel: RecordedWheel, python: str) -> bool:
    """Tell whether the tags of a wheel let pip install it for a Python, "3.12" or "3.13t"."""
    return any(_tag_fits_python(tag, python) for tag in wheel.tags)


def _tag_fits_python(tag: Tag, python: str) -> bool:
    """Tell whether pip on a Python accepts the interpreter and the ABI of a wheel's tag.

    https://packaging.python.org/en/latest/specifications/platform-compatibility-tags/
    """
    match = _INTERPRETER.fullmatch(tag.interpreter)
    if match is None:
        return False
    version = python.removesuffix("t")
    is_exact = f"{match[2]}.{match[3]}" == version
    # A wheel for Python 2 alone does not run on Python 3, although that is newer.
    is_same_major = version.partition(".")[0] == match[2]
    is_new_enough = is_same_major and python_key(version) >= python_key(
        f"{match[2]}.{match[3] or 0}"
    )
    if tag.abi == "abi3":
        # Free-threaded Pythons load no such wheel: https://peps.python.org/pep-0703/
        return is_new_enough and python == version
    if tag.abi == "none":
        return is_exact if match[1] == "cp" else is_new_enough
    # Up to Python 3.7 the tag ends in "m".
    return is_exact and tag.abi.removesuffix("m") == f"cp{python.replace('.', '')}"


def fits_arch(facts: Facts, wheel: RecordedWheel, arch: str) -> bool:
    """Tell whether the tags of a wheel let pip install it on an arch, as arches.toml names it."""
    for tag in wheel.tags:
        if tag.platform == "any":
            return True
        platform = platform_of_tag(facts, tag.platform)
        if platform is not None and platform.name == arch:
            return True
    return False


def fits_variant(wheel: RecordedWheel, toolkit: Toolkit | None) -> bool:
    """Tell whether a wheel may go with a torch that has a toolkit; None: a torch without CUDA.

    True if the wheel's toolkit is not known.
    """
    if not wheel.variant:
        return True
    if wheel.variant == "cpu":
        return toolkit is None
    if toolkit is None:
        return False
    major, _, _ = toolkit.version.partition(".")
    return labelled_cuda(wheel.variant) in {toolkit.version, major}


def fits_torch(facts: Facts, wheel: RecordedWheel, torch: str, arch: str) -> bool:
    """Tell whether a wheel may go with the official wheels of a torch on an arch.

    False if its torch or its C++ ABI is another one. What is not known rules nothing out.
    """
    if wheel.torch is not None and not is_within(wheel.torch, torch):
        return False
    if wheel.has_new_abi is None:
        return True
    has_new_abi = _official_abi(facts, torch, arch)
    return has_new_abi is None or has_new_abi == wheel.has_new_abi


def can_compare_abi(facts: Facts, wheel: RecordedWheel, torch: str, arch: str) -> bool:
    """Tell whether `fits_torch` could compare a wheel's C++ ABI with that of the official wheels.

    Also true if the name of the wheel says none: then there is nothing to compare.
    """
    return wheel.has_new_abi is None or _official_abi(facts, torch, arch) is not None


def _official_abi(facts: Facts, torch: str, arch: str) -> bool | None:
    """Tell whether the official wheels of a torch have the new C++ ABI; None if not known."""
    for record in facts.official.cxx11_abi:
        if arch in record.arches and is_within(record.new, torch):
            return True
        if arch in record.arches and is_within(record.old, torch):
            return False
    return None


def wheels_for_torch(facts: Facts, package: str, torch: str, arch: str) -> Sequence[RecordedWheel]:
    """Return the recorded wheels of a package that may go with a torch on machines of an arch.

    If a package has wheels that are known to go with that torch, for whatever machine or toolkit,
    its wheels of which nothing is known are left out: those are of other, mostly older, releases.
    """
    fitting = [
        wheel for wheel in recorded_wheels(facts, package) if fits_torch(facts, wheel, torch, arch)
    ]
    if any(wheel.torch is not None for wheel in fitting):
        fitting = [wheel for wheel in fitting if wheel.torch is not None or wheel.is_pure]
    return [wheel for wheel in fitting if fits_arch(facts, wheel, arch)]


def best_wheel(
    wheels: Iterable[RecordedWheel], python: str, toolkit: Toolkit | None, version: str = ""
) -> RecordedWheel | None:
    """Return the best of some wheels for a Python and the toolkit of its torch; None if none fits.

    A wheel whose torch and toolkit are known is preferred; among equals one that somebody has seen
    in a list, then one of the release `version`, and then the newest.
    """
    fitting = [
        wheel for wheel in wheels if fits_variant(wheel, toolkit) and fits_python(wheel, python)
    ]

    def preference(wheel: RecordedWheel) -> tuple[bool, bool, bool, Version]:
        is_of_version = wheel.version.public == version
        return wheel.says_its_torch, wheel.is_listed, is_of_version, wheel.version

    return max(fitting, key=preference, default=None)
