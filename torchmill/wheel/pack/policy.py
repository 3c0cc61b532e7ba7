"""What a Linux platform tag promises: libraries on every such system, and how new their symbols may be."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from auditwheel.architecture import Architecture
from auditwheel.libc import Libc
from auditwheel.policy import Policy, WheelPolicies

from torchmill.core.errors import ConfigError
from torchmill.wheel.pack import elf
from torchmill.wheel.pack.elf import ElfInfo

PLAIN_LINUX_PREFIX = "linux_"  # of tags that promise a machine and no C library
LIBC_TAG = re.compile(r"(?P<libc>manylinux|musllinux)_(?P<major>\d+)_(?P<minor>\d+)_(?P<arch>\w+)")
# Libraries of the GPU driver: they must be those of the machine that runs the wheel.
DRIVER_LIBRARY = re.compile(r"lib(cuda|nvcuvid|nvidia-[\w-]+)\.so(\.\d+)*")
# Part of the interpreter that imports the extension; a second copy would be a second interpreter.
INTERPRETER_LIBRARY = re.compile(r"libpython\d[\w.]*\.so[\d.]*")
# Libraries that no wheel brings along: the loader, and those of the driver.
LOCAL_LIBRARY = re.compile(
    rf"ld-linux[\w.-]*\.so\.\d+|ld64\.so\.\d|ld-musl-\w+\.so\.1|{DRIVER_LIBRARY.pattern}"
)
_OLD_TAGS = {"manylinux1": "2_5", "manylinux2010": "2_12", "manylinux2014": "2_17"}  # PEP 600 has no others
_MOST_LISTED = 3  # problems in one message


@dataclass(frozen=True, slots=True)
class SystemNeeds:
    """What one file of a wheel needs from the system."""

    file: str
    libraries: frozenset[str]
    versions: Mapping[str, frozenset[str]]  # library -> symbol versions
    symbols: frozenset[str] = frozenset()  # undefined ones, read only where the policy forbids some


@dataclass(frozen=True, slots=True)
class PlatformTarget:
    """A manylinux or musllinux tag and its policy."""

    tag: str
    arch: str
    version: tuple[int, int]  # of the C library
    policy: Policy
    covered: bool  # the policy is at least as new as the tag

    def on_system(self, library: str) -> bool:
        """Tell whether every system of the tag has `library`."""
        return library in self.policy.whitelist or LOCAL_LIBRARY.fullmatch(library) is not None


def platform_target(tag: str) -> PlatformTarget:
    """Return the target of a manylinux or musllinux tag. Raises ConfigError for any other tag."""
    old, _, arch = tag.partition("_")
    match = LIBC_TAG.fullmatch(f"manylinux_{_OLD_TAGS[old]}_{arch}" if old in _OLD_TAGS else tag)
    if match is None:
        raise ConfigError(
            f"{tag}: not a platform tag of Linux wheels: use one like manylinux_2_28_x86_64",
            code="invalid-platform-tag",
        )
    version = (int(match["major"]), int(match["minor"]))
    policies = _policies(match["libc"], match["arch"], tag)
    # a version between two policies is judged by the newer one and, for the C library itself, by number
    newer = [policy for policy_version, policy in policies if policy_version >= version]
    policy = newer[0] if newer else policies[-1][1]
    return PlatformTarget(tag, match["arch"], version, policy, bool(newer))


def system_needs(
    root: Path, files: Mapping[Path, ElfInfo], target: PlatformTarget, own: Container[str]
) -> Iterator[SystemNeeds]:
    """Yield what each file below `root` needs of the libraries that systems of the target have.

    `own` are the names of the wheel's own libraries.
    """
    for path, info in files.items():
        libraries = frozenset(
            name
            for name in info.needed
            if target.on_system(name) and name not in own and not DRIVER_LIBRARY.fullmatch(name)
        )
        symbols = elf.undefined_symbols(path) if libraries & set(target.policy.blacklist) else frozenset()
        versions = {name: info.versions[name] for name in libraries & set(info.versions)}
        yield SystemNeeds(path.relative_to(root).as_posix(), libraries, versions, symbols)


def policy_problems(target: PlatformTarget, needs: Iterable[SystemNeeds]) -> list[str]:
    """Return a clause for each need that the target's tag does not promise."""
    return [problem for each in needs for problem in _file_problems(target, each)]


def _file_problems(target: PlatformTarget, needs: SystemNeeds) -> Iterator[str]:
    for library in sorted(target.policy.whitelist & set(needs.versions)):
        for version in sorted(needs.versions[library]):
            if _is_too_new(target, version):
                yield f"{needs.file} needs {version} of {library}, which is newer than {target.tag}"
    for library in sorted(needs.libraries & set(target.policy.blacklist)):
        for symbol in sorted(needs.symbols & target.policy.blacklist[library]):
            yield f"{needs.file} uses {symbol} of {library}, which {target.tag} does not promise"


def first_problems(problems: Sequence[str]) -> str:
    """Return the first problems and the number of others, in one clause."""
    more = f"; and {len(problems) - _MOST_LISTED} more" if len(problems) > _MOST_LISTED else ""
    return f"{'; '.join(problems[:_MOST_LISTED])}{more}"


def lowest_tag(target: PlatformTarget, needs: Iterable[SystemNeeds]) -> str:
    """Return the oldest tag that meets these needs; the target's own at worst."""
    oldest = oldest_target(target, list(needs))
    return oldest.tag if oldest is not None and oldest.version < target.version else target.tag


def oldest_target(target: PlatformTarget, needs: Sequence[SystemNeeds]) -> PlatformTarget | None:
    """Return the oldest target with this C library that meets these needs; None where none does."""
    libc = "musllinux" if target.tag.startswith("musllinux") else "manylinux"
    for version, policy in _policies(libc, target.arch, target.tag):
        candidate = PlatformTarget(policy.name, target.arch, version, policy, covered=True)
        libraries = {library for each in needs for library in each.libraries}
        if all(map(candidate.on_system, libraries)) and not policy_problems(candidate, needs):
            return candidate
    return None


def _is_too_new(target: PlatformTarget, version: str) -> bool:
    """Tell whether a symbol version ("GLIBC_2.34") is beyond what the target promises."""
    family, _, number = version.partition("_")
    if family == "GLIBC" and number[:1].isdigit():
        return tuple(map(int, number.split("."))) > target.version
    promised = target.policy.symbol_versions.get(family)
    # of a tag newer than every policy, only the C library's number can be judged
    return target.covered and promised is not None and number not in promised


@cache
def _policies(libc: str, arch: str, tag: str) -> tuple[tuple[tuple[int, int], Policy], ...]:
    """Return every policy for `arch` with its version of the C library, oldest first."""
    if arch not in {each.value for each in Architecture}:
        raise ConfigError(
            f"{tag}: no policy for the arch {arch!r}: choose another tag", code="unknown-tag-arch"
        )
    if libc == "musllinux":
        policies = WheelPolicies(libc=Libc.MUSL, arch=Architecture(arch), musl_policy="musllinux_1_2")
    else:
        policies = WheelPolicies(libc=Libc.GLIBC, arch=Architecture(arch))
    matches = [(LIBC_TAG.fullmatch(policy.name), policy) for policy in policies]
    dated = [((int(match["major"]), int(match["minor"])), policy) for match, policy in matches if match]
    return tuple(sorted(dated, key=lambda each: each[0]))
