"""Build for another architecture in a container: options, image, checks beforehand, the run.

The container runs the suite itself, as a machine of that architecture. Its programs are *emulated*
by QEMU unless the engine's machine has the architecture. An image with cross compilers is faster
(the build is *crossed*): its compilers run natively, and only other programs are emulated.
"""

import os
import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torchmill.cell import option_files
from torchmill.cell.containers import cross, emulation
from torchmill.cell.containers import engine as engines
from torchmill.cell.containers.cross import IMAGE_VARIABLE, ContainerPlace, CrossBuild
from torchmill.cell.containers.engine import Container, ContainerCommands, Engine, EngineHost
from torchmill.cell.context import require_source
from torchmill.config.facts import Facts
from torchmill.config.release_lookup import base_release, selecting_tag
from torchmill.core import process, programs, suite_files
from torchmill.core.errors import BuildError, HostError, ImpossibleBuildError, UnfinishedBuildError
from torchmill.core.lenient_paths import real_path
from torchmill.core.paths import CHECKOUT, IS_INSTALLED, Layout, locate_page
from torchmill.core.plain_text import as_plain_text
from torchmill.core.process import CommandError, NoAnswerError
from torchmill.core.stat_cache import StatCache
from torchmill.deliver.image.request import PURPOSES, ImageRequest
from torchmill.fetch.source.request import DEBIAN
from torchmill.fetch.source.source_dir import load_source
from torchmill.host.host import Host
from torchmill.host.measurement import measure_basic_host, measure_host
from torchmill.plan import build_plan, estimate
from torchmill.plan.build_options import Options
from torchmill.plan.cell import Cell
from torchmill.plan.crossing import is_crossed
from torchmill.plan.doctor.finding import CheckContext, Finding
from torchmill.plan.doctor.resources import check_processor_time, check_resources
from torchmill.plan.doctor.source import source_finding
from torchmill.plan.estimate import format_estimate
from torchmill.plan.options import OptionParser
from torchmill.plan.plan import Plan

# GitHub's hosted runners of an architecture, as wheels.yml names them.
RUNNERS = {"aarch64": "ubuntu-24.04-arm", "x86_64": "ubuntu-24.04"}
_FAILED = 1  # nox's exit code for a session that failed


def describe_pace(facts: Facts, plan: Plan, *, emulated: bool, crossed: bool) -> list[str]:
    """Return sentences on the time of a build in a container.

    If programs are emulated, the last one is on faster ways.
    """
    arch = facts.arches[plan.build.arch]
    if not emulated:
        return [f"the container's machine is {arch.name} itself: nothing is emulated"]
    factor = arch.crossed if crossed else arch.emulated
    times = "many times as long"
    if factor:
        times = f"{factor.low:g} to {factor.high:g} times as long"
    subject = f"every program for {arch.name} is emulated here: compilers take"
    if crossed:
        subject = (
            f"programs for {arch.name} are emulated here, but not the image's compilers: they take"
        )
    lines = [f"{subject} {times} as natively"]
    cost = estimate.estimate_build(facts, plan)
    if factor and cost:
        likely = format_estimate(cost.wall.likely * factor.middle)
        low = format_estimate(cost.wall.low * factor.low)
        high = format_estimate(cost.wall.high * factor.high)
        lines.append(f"expect about {likely} ({low} to {high}) with an empty compiler cache")
    page = locate_page("docs/how-to/build-for-other-machines.md")
    image = "an image with cross compilers (of Debian or Ubuntu, by `invoke image`), "
    if crossed:
        image = ""
    lines.append(
        f"faster: {image}a machine that is {arch.name}, or GitHub's runner {RUNNERS[arch.name]} "
        f"(wheels.yml, see {page})"
    )
    return lines


