"""The base package: the torch that a dependent package, such as torchvision, is built against.

By default it is a wheel of the same variant that this project built. `--torch` names another: the
one on PyPI, a wheel file, or an environment that has it.
"""

import re
from contextlib import suppress
from pathlib import Path

from packaging.utils import InvalidWheelFilename, parse_wheel_filename
from packaging.version import InvalidVersion, Version

from torchmill.config.build import CPU, Build
from torchmill.config.facts import Facts
from torchmill.config.official_wheels import wheel_places
from torchmill.config.release import Release
from torchmill.config.release_lookup import find_release
from torchmill.core.errors import ConfigError
from torchmill.core.lenient_paths import read_text
from torchmill.plan import wheel_name
from torchmill.plan.build_options import PYPI, Options
from torchmill.plan.cell import Cell

INSTALLED = ".dist-info"  # ends the name of the folder that records an installed package
# The line of torch/version.py that names the toolkit: "cuda: Optional[str] = '11.8'". A build
# without CUDA has None.
_CUDA_LINE = re.compile(r"^cuda\b.*= (?:None|'([\d.]+)')$", re.MULTILINE)
_VARIANT = re.compile(r"cpu|cu[\d.]+")
# On this system, the wheels on PyPI have CUDA: that of the release's `cuda_pypi`.
_PYPI_WITH_CUDA = ("linux", "x86_64")


def base_version(facts: Facts, cell: Cell, options: Options) -> str | None:
    """Return the exact version of the package that a dependent one is built against.

    None for a package that depends on no other. Raises ConfigError if the package that `--torch`
    names is of another release, or has another CUDA than the cell.
    """
    build = cell.build
    package = facts.packages[build.package]
    if package.after is None or cell.release.torch is None:
        return None
    base = find_release(facts, package.after, cell.release.torch)
    if options.torch is None:
        return base.version + _built_label(facts, base, build, options)
    if options.torch == PYPI:
        version = base.version
        variant = _pypi_variant(facts, base, build)
    else:
        version, variant = _read_base(package.after, build, Path(options.torch))
    # Labels do not count, nor do suffixes as of nightly builds: "2.4.1a0+nv25.06" is a 2.4.1.
    if Version(version).release != Version(base.version).release:
        select = f"invoke fetch --tag v{Version(version).base_version} --package {package.name}"
        raise ConfigError(
            f"--torch {options.torch}: that is {base.package} {version}, and {base} is selected: "
            f"`{select}` selects its release",
            code="torch-of-another-release",
        )
    # Without CUDA, a package can be built against a torch of any variant.
    if build.cuda and variant not in {"", build.variant}:
        raise ConfigError(
            f"--torch {options.torch}: {base} there is built for {variant}, and not for "
            f"{build.variant}: build for that, or omit --torch",
            code="torch-cuda-mismatch",
        )
    return version


def _built_label(facts: Facts, base: Release, build: Build, options: Options) -> str:
    """Return the local label of the base's wheel, if it is built here with the same options."""
    source = wheel_name.name_source(base, None, modified=False)
    return wheel_name.local_label(
        build,
        facts.arches[build.arch].system,
        options.label,
        source.label,
        wheel_name.requested_processor(facts, build, options),
    )


def _pypi_variant(facts: Facts, base: Release, build: Build) -> str:
    """Return the variant of the base's wheel on PyPI.

    If no variant is known to be there, it is taken to be the build's own, so that nothing is
    refused for lack of facts.
    """
    with_cuda = f"cu{base.cuda_pypi.replace('.', '')}" if base.cuda_pypi else "another CUDA"
    if (facts.arches[build.arch].system, build.arch) == _PYPI_WITH_CUDA:
        return with_cuda
    for variant in (with_cuda, CPU):
        if _is_on_pypi(facts, base, variant, build.arch):
            return variant
    return build.variant


def _is_on_pypi(facts: Facts, base: Release, variant: str, arch: str) -> bool:
    """Tell whether PyPI, the index that pip asks by default, is known to have such wheels."""
    return any(index.default for index in wheel_places(facts, base, variant, arch))


def _read_base(base: str, build: Build, path: Path) -> tuple[str, str]:
    """Return version and variant of a wheel, or of the package that is installed in a folder.

    The variant is "" if nothing tells it. Raises ConfigError for a wheel of another package, and
    for one of another Python or machine.
    """
    with suppress(InvalidWheelFilename, InvalidVersion):
        if path.suffix == ".whl":
            version, tags = _read_file_name(base, path)
            cuda_line = None
        else:
            info = find_installed(base, path)
            version = info.name.removesuffix(INSTALLED).partition("-")[2]
            tags = re.findall(r"(?m)^Tag: (.+)$", read_text(info / "WHEEL"))
            cuda_line = _CUDA_LINE.search(read_text(info.parent / base / "version.py"))
        local = Version(version).local or ""
        if any(_fits(tag, build) for tag in tags):
            if cuda_line is None:
                variant = local.partition(".")[0]
            elif cuda_line[1]:
                variant = f"cu{cuda_line[1]}"
            else:
                variant = CPU
            return version, variant.replace(".", "") if _VARIANT.fullmatch(variant) else ""
    raise ConfigError(
        f"--torch {path}: it has no {base} for Python {build.python} on {build.arch}: name a wheel "
        "of it, an environment that has it, or PyPI",
        code="no-such-wheel",
    )


def _read_file_name(base: str, wheel: Path) -> tuple[str, list[str]]:
    """Return version and tags of a wheel by its name; no tags if it is of another package."""
    name, version, _, tags = parse_wheel_filename(wheel.name)
    if name != base:
        return str(version), []
    return str(version), [str(tag) for tag in tags]


def _fits(tag: str, build: Build) -> bool:
    """Tell whether a tag is for the interpreter and the machine of a build."""
    return tag.startswith(f"{wheel_name.python_tag(build.python)}-") and tag.endswith(build.arch)


def find_installed(base: str, folder: Path) -> Path:
    """Return the .dist-info folder of a package that is installed in an environment.

    `folder` may also be a folder of packages itself. Raises ConfigError unless the package is
    there exactly once.
    """
    infos: set[Path] = set()
    for packages in (
        folder,
        *folder.glob("lib/python*/*-packages"),
        *folder.glob("lib/site-packages"),
    ):
        # Without a folder of modules, it is an "editable" install: the code is in another tree.
        if (packages / base).is_dir():
            # One folder of packages may be a link to another: lib64 to lib.
            infos.update(info.resolve() for info in packages.glob(f"{base}-*{INSTALLED}"))
    if len(infos) != 1:
        raise ConfigError(
            f"--torch {folder}: {base} is installed there {len(infos)} times: name an environment "
            "that has it once",
            code="no-such-wheel",
        )
    return infos.pop()


def base_pip_requirement(base: str, version: str, options: Options) -> str:
    """Return the requirement by which pip installs the base package for a build.

    To pip, "==" allows any local label and prefers one with a label, so that a wheel of another
    index would win. "===" is the very wheel on PyPI.
    https://packaging.python.org/en/latest/specifications/version-specifiers/#version-matching
    """
    if options.torch == PYPI:
        return f"{base}==={version}"
    return options.torch or f"{base}=={version}"
