"""Build for another architecture in a container: options, image, checks beforehand, the run."""

import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torchmill.cell.containers import cross
from torchmill.cell.containers import engine as engines
from torchmill.cell.containers.cross import IMAGE_VARIABLE, ContainerPlace, CrossBuild
from torchmill.cell.containers.engine import Container, ContainerCommands, Engine, EngineHost
from torchmill.cell.context import require_source
from torchmill.config.facts import Facts
from torchmill.config.release_lookup import base_release, selecting_tag
from torchmill.core import process
from torchmill.core.errors import BuildError, HostError, ImpossibleBuildError, UnfinishedBuildError
from torchmill.core.lenient_paths import real_path
from torchmill.core.paths import CHECKOUT, Layout, locate_page
from torchmill.core.process import CommandError
from torchmill.core.stat_cache import StatCache
from torchmill.deliver.image.request import PURPOSES, ImageRequest
from torchmill.fetch.source.request import DEBIAN
from torchmill.fetch.source.source_dir import load_source
from torchmill.host.host import Host
from torchmill.host.measurement import measure_basic_host, measure_host
from torchmill.plan import build_plan, estimate
from torchmill.plan import options as options_
from torchmill.plan.build_options import Options
from torchmill.plan.cell import Cell
from torchmill.plan.doctor import resources, source
from torchmill.plan.doctor.finding import CheckContext, Finding
from torchmill.plan.estimate import format_estimate
from torchmill.plan.plan import Plan

# GitHub's hosted runners of an arch, as wheels.yml names them.
RUNNERS = {"aarch64": "ubuntu-24.04-arm", "x86_64": "ubuntu-24.04"}
_FAILED = 1  # nox's exit code for a session that failed


def describe_pace(facts: Facts, plan: Plan, *, emulated: bool, crossed: bool) -> list[str]:
    """Return sentences on how long a build takes in a container, and where it is faster."""
    arch = facts.arches[plan.build.arch]
    if not emulated:
        return [f"the container's machine is {arch.name} itself: nothing is emulated"]
    factor, cost = arch.crossed if crossed else arch.emulated, estimate.estimate_build(facts, plan)
    times = f"{factor.low:g} to {factor.high:g} times as long" if factor else "many times as long"
    if crossed:
        what = (
            f"programs for {arch.name} are emulated here, but not the image's compilers: they take"
        )
    else:
        what = f"every program for {arch.name} is emulated here: compilers take"
    lines = [f"{what} {times} as natively"]
    if factor and cost:
        likely = format_estimate(cost.wall.likely * factor.middle)
        low, high = cost.wall.low * factor.low, cost.wall.high * factor.high
        span = f"({format_estimate(low)} to {format_estimate(high)})"
        lines.append(f"expect about {likely} {span} with an empty compiler cache")
    image = (
        ""
        if crossed
        else "an image with cross compilers (of Debian or Ubuntu, by `invoke image`), "
    )
    page = locate_page("docs/how-to/build-for-other-machines.md")
    runner = f"GitHub's runner {RUNNERS[arch.name]} (wheels.yml, see {page})"
    lines.append(f"faster: {image}a machine that is {arch.name}, or {runner}")
    return lines


@dataclass(frozen=True, slots=True)
class ContainerFacts:
    """What this machine has for a container."""

    engine: Engine | None
    refusal: str  # why there is no engine, with the fix
    engine_host: EngineHost | None = None
    image: str = ""
    described: str | None = None  # what the engine says of the image; None: it has none
    handlers: Mapping[str, str] | None = None  # of binfmt_misc; None if another kernel decides

    @property
    def crossed(self) -> bool:
        """Tell whether the image has cross compilers that run on the engine's machine."""
        label = f'"{engines.CROSS_LABEL}":"{self.engine_host.arch}"' if self.engine_host else ""
        return bool(label) and label in (self.described or "")


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """A run that can begin, unless something is missing."""

    goal: CrossBuild
    engine: Engine
    container: Container
    steps: ContainerCommands
    folders: tuple[Path, ...]  # that must exist first
    environ: Mapping[
        str, str
    ]  # the engine's own: what is passed on without being shown is taken from there
    sentences: tuple[str, ...]  # that a user should know beforehand
    missing: tuple[str, ...]  # why it cannot begin yet, each with its cure
    builder: str  # the command that makes an image for it


