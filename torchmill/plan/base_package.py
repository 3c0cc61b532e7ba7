"""The base package: the torch that a dependent package, such as torchvision, is built against.

By default it is a wheel of the same variant that torchmill built. The option `--torch` names
another torch: the wheel on PyPI, a wheel file, or an environment in which torch is installed.
"""

import re
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.utils import parse_wheel_filename
from packaging.version import Version

from torchmill.config.build import CPU, Build
from torchmill.config.facts import Facts
from torchmill.config.official_wheels import platform_of_tag, wheel_places
from torchmill.config.release import Release
from torchmill.config.release_lookup import find_release
from torchmill.config.versions import cuda_label
from torchmill.core.errors import ConfigError
from torchmill.host.installed_packages import EnvironmentPackage
from torchmill.plan import crossing, exposure, wheel_name
from torchmill.plan.build_options import PYPI, Options
from torchmill.plan.cell import Cell
from torchmill.plan.rules import make_case, rule_matches

_VARIANT = re.compile(r"cpu|cu[\d.]+")
# On this system and machine, the wheels on PyPI have CUDA: that of the release's `cuda_pypi`.
_PYPI_WITH_CUDA = ("linux", "x86_64")
# In place of a variant: CUDA of a version that is not recorded. It differs from every variant.
_UNRECORDED_CUDA = "another CUDA"


def base_version(facts: Facts, cell: Cell, options: Options) -> str | None:
    """Return the exact version of the package that a dependent one is built against: "2.4.1+cu118".

    None for a package, or a release, that depends on no other. A cell for the CPU takes a package
    with any CUDA. Raises ConfigError if the package that `--torch` names is of another release, has
    another CUDA than the cell, or is not for its Python and machine.
    """
    build = cell.build
    package = facts.packages[build.package]
    if package.after is None or cell.release.torch is None:
        return None
    base_release = find_release(facts, package.after, cell.release.torch)
    if options.torch is None:
        return base_release.version + _built_label(facts, base_release, build, options)
    if options.torch == PYPI:
        version = base_release.version
        variant = _pypi_variant(facts, base_release, build)
    else:
        torch = _describe_base(facts, package.after, build, options)
        version = torch.version
        variant = torch.variant
    # Labels do not count, nor do suffixes as of nightly builds: "2.4.1a0+nv25.06" is a 2.4.1.
    if Version(version).release != Version(base_release.version).release:
        select = f"invoke fetch --tag v{Version(version).base_version} --package {package.name}"
        raise ConfigError(
            f"--torch {options.torch}: that is {package.after} {version}, and {base_release} is "
            f"selected: `{select}` selects its release",
            code="torch-of-another-release",
        )
    # Without CUDA, a package can be built against a torch of any variant.
    is_other_variant = variant not in {"", build.variant}  # "" if the variant is not known
    if build.cuda and is_other_variant:
        raise ConfigError(
            f"--torch {options.torch}: {base_release} there is built for {variant}, and not for "
            f"{build.variant}: build for that, or omit --torch",
            code="torch-cuda-mismatch",
        )
    return version


def _built_label(facts: Facts, base_release: Release, build: Build, options: Options) -> str:
    """Return the local label, "+cu121", of the base's wheel if it is built with the same options."""
    package = facts.packages[base_release.package]
    base_build = replace(build, package=package.name, session=package.session)
    case = make_case(facts, base_build, base_release)
    matching = [rule for rule in package.rules if rule_matches(rule.when, case)]
    rules = exposure.chosen_rules(matching, options.secure)
    source = wheel_name.name_source(base_release, None, modified=exposure.has_unproven_fix(rules))
    return wheel_name.local_label(
        build,
        facts.arches[build.arch].system,
        options.label,
        source.label,
        wheel_name.requested_processor(facts, build, options),
    )


def _pypi_variant(facts: Facts, base_release: Release, build: Build) -> str:
    """Return the variant of the base's wheel on PyPI.

    If no variant is known to be there, it is taken to be the build's own, so that nothing is
    refused for lack of facts.
    """
    return recorded_pypi_variant(facts, base_release, build.arch) or build.variant


def recorded_pypi_variant(facts: Facts, base_release: Release, arch: str) -> str:
    """Return the variant of the base's wheel on PyPI for an arch; "" if none is known to be there.

    It is no variant of ours if the wheel has CUDA of a version that is not recorded.
    """
    with_cuda = _UNRECORDED_CUDA
    if base_release.cuda.pypi:
        with_cuda = cuda_label(base_release.cuda.pypi)
    if (facts.arches[arch].system, arch) == _PYPI_WITH_CUDA:
        return with_cuda
    for variant in (with_cuda, CPU):
        places = wheel_places(facts, base_release, variant, arch)
        # PyPI is the index that pip asks by default.
        if any(index.default for index in places):
            return variant
    return ""