@dataclass(frozen=True, slots=True)
class ContainerFacts:
    """The means of this machine to run a container."""

    engine: Engine | HostError  # the error says why there is no engine
    engine_host: EngineHost | None = None
    image: str = ""
    described: str | None = None  # the engine's description of the image; None: it has no such one
    # The programs with which Linux starts programs of other architectures (binfmt_misc), by name.
    # None on macOS and Windows, whose engines have a Linux of their own.
    handlers: Mapping[str, str] | None = None

    @property
    def is_crossed(self) -> bool:
        """Tell whether the image has cross compilers that run on the engine's machine."""
        if self.engine_host is None:
            return False
        label = f'"{engines.CROSS_LABEL}":"{self.engine_host.arch}"'
        return label in (self.described or "")


@dataclass(frozen=True, slots=True)
class PreparedRun:
    """A build in a container that can begin, unless something is missing."""

    goal: CrossBuild
    engine: Engine
    container: Container
    steps: ContainerCommands
    folders: tuple[Path, ...]  # that must exist first
    # The variables of the engine's process. Some, which may be secrets, are passed into the
    # container from there by name, so that no command shows their values.
    environ: Mapping[str, str]
    sentences: tuple[str, ...]  # that a user should know beforehand
    missing: tuple[str, ...]  # why the build cannot begin yet, each with its cure
    builder: str  # the command that makes an image for the build


def build_in_container(
    root: Path,
    facts: Facts,
    goal: CrossBuild,
    arguments: Sequence[str],
    note: Callable[[str], None],
) -> None:
    """Build a cell of another architecture in a container.

    `arguments` are the words after -- of the session, and `note` prints a sentence for the user.
    Raises the errors of `parse_options` and `prepare_run`, HostError if this machine cannot run the
    container, SourceError if the source is not fetched, BuildError if the build fails,
    UnfinishedBuildError if its time (`--until`) is up.
    """
    options, image, engine = parse_options(arguments, f"nox -s {goal.identifier} --")
    layout = Layout.of_checkout(root)
    # To measure GPUs takes seconds, and a build for the CPU does not depend on them.
    if goal.cell.build.cuda is None:
        machine = measure_basic_host(StatCache(layout.stat_cache))
    else:
        machine = measure_host(layout.root)
    run = prepare_run(root, facts, replace(goal, options=options, image=image), machine, engine)
    require_source(layout, facts, goal.cell)
    if run.missing:
        raise HostError(f"{goal.identifier}: {run.missing[0]}", code="container-not-ready")
    for sentence in run.sentences:
        note(sentence)
    for folder in run.folders:
        folder.mkdir(parents=True, exist_ok=True)
    _run(run)


def prepare_run(
    root: Path, facts: Facts, goal: CrossBuild, machine: Host, engine_name: str = ""
) -> PreparedRun:
    """Return the build of a cell in a container on this machine, without beginning it.

    `engine_name` is "podman", "docker" or "buildah", "" for the first that answers. Raises
    ImpossibleBuildError for a cell that no container can build, HostError without an engine,
    ConfigError for a path or an option that an engine cannot be given.
    """
    cross.refuse_impossible(facts, goal)
    engine = engines.find_engine(os.environ, engine_name)
    engine_host = engines.find_engine_host(engine, os.environ, machine.system)
    layout = Layout.of_checkout(root)
    fetched = load_source(layout, goal.cell.build.package, goal.cell.release.tag)
    planning_machine = machine
    if is_crossed(facts, goal.cell.build, machine.arch):
        # Here, cross compilers would build it. In the container it is native.
        planning_machine = replace(machine, arch=goal.arch)
    plan = build_plan.compute_plan(facts, goal.cell, planning_machine, goal.options)
    context = CheckContext(facts, goal.cell, machine, plan, fetched)
    present = look_for_image(engine, engine_host, context, goal.image)
    emulated = engine_host.arch != goal.arch
    goal = replace(
        goal,
        tag=selecting_tag(facts, goal.cell.release),
        image=present.image,
        is_crossed=emulated and present.is_crossed,
    )
    place = _container_place(root, layout)
    container = cross.plan_container(goal, place, engine_host)
    name = f"{engine.name} {engine.version}"
    sentences = [
        f"{goal.identifier} is built in a container for {goal.arch} ({name}, image {goal.image})",
        "the wheel's platform tag follows the glibc of that image, not of this machine",
        *describe_pace(facts, plan, emulated=emulated, crossed=goal.is_crossed),
    ]
    missing = []
    for finding in (_examine_emulation(context, present), _examine_image(context, present)):
        if finding.verdict == "failure":
            missing.append(f"{finding.because}: {finding.cure}")
    # The command that makes an image is the cure of a missing one, even if there is an image now.
    without_image = replace(present, described=None)
    return PreparedRun(
        goal=goal,
        engine=engine,
        container=container,
        steps=engines.container_commands(engine, engine_host, container),
        folders=cross.required_folders(goal, place),
        environ={**os.environ, **place.passed.variables},
        sentences=tuple(sentences),
        missing=tuple(missing),
        builder=_examine_image(context, without_image).cure,
    )