def build_in_container(
    root: Path,
    facts: Facts,
    goal: CrossBuild,
    arguments: Sequence[str],
    note: Callable[[str], None],
) -> None:
    """Build a cell of another machine in a container.

    What a user should know beforehand goes to `note`, a sentence each. Raises TorchmillError.
    """
    options, image, engine = parse_options(arguments, f"nox -s {goal.identifier} --")
    layout = Layout.of_checkout(root)
    measured = goal.cell.build.cuda is not None
    machine = (
        measure_host(layout.root) if measured else measure_basic_host(StatCache(layout.stat_cache))
    )
    made = prepare_run(root, facts, replace(goal, options=options, image=image), machine, engine)
    require_source(layout, facts, goal.cell)
    if made.missing:
        raise HostError(f"{goal.identifier}: {made.missing[0]}", code="container-not-ready")
    for sentence in made.sentences:
        note(sentence)
    for folder in made.folders:
        folder.mkdir(parents=True, exist_ok=True)
    _run(made)


def prepare_run(
    root: Path, facts: Facts, goal: CrossBuild, machine: Host, engine_name: str = ""
) -> PreparedRun:
    """Return the run of a cell in a container of this machine, with this engine if it is named; nothing is changed.

    Raises ImpossibleBuildError, HostError, ConfigError.
    """
    cross.refuse_impossible(facts, goal)
    engine = engines.find_engine(os.environ, engine_name)
    engine_host = engines.find_engine_host(engine, os.environ, machine.system)
    fetched = load_source(Layout.of_checkout(root), goal.cell.build.package, goal.cell.release.tag)
    plan = build_plan.compute_plan(facts, goal.cell, machine, goal.options)
    question = CheckContext(facts, goal.cell, machine, plan, fetched)
    seen = look_for_image(engine, engine_host, question, goal.image)
    tag, emulated = (
        selecting_tag(facts, goal.cell.release),
        engine_host.arch != goal.arch,
    )
    goal = replace(goal, tag=tag, image=seen.image, crossed=emulated and seen.crossed)
    place = _place(root)
    container = cross.plan_container(goal, place, engine_host)
    where = f"{engine.name} {engine.version}, image {seen.image}"
    first = f"{goal.identifier} is built in a container for {goal.arch} ({where})"
    tagged = "the wheel's platform tag follows the glibc of that image, not of this machine"
    findings = (_emulation(question, seen), _image(question, seen))
    return PreparedRun(
        goal,
        engine,
        container,
        engines.container_commands(engine, engine_host, container),
        cross.required_folders(goal, place),
        {**os.environ, **place.passed.variables},
        (first, tagged, *describe_pace(facts, plan, emulated=emulated, crossed=goal.crossed)),
        tuple(f"{one.because}: {one.cure}" for one in findings if one.verdict == "failure"),
        _image(question, replace(seen, described=None)).cure,
    )


def look_for_image(
    engine: Engine, engine_host: EngineHost, question: CheckContext, image: str
) -> ContainerFacts:
    """Return what there is for the container of a build, in an image of that name or, without one, a builder's.

    Where no image is there, it names the one that the cure makes.
    """
    names = [image] if image else list(builder_images(question))
    images = ((name, engines.describe_image(engine, name, os.environ)) for name in names)
    there, described = next((one for one in images if one[1] is not None), (None, None))
    made = DEBIAN if question.source and question.source.provider == DEBIAN else "development"
    lacking = next((name for name in names if name.endswith(made)), names[0])
    return ContainerFacts(engine, "", engine_host, there or lacking, described, _handlers())


def _handlers() -> dict[str, str] | None:
    return engines.read_binfmt_entries() if sys.platform == "linux" else None


