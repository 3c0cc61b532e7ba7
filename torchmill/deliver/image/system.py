"""What builders and dev containers install from the distribution, and where their Pythons come from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from packaging.version import Version

from torchmill import deps
from torchmill.deliver.image.request import Request
from torchmill.matrix import buildable, python_key
from torchmill.model import BaseImage, Facts
from torchmill.rules import within

SUITE = Version("3.11")  # the oldest Python that the suite runs on
DEFAULT = "3.12"  # that uv brings for the suite where the distribution's own is older


@dataclass(frozen=True, slots=True)
class Pythons:
    """Where each Python of an image comes from."""

    suite: str  # the one that the suite runs on: "3.11"
    own: tuple[str, ...]  # that the base has, or its package manager brings
    brought: tuple[str, ...]  # that uv brings
    missing: tuple[str, ...]  # that are not to be had


def pythons(facts: Facts, base: BaseImage, wanted: Sequence[str]) -> Pythons:
    """Return where the Pythons of an image come from, that of the suite included."""
    images = facts.images
    able = [one for one in base.pythons if not one.endswith("t") and Version(one) >= SUITE]
    suite = min(able, key=python_key, default=DEFAULT)
    every = sorted({*wanted, suite}, key=python_key)
    own = tuple(one for one in every if one in base.pythons)
    brought = tuple(one for one in every if one not in own and one in images.uv_pythons)
    return Pythons(suite, own, brought, tuple(one for one in every if one not in own + brought))


def packages(facts: Facts, request: Request, base: BaseImage, found: Pythons) -> tuple[str, ...]:
    """Return the system packages: the suite's, those of `invoke deps`, the Pythons', the host compiler's."""
    manager = "dnf" if base.manager == "yum" else base.manager
    cells = buildable(facts, request.release, request.arch)
    names = [*facts.images.tools.get(base.manager, ()), *deps.packages(facts, cells, manager, None)]
    if base.manager == "apt" and base.role == "python":
        names += _beside(base, found)
    elif base.manager == "apt":
        names += [f"python{one}-{part}" for one in found.own for part in ("dev", "venv")]
        names += ["python3-venv"] if found.suite in found.brought else []
    return (*dict.fromkeys(names), *_compiler(facts, request, base))


def _beside(base: BaseImage, found: Pythons) -> tuple[str, ...]:
    """Return what brings the distribution's own Python into an image that was made for another one."""
    if not base.distribution:  # a user's own image may have just that one, and builds want its headers
        return (f"python{found.suite}-dev", f"python{found.suite}-venv")
    return (f"python{found.suite}-venv",) if found.suite != base.pythons[0] else ()


def _compiler(facts: Facts, request: Request, base: BaseImage) -> tuple[str, ...]:
    """Return the package of a compiler that the toolkit takes, where the base's own is too new for it."""
    toolkit = facts.toolkit(request.toolkit)
    if toolkit is None or base.gcc is None or within(toolkit.gcc, base.gcc):
        return ()
    fitting = [major for major in base.compilers if within(toolkit.gcc, major)]
    return (base.compiler.format(major=max(fitting, key=Version)),) if fitting else ()
