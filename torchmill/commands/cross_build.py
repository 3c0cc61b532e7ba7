"""Build for another architecture in a container: options, image, checks beforehand, the run."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from torchmill.build.containers import run
from torchmill.build.containers.engine import Engine, explain_no_emulation, find_engine, read_binfmt_entries
from torchmill.build.containers.run import Container, ContainerCommands, EngineHost
from torchmill.build.cross.container import (
    IMAGE_VARIABLE,
    ContainerOrder,
    ContainerPlace,
    CrossBuild,
    parse_pip_settings,
    plan_container,
    refuse_impossible,
    required_folders,
    select_settings,
)
from torchmill.config import cell_lookup, matrix
from torchmill.config.cost_model import CostRange
from torchmill.config.matrix import Cell
from torchmill.config.model import Facts, Host, Options, Plan
from torchmill.core import process
from torchmill.core.errors import (
    BuildError,
    ConfigError,
    HostError,
    ImpossibleBuildError,
    InterruptedBuildError,
    SourceError,
)
from torchmill.core.paths import CHECKOUT, Layout
from torchmill.core.process import CommandError
from torchmill.core.stat_cache import StatCache
from torchmill.deliver.image.request import PURPOSES, ImageRequest
from torchmill.fetch.source import fetcher
from torchmill.host.machine import measure_basic_host, measure_host
from torchmill.plan import build_plan, estimate
from torchmill.plan import options as options_
from torchmill.plan.doctor.system import fetch_command
from torchmill.plan.estimate import EstimateSpan, format_estimate

# GitHub's hosted runners of an arch, as wheels.yml names them.
RUNNERS = {"aarch64": "ubuntu-24.04-arm", "x86_64": "ubuntu-24.04"}


@dataclass(frozen=True, slots=True)
class CrossPace:
    """What a build will take, in seconds of the clock."""

    arch: str
    emulated: bool  # another processor plays this one
    factor: CostRange | None  # how much longer compilers take then; None: nobody measured it
    native: EstimateSpan | None  # on a machine of the arch with as many processors; None: nothing is known

    @property
    def wall(self) -> EstimateSpan | None:
        """Return what it takes here; None where nobody knows."""
        if self.native is None or not self.emulated:
            return self.native
        if self.factor is None:
            return None
        low, high = self.factor.low, self.factor.high
        return EstimateSpan(
            self.native.low * low, self.native.likely * (low * high) ** 0.5, self.native.high * high
        )


def estimate_pace(facts: Facts, plan: Plan, *, emulated: bool) -> CrossPace:
    """Return the pace of a plan."""
    arch, found = facts.arches[plan.build.arch], estimate.estimate_build(facts, plan)
    return CrossPace(arch.name, emulated, arch.emulated, found.wall if found else None)


def describe_pace(pace: CrossPace) -> list[str]:
    """Return the sentences for a user who waits for it."""
    if not pace.emulated:
        return [f"the container's machine is {pace.arch} itself: nothing is emulated"]
    factor, wall = pace.factor, pace.wall
    times = f"{factor.low:g} to {factor.high:g} times as long" if factor else "many times as long"
    lines = [f"every program for {pace.arch} is emulated here: compilers take {times} as natively"]
    if wall:
        span = f"({format_estimate(wall.low)} to {format_estimate(wall.high)})"
        lines.append(f"expect about {format_estimate(wall.likely)} {span} with an empty compiler cache")
    lines.append(
        f"faster: a machine that is {pace.arch}, or GitHub's runner {RUNNERS[pace.arch]} (wheels.yml, see "
        "docs/other-machines.md)"
    )
    return lines


_FAILED = 1  # nox's exit code for a session that failed


@dataclass(frozen=True, slots=True)
class CrossOptions:
    """What stands after --: what is for the container, and what is for the build in it."""

    image: str
    engine: str
    options: Options


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """A run that can begin."""

    goal: CrossBuild
    engine: Engine
    ground: EngineHost
    container: Container
    steps: ContainerCommands
    emulated: bool
    has_image: bool
    folders: tuple[Path, ...]  # that must be there first
    environ: Mapping[str, str]  # the engine's own: what is passed on without being shown is taken from there


def build_in_container(
    root: Path, facts: Facts, goal: CrossBuild, arguments: Sequence[str], note: Callable[[str], None]
) -> None:
    """Build a cell of another machine in a container.

    What is to be known beforehand goes to `note`, a sentence each. Raises SuiteError.
    """
    asked = parse_options(arguments, f"nox -s {goal.identifier} --")
    layout = Layout.of_checkout(root)
    measured = goal.cell.build.cuda is not None
    machine = (
        measure_host(layout.root) if measured else measure_basic_host(StatCache(layout.cache / "recall.json"))
    )
    made = prepare_run(root, facts, goal, asked, machine)
    _require_source(layout, facts, goal.cell)
    for why in find_hindrances(facts, machine, made):
        raise HostError(f"{goal.identifier}: {why}")
    for sentence in describe_run(facts, machine, asked, made):
        note(sentence)
    for folder in made.folders:
        folder.mkdir(parents=True, exist_ok=True)
    _run(made)


def prepare_run(
    root: Path, facts: Facts, goal: CrossBuild, asked: CrossOptions, machine: Host
) -> PreparedRun:
    """Return the run of a cell in a container of this machine; nothing is changed.

    Raises ImpossibleBuildError, HostError, ConfigError.
    """
    refuse_impossible(facts, goal)
    found = find_engine(os.environ, asked.engine)
    ground = run.find_engine_host(found, os.environ, machine.system)
    image, has_image = find_image(found, facts, goal.cell, asked.image)
    order = ContainerOrder(goal, cell_lookup.selecting_tag(facts, goal.cell.release), image, asked.options)
    place = _place(root)
    container = plan_container(order, place, ground)
    return PreparedRun(
        goal,
        found,
        ground,
        container,
        run.container_commands(found, ground, container),
        ground.arch != goal.arch,
        has_image,
        required_folders(order, place),
        {**os.environ, **place.passed.variables},
    )


def find_hindrances(facts: Facts, machine: Host, made: PreparedRun) -> Iterator[str]:
    """Yield why a run cannot begin yet, each with its cure."""
    if made.emulated and machine.system == "linux":  # elsewhere the kernel is that of a virtual machine
        why = explain_no_emulation(made.goal.arch, read_binfmt_entries())
        if why is not None:
            yield why
    if not made.has_image:
        name = f"{made.engine.name} has no image {made.container.image}"
        cure = builder_command(facts, made.goal.cell)
        yield f"{name}: `{cure}` makes it, or name another, with -- --image NAME or {IMAGE_VARIABLE}=NAME"


def find_image(found: Engine, facts: Facts, cell: Cell, asked: str) -> tuple[str, bool]:
    """Return the name of the image that a cell is built in, and whether the engine has it."""
    names = [asked] if asked else list(builder_images(facts, cell))
    there = next((name for name in names if run.has_image(found, name, os.environ)), None)
    return there or names[0], there is not None


def builder_command(facts: Facts, cell: Cell) -> str:
    """Return the command that makes the image of a cell."""
    toolkit = f" --toolkit {cell.build.cuda}" if cell.build.cuda else ""
    tag = cell_lookup.selecting_tag(facts, cell.release)
    return f"invoke image --kind builder --tag {tag} --arch {cell.build.arch}{toolkit} --build"


def parse_options(arguments: Sequence[str], prog: str) -> CrossOptions:
    """Return what is asked for after --.

    Raises ConfigError for anything that is no option of a container nor of a build.
    """
    parser = _Parser(prog=prog, allow_abbrev=False, add_help=False)
    parser.add_argument("--image")
    parser.add_argument("--engine")
    own, rest = parser.parse_known_args(list(arguments))
    return choose_options(options_.parse_options(rest, prog), own.image, own.engine)


def choose_options(said: Options, image: str | None = None, program: str | None = None) -> CrossOptions:
    """Return what is asked for, of a container what the environment says where nothing else does."""
    return CrossOptions(image or os.environ.get(IMAGE_VARIABLE, ""), program or "", said)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{self.prog}: {message}; name an image as in --image=debian-arm64")


def describe_run(facts: Facts, machine: Host, asked: CrossOptions, made: PreparedRun) -> list[str]:
    """Return what a user is to know beforehand, a sentence each."""
    where = f"{made.engine.name} {made.engine.version}, image {made.container.image}"
    computed = build_plan.compute_plan(facts, made.goal.cell, machine, asked.options)
    found = estimate_pace(facts, computed, emulated=made.emulated)
    return [
        f"{made.goal.identifier} is built in a container for {made.goal.arch} ({where})",
        *describe_pace(found),
    ]


def builder_images(facts: Facts, cell: Cell) -> Iterator[str]:
    """Yield the names of the images that `invoke image --kind builder` makes for a cell."""
    base = matrix.base_package(facts).name
    release = matrix.find_release(facts, base, cell.release.torch_version)
    build = cell.build
    for purpose in PURPOSES:
        yield ImageRequest(
            "builder", release, build.arch, (build.python,), build.variant, build.cuda, purpose
        ).tag


def _place(root: Path) -> ContainerPlace:
    layout = Layout.of_checkout(root)
    configs = os.environ.get("TORCHMILL_CONFIGS")
    listing = process.capture([sys.executable, "-m", "pip", "config", "list"])
    has_users = hasattr(os, "getuid")
    return ContainerPlace(
        checkout=root.resolve(),
        layout=layout,
        configs=Path(configs).resolve() if configs else None,
        passed=select_settings(os.environ, parse_pip_settings(listing), os.path.exists),
        requirements=(root / "requirements.txt").read_text(encoding="utf-8"),
        process=os.getpid(),
        user=(os.getuid(), os.getgid()) if has_users and sys.platform == "linux" else None,
    )


def _require_source(layout: Layout, facts: Facts, cell: Cell) -> None:
    package, tag = cell.build.package, cell.release.tag
    if fetcher.load_source(layout, package, tag) is None:
        raise SourceError(f"{package} {tag} is not fetched: run `{fetch_command(facts, cell)}`")


def _run(made: PreparedRun) -> None:
    """Run the container; raises HostError, BuildError, InterruptedBuildError in words of the session."""
    try:
        run.run_container(made.container, made.steps, made.environ, sys.stderr, partial(_assure, made))
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


def _engine_failed(made: PreparedRun, error: CommandError) -> str:
    """Say what an engine could not do."""
    what = (
        f"{made.goal.identifier}: {made.engine.name} cannot run {made.container.image} for {made.goal.arch}"
    )
    if "exec format error" in error.output.lower():
        cure = explain_no_emulation(made.container.arch, {})
        return f"{what}: {cure}"
    return f"{what}: {error}"


def _assure(made: PreparedRun, machine: str) -> None:
    """Raise HostError where a program in the container does not see the machine that is meant."""
    if machine != made.container.arch:
        raise HostError(
            f"{made.goal.identifier}: {made.container.image} is an image for {machine or 'another machine'}, "
            f"not for {made.goal.arch}: name another, with -- --image NAME or {IMAGE_VARIABLE}=NAME"
        )


@dataclass(frozen=True, slots=True)
class CrossPreview:
    """What would run, or why nothing can."""

    missing: str  # "" where there is an engine
    sentences: tuple[str, ...] = ()
    container: Container | None = None
    steps: ContainerCommands | None = None

    def as_text(self) -> str:
        """Return it for a person to read."""
        if self.container is None or self.steps is None:
            return f"\nin a container, which cannot be had: {self.missing}"
        lines = ["", "in a container", *(f"  {sentence}" for sentence in self.sentences)]
        commands = (*self.steps.before, self.steps.main, self.steps.after)
        return "\n".join([*lines, *(f"  {shlex.join(argv)}" for argv in commands)])

    def as_data(self) -> Mapping[str, Any]:
        """Return it as JSON-ready data."""
        if self.container is None or self.steps is None:
            return {"missing": self.missing}
        return {
            "image": self.container.image,
            "arch": self.container.arch,
            "mounts": [
                {"source": one.source, "target": one.target, "writable": one.writable}
                for one in self.container.mounts
            ],
            "variables": dict(self.container.variables),
            "passed": list(self.container.passed),
            "commands": [list(argv) for argv in (*self.steps.before, self.steps.main, self.steps.after)],
            "sentences": list(self.sentences),
        }


def preview_cross_build(facts: Facts, cell: Cell, machine: Host, options: Options) -> CrossPreview:
    """Return the container of a cell on this machine, or what there is none for.

    Raises ConfigError where a path cannot be given to one.
    """
    root = CHECKOUT
    goal = CrossBuild(cell, cell.build.identifier(cell.build.arch))
    asked = choose_options(options)
    try:
        made = prepare_run(root, facts, goal, asked, machine)
    except (HostError, ImpossibleBuildError) as error:
        return CrossPreview(str(error))
    missing = (f"missing: {why}" for why in find_hindrances(facts, machine, made))
    sentences = (*describe_run(facts, machine, asked, made), *missing)
    return CrossPreview("", sentences, made.container, made.steps)