def parse_options(arguments: Sequence[str], prog: str) -> tuple[Options, str, str]:
    """Return what is asked for after --: the options of the build, and the image and the engine of its container.

    Raises ConfigError for anything that is no option of a container nor of a build.
    """
    parser = options_.OptionParser(prog=prog, allow_abbrev=False, add_help=False)
    parser.add_argument("--image")
    parser.add_argument("--engine", default="")
    own, rest = parser.parse_known_args(list(arguments))
    return (
        options_.parse_options(rest, prog),
        own.image or os.environ.get(IMAGE_VARIABLE, ""),
        own.engine,
    )


def builder_images(question: CheckContext) -> Iterator[str]:
    """Yield the names of the builders that `invoke image` makes for a build: that for its source goes first."""
    build, source = question.build, question.source
    release = base_release(question.facts, question.cell.release)
    for purpose in sorted(PURPOSES, key=lambda one: not source or one != source.provider):
        yield ImageRequest(
            "builder", release, build.arch, (build.python,), build.variant, build.cuda, purpose
        ).tag


def _place(root: Path) -> ContainerPlace:
    layout = Layout.of_checkout(root)
    configs = os.environ.get("TORCHMILL_CONFIGS")
    listing = process.ask([sys.executable, "-P", "-m", "pip", "config", "list"])
    return ContainerPlace(
        checkout=real_path(root),
        layout=layout,
        configs=real_path(configs) if configs else None,
        passed=cross.select_settings(os.environ, cross.parse_pip_settings(listing), os.path.exists),
        requirements=(root / "requirements.txt").read_text(encoding="utf-8"),
        process=int.from_bytes(
            os.urandom(5)
        ),  # an engine may serve others, whose processes have the same numbers
        user=(os.getuid(), os.getgid()) if sys.platform == "linux" else None,
    )


def _run(made: PreparedRun) -> None:
    """Run the container; raises HostError and BuildError in words of the session, InterruptedBuildError."""

    def assure(machine: str) -> None:
        if machine != made.container.arch:
            raise HostError(
                f"{made.goal.identifier}: {made.container.image} is an image for {machine or 'another machine'}, "
                f"not for {made.goal.arch}: name another, with -- --image NAME or {IMAGE_VARIABLE}=NAME",
                code="image-of-another-arch",
            )

    try:
        engines.run_container(made.container, made.steps, made.environ, sys.stderr, assure)
    except CommandError as error:
        if error.argv == made.steps.main and error.returncode == _FAILED:
            raise BuildError(
                f"{made.goal.identifier} failed in its container, as said above; run the same command again to go on "
                f"from there, or where {made.container.image} lacks something, make one that has it: `{made.builder}`",
                code="container-build-failed",
            ) from None
        if error.argv == made.steps.main and error.returncode == UnfinishedBuildError.exit_code:
            raise UnfinishedBuildError(
                f"{made.goal.identifier}: the time of --until is up", code="time-up"
            ) from None
        emulation = "exec format error" in error.output.lower()
        why = engines.explain_no_emulation(made.container.arch, {}) if emulation else error
        raise HostError(
            f"{made.goal.identifier}: {made.engine.name} cannot run {made.container.image} for {made.goal.arch}: {why}",
            code="container-engine-failed",
        ) from None


def preview_cross_build(
    facts: Facts, cell: Cell, machine: Host, options: Options, whole: bool
) -> tuple[str, dict[str, Any]]:
    """Return the container of a cell on this machine as text and as JSON-ready data, or why there is none.

    The text has the engine's commands if it is to be `whole`. Raises ConfigError where a path cannot be given to one.
    """
    image, name = os.environ.get(IMAGE_VARIABLE, ""), cell.build.identifier(cell.build.arch)
    try:
        made = prepare_run(
            CHECKOUT, facts, CrossBuild(cell, name, options=options, image=image), machine
        )
    except (HostError, ImpossibleBuildError) as error:
        return f"\nin a container, which is not possible: {error}", {"missing": str(error)}
    sentences = [*made.sentences, *(f"missing: {why}" for why in made.missing)]
    commands = [*made.steps.before, made.steps.main, made.steps.after]
    lines = [*sentences, *(map(shlex.join, commands) if whole else ())]
    data = {
        "image": made.container.image,
        "arch": made.container.arch,
        "mounts": [asdict(one) for one in made.container.mounts],
        "variables": dict(made.container.variables),
        "passed": list(made.container.passed),
        "commands": [list(argv) for argv in commands],
        "sentences": sentences,
    }
    return "\n  ".join(["\nin a container", *lines]), data