def look_for_image(
    engine: Engine, engine_host: EngineHost, context: CheckContext, image: str
) -> ContainerFacts:
    """Return the means of this machine for the container of a build.

    `image` is the image that the user named, and no other counts then. With "", the builders of
    `invoke image` do; if the engine has none of them, the result has the name of the image that the
    cure makes.
    """
    names = [image] if image else list(builder_images(context))
    for name in names:
        described = engines.describe_image(engine, name, os.environ)
        if described is not None:
            return ContainerFacts(engine, engine_host, name, described, _handlers())
    purpose = "development"
    if context.source and context.source.provider == DEBIAN:
        purpose = DEBIAN
    fitting = [name for name in names if name.endswith(purpose)]
    name = fitting[0] if fitting else names[0]
    return ContainerFacts(engine, engine_host, name, None, _handlers())


def _handlers() -> dict[str, str] | None:
    """Return the handlers of this machine (`ContainerFacts.handlers`)."""
    return emulation.read_binfmt_entries() if sys.platform == "linux" else None


def parse_options(arguments: Sequence[str], prog: str) -> tuple[Options, str, str]:
    """Return the options of the build, and the image and the engine of its container.

    `arguments` are the words after --. The image is that of TORCHMILL_IMAGE if they name none. Image
    and engine are "" if nobody named them. Raises ConfigError for anything that is no option of a
    container nor of a build.
    """
    parser = OptionParser(prog=prog, allow_abbrev=False, add_help=False)
    parser.add_argument("--image")
    parser.add_argument("--engine", default="")
    values, rest = parser.parse_known_args(list(arguments))
    image = values.image or os.environ.get(IMAGE_VARIABLE, "")
    return option_files.parse_options(rest, prog), image, values.engine


def builder_images(context: CheckContext) -> Iterator[str]:
    """Yield the names of the images of kind builder that `invoke image` makes for a build.

    First comes the image for the provider of its source.
    """
    build = context.build
    release = base_release(context.facts, context.cell.release)
    provider = context.source.provider if context.source else None
    for purpose in sorted(PURPOSES, key=lambda purpose: purpose != provider):
        request = ImageRequest(
            "builder", release, build.arch, (build.python,), build.variant, build.cuda, purpose
        )
        yield request.tag


def _container_place(root: Path, layout: Layout) -> ContainerPlace:
    """Return the parts of this machine that a container sees."""
    configs = os.environ.get("TORCHMILL_CONFIGS")
    pip_settings = ""
    if programs.has_pip():  # an environment that uv made has none
        pip_settings = _read_pip_settings()
    return ContainerPlace(
        suite=_locate_suite(root),
        layout=layout,
        configs=real_path(configs) if configs else None,
        passed=cross.select_settings(
            os.environ, cross.parse_pip_settings(pip_settings), os.path.exists
        ),
        requirements=suite_files.read_requirements(),
        # The mark of this run's container. A process id would not do: the engine may serve other
        # machines, whose processes have the same ids.
        process=int.from_bytes(os.urandom(5)),
        user=(os.getuid(), os.getgid()) if sys.platform == "linux" else None,
    )


