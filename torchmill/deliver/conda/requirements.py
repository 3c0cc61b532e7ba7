"""Names and requirements of conda packages, from what the wheel requires."""

from collections.abc import Iterable, Iterator, Mapping

from packaging.requirements import InvalidRequirement, Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

from torchmill.config.facts_model import CondaFacts
from torchmill.config.matrix import CPU
from torchmill.config.model import Build, Facts
from torchmill.core.errors import ConfigError, DeliveryError, ImpossibleBuildError
from torchmill.plan.wheel_name import python_tag
from torchmill.wheel.pack import bundling
from torchmill.wheel.pack.macos import MACOS_TAG

SUBDIR = "CONDA_SUBDIR"  # by which a user tells conda which machine it is for
NUMPY_2 = Version("2")
OLDEST_FOR_2 = (
    "1.19"  # what is compiled with numpy 2 runs with (numpy's "For downstream package authors")
)


def conda_facts(facts: Facts) -> CondaFacts:
    """Return what is known of conda; raises ConfigError where build_configs/ says nothing."""
    if facts.conda is None:
        raise ConfigError(
            "build_configs has no conda.toml, which maps machines and packages to their conda names",
            code="no-conda-facts",
        )
    return facts.conda


def conda_subdir(conda: CondaFacts, arch: str, environ: Mapping[str, str]) -> str:
    """Return the folder of a channel that packages for a machine lie in: "x86_64" -> "linux-64".

    Raises ImpossibleBuildError for a machine that has none, ConfigError where CONDA_SUBDIR says another.
    """
    found = conda.subdirs.get(arch)
    if found is None:
        raise ImpossibleBuildError(
            f"no conda platform for {arch}: conda.toml has {', '.join(conda.subdirs)}; install the wheel with pip",
            code="no-conda-platform",
        )
    asked = environ.get(SUBDIR, found)
    if asked != found:
        raise ConfigError(
            f"{SUBDIR} is {asked}, but builds on {arch} are for {found}: unset it, or build on such a machine",
            code="conda-subdir-differs",
        )
    return found


def conda_package_name(conda: CondaFacts, project: str) -> str:
    """Return conda's name of a project: "torch" -> "pytorch"."""
    name = canonicalize_name(project)
    return conda.names[name].name if name in conda.names else name


def conda_variant(facts: Facts, variant: str) -> str:
    """Return what build strings call a variant: "cpu", "cu118" -> "cuda11.8", "cu110" -> "cuda11.0.221"."""
    if variant == CPU:
        return CPU
    version = next(one.version for one in facts.toolkits if one.variant == variant)
    return f"cuda{conda_facts(facts).cuda.get(version, version)}"


def build_string(
    facts: Facts, python: str, variant: str, label: str | None, *, cudnn: str | None, number: int
) -> str:
    """Return the build string, "py3.8_cuda11.0.221_cudnn8.0.5_0": a package's variant, in its name.

    `label` is the wheel's local label; what it says beside the variant follows, too. `cudnn` is the version
    of the library that it is compiled with, None where it is not or that is not known.
    """
    words = [f"py{python}", conda_variant(facts, variant)]
    if cudnn:
        words.append(f"cudnn{'.'.join(cudnn.split('.')[:3])}")
    return "_".join([*words, *label_suffixes(label, variant), str(number)])


def label_suffixes(label: str | None, variant: str) -> list[str]:
    """Return what a local label says beside the variant: "cpu.torch1.13.1" -> ["torch1.13.1"]."""
    first, _, rest = (label or "").partition(".")
    found = rest if first == variant else label
    return [found] if found else []


def _markers(facts: Facts, build: Build) -> dict[str, str]:
    """Return what environment markers are held against, where it is not as here: CPython, and no Windows."""
    number, system = _interpreter(build), facts.arches[build.arch].system
    platform = {"linux": ("Linux", "linux"), "macos": ("Darwin", "darwin")}[system]
    return {
        "python_version": number,
        "python_full_version": f"{number}.0",
        "platform_system": platform[0],
        "sys_platform": platform[1],
        "platform_machine": build.arch,
    }


def _interpreter(build: Build) -> str:
    """Return the Python without the letter of free-threaded ones."""
    return build.python.rstrip("t")


def python_requirement(build: Build) -> str:
    """Return what binds a package to its Python: "python >=3.10,<3.11.0a0"."""
    major, minor = _interpreter(build).split(".")
    return f"python >={major}.{minor},<{major}.{int(minor) + 1}.0a0"


def abi_requirement(build: Build) -> str:
    """Return what binds a package to CPython, and to threads with or without a lock."""
    return f"python_abi {_interpreter(build)}.* *_{python_tag(build.python).partition('-')[2]}"


def platform_requirements(tags: Iterable[str]) -> Iterator[str]:
    """Yield what the platform tags of a wheel ask of the machine; nothing for "linux_x86_64"."""
    oldest: dict[str, Version] = {}
    for tag in tags:
        if match := bundling.match_libc_tag(tag) or MACOS_TAG.fullmatch(tag):
            name = match.groupdict().get("libc", "macosx")
            version = Version(f"{match['major']}.{match['minor']}")
            oldest[name] = min(version, oldest.get(name, version))
    if "manylinux" in oldest:
        yield f"__glibc >={oldest['manylinux']},<3.0.a0"
    if "macosx" in oldest:
        yield f"__osx >={oldest['macosx']}"


