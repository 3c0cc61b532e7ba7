"""What a wheel's files want from the system, read off their headers, for a platform's policy to judge."""

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

LIBC_TAG = re.compile(r"(?P<libc>manylinux|musllinux)_(?P<major>\d+)_(?P<minor>\d+)_(?P<arch>\w+)")
ELF_MACHINES = {  # how ELF headers name what platform tags name
    "x86_64": "EM_X86_64",
    "aarch64": "EM_AARCH64",
    "i686": "EM_386",
    "armv7l": "EM_ARM",
    "ppc64le": "EM_PPC64",
    "s390x": "EM_S390",
    "riscv64": "EM_RISCV",
}
# The driver's: they must be the ones of the machine that runs the wheel.
DRIVER_LIBRARY = re.compile(r"lib(cuda|nvcuvid|nvidia-[\w-]+)\.so(\.\d+)*")
# Part of the interpreter that imports the extension; a second copy would be a second interpreter.
INTERPRETER_LIBRARY = re.compile(r"libpython\d[\w.]*\.so[\d.]*")
LOADER_LIBRARY = re.compile(r"ld-linux[\w.-]*\.so\.\d+|ld64\.so\.\d|ld-musl-\w+\.so\.1")


@dataclass(frozen=True, slots=True)
class SystemNeeds:
    """What one file wants from the system."""

    file: str
    libraries: frozenset[str]
    versions: Mapping[str, frozenset[str]]  # library -> symbol versions
    symbols: frozenset[str] = frozenset()  # undefined names, read where a policy forbids some


@dataclass(frozen=True, slots=True)
class PlatformTarget:
    """A platform tag and the policy that judges it."""

    tag: str
    arch: str
    version: tuple[int, int]  # of the C library
    policy: Policy
    covered: bool  # the policy is no older than the tag

    @property
    def machine(self) -> str | None:
        """Return the ELF machine of this arch, None where no name for it is known."""
        return ELF_MACHINES.get(self.arch)

    def on_system(self, library: str) -> bool:
        """Say whether the wheel may rely on `library` being where it runs."""
        allowed = library in self.policy.whitelist
        return allowed or bool(LOADER_LIBRARY.fullmatch(library) or DRIVER_LIBRARY.fullmatch(library))


def platform_target(tag: str) -> PlatformTarget:
    """Return the target of a manylinux or musllinux tag; raise ConfigError for any other."""
    match = LIBC_TAG.fullmatch(_pep600_tag(tag))
    if match is None:
        raise ConfigError(f"{tag}: not a platform tag of Linux wheels: say one like manylinux_2_28_x86_64")
    version = (int(match["major"]), int(match["minor"]))
    policies = _policies(match["libc"], match["arch"], tag)
    # a version between two known ones is judged by the newer and, for the C library itself, by number
    newer = [policy for known, policy in policies if known >= version]
    policy = newer[0] if newer else policies[-1][1]
    return PlatformTarget(tag, match["arch"], version, policy, bool(newer))


def policy_problems(target: PlatformTarget, needs: Iterable[SystemNeeds]) -> list[str]:
    """Return what forbids the target's tag, one complete clause each."""
    found = []
    for each in needs:
        for library, version in _too_new(target, each):
            found.append(f"{each.file} needs {version} of {library}, which is newer than {target.tag}")
        for library, symbol in _forbidden(target.policy, each):
            found.append(f"{each.file} uses {symbol} of {library}, which {target.tag} does not promise")
    return found


def lowest_tag(target: PlatformTarget, needs: Iterable[SystemNeeds]) -> str:
    """Return the oldest platform that would hold for these needs; the target's own at worst."""
    found = _oldest_target(target, list(needs))
    return found.tag if found is not None and found.version < target.version else target.tag


def oldest_tag(target: PlatformTarget, needs: Iterable[SystemNeeds]) -> str | None:
    """Return the oldest platform of the target's kind that holds for these needs, None where none does."""
    found = _oldest_target(target, list(needs))
    return found.tag if found is not None else None