def examine_way_into_container(question: CheckContext) -> tuple[Finding, ...]:
    """Return what this machine has and lacks to build a cell of another architecture in a container."""
    try:
        engine = engines.find_engine(os.environ)
        engine_host = engines.find_engine_host(engine, os.environ, question.host.system)
        seen = look_for_image(engine, engine_host, question, os.environ.get(IMAGE_VARIABLE, ""))
    except HostError as error:
        seen = ContainerFacts(None, str(error), handlers=_handlers())
    return tuple(container_findings(question, seen))


def container_findings(question: CheckContext, seen: ContainerFacts) -> Iterator[Finding]:
    """Yield the findings on the way into a container, in the order in which a session needs it."""
    yield from _engine(seen)
    yield _emulation(question, seen)
    yield _image(question, seen)
    yield source.source_finding(question)
    yield from resources.check_resources(question)
    yield Finding(
        "compilers, Pythons",
        "those of the image",
        "as for any build",
        "unknown",
        because="the session examines them in the container, before anything is compiled",
    )


def _engine(seen: ContainerFacts) -> Iterator[Finding]:
    subject, needed = "container engine", "docker, podman or buildah"
    if seen.engine is None:
        because, _, fix = seen.refusal.partition(": ")
        yield Finding(subject, "none that answers", needed, "failure", fix, because)
        return
    yield Finding(subject, f"{seen.engine.name} {seen.engine.version}".rstrip(), needed, "ok")
    if seen.engine_host is not None and seen.engine_host.remote:
        cure = "run the command there, or unset DOCKER_HOST and CONTAINER_HOST"
        because = "it does not see the files of this one"
        yield Finding("engine's machine", "another one", "this one", "failure", cure, because)


def _emulation(question: CheckContext, seen: ContainerFacts) -> Finding:
    arch = question.build.arch
    subject, needed = f"programs for {arch}", "a processor or QEMU that runs them"
    if seen.engine_host is not None and seen.engine_host.arch == arch:
        return Finding(subject, "run by the processor", needed, "ok")
    why = None if seen.handlers is None else engines.explain_no_emulation(arch, seen.handlers)
    if why is not None:
        because, _, fix = why.partition(": ")
        return Finding(subject, "not run", needed, "failure", fix, because)
    handler = engines.find_handler(arch, seen.handlers) if seen.handlers else None
    *pace, faster = describe_pace(
        question.facts, question.plan, emulated=True, crossed=seen.crossed
    )
    emulator = f"emulated by {handler.name}" if handler else "emulated"
    return Finding(subject, emulator, needed, "warning", faster, "; ".join(pace))


def _image(question: CheckContext, seen: ContainerFacts) -> Finding:
    subject, needed = "image", f"a builder for {question.build.arch}"
    if seen.described is not None:
        return Finding(subject, seen.image, needed, "ok")
    build, source = question.build, question.source
    more = f" --toolkit {build.cuda}" if build.cuda else ""
    more += " --purpose debian" if source and source.provider == DEBIAN else ""
    tag = selecting_tag(question.facts, question.cell.release)
    cure = f"invoke image --kind builder --tag {tag} --arch {build.arch}{more} --build"
    if seen.engine is None:
        return Finding(subject, "not known without an engine", needed, "unknown", cure)
    because = (
        f"{seen.engine.name} has no image {seen.image} (another one is named with {IMAGE_VARIABLE}=NAME, or after -- "
        "with --image NAME)"
    )
    return Finding(subject, f"no {seen.image}", needed, "failure", cure, because)