def driver_requirement(toolkit: str) -> str:
    """Return what keeps a CUDA package from machines without a driver for it: "__cuda >=11".

    From CUDA 11.1 on any driver of the major version will do.
    """
    major, minor = toolkit.split(".")[:2]
    return f"__cuda >={f'{major}.{minor}' if Version(toolkit) < Version('11.1') else major}"


def toolkit_constraint(toolkit: str) -> str:
    """Return what a toolkit asks of other packages, if they are there: the wheel carries or requires its libraries."""
    major, minor = toolkit.split(".")[:2]
    return f"cuda-version >={major}.{minor},<{int(major) + 1}.0a0"


def libstdcxx_requirements(conda: CondaFacts, symbols: Iterable[str]) -> Iterator[str]:
    """Yield what the versions of libstdc++'s symbols, "GLIBCXX_3.4.30", ask of conda's own library.

    It need not be there, but where it is, it is the one that is loaded.
    """
    needed = {one.removeprefix("GLIBCXX_") for one in symbols if one.startswith("GLIBCXX_")}
    compilers = [conda.libstdcxx[one] for one in needed if one in conda.libstdcxx]
    if compilers:
        newest = max(compilers, key=Version)
        yield from (f"{name} >={newest}" for name in ("libstdcxx", "libstdcxx-ng"))


def numpy_compatibility(version: str | None) -> str:
    """Return which numpy goes with what was compiled with one: its interface looks forward only."""
    if version is None:
        return "numpy"
    built = Version(version)
    oldest = OLDEST_FOR_2 if built >= NUMPY_2 else f"{built.major}.{built.minor}"
    return f"numpy >={oldest},<{built.major + 1}.0a0"


def wheel_requirements(facts: Facts, requires: Iterable[str], build: Build) -> Iterator[str]:
    """Yield what METADATA requires, as conda has it. Raises DeliveryError for what conda.toml must name."""
    markers = _markers(facts, build)
    for line in requires:
        try:
            one = Requirement(line)
        except InvalidRequirement:
            raise DeliveryError(
                f"METADATA requires '{line}', which cannot be read: build the wheel again",
                code="invalid-requirement",
            ) from None
        if one.marker is None or one.marker.evaluate(markers):
            yield _spec(facts, one, build)


def _spec(facts: Facts, requirement: Requirement, build: Build) -> str:
    conda, project = conda_facts(facts), canonicalize_name(requirement.name)
    if project.startswith("nvidia-") and project not in conda.names:
        raise DeliveryError(
            f"the wheel requires {project}, which conda.toml does not name: add a [[name]] for it",
            code="no-conda-name",
        )
    name = conda_package_name(conda, project)
    specifiers = sorted(
        requirement.specifier, key=lambda one: (not one.operator.startswith(">"), str(one))
    )
    exact = None
    if len(specifiers) == 1 and specifiers[0].operator in {"==", "==="}:
        exact = Version(specifiers[0].version.removesuffix(".*"))
    if exact is not None and exact.local:
        suffixes = "".join(f"*{one}_" for one in label_suffixes(exact.local, build.variant))
        return f"{name} {exact.public} py{build.python}_{conda_variant(facts, build.variant)}_{suffixes}*"
    bounds = conda.names[project].bounds if project in conda.names else "same"
    if bounds == "none":
        return name
    if exact is None or bounds == "same":  # an exact version has no sign in conda
        written = [one.version if one.operator in {"==", "==="} else str(one) for one in specifiers]
        return f"{name} {','.join(written)}".strip()
    if bounds == "major":
        return f"{name} >={exact.public},<{exact.major + 1}.0a0"
    return f"{name} >={exact.major}.{exact.minor},<{exact.major}.{exact.minor + 1}.0a0"


def merge_specs(specs: Iterable[str]) -> tuple[str, ...]:
    """Return each package once where one of its specs says nothing, sorted by name."""
    found: dict[str, list[str]] = {}
    for spec in specs:
        name, _, bounds = spec.partition(" ")
        found.setdefault(name, [])
        if bounds and bounds not in found[name]:
            found[name].append(bounds)
    return tuple(f"{name} {one}".strip() for name in sorted(found) for one in (found[name] or [""]))


def compiled_requirements(
    conda: CondaFacts, package: str, manifest: Mapping[str, object]
) -> Iterator[str]:
    """Yield what a package's compiled code needs beyond METADATA, in the versions that its manifest tells."""
    there = manifest.get("requirements")
    pins = [str(pin) for pin in there] if isinstance(there, list) else None
    for project in conda.compiled_with.get(package, ()):
        own = [pin.partition("==")[2] for pin in pins or () if pin.startswith(f"{project}==")]
        if own or pins is None:  # it can be built without
            version = own[0] if own else None
            yield (
                numpy_compatibility(version)
                if project == "numpy"
                else conda_package_name(conda, project)
            )
