"""A verified wheel and the published one that it is compared with, each in an environment of its own.

The sessions `check-…` and `speed-…` use both. The published wheel is PyPI's, unless the user names
another.
"""

from __future__ import annotations

import argparse
import contextlib
import re
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO, TypeVar

from millpress import library_checks
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from torchmill.config.facts import Facts
from torchmill.config.official_wheels import wheel_pythons
from torchmill.config.toml_reader import TomlTable, read_toml
from torchmill.config.versions import python_key
from torchmill.core.errors import ConfigError, DeliveryError, HostError
from torchmill.deliver.products import (
    PUBLISHED_OPTION,
    TESTS_OPTION,
    ProductOptions,
    VerifiedWheel,
)
from torchmill.deliver.snippet.platforms import platform_name
from torchmill.host import environments, interpreters
from torchmill.host.native import processor_flags
from torchmill.host.processor import processor_problems
from torchmill.plan import wheel_name
from torchmill.plan.cell import Cell
from torchmill.plan.options import OptionParser
from torchmill.wheel.verify import clean_environment

T = TypeVar("T")
# The sides of a comparison.
OURS = "ours"
PUBLISHED = "published"


def parse_published_options(
    arguments: Sequence[str], prog: str, *, takes_tests: bool
) -> tuple[ProductOptions, list[str]]:
    """Return the options of the comparison, and the other words after --, which are the wheel's.

    `takes_tests` says that upstream's tests are run, and that the user may name a folder of them.
    """
    parser = OptionParser(prog=prog, usage=argparse.SUPPRESS, allow_abbrev=False, add_help=False)
    meaning = "what the wheel is compared with, a file or a requirement; by default PyPI's wheel"
    parser.add_argument(PUBLISHED_OPTION, metavar="WHEEL", default="", help=meaning)
    if takes_tests:
        meaning = "upstream's tests, a clone or its folder of tests; by default those of the source"
        parser.add_argument(TESTS_OPTION, metavar="FOLDER", default="", help=meaning)
    options, words = parser.parse_known_args(list(arguments))
    if not {"--help", "-h"}.isdisjoint(words):
        parser.print_help()  # the help for the wheel's options follows
    tests = options.tests if takes_tests else ""
    return ProductOptions(published=options.published, tests=tests), words


def read_session_facts(verified: VerifiedWheel, name: str, read: Callable[[TomlTable], T]) -> T:
    """Return the facts in NAME.toml of build_configs/, which no other part of the suite reads.

    `read` gets the table of the file, which is empty if there is no such file; it notes mistakes
    by `TomlTable.problem`. Raises ConfigError if there are any.
    """
    problems: list[str] = []
    path = verified.facts.folder / f"{name}.toml"
    facts = read(read_toml(path, problems, required=False))
    if problems:
        message = "\n  ".join(["build_configs has problems:", *problems])
        raise ConfigError(message, code="facts-invalid")
    return facts


def is_extension(verified: VerifiedWheel) -> bool:
    """Tell whether a package goes with many releases of torch, each of which has its own wheel."""
    return bool(verified.facts.packages[verified.cell.build.package].editions)


@dataclass(frozen=True, slots=True)
class ComparedWheel:
    """One side of a comparison: a wheel with its Python."""

    side: str  # "ours", "published"
    title: str  # for people: "torch-1.13.1+cpu-….whl", "torch 1.13.1 of PyPI"
    python: str
    packages: tuple[str, ...]  # for pip
    # Known differences between the sides, as sentences without their full stop.
    differences: tuple[str, ...] = ()
    lent: Path | None = None  # a folder of installed packages that has torch; None: pip installs it


@dataclass(frozen=True, slots=True)
class WheelComparison:
    """Both wheels of a comparison, and the files that it leaves among the logs."""

    ours: ComparedWheel
    published: ComparedWheel
    stem: Path  # path with which those of the files begin: logs/v1.13.1-check-wheel-3.10-cpu

    def file(self, ending: str) -> Path:
        """Return the path of a file of the comparison, by the ending of its name: ".json"."""
        return Path(f"{self.stem}{ending}")


def published_side(
    facts: Facts, cell: Cell, installed: Collection[str], requested: str = ""
) -> ComparedWheel:
    """Return PyPI's wheel of a cell, or the wheel of the same release for the nearest Python.

    That Python must be among the `installed` ones. `requested` is a file or a requirement that the
    user names instead. Raises DeliveryError if there is no such wheel.
    """
    release = cell.release
    build = cell.build
    if requested:
        return ComparedWheel(PUBLISHED, Path(requested).name, build.python, (requested,))
    arch = facts.arches[build.arch]
    pythons = wheel_pythons(facts, release, build.arch)
    usable = set(pythons) & {build.python, *installed}
    if not usable:
        problem = f"PyPI has no wheel of {release} for {platform_name(arch)}"
        if pythons:
            problem = (
                f"PyPI has wheels of {release} for {platform_name(arch)} only for Python "
                f"{', '.join(pythons)}, and none of these is installed here"
            )
        raise DeliveryError(
            f"{problem}: name one to compare with: -- --published WHEEL",
            code="no-published-wheel",
        )
    ordered = sorted({*pythons, build.python}, key=python_key)
    position = ordered.index(build.python)
    # Of two that are equally near, the older is chosen: `min` takes the first.
    candidates = [version for version in ordered if version in usable]
    python = min(candidates, key=lambda version: abs(ordered.index(version) - position))
    differences = []
    if python != build.python:
        differences.append(f"it is for Python {python}: PyPI has none for {build.python}")
    # Only the wheels for Linux x86_64 on PyPI are built with CUDA.
    published_cuda = None
    if arch.system == "linux" and arch.name == "x86_64":
        published_cuda = release.cuda.pypi
    if published_cuda != build.cuda:
        clause = f"with CUDA {published_cuda}" if published_cuda else "without CUDA"
        differences.append(f"it is built {clause}: only what runs on the CPU is compared")
    # "===" takes no wheel with a local label, which another index may have.
    packages = [f"{release.package}==={release.version}"]
    base = facts.packages[build.package].after  # the package that this one imports first
    if base:
        packages.append(f"{base}==={release.torch}")
    title = f"{release} of PyPI"
    return ComparedWheel(PUBLISHED, title, python, tuple(packages), tuple(differences))