def _read_pip_settings() -> str:
    """Return the output of `pip config list`, "" after a warning if pip does not answer in time.

    The container then has the settings of the environment (PIP_INDEX_URL, …) alone. Raises
    CommandError if pip cannot read its files.
    """
    try:
        # -P: a file pip.py in the working folder is not to be run.
        return process.ask([sys.executable, "-P", "-m", "pip", "config", "list"])
    except NoAnswerError as error:
        warning = (
            f"the container gets no setting of pip's files, only those of variables such as "
            f"PIP_INDEX_URL: {error}"
        )
        sys.stderr.write(as_plain_text(f"warning: {warning}\n"))
        return ""


def _locate_suite(root: Path) -> dict[str, Path]:
    """Return the folders of the suite by their paths in that of a container."""
    folders = suite_files.installed_folders() if IS_INSTALLED else {"": root}
    return {name: real_path(folder) for name, folder in folders.items()}


def _run(run: PreparedRun) -> None:
    """Run the container.

    Raises BuildError if the session in the container failed, UnfinishedBuildError if its time is
    up, HostError if the engine cannot run the image.
    """
    identifier = run.goal.identifier
    image = run.container.image

    def assure(machine: str) -> None:
        """Raise HostError unless the image is for the architecture of the build."""
        if machine != run.container.arch:
            raise HostError(
                f"{identifier}: {image} is an image for {machine or 'another machine'}, not for "
                f"{run.goal.arch}: name another, with -- --image NAME or {IMAGE_VARIABLE}=NAME",
                code="image-of-another-arch",
            )

    try:
        engines.run_container(run.container, run.steps, run.environ, sys.stderr, assure)
    except CommandError as error:
        if error.argv == run.steps.main and error.returncode == _FAILED:
            raise BuildError(
                f"{identifier} failed in its container, as said above; run the same command again "
                f"to go on from there, or where {image} lacks something, make one that has it: "
                f"`{run.builder}`",
                code="container-build-failed",
            ) from None
        if error.argv == run.steps.main and error.returncode == UnfinishedBuildError.exit_code:
            raise UnfinishedBuildError(
                f"{identifier}: the time of --until is up", code="time-up"
            ) from None
        reason = str(error)
        # The kernel's words (ENOEXEC) for a program of another architecture that nothing emulates.
        if "exec format error" in error.output.lower():
            reason = str(emulation.explain_no_emulation(run.container.arch, {}))
        raise HostError(
            f"{identifier}: {run.engine.name} cannot run {image} for {run.goal.arch}: {reason}",
            code="container-engine-failed",
        ) from None


def preview_cross_build(
    facts: Facts, cell: Cell, machine: Host, options: Options, whole: bool
) -> tuple[str, dict[str, Any]]:
    """Return the container of a cell on this machine, as text and as JSON-ready data.

    If there can be none, both have the reason. With `whole`, the text has the commands of the
    engine. Raises ConfigError if an engine cannot be given a path.
    """
    image = os.environ.get(IMAGE_VARIABLE, "")
    name = cell.build.identifier(cell.build.arch)
    goal = CrossBuild(cell, name, options=options, image=image)
    try:
        run = prepare_run(CHECKOUT, facts, goal, machine)
    except (HostError, ImpossibleBuildError) as error:
        return f"\nin a container, which is not possible: {error}", {"missing": str(error)}
    sentences = [*run.sentences, *(f"missing: {reason}" for reason in run.missing)]
    commands = [*run.steps.creation, run.steps.main, run.steps.removal]
    lines = ["\nin a container", *sentences]
    if whole:
        lines += [shlex.join(argv) for argv in commands]
    data = {
        "image": run.container.image,
        "arch": run.container.arch,
        "mounts": [asdict(mount) for mount in run.container.mounts],
        "variables": dict(run.container.variables),
        "passed": list(run.container.passed),
        "commands": [list(argv) for argv in commands],
        "sentences": sentences,
    }
    return "\n  ".join(lines), data


