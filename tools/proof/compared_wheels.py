"""A verified wheel and the published one that it is compared with, each in a clean environment of its own."""

from __future__ import annotations

import argparse
import contextlib
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO, TypeVar

from torchmill.config.facts import Facts
from torchmill.config.official_wheels import wheel_pythons
from torchmill.config.toml_reader import TomlTable, read_toml
from torchmill.config.versions import python_key
from torchmill.core.errors import ConfigError, DeliveryError, HostError
from torchmill.deliver.products import PUBLISHED_OPTION, ProductOptions, VerifiedWheel
from torchmill.deliver.snippet.platforms import platform_name
from torchmill.host import interpreters
from torchmill.host.native import processor_flags
from torchmill.host.processor import processor_problems
from torchmill.plan.cell import Cell
from torchmill.plan.options import OptionParser
from torchmill.wheel.verify import clean_environment

T = TypeVar("T")
OURS, PUBLISHED = "ours", "published"


def parse_published_options(
    arguments: Sequence[str], prog: str
) -> tuple[ProductOptions, list[str]]:
    """Return what a wheel is compared with, by the words after --, and those that are for the wheel."""
    parser = OptionParser(prog=prog, usage=argparse.SUPPRESS, allow_abbrev=False, add_help=False)
    meaning = "what the wheel is compared with, a file or a requirement; by default PyPI's wheel"
    parser.add_argument(PUBLISHED_OPTION, metavar="WHEEL", default="", help=meaning)
    options, rest = parser.parse_known_args(list(arguments))
    if not {"--help", "-h"}.isdisjoint(rest):  # that of the wheel's options follows
        parser.print_help()
    return ProductOptions(published=options.published), rest


def read_own_facts(found: VerifiedWheel, name: str, read: Callable[[TomlTable], T]) -> T:
    """Return what a file of build_configs/ says that only these sessions read; raises ConfigError for mistakes."""
    problems: list[str] = []
    said = read(read_toml(found.facts.patches.parent / f"{name}.toml", problems, required=False))
    if problems:
        raise ConfigError(
            "\n  ".join(["build_configs has problems:", *problems]), code="facts-invalid"
        )
    return said


@dataclass(frozen=True, slots=True)
class ComparedWheel:
    """One of the two: what pip installs, for which Python, and how it differs from the other by intent."""

    side: str  # "ours", "published"
    title: str  # for people: "torch-1.13.1+cpu-….whl", "torch 1.13.1 of PyPI"
    python: str
    packages: tuple[str, ...]  # for pip
    unlike: tuple[str, ...] = ()  # sentences without their full stop


def choose_published(
    facts: Facts, cell: Cell, installed: Collection[str], named: str = ""
) -> ComparedWheel:
    """Return PyPI's wheel of a cell or the nearest to it: the same release for another Python that is installed.

    `named` is what a user compares with instead. Raises DeliveryError where there is none.
    """
    release, build = cell.release, cell.build
    if named:
        return ComparedWheel(PUBLISHED, Path(named).name, build.python, (named,))
    arch = facts.arches[build.arch]
    pythons = wheel_pythons(facts, release, build.arch)
    usable = set(pythons) & {build.python, *installed}
    if not usable:
        there = f", only for Python {', '.join(pythons)}, of which none is here" if pythons else ""
        raise DeliveryError(
            f"PyPI has no wheel of {release} for {platform_name(arch)}{there}: name one to compare with: "
            f"-- --published WHEEL",
            code="no-published-wheel",
        )
    order = sorted({*pythons, build.python}, key=python_key)
    python = min(usable, key=lambda one: abs(order.index(one) - order.index(build.python)))
    unlike = (
        []
        if python == build.python
        else [f"it is for Python {python}: PyPI has none for {build.python}"]
    )
    theirs = release.cuda_pypi if arch.system == "linux" and arch.name == "x86_64" else None
    if theirs != build.cuda:
        has = f"with CUDA {theirs}" if theirs else "without CUDA"
        unlike.append(f"it is built {has}: what runs on the processor is compared")
    base = facts.packages[build.package].after
    wanted = [
        f"{release.package}==={release.version}",
        *([f"{base}==={release.torch}"] if base else ()),
    ]
    return ComparedWheel(PUBLISHED, f"{release} of PyPI", python, tuple(wanted), tuple(unlike))


def describe_ours(found: VerifiedWheel) -> ComparedWheel:
    """Return the verified wheel; what it is built against is taken from dist/.

    Raises HostError where it is built for another processor than this machine's.
    """
    if lacking := processor_problems(
        found.plan.wheel.processor.needs if found.plan.wheel.processor else (), processor_flags()
    ):
        raise HostError(
            f"{found.wheel.name}: {lacking[0]}: try it where it can run",
            code="processor-lacks-features",
        )
    base = (
        ("--find-links", str(found.layout.dist), found.plan.wheel.torch)
        if found.plan.wheel.torch
        else ()
    )
    return ComparedWheel(OURS, found.wheel.name, found.cell.build.python, (str(found.wheel), *base))


@contextlib.contextmanager
def installed_wheel(
    one: ComparedWheel, found: VerifiedWheel, requires: Sequence[str], log: TextIO
) -> Iterator[Path]:
    """Give the interpreter of an environment with a wheel and what else is required, gone afterwards.

    Both get the NumPy that the release is of. Raises VerifyError where pip refuses, HostError without the Python.
    """
    python = interpreters.resolve_interpreter(one.python)
    numpy = [text for text in found.plan.requirements if text.startswith("numpy")]
    found.layout.state.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix=f"compared-{one.side}-", dir=found.layout.state
    ) as folder:
        venv = clean_environment.create_environment(
            python, Path(folder, "venv"), log, found.layout.environments
        )
        clean_environment.install_packages(venv, [*one.packages, *numpy, *requires], log)
        yield venv