def our_side(verified: VerifiedWheel) -> ComparedWheel:
    """Return the verified wheel as a side, with the torch that it is built against.

    That torch comes from dist/ or the index, unless the build borrowed an installed one. Raises
    HostError if the wheel is built for another processor than this machine's, DeliveryError if it
    imports a package of which dist/ has no wheel.
    """
    planned = verified.plan.wheel
    needed_flags = planned.processor.needs if planned.processor else ()
    problems = processor_problems(needed_flags, processor_flags())
    if problems:
        raise HostError(
            f"{verified.wheel.name}: {problems[0]}: try it on a machine that has it",
            code="processor-lacks-features",
        )
    packages = [str(verified.wheel), *_imported_wheels(verified)]
    if planned.torch and not planned.torch_folder:
        packages += ["--find-links", str(verified.layout.dist), planned.torch]
    python = verified.cell.build.python
    title = verified.wheel.name
    return ComparedWheel(OURS, title, python, tuple(packages), lent=planned.torch_folder)


def _imported_wheels(verified: VerifiedWheel) -> list[str]:
    """Return the wheels of packages that a package imports without requiring them.

    They are in dist/, and have the same local label, "+cpu.torch2.11.0".
    """
    _, plus, label = verified.plan.wheel.version.partition("+")
    build = verified.cell.build
    wheels = []
    for name in verified.facts.packages[build.package].checks.imports:
        distribution = wheel_name.distribution_name(verified.facts.packages[name])
        python = wheel_name.python_tag(build.python)
        pattern = f"{distribution}-*{plus}{label}-{python}-*_{build.arch}.whl"
        candidates = sorted(verified.layout.dist.glob(pattern))
        if not candidates:
            raise DeliveryError(
                f"{build.package} imports {name}, and dist/ has no wheel of it for the same torch: "
                f"build that first",
                code="wheel-not-built",
            )
        wheels.append(str(candidates[-1]))
    return wheels


def begin_comparison(
    verified: VerifiedWheel, options: ProductOptions, session: str
) -> WheelComparison:
    """Return both wheels of a session, "check" or "speed", and make the folder of its files.

    Raises HostError if our wheel is for another processor, DeliveryError if there is no published
    wheel to compare it with.
    """
    ours = our_side(verified)
    pythons = interpreters.installed_interpreters()
    published = published_side(verified.facts, verified.cell, pythons, options.published)
    published = replace(published, lent=ours.lent)
    return WheelComparison(ours, published, make_stem(verified, session))


def make_stem(verified: VerifiedWheel, session: str) -> Path:
    """Return the path with which the files of a session begin; their folder is made."""
    logs = verified.layout.logs
    logs.mkdir(parents=True, exist_ok=True)
    return logs / f"{verified.cell.release.tag}-{session}-{verified.plan.identifier}"


def numpy_requirements(requirements: Sequence[str], *, exact: bool) -> list[str]:
    """Return those of the requirements that are for NumPy.

    Unless `exact`, a pinned version becomes its major version: "numpy==1.*" of "numpy==1.24.4". For
    another Python that version may have no wheel, and what wheels are compiled against changes
    with the major version only.
    """
    chosen = []
    for requirement in map(Requirement, requirements):
        if canonicalize_name(requirement.name) != "numpy":
            continue
        if not exact:
            specifier = re.sub(r"==(\d+)\.[\d.]*\d", r"==\1.*", str(requirement.specifier))
            requirement.specifier = SpecifierSet(specifier)
        chosen.append(str(requirement))
    return chosen


@contextlib.contextmanager
def installed_wheel(
    wheel: ComparedWheel, verified: VerifiedWheel, requires: Sequence[str], log: TextIO
) -> Iterator[Path]:
    """Install a wheel in a new environment, yield its interpreter, and delete the environment.

    `requires` are further requirements. Both sides get the NumPy of the release's plan, so that
    they differ by nothing else; a side with another Python gets one of the same major version.
    Raises VerifyError if pip refuses, HostError if the Python is not installed.
    """
    python = interpreters.resolve_interpreter(wheel.python)
    has_planned_python = wheel.python == verified.cell.build.python
    numpy = numpy_requirements(verified.plan.requirements, exact=has_planned_python)
    state = verified.layout.state
    state.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"compared-{wheel.side}-", dir=state) as folder:
        venv = clean_environment.create_environment(
            python, Path(folder, "venv"), log, verified.layout.environments
        )
        if wheel.lent is not None:
            environments.add_package_folder(Path(folder, "venv"), wheel.lent)
        clean_environment.install_packages(venv, [*wheel.packages, *numpy, *requires], log)
        if wheel.lent is not None:
            # The run paths of the wheel's libraries lead to NVIDIA's packages beside it.
            nvidia = wheel.lent / library_checks.NVIDIA_FOLDER
            if nvidia.is_dir():
                (clean_environment.site_packages(venv) / nvidia.name).symlink_to(nvidia)
        yield venv
