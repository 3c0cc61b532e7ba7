"""The names and requirements of conda packages, translated from those of the wheel.

A requirement of conda's ("spec") is a name, a version and a build string:
"pytorch 1.13.1 py3.10_*". A constraint has the same form, but counts only if something else
installs the package. The build string tells packages of the same version apart: here it has the
Python, the variant, the rest of the wheel's local label, and the build number.
"""

from collections.abc import Iterable, Iterator, Mapping

from millpress import bundling
from millpress.macos import MACOS_TAG
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import Specifier
from packaging.utils import canonicalize_name
from packaging.version import Version

from torchmill.config.build import CPU, Build
from torchmill.config.conda_facts import CondaFacts
from torchmill.config.facts import Facts
from torchmill.core.errors import ConfigError, DeliveryError, ImpossibleBuildError
from torchmill.plan.wheel_name import python_tag

# The variable by which users tell conda the machine that packages are for.
SUBDIR = "CONDA_SUBDIR"

# Code that is compiled with NumPy 2 runs with NumPy from 1.19 on:
# https://numpy.org/doc/stable/dev/depending_on_numpy.html
NUMPY_2 = Version("2")
OLDEST_RUNTIME_OF_NUMPY_2 = "1.19"

# Up to CUDA 11.0, a toolkit needs a driver of its own minor version. From 11.1 on, any driver of
# the major version will do: https://docs.nvidia.com/deploy/cuda-compatibility/
FIRST_COMPATIBLE_CUDA = Version("11.1")

EXACT_OPERATORS = {"==", "==="}


def conda_facts(facts: Facts) -> CondaFacts:
    """Return the facts about conda; raises ConfigError if build_configs/ has none."""
    if facts.conda is None:
        raise ConfigError(
            "build_configs has no conda.toml, which maps machines and packages to their conda "
            "names",
            code="no-conda-facts",
        )
    return facts.conda


def conda_subdir(conda: CondaFacts, arch: str, environ: Mapping[str, str]) -> str:
    """Return the folder of a channel for the packages of a machine: "x86_64" -> "linux-64".

    Raises ImpossibleBuildError for a machine that conda has no folder for, ConfigError if
    CONDA_SUBDIR names another folder.
    """
    subdir = conda.subdirs.get(arch)
    if subdir is None:
        raise ImpossibleBuildError(
            f"no conda platform for {arch}: conda.toml has {', '.join(conda.subdirs)}; install the "
            "wheel with pip",
            code="no-conda-platform",
        )
    setting = environ.get(SUBDIR, subdir)
    if setting != subdir:
        raise ConfigError(
            f"{SUBDIR} is {setting}, but builds on {arch} are for {subdir}: unset it, or build on "
            "such a machine",
            code="conda-subdir-differs",
        )
    return subdir


def conda_package_name(conda: CondaFacts, project: str) -> str:
    """Return conda's name of a project: "torch" -> "pytorch".

    It is PyPI's normal form of the name if the facts have no other.
    """
    name = canonicalize_name(project)
    return conda.names[name].name if name in conda.names else name


def conda_variant(facts: Facts, variant: str) -> str:
    """Return the name of a variant in build strings: "cpu", "cuda11.8", "cuda11.0.221"."""
    if variant == CPU:
        return CPU
    toolkit = next(toolkit for toolkit in facts.toolkits if toolkit.variant == variant)
    version = conda_facts(facts).cuda.get(toolkit.version, toolkit.version)
    return f"cuda{version}"


def build_string(
    facts: Facts, python: str, variant: str, label: str | None, *, cudnn: str | None, number: int
) -> str:
    """Return the build string of a package, such as "py3.8_cuda11.0.221_cudnn8.0.5_0".

    `label` is the wheel's local label; the rest of it after the variant becomes a part of the
    string. `cudnn` is the version of the cuDNN that the wheel is compiled with, None for a wheel
    without it or if the version is not known.
    """
    parts = [f"py{python}", conda_variant(facts, variant)]
    if cudnn:
        release = cudnn.split(".")[:3]
        parts.append(f"cudnn{'.'.join(release)}")
    suffix = label_suffix(label, variant)
    if suffix:
        parts.append(suffix)
    parts.append(str(number))
    return "_".join(parts)


