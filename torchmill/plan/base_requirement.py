"""Which version of torch a dependent package is built against."""

from pathlib import Path

from packaging.utils import parse_wheel_filename

from torchmill.config.matrix import Cell, find_release, supported_cells
from torchmill.config.model import Facts, Options, Release
from torchmill.core.errors import ConfigError
from torchmill.plan.wheel_name import local_label

PYPI = "PyPI"
_PYPI_HAS_CUDA = ("linux", "x86_64")  # where the wheels on PyPI are those of the release's `cuda_pypi`


def base_version(facts: Facts, cell: Cell, options: Options) -> str | None:
    """Return the exact version of the package that a dependent one is built against, None for the base.

    Raises ConfigError where PyPI's wheel has another CUDA than the cell.
    """
    package = facts.packages[cell.build.package]
    if package.after is None or cell.release.torch is None:
        return None
    base = find_release(facts, package.after, cell.release.torch)
    if options.torch == PYPI:
        _check_pypi_cuda(facts, cell, base)
        return base.version
    if options.torch:
        return str(parse_wheel_filename(Path(options.torch).name)[1])
    system = facts.arches[cell.build.arch].system
    return base.version + local_label(cell.build, system, options.label, base.commit)


def base_pip_requirement(base: str, version: str, options: Options) -> str:
    """Return what pip installs, to build against it, of the package `base`.

    To pip "==" means any local label too, and it prefers those: "===" is PyPI's very wheel.
    """
    if options.torch == PYPI:
        return f"{base}==={version}"
    return options.torch or f"{base}=={version}"


def _check_pypi_cuda(facts: Facts, cell: Cell, base: Release) -> None:
    """Raise ConfigError for a CUDA build against a wheel on PyPI that is known to have another toolkit."""
    build, arch = cell.build, facts.arches[cell.build.arch]
    if build.cuda in {None, base.cuda_pypi} or (arch.system, arch.name) != _PYPI_HAS_CUDA:
        return
    fitting = [
        one.build.identifier(build.arch)
        for one in supported_cells(facts, cell.release, build.arch)
        if one.possible and one.build.python == build.python and one.build.cuda == base.cuda_pypi
    ]
    has = f"CUDA {base.cuda_pypi}" if base.cuda_pypi else "an unknown version of CUDA"
    instead = f"build {' or '.join(fitting)}, or omit" if fitting else "omit"
    raise ConfigError(
        f"--torch PyPI: {base} on PyPI is built with {has}, but {build.identifier(build.arch)} is for "
        f"CUDA {build.cuda}: {instead} --torch",
        code="pypi-torch-cuda-mismatch",
    )
