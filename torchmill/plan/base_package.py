"""The base package: the torch that a dependent package, such as torchvision, is built against.

By default it is a wheel of the same variant that torchmill built. The option `--torch` names
another torch: the wheel on PyPI, a wheel file, or an environment in which torch is installed.
"""

import re
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

# Ends the name of the folder that records an installed package: "torch-2.4.0.dist-info".
INSTALLED = ".dist-info"
# The line of torch/version.py that names the toolkit: "cuda: Optional[str] = '11.8'". A build
# without CUDA has None.
_CUDA_LINE = re.compile(r"^cuda\b.*= (?:None|'([\d.]+)')$", re.MULTILINE)
_VARIANT = re.compile(r"cpu|cu[\d.]+")
# On this system and machine, the wheels on PyPI have CUDA: that of the release's `cuda_pypi`.
_PYPI_WITH_CUDA = ("linux", "x86_64")
# In place of a variant: CUDA of a version that is not recorded. It differs from every variant.
_UNRECORDED_CUDA = "another CUDA"


def base_version(facts: Facts, cell: Cell, options: Options) -> str | None:
    """Return the exact version of the package that a dependent one is built against.

    None for a package that depends on no other. Raises ConfigError if the package that `--torch`
    names is of another release, or has another CUDA than the cell.
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
        version, variant = _read_base(package.after, build, Path(options.torch))
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
    source = wheel_name.name_source(base_release, None, modified=False)
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
    with_cuda = _UNRECORDED_CUDA
    if base_release.cuda_pypi:
        with_cuda = "cu" + base_release.cuda_pypi.replace(".", "")
    if (facts.arches[build.arch].system, build.arch) == _PYPI_WITH_CUDA:
        return with_cuda
    for variant in (with_cuda, CPU):
        places = wheel_places(facts, base_release, variant, build.arch)
        # PyPI is the index that pip asks by default.
        if any(index.default for index in places):
            return variant
    return build.variant


def _read_base(base: str, build: Build, path: Path) -> tuple[str, str]:
    """Return version and variant of a wheel, or of the package that is installed in a folder.

    `base` is the package's name. The variant is "" if nothing tells it. Raises ConfigError if
    `path` has no such package for the build's Python and machine.
    """
    try:
        if path.suffix == ".whl":
            version, tags = _read_file_name(base, path)
            cuda_line = None
        else:
            dist_info = find_installed(base, path)
            version = dist_info.name.removesuffix(INSTALLED).partition("-")[2]
            tags = re.findall(r"(?m)^Tag: (.+)$", read_text(dist_info / "WHEEL"))
            cuda_line = _CUDA_LINE.search(read_text(dist_info.parent / base / "version.py"))
        local_label = Version(version).local or ""
    except (InvalidWheelFilename, InvalidVersion):
        raise _unfit_base_error(base, build, path) from None
    if not any(_fits(tag, build) for tag in tags):
        raise _unfit_base_error(base, build, path)
    if cuda_line is None:
        # The label may have further parts: "cu121.native.znver3".
        variant = local_label.partition(".")[0]
    elif cuda_line[1]:
        variant = f"cu{cuda_line[1]}"
    else:
        variant = CPU
    # Other labels, such as "nv25" of NVIDIA's containers, tell no variant.
    if not _VARIANT.fullmatch(variant):
        return version, ""
    return version, variant.replace(".", "")


def _unfit_base_error(base: str, build: Build, path: Path) -> ConfigError:
    """Return the error for a path that `--torch` names and that has no package for a build."""
    return ConfigError(
        f"--torch {path}: it has no {base} for Python {build.python} on {build.arch}: name a "
        "wheel of it, an environment that has it, or PyPI",
        code="no-such-wheel",
    )


def _read_file_name(base: str, wheel: Path) -> tuple[str, list[str]]:
    """Return version and tags of a wheel by its name; no tags if it is of another package.

    Raises InvalidWheelFilename.
    """
    name, version, _, tags = parse_wheel_filename(wheel.name)
    if name != base:
        return str(version), []
    return str(version), [str(tag) for tag in tags]


def _fits(tag: str, build: Build) -> bool:
    """Tell whether a tag, "cp310-cp310-linux_x86_64", is for a build's interpreter and machine."""
    return tag.startswith(f"{wheel_name.python_tag(build.python)}-") and tag.endswith(build.arch)


def find_installed(base: str, folder: Path) -> Path:
    """Return the .dist-info folder of a package that is installed in an environment.

    `folder` is the environment, or a folder of packages such as site-packages. Raises ConfigError
    unless the package is installed in it exactly once.
    """
    # "site-packages", and Debian's "dist-packages"; on Windows, lib has no folder for the Python.
    package_folders = [folder, *folder.glob("lib/python*/*-packages")]
    package_folders += folder.glob("lib/site-packages")
    dist_infos: set[Path] = set()
    for package_folder in package_folders:
        # Without a folder of modules, it is an "editable" install: the code is in another tree.
        if (package_folder / base).is_dir():
            # Resolved, because a folder of packages may be a link to another: lib64 to lib.
            for dist_info in package_folder.glob(f"{base}-*{INSTALLED}"):
                dist_infos.add(dist_info.resolve())
    if len(dist_infos) != 1:
        raise ConfigError(
            f"--torch {folder}: {base} is installed there {len(dist_infos)} times: name an "
            "environment that has it once",
            code="no-such-wheel",
        )
    return dist_infos.pop()


def base_pip_requirement(base: str, version: str, options: Options) -> str:
    """Return the requirement by which pip installs the base package for a build.

    `base` and `version` are the package's name and exact version. With "==", pip takes a wheel with
    any local label, and prefers it to a wheel without a label: a wheel of another index would win
    over the wheel on PyPI. "===" compares the whole text, and so means the wheel on PyPI alone.
    https://packaging.python.org/en/latest/specifications/version-specifiers/#version-matching
    """
    if options.torch == PYPI:
        return f"{base}==={version}"
    return options.torch or f"{base}=={version}"