def label_suffix(label: str | None, variant: str) -> str:
    """Return the rest of a local label after the variant: "cpu.torch1.13.1" -> "torch1.13.1"."""
    if not label:
        return ""
    first, _, rest = label.partition(".")
    return rest if first == variant else label


def _markers(facts: Facts, build: Build) -> dict[str, str]:
    """Return the values that a build's users have for the markers of requirements.

    The other fields are those of this interpreter, which also is a CPython and not on Windows.
    """
    number = _python_number(build)
    names = {"linux": ("Linux", "linux"), "macos": ("Darwin", "darwin")}
    platform_system, sys_platform = names[facts.arches[build.arch].system]
    return {
        "python_version": number,
        "python_full_version": f"{number}.0",
        "platform_system": platform_system,
        "sys_platform": sys_platform,
        "platform_machine": build.arch,
    }


def _python_number(build: Build) -> str:
    """Return the Python of a build, without the letter of free threading: "3.13t" -> "3.13"."""
    return build.python.rstrip("t")


def python_requirement(build: Build) -> str:
    """Return the requirement of a package on its Python: "python >=3.10,<3.11.0a0"."""
    major, minor = _python_number(build).split(".")
    return f"python >={major}.{minor},<{major}.{int(minor) + 1}.0a0"


def abi_requirement(build: Build) -> str:
    """Return the requirement of a package on CPython's ABI, with or without the GIL."""
    _, _, abi = python_tag(build.python).partition("-")
    return f"python_abi {_python_number(build)}.* *_{abi}"


def platform_requirements(tags: Iterable[str]) -> Iterator[str]:
    """Yield the requirements on the system that a wheel's platform tags stand for.

    A wheel with several tags needs the oldest system of these. A tag that promises nothing, such as
    "linux_x86_64", gives no requirement.
    """
    oldest: dict[str, Version] = {}
    for tag in tags:
        match = bundling.match_libc_tag(tag) or MACOS_TAG.fullmatch(tag)
        if match:
            name = match.groupdict().get("libc", "macosx")
            version = Version(f"{match['major']}.{match['minor']}")
            oldest[name] = min(version, oldest.get(name, version))
    if "manylinux" in oldest:
        yield f"__glibc >={oldest['manylinux']},<3.0.a0"
    if "macosx" in oldest:
        yield f"__osx >={oldest['macosx']}"


def driver_requirement(toolkit: str) -> str:
    """Return the requirement that keeps a package from machines without a driver for its CUDA.

    "11.8" -> "__cuda >=11"
    """
    major, minor = toolkit.split(".")[:2]
    if Version(toolkit) < FIRST_COMPATIBLE_CUDA:
        return f"__cuda >={major}.{minor}"
    return f"__cuda >={major}"


def toolkit_constraint(toolkit: str) -> str:
    """Return the constraint of a CUDA toolkit on other packages, if they are installed.

    It is not a requirement, because the wheel bundles or requires the toolkit's libraries itself.
    """
    major, minor = toolkit.split(".")[:2]
    return f"cuda-version >={major}.{minor},<{int(major) + 1}.0a0"


def libstdcxx_requirements(conda: CondaFacts, symbols: Iterable[str]) -> Iterator[str]:
    """Yield the constraints on conda's libstdc++ for the symbol versions that a wheel needs.

    `symbols` are names such as "GLIBCXX_3.4.30". conda's libstdc++ need not be installed. But if it
    is, it is loaded instead of the system's, and must not be too old.
    """
    compilers = []
    for symbol in symbols:
        version = symbol.removeprefix("GLIBCXX_")
        if version != symbol and version in conda.libstdcxx:
            compilers.append(conda.libstdcxx[version])
    if compilers:
        newest = max(compilers, key=Version)
        yield f"libstdcxx >={newest}"
        yield f"libstdcxx-ng >={newest}"


def numpy_compatibility(version: str | None) -> str:
    """Return the requirement on NumPy of code that was compiled with a version of it.

    NumPy's C API is compatible with later minor versions only. None is a version that is not known.
    """
    if version is None:
        return "numpy"
    built = Version(version)
    oldest = f"{built.major}.{built.minor}"
    if built >= NUMPY_2:
        oldest = OLDEST_RUNTIME_OF_NUMPY_2
    return f"numpy >={oldest},<{built.major + 1}.0a0"


