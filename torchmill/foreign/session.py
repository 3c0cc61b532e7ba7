"""A build for another machine, carried out: the image found, the folders made, the container run."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NoReturn

from torchmill import host, lookup, matrix, options, plan, process, source
from torchmill.containers import emulation, engine, running
from torchmill.containers.engine import Engine
from torchmill.containers.running import Container, Ground, Run
from torchmill.deliver.image.request import PURPOSES, Request
from torchmill.doctor.system import fetch_command
from torchmill.errors import BuildError, ConfigError, HostError, InterruptedBuildError, SourceError
from torchmill.foreign import pace, passing, planning
from torchmill.foreign.planning import Goal
from torchmill.layout import Layout
from torchmill.matrix import Cell
from torchmill.model import Facts, Host, Options
from torchmill.process import CommandError
from torchmill.recall import Recall

_FAILED = 1  # nox's exit code for a session that failed


@dataclass(frozen=True, slots=True)
class Asked:
    """What stands after --: what is for the container, and what is for the build in it."""

    image: str
    engine: str
    options: Options


@dataclass(frozen=True, slots=True)
class Prepared:
    """A run that can begin."""

    goal: Goal
    engine: Engine
    ground: Ground
    container: Container
    steps: Run
    emulated: bool
    has_image: bool
    folders: tuple[Path, ...]  # that must be there first
    environ: Mapping[str, str]  # the engine's own: what is passed on without being shown is taken from there


def build(
    root: Path, facts: Facts, goal: Goal, arguments: Sequence[str], note: Callable[[str], None]
) -> None:
    """Build a cell of another machine in a container.

    What is to be known beforehand goes to `note`, a sentence each. Raises SuiteError.
    """
    asked = parse(arguments, f"nox -s {goal.identifier} --")
    layout = Layout.of(root)
    measured = goal.cell.build.cuda is not None
    machine = host.measure(layout.root) if measured else host.basis(Recall(layout.cache / "recall.json"))
    made = prepare(root, facts, goal, asked, machine)
    _require_source(layout, facts, goal.cell)
    for why in hindrances(facts, machine, made):
        raise HostError(f"{goal.identifier}: {why}")
    for sentence in told(facts, machine, asked, made):
        note(sentence)
    for folder in made.folders:
        folder.mkdir(parents=True, exist_ok=True)
    _run(made)


def prepare(root: Path, facts: Facts, goal: Goal, asked: Asked, machine: Host) -> Prepared:
    """Return the run of a cell in a container of this machine; nothing is changed.

    Raises ImpossibleBuildError, HostError, ConfigError.
    """
    planning.refuse(facts, goal)
    found = engine.find(os.environ, asked.engine)
    ground = running.ground(found, os.environ, machine.system)
    image, has_image = image_of(found, facts, goal.cell, asked.image)
    order = planning.Order(goal, lookup.tag_of(facts, goal.cell.release), image, asked.options)
    place = _place(root)
    container = planning.container(order, place, ground)
    return Prepared(
        goal,
        found,
        ground,
        container,
        running.commands(found, ground, container),
        ground.arch != goal.arch,
        has_image,
        planning.folders(order, place),
        {**os.environ, **place.passed.variables},
    )


def hindrances(facts: Facts, machine: Host, made: Prepared) -> Iterator[str]:
    """Yield why a run cannot begin yet, each with its cure."""
    if made.emulated and machine.system == "linux":  # elsewhere the kernel is that of a virtual machine
        why = emulation.refusal(made.goal.arch, emulation.entries())
        if why is not None:
            yield why
    if not made.has_image:
        name = f"{made.engine.name} has no image {made.container.image}"
        cure = builder_command(facts, made.goal.cell)
        yield f"{name}: `{cure}` makes it, or name another, with -- --image NAME or {planning.IMAGE}=NAME"


def image_of(found: Engine, facts: Facts, cell: Cell, asked: str) -> tuple[str, bool]:
    """Return the name of the image that a cell is built in, and whether the engine has it."""
    names = [asked] if asked else list(builders(facts, cell))
    there = next((name for name in names if running.has(found, name, os.environ)), None)
    return there or names[0], there is not None


def builder_command(facts: Facts, cell: Cell) -> str:
    """Return the command that makes the image of a cell."""
    toolkit = f" --toolkit {cell.build.cuda}" if cell.build.cuda else ""
    tag = lookup.tag_of(facts, cell.release)
    return f"invoke image --kind builder --tag {tag} --arch {cell.build.arch}{toolkit} --build"


def parse(arguments: Sequence[str], prog: str) -> Asked:
    """Return what is asked for after --.

    Raises ConfigError for anything that is no option of a container nor of a build.
    """
    parser = _Parser(prog=prog, allow_abbrev=False, add_help=False)
    parser.add_argument("--image")
    parser.add_argument("--engine")
    own, rest = parser.parse_known_args(list(arguments))
    return chosen(options.parse(rest, prog), own.image, own.engine)


def chosen(said: Options, image: str | None = None, program: str | None = None) -> Asked:
    """Return what is asked for, of a container what the environment says where nothing else does."""
    return Asked(image or os.environ.get(planning.IMAGE, ""), program or "", said)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{self.prog}: {message}; name an image as in --image=debian-arm64")


def told(facts: Facts, machine: Host, asked: Asked, made: Prepared) -> list[str]:
    """Return what a user is to know beforehand, a sentence each."""
    where = f"{made.engine.name} {made.engine.version}, image {made.container.image}"
    computed = plan.compute(facts, made.goal.cell, machine, asked.options)
    found = pace.of(facts, computed, emulated=made.emulated)
    return [
        f"{made.goal.identifier} is built in a container for {made.goal.arch} ({where})",
        *pace.told(found),
    ]


def builders(facts: Facts, cell: Cell) -> Iterator[str]:
    """Yield the names of the images that `invoke image --kind builder` makes for a cell."""
    base = matrix.base_package(facts).name
    release = matrix.find_release(facts, base, cell.release.torch_version)
    build = cell.build
    for purpose in PURPOSES:
        yield Request("builder", release, build.arch, (build.python,), build.variant, build.cuda, purpose).tag


def _place(root: Path) -> planning.Place:
    layout = Layout.of(root)
    configs = os.environ.get("TORCHMILL_CONFIGS")
    listing = process.capture([sys.executable, "-m", "pip", "config", "list"])
    has_users = hasattr(os, "getuid")
    return planning.Place(
        checkout=root.resolve(),
        layout=layout,
        configs=Path(configs).resolve() if configs else None,
        passed=passing.passed(os.environ, passing.settings(listing), os.path.exists),
        requirements=(root / "requirements.txt").read_text(encoding="utf-8"),
        process=os.getpid(),
        user=(os.getuid(), os.getgid()) if has_users and sys.platform == "linux" else None,
    )


def _require_source(layout: Layout, facts: Facts, cell: Cell) -> None:
    package, tag = cell.build.package, cell.release.tag
    if source.load(layout, package, tag) is None:
        raise SourceError(f"{package} {tag} is not fetched: run `{fetch_command(facts, cell)}`")


def _run(made: Prepared) -> None:
    """Run the container; raises HostError, BuildError, InterruptedBuildError in words of the session."""
    try:
        running.run(made.container, made.steps, made.environ, sys.stderr, partial(_assure, made))
    except InterruptedBuildError:
        raise InterruptedBuildError(
            f"interrupted: {made.goal.identifier} was stopped, and its container with it; run the same "
            "command again to go on from there"
        ) from None
    except CommandError as error:
        if error.argv == made.steps.main and error.returncode == _FAILED:
            raise BuildError(
                f"{made.goal.identifier} failed in its container, as said above; run the same command again "
                "to go on from there"
            ) from None
        raise HostError(_engine_failed(made, error)) from None


def _engine_failed(made: Prepared, error: CommandError) -> str:
    """Say what an engine could not do."""
    what = (
        f"{made.goal.identifier}: {made.engine.name} cannot run {made.container.image} for {made.goal.arch}"
    )
    if "exec format error" in error.output.lower():
        cure = emulation.refusal(made.container.arch, {})
        return f"{what}: {cure}"
    return f"{what}: {error}"


def _assure(made: Prepared, machine: str) -> None:
    """Raise HostError where a program in the container does not see the machine that is meant."""
    if machine != made.container.arch:
        raise HostError(
            f"{made.goal.identifier}: {made.container.image} is an image for {machine or 'another machine'}, "
            f"not for {made.goal.arch}: name another, with -- --image NAME or {planning.IMAGE}=NAME"
        )