@dataclass(frozen=True, slots=True)
class NamedTorch:
    """A torch that `--torch` names by a path: a wheel, or an environment that has it."""

    version: str
    tags: tuple[str, ...]  # "cp310-cp310-linux_x86_64"; none if the wheel is of another package
    variant: str  # "cu121"; "" if nothing tells it


def named_torch(base: str, options: Options) -> NamedTorch:
    """Return the torch that `--torch` names by a path; `base` is the package's name.

    Raises InvalidVersion or InvalidWheelFilename for names that are no valid ones, ConfigError
    unless an environment has the package exactly once.
    """
    cuda: str | None = None
    if options.torch_wheel:
        version, tags = _parse_wheel_name(base, options.torch_wheel)
    else:
        installed = installed_base(base, options)
        version = installed.version
        tags = installed.tags
        cuda = installed.cuda
    local_label = Version(version).local or ""
    if cuda is None:
        # The label may have further parts: "cu121.native.znver3".
        variant = local_label.partition(".")[0]
    elif cuda:
        variant = f"cu{cuda}"
    else:
        variant = CPU
    # Other labels, such as "nv25" of NVIDIA's containers, tell no variant.
    if not _VARIANT.fullmatch(variant):
        variant = ""
    return NamedTorch(version, tags, variant.replace(".", ""))


def _describe_base(facts: Facts, base: str, build: Build, options: Options) -> NamedTorch:
    """Return the torch that `--torch` names by a path, for a build.

    Raises ConfigError if there is no such package for the build's Python and machine.
    """
    try:
        torch = named_torch(base, options)
    except ValueError:  # of packaging, also for a number of more digits than Python reads
        raise _unfit_base_error(base, build, options) from None
    arches: tuple[str, ...] = (build.arch,)
    if options.torch_folder and crossing.can_be_crossed(facts, build):
        # The build runs the torch of the machine that it is crossed on.
        arches = tuple(facts.arches)
    if not any(_fits(facts, tag, build, arches) for tag in torch.tags):
        raise _unfit_base_error(base, build, options)
    return torch


def _unfit_base_error(base: str, build: Build, options: Options) -> ConfigError:
    """Return the error for a path that `--torch` names and that has no package for a build."""
    return ConfigError(
        f"--torch {options.torch}: it has no {base} for Python {build.python} on {build.arch}: name a "
        "wheel of it, an environment that has it, or PyPI",
        code="no-such-wheel",
    )


def _parse_wheel_name(base: str, wheel: Path) -> tuple[str, tuple[str, ...]]:
    """Return version and tags of a wheel by its name; no tags if it is of another package.

    Raises InvalidWheelFilename.
    """
    name, version, _, tags = parse_wheel_filename(wheel.name)
    if name != base:
        return str(version), ()
    return str(version), tuple(str(tag) for tag in tags)


def _fits(facts: Facts, tag: str, build: Build, arches: tuple[str, ...]) -> bool:
    """Tell whether a tag, "cp310-cp310-linux_x86_64", is for a build's interpreter and a machine."""
    if not tag.startswith(f"{wheel_name.python_tag(build.python)}-"):
        return False
    machine = platform_of_tag(facts, tag.rpartition("-")[2])
    return machine is not None and machine.name in arches


def installed_base(base: str, options: Options) -> EnvironmentPackage:
    """Return the package of the folder that `--torch` names; `base` is its name.

    Raises ConfigError unless the package is installed in it exactly once.
    """
    installed = options.torch_installed
    if len(installed) != 1:
        raise ConfigError(
            f"--torch {options.torch}: {base} is installed there {len(installed)} times: name an "
            "environment that has it once",
            code="no-such-wheel",
        )
    return installed[0]


def base_pip_requirement(base: str, version: str, options: Options) -> str:
    """Return the requirement by which pip installs the base package for a build.

    That is the path of a wheel if `--torch` names one. (From an environment that `--torch` names,
    pip installs nothing.) Otherwise it is a pin: `base` and `version`
    are the package's name and exact version. With "==", pip takes a wheel with any local label, and
    prefers it to a wheel without a label: a wheel of another index would win over the wheel on
    PyPI. "===" compares the whole text, and so means the wheel on PyPI alone.
    https://packaging.python.org/en/latest/specifications/version-specifiers/#version-matching
    """
    if options.torch == PYPI:
        return f"{base}==={version}"
    return options.torch or f"{base}=={version}"