def wheel_requirements(facts: Facts, requires: Iterable[str], build: Build) -> Iterator[str]:
    """Yield the requirements of a wheel's METADATA in conda's form.

    Raises DeliveryError for a requirement that cannot be parsed, and for a library of NVIDIA's
    that conda.toml does not name.
    """
    markers = _markers(facts, build)
    for line in requires:
        try:
            requirement = Requirement(line)
        except InvalidRequirement:
            raise DeliveryError(
                f"METADATA requires '{line}', which cannot be read: build the wheel again",
                code="invalid-requirement",
            ) from None
        if requirement.marker is None or requirement.marker.evaluate(markers):
            yield _conda_spec(facts, requirement, build)


def _conda_spec(facts: Facts, requirement: Requirement, build: Build) -> str:
    """Return a requirement of PyPI's as a spec of conda: "torch==1.13.1" -> "pytorch 1.13.1"."""
    conda = conda_facts(facts)
    project = canonicalize_name(requirement.name)
    if project.startswith("nvidia-") and project not in conda.names:
        raise DeliveryError(
            f"the wheel requires {project}, which conda.toml does not name: add a [[name]] for it",
            code="no-conda-name",
        )
    name = conda_package_name(conda, project)
    specifiers = sorted(requirement.specifier, key=_specifier_order)
    exact = None
    if len(specifiers) == 1 and specifiers[0].operator in EXACT_OPERATORS:
        exact = Version(specifiers[0].version.removesuffix(".*"))
    if exact is not None and exact.local:
        # Our packages have no local version, because their build string has the label instead.
        suffix = label_suffix(exact.local, build.variant)
        pattern = f"py{build.python}_{conda_variant(facts, build.variant)}_"
        if suffix:
            pattern += f"*{suffix}_"
        return f"{name} {exact.public} {pattern}*"
    # How strictly conda.toml asks for the version that the wheel pins: "same" (as the wheel),
    # "major" or "minor" (at least this version, of the same major or minor version), or "none".
    bounds = conda.names[project].bounds if project in conda.names else "same"
    if bounds == "none":
        return name
    if exact is None or bounds == "same":
        versions = []
        for specifier in specifiers:
            # conda writes an exact version without an operator
            is_exact = specifier.operator in EXACT_OPERATORS
            versions.append(specifier.version if is_exact else str(specifier))
        return f"{name} {','.join(versions)}".strip()
    if bounds == "major":
        return f"{name} >={exact.public},<{exact.major + 1}.0a0"
    return f"{name} >={exact.major}.{exact.minor},<{exact.major}.{exact.minor + 1}.0a0"


def _specifier_order(specifier: Specifier) -> tuple[bool, str]:
    """Return the key that sorts lower bounds first, as conda's own packages write them."""
    return (not specifier.operator.startswith(">"), str(specifier))


def merge_specs(specs: Iterable[str]) -> tuple[str, ...]:
    """Return specs without duplicates, sorted by package.

    A spec without bounds is left out if another one of its package has some.
    """
    bounds_by_name: dict[str, list[str]] = {}
    for spec in specs:
        name, _, bounds = spec.partition(" ")
        entries = bounds_by_name.setdefault(name, [])
        if bounds and bounds not in entries:
            entries.append(bounds)
    merged = []
    for name, entries in sorted(bounds_by_name.items()):
        if entries:
            merged += [f"{name} {bounds}" for bounds in entries]
        else:
            merged.append(name)
    return tuple(merged)


def compiled_requirements(
    conda: CondaFacts, package: str, manifest: Mapping[str, object]
) -> Iterator[str]:
    """Yield the requirements of a package's compiled code that METADATA does not have.

    conda.toml lists the projects that a package can be compiled with. The wheel's manifest lists
    the packages of the build's environment with their versions: the wheel was built without a
    project that is not among them. Without such a list, all projects are required, in any version.
    """
    requirements = manifest.get("requirements")
    is_known = isinstance(requirements, list)
    versions: dict[str, str] = {}
    if isinstance(requirements, list):
        for pin in map(str, requirements):
            project, separator, version = pin.partition("==")
            if separator:
                versions.setdefault(project, version)
    for project in conda.compiled_with.get(package, ()):
        if is_known and project not in versions:
            continue
        if project == "numpy":
            yield numpy_compatibility(versions.get(project))
        else:
            yield conda_package_name(conda, project)