def examine_way_into_container(context: CheckContext) -> tuple[Finding, ...]:
    """Return the doctor's findings on this machine for a cell of another architecture."""
    try:
        engine = engines.find_engine(os.environ)
        engine_host = engines.find_engine_host(engine, os.environ, context.host.system)
        image = os.environ.get(IMAGE_VARIABLE, "")
        present = look_for_image(engine, engine_host, context, image)
    except HostError as error:
        present = ContainerFacts(error, handlers=_handlers())
    return tuple(container_findings(context, present))


def container_findings(context: CheckContext, present: ContainerFacts) -> Iterator[Finding]:
    """Yield the findings on a container, in the order in which a session meets the problems."""
    yield from _examine_engine(present)
    yield _examine_emulation(context, present)
    yield _examine_image(context, present)
    yield source_finding(context)
    yield from check_resources(context)
    yield from check_processor_time(context.host)
    yield Finding(
        "compilers, Pythons",
        "those of the image",
        "as for any build",
        "unknown",
        because="the session examines them in the container, before anything is compiled",
    )


def _examine_engine(present: ContainerFacts) -> Iterator[Finding]:
    """Yield the findings on the engine, and on the machine on which it runs."""
    subject = "container engine"
    needed = "docker, podman or buildah"
    if isinstance(present.engine, HostError):
        refusal = present.engine
        yield Finding(
            subject,
            "none that answers",
            needed,
            "failure",
            cure=refusal.cure,
            because=refusal.reason,
        )
        return
    version = f"{present.engine.name} {present.engine.version}".rstrip()
    yield Finding(subject, version, needed, "ok")
    if present.engine_host is not None and present.engine_host.is_remote:
        yield Finding(
            "engine's machine",
            "another one",
            "this one",
            "failure",
            cure="run the command there, or unset DOCKER_HOST and CONTAINER_HOST",
            because="it does not see the files of this one",
        )


def _examine_emulation(context: CheckContext, present: ContainerFacts) -> Finding:
    """Return the finding on programs of the build's architecture: whether they run, how fast."""
    arch = context.build.arch
    subject = f"programs for {arch}"
    needed = "a processor or QEMU that runs them"
    if present.engine_host is not None and present.engine_host.arch == arch:
        return Finding(subject, "run by the processor", needed, "ok")
    emulator = "emulated"
    if present.handlers is not None:
        refusal = emulation.explain_no_emulation(arch, present.handlers)
        if refusal is not None:
            reason, _, fix = refusal.partition(": ")  # neither has a colon of its own
            return Finding(subject, "not run", needed, "failure", cure=fix, because=reason)
        handler = emulation.find_handler(arch, present.handlers)
        if handler:
            emulator = f"emulated by {handler.name}"
    *pace, faster = describe_pace(
        context.facts, context.plan, emulated=True, crossed=present.is_crossed
    )
    return Finding(subject, emulator, needed, "warning", cure=faster, because="; ".join(pace))


def _examine_image(context: CheckContext, present: ContainerFacts) -> Finding:
    """Return the finding on the image for the build; its cure makes one."""
    build = context.build
    subject = "image"
    needed = f"a builder for {build.arch}"
    if present.described is not None:
        return Finding(subject, present.image, needed, "ok")
    tag = selecting_tag(context.facts, context.cell.release)
    words = ["invoke", "image", "--kind", "builder", "--tag", tag, "--arch", build.arch]
    if build.cuda:
        words += ["--toolkit", build.cuda]
    if context.source and context.source.provider == DEBIAN:
        words += ["--purpose", "debian"]
    cure = " ".join([*words, "--build"])
    if isinstance(present.engine, HostError):
        return Finding(subject, "not known without an engine", needed, "unknown", cure=cure)
    reason = (
        f"{present.engine.name} has no image {present.image} (another one is named with "
        f"{IMAGE_VARIABLE}=NAME, or after -- with --image NAME)"
    )
    return Finding(subject, f"no {present.image}", needed, "failure", cure=cure, because=reason)
