"""What conda must install with a package, from what its wheel requires and from what it is made for."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import Specifier
from packaging.utils import canonicalize_name
from packaging.version import Version

from torchmill.deliver.conda import naming
from torchmill.errors import DeliveryError
from torchmill.model import Facts
from torchmill.model.conda import Conda

PLATFORM = re.compile(r"(?P<system>manylinux|macosx)_(?P<major>\d+)_(?P<minor>\d+)_.+")
OLD = {"manylinux1": "2.5", "manylinux2010": "2.12", "manylinux2014": "2.17"}  # PEP 600
NUMPY_2 = Version("2")
OLDEST_FOR_2 = "1.19"  # what is compiled with numpy 2 runs with (numpy's "For downstream package authors")


@dataclass(frozen=True, slots=True)
class Target:
    """What a package is for."""

    python: str  # "3.10", "3.13t"
    variant: str
    system: str  # "linux", "macos"
    machine: str  # "x86_64", as platform.machine() says it

    @property
    def interpreter(self) -> str:
        """Return the version without the letter of free-threaded Pythons."""
        return self.python.rstrip("t")

    @property
    def markers(self) -> dict[str, str]:
        """Return what environment markers are held against."""
        platform = {"linux": ("Linux", "linux"), "macos": ("Darwin", "darwin")}[self.system]
        return {
            "python_version": self.interpreter,
            "python_full_version": f"{self.interpreter}.0",
            "implementation_name": "cpython",
            "platform_python_implementation": "CPython",
            "platform_system": platform[0],
            "sys_platform": platform[1],
            "os_name": "posix",
            "platform_machine": self.machine,
            "extra": "",
        }


def python(target: Target) -> str:
    """Return what binds a package to its Python: "python >=3.10,<3.11.0a0"."""
    major, minor = target.interpreter.split(".")
    return f"python >={major}.{minor},<{major}.{int(minor) + 1}.0a0"


def abi(target: Target) -> str:
    """Return what binds a package to CPython, and to threads with or without a lock."""
    tag = f"cp{target.python.replace('.', '')}"
    return f"python_abi {target.interpreter}.* *_{tag}"


def platforms(tags: Iterable[str]) -> Iterator[str]:
    """Yield what the platform tags of a wheel ask of the machine; nothing for "linux_x86_64"."""
    oldest: dict[str, Version] = {}
    for tag in tags:
        if match := PLATFORM.fullmatch(tag):
            name, version = match["system"], f"{match['major']}.{match['minor']}"
        else:
            name, version = "manylinux", OLD.get(tag.partition("_")[0], "")
        if version:
            oldest[name] = min(Version(version), oldest.get(name, Version(version)))
    if "manylinux" in oldest:
        yield f"__glibc >={oldest['manylinux']},<3.0.a0"
    if "macosx" in oldest:
        yield f"__osx >={oldest['macosx']}"


def toolkit(version: str) -> Iterator[str]:
    """Yield what a toolkit asks of the other packages, and of a driver if there is one.

    The wheel carries its libraries of CUDA along, or requires them, so nothing more is needed. From CUDA 11.1
    on any driver of the major version will do.
    """
    major, minor = version.split(".")[:2]
    after = int(major) + 1
    least = f"{major}.{minor}" if Version(version) < Version("11.1") else major
    yield f"__cuda >={least}"
    yield f"cuda-version >={major}.{minor},<{after}.0a0"


def cxx(conda: Conda, symbols: Iterable[str]) -> Iterator[str]:
    """Yield what the versions of libstdc++'s symbols, "GLIBCXX_3.4.30", ask of conda's own library.

    It need not be there, but where it is, it is the one that is loaded.
    """
    needed = {one.removeprefix("GLIBCXX_") for one in symbols if one.startswith("GLIBCXX_")}
    compilers = [conda.libstdcxx[one] for one in needed if one in conda.libstdcxx]
    if compilers:
        newest = max(compilers, key=Version)
        yield from (f"{name} >={newest}" for name in ("libstdcxx", "libstdcxx-ng"))


def numpy(version: str | None) -> str:
    """Return which numpy goes with what was compiled with one: its interface looks forward only."""
    if version is None:
        return "numpy"
    built = Version(version)
    oldest = OLDEST_FOR_2 if built >= NUMPY_2 else f"{built.major}.{built.minor}"
    return f"numpy >={oldest},<{built.major + 1}.0a0"


def required(facts: Facts, requires: Iterable[str], target: Target) -> Iterator[str]:
    """Yield what METADATA requires, as conda has it. Raises DeliveryError for what conda.toml must name."""
    for line in requires:
        try:
            one = Requirement(line)
        except InvalidRequirement:
            raise DeliveryError(
                f"METADATA requires '{line}', which cannot be read: build the wheel again"
            ) from None
        if one.marker is None or one.marker.evaluate(target.markers):
            yield _spec(facts, one, target)


def _spec(facts: Facts, requirement: Requirement, target: Target) -> str:
    conda, project = naming.known(facts), canonicalize_name(requirement.name)
    if project.startswith("nvidia-") and project not in conda.names:
        raise DeliveryError(
            f"the wheel requires {project}, which conda.toml does not name: add a [[name]] for it"
        )
    name = naming.package(conda, project)
    specifiers = sorted(requirement.specifier, key=lambda one: (not one.operator.startswith(">"), str(one)))
    exact = _exactly(specifiers)
    if exact is not None and exact.local:
        pattern = naming.counterpart(facts, target.python, target.variant, exact.local)
        return f"{name} {exact.public} {pattern}"
    bounds = conda.names[project].bounds if project in conda.names else "same"
    version = _bounded(exact, bounds) if exact and bounds != "same" else ",".join(map(_written, specifiers))
    return f"{name} {version if bounds != 'none' else ''}".strip()


def _exactly(specifiers: list[Specifier]) -> Version | None:
    """Return the one version that is required, "1.2" for "==1.2.*" too; None where there are several."""
    if len(specifiers) != 1 or specifiers[0].operator not in {"==", "==="}:
        return None
    return Version(specifiers[0].version.removesuffix(".*"))


def _bounded(exact: Version, bounds: str) -> str:
    if bounds == "major":
        return f">={exact.public},<{exact.major + 1}.0a0"
    return f">={exact.major}.{exact.minor},<{exact.major}.{exact.minor + 1}.0a0"


def _written(specifier: Specifier) -> str:
    """Return a specifier as conda writes it: an exact version has no sign there."""
    if specifier.operator in {"==", "==="}:
        return specifier.version
    return str(specifier)


def merged(specs: Iterable[str]) -> tuple[str, ...]:
    """Return each package once where one of its specs says nothing, sorted by name."""
    found: dict[str, list[str]] = {}
    for spec in specs:
        name, _, bounds = spec.partition(" ")
        found.setdefault(name, [])
        if bounds and bounds not in found[name]:
            found[name].append(bounds)
    return tuple(f"{name} {one}".strip() for name in sorted(found) for one in (found[name] or [""]))


def compiled_with(conda: Conda, package: str, manifest: Mapping[str, object]) -> Iterator[str]:
    """Yield what a package's compiled code needs beyond METADATA, in the versions that its manifest tells."""
    there = manifest.get("requirements")
    pins = [str(pin) for pin in there] if isinstance(there, list) else None
    for project in conda.compiled_with.get(package, ()):
        own = [pin.partition("==")[2] for pin in pins or () if pin.startswith(f"{project}==")]
        if own or pins is None:  # it can be built without
            version = own[0] if own else None
            yield numpy(version) if project == "numpy" else naming.package(conda, project)
