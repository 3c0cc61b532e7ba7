"""How conda calls what a build makes: the folder of a channel, the name of a package, its build string."""

from __future__ import annotations

from collections.abc import Mapping

from packaging.utils import canonicalize_name

from torchmill.errors import ConfigError, DeliveryError, ImpossibleBuildError
from torchmill.matrix import CPU
from torchmill.model import Facts
from torchmill.model.conda import Conda

SUBDIR = "CONDA_SUBDIR"  # by which a user tells conda which machine it is for


def known(facts: Facts) -> Conda:
    """Return what is known of conda; raises ConfigError where build_configs/ says nothing."""
    if facts.conda is None:
        raise ConfigError("build_configs has no conda.toml: it says how conda calls machines and packages")
    return facts.conda


def subdir(conda: Conda, arch: str, environ: Mapping[str, str]) -> str:
    """Return the folder of a channel that packages for a machine lie in: "x86_64" -> "linux-64".

    Raises ImpossibleBuildError for a machine that has none, ConfigError where CONDA_SUBDIR says another.
    """
    found = conda.subdirs.get(arch)
    if found is None:
        raise ImpossibleBuildError(
            f"conda packages are not made for {arch}: conda.toml has {', '.join(conda.subdirs)}; "
            "install the wheel with pip"
        )
    asked = environ.get(SUBDIR, found)
    if asked != found:
        raise ConfigError(
            f"{SUBDIR} is {asked}, and what is built on {arch} is for {found}: unset it, "
            f"or build on a machine that {asked} means"
        )
    return found


def package(conda: Conda, project: str) -> str:
    """Return conda's name of a project: "torch" -> "pytorch"."""
    name = canonicalize_name(project)
    return conda.names[name].name if name in conda.names else name


def word(facts: Facts, variant: str) -> str:
    """Return what build strings call a variant: "cpu", "cu118" -> "cuda11.8", "cu110" -> "cuda11.0.221".

    Raises DeliveryError for a variant that names no toolkit.
    """
    if variant == CPU:
        return CPU
    for toolkit in facts.toolkits:
        if toolkit.variant == variant:
            return f"cuda{known(facts).cuda.get(toolkit.version, toolkit.version)}"
    raise DeliveryError(
        f"variant '{variant}' is neither {CPU} nor a CUDA toolkit of toolkits.toml: conda has no name for it"
    )


def build_string(
    facts: Facts, python: str, variant: str, label: str | None, *, cudnn: str | None, number: int
) -> str:
    """Return the build string, "py3.8_cuda11.0.221_cudnn8.0.5_0": a package's variant, told in its name.

    `label` is the wheel's local label; what it says beside the variant is told, too. `cudnn` is the version
    of the library that it is compiled with, None where it is not or that is not known. Raises DeliveryError
    for a variant that names no toolkit.
    """
    words = [f"py{python}", word(facts, variant)]
    if cudnn:
        words.append(f"cudnn{'.'.join(cudnn.split('.')[:3])}")
    return "_".join([*words, *beside(label, variant), str(number)])


def counterpart(facts: Facts, python: str, variant: str, label: str | None) -> str | None:
    """Return a pattern of the build strings of a package with this local label; None where it has none."""
    if label is None:
        return None
    return "_".join(
        [f"py{python}", word(facts, variant), *(f"*{one}" for one in beside(label, variant)), "*"]
    )


def beside(label: str | None, variant: str) -> list[str]:
    """Return what a local label says beside the variant: "cpu.torch1.13.1" -> ["torch1.13.1"]."""
    first, _, rest = (label or "").partition(".")
    found = rest if first == variant else label
    return [found] if found else []