def _oldest_target(target: PlatformTarget, needs: Sequence[SystemNeeds]) -> PlatformTarget | None:
    libc = "musllinux" if target.tag.startswith("musllinux") else "manylinux"
    known = _policies(libc, target.arch, target.tag)
    every = (
        PlatformTarget(policy.name, target.arch, version, policy, covered=True) for version, policy in known
    )
    return next((candidate for candidate in every if _holds(candidate, needs)), None)


def _holds(candidate: PlatformTarget, needs: Iterable[SystemNeeds]) -> bool:
    return all(
        all(candidate.on_system(library) for library in each.libraries)
        and not policy_problems(candidate, [each])
        for each in needs
    )


def _too_new(target: PlatformTarget, needs: SystemNeeds) -> list[tuple[str, str]]:
    found = []
    for library, versions in sorted(needs.versions.items()):
        if library not in target.policy.whitelist:
            continue
        for version in sorted(versions):
            family, _, number = version.partition("_")
            known = target.policy.symbol_versions.get(family)
            beyond = known is not None and number not in known
            if family == "GLIBC" and number[:1].isdigit():
                beyond = tuple(map(int, number.split("."))) > target.version
            elif not target.covered:
                beyond = False  # a tag newer than every policy: only the C library's number can be judged
            if beyond:
                found.append((library, version))
    return found


def _forbidden(policy: Policy, needs: SystemNeeds) -> list[tuple[str, str]]:
    return [
        (library, symbol)
        for library, names in sorted(policy.blacklist.items())
        if library in needs.libraries
        for symbol in sorted(names & needs.symbols)
    ]


@cache
def _policies(libc: str, arch: str, tag: str) -> tuple[tuple[tuple[int, int], Policy], ...]:
    """Return every policy for `arch` with the C library's version that it stands for, oldest first."""
    try:
        architecture = Architecture(arch)
    except ValueError:
        raise ConfigError(f"{tag}: no policy is known for the arch {arch!r}: choose another tag") from None
    if libc == "musllinux":
        known = WheelPolicies(libc=Libc.MUSL, arch=architecture, musl_policy="musllinux_1_2")
    else:
        known = WheelPolicies(libc=Libc.GLIBC, arch=architecture)
    matches = [(LIBC_TAG.fullmatch(policy.name), policy) for policy in known]
    dated = [((int(match["major"]), int(match["minor"])), policy) for match, policy in matches if match]
    return tuple(sorted(dated, key=lambda each: each[0]))


def _pep600_tag(tag: str) -> str:
    """Spell the tags from before PEP 600 as PEP 600 does."""
    for old, new in (("manylinux1_", "2_5"), ("manylinux2010_", "2_12"), ("manylinux2014_", "2_17")):
        if tag.startswith(old):
            return f"manylinux_{new}_{tag.removeprefix(old)}"
    return tag


def system_needs(
    root: Path, files: Mapping[Path, ElfInfo], target: PlatformTarget, own: Container[str]
) -> Iterator[SystemNeeds]:
    """Yield what each file below `root` wants of those libraries that `target` has.

    `own` are the names of the libraries that the wheel has itself.
    """
    watched = target.policy.blacklist
    for path, facts in files.items():
        libraries = frozenset(_from_system(target, facts.needed, own))
        symbols = elf.undefined_symbols(path) if libraries & set(watched) else frozenset()
        versions = {name: facts.versions[name] for name in libraries & set(facts.versions)}
        yield SystemNeeds(path.relative_to(root).as_posix(), libraries, versions, symbols)


def _from_system(target: PlatformTarget, needed: Iterable[str], own: Container[str]) -> Iterator[str]:
    for name in needed:
        if target.on_system(name) and name not in own and not DRIVER_LIBRARY.fullmatch(name):
            yield name
