"""The Pythons and the system packages of an image.

The suite, which is torchmill itself, runs on a Python of its own in a builder. The other Pythons of
the builder are those that it builds wheels for.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from packaging.version import Version

from torchmill.cell.containers.image import python_image
from torchmill.config.build import CPU
from torchmill.config.facts import Facts
from torchmill.config.images import BaseImage, ImageFacts
from torchmill.config.versions import format_bounds, is_within, python_key
from torchmill.core.errors import ConfigError
from torchmill.core.running_python import OLDEST
from torchmill.deliver.image.request import ImageRequest
from torchmill.plan import system_packages
from torchmill.plan.matrix import buildable_cells

OLDEST_SUITE_PYTHON = Version(".".join(map(str, OLDEST)))  # that the suite runs on
OLDEST_UV_PYTHON = Version("3.8")  # whose pip installs uv

# The Python that uv brings for the suite if the distribution's own is too old.
SUITE_PYTHON = "3.12"


@dataclass(frozen=True, slots=True)
class ImagePythons:
    """The source of each Python of an image."""

    suite: str  # the Python that the suite runs on: "3.11"
    from_base: tuple[str, ...]  # that the base has, or its package manager brings
    from_uv: tuple[str, ...]
    compiled: tuple[str, ...]  # from sources
    missing: tuple[str, ...]  # that cannot be had in one of these ways


def plan_pythons(facts: Facts, base: BaseImage, requested: Sequence[str]) -> ImagePythons:
    """Return the source of each requested Python, and of the Python that the suite runs on."""
    suitable = [
        python
        for python in base.pythons
        if not python.endswith("t") and Version(python) >= OLDEST_SUITE_PYTHON
    ]
    suite = min(suitable, key=python_key, default=SUITE_PYTHON)
    # A user's own image is expected to have the Pythons that it is for: nothing is compiled in it.
    compilable = base.compiled if base.distribution else ()
    from_base = []
    from_uv = []
    compiled = []
    missing = []
    for python in sorted({*requested, suite}, key=python_key):
        if python in base.pythons:
            from_base.append(python)
        elif python in facts.images.uv_pythons:
            from_uv.append(python)
        elif python in compilable:
            compiled.append(python)
        else:
            missing.append(python)
    return ImagePythons(suite, tuple(from_base), tuple(from_uv), tuple(compiled), tuple(missing))


def uv_image(images: ImageFacts, arch: str, base: BaseImage) -> BaseImage | None:
    """Return the image to copy uv from; None if the base's own Python can install it."""
    if Version(base.pythons[0].rstrip("t")) < OLDEST_UV_PYTHON:
        return python_image(images, arch, SUITE_PYTHON)
    return None


def image_system_packages(
    facts: Facts, request: ImageRequest, base: BaseImage, pythons: ImagePythons
) -> tuple[str, ...]:
    """Return the system packages of an image.

    They are for the suite itself, for the builds (as `invoke deps` lists them), for the Pythons,
    and the host compiler of a toolkit.
    """
    manager = "dnf" if base.manager == "yum" else base.manager  # they have the same packages
    provider = "debian" if request.purpose == "debian" else None
    cells = [
        cell
        for cell in buildable_cells(facts, request.release, request.arch)
        if cell.build.variant in {CPU, request.variant}
    ]
    names = list(facts.images.tools.get(base.manager, ()))
    names += system_packages.required_packages(facts, cells, manager, provider)
    if pythons.compiled:
        names += facts.images.compiling.get(base.manager, ())
    if base.manager == "apt" and base.role == "python":
        names += _suite_python_packages(base, pythons)
    elif base.manager == "apt":
        for python in pythons.from_base:
            names += [f"python{python}-dev", f"python{python}-venv"]
        if pythons.suite in pythons.from_uv and not uv_image(facts.images, request.arch, base):
            names.append("python3-venv")  # uv is installed into an environment
    names += _host_compiler(facts, request, base)
    return tuple(name for name in dict.fromkeys(names) if name not in base.lacks)


def _suite_python_packages(base: BaseImage, pythons: ImagePythons) -> tuple[str, ...]:
    """Return the system packages of the Python that the suite runs on, for a base with a Python.

    A base with the role "python" has a Python of its own in /usr/local, with headers and venv, and
    Debian's package manager. It needs packages only if the suite runs on Debian's own Python.
    """
    if not base.distribution:
        # A user's own image may have only Debian's Python, and builds need its headers.
        return (f"python{pythons.suite}-dev", f"python{pythons.suite}-venv")
    if pythons.suite != base.pythons[0]:
        return (f"python{pythons.suite}-venv",)
    return ()


def _host_compiler(facts: Facts, request: ImageRequest, base: BaseImage) -> tuple[str, ...]:
    """Return the package of a host compiler, if the base's own is too new for the toolkit.

    Raises ConfigError if the base can have no compiler that the toolkit takes.
    """
    toolkit = facts.toolkit(request.toolkit)
    if toolkit is None or base.gcc is None or is_within(toolkit.gcc, base.gcc):
        return ()
    suitable = [major for major in base.compilers if is_within(toolkit.gcc, major)]
    if suitable:
        return (base.compiler.format(major=max(suitable, key=Version)),)
    if base.distribution:
        raise ConfigError(
            f"CUDA {toolkit.version} takes gcc {format_bounds(toolkit.gcc)}, and {base.name} has "
            "no such gcc: take --purpose development, or give an image that has one with --base",
            code="image-without-compiler",
        )
    return ()
