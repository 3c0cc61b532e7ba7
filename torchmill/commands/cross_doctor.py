"""`invoke doctor` for another architecture: the way into a container, in which the build would run."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torchmill.build import disk_space
from torchmill.build.containers import run
from torchmill.build.containers.engine import (
    Engine,
    explain_no_emulation,
    find_engine,
    find_handler,
    read_binfmt_entries,
)
from torchmill.build.containers.run import EngineHost
from torchmill.build.cross import container
from torchmill.build.disk_space import BuildFolders
from torchmill.commands import cross_build
from torchmill.commands.clean.in_use import nox_environment_name
from torchmill.commands.cross_build import CrossPace
from torchmill.config.matrix import Cell
from torchmill.config.model import Facts, Host, Options
from torchmill.core.errors import HostError
from torchmill.core.paths import Layout
from torchmill.fetch.source import fetcher
from torchmill.plan import build_plan
from torchmill.plan.doctor import disk_and_memory
from torchmill.plan.doctor.finding import BuildQuestion, Finding
from torchmill.plan.doctor.system import fetch_command


@dataclass(frozen=True, slots=True)
class ContainerFacts:
    """What is there of the way into a container."""

    engine: Engine | None
    refusal: str  # why there is no engine, with the cure
    ground: EngineHost | None = None
    image: str = ""
    has_image: bool = False
    handlers: Mapping[str, str] | None = None  # of binfmt_misc; None where another kernel decides


def examine_way_into_container(
    facts: Facts, layout: Layout, host: Host, cell: Cell, options: Options
) -> tuple[Finding, ...]:
    """Return what this machine has and lacks to build a cell of another architecture in a container."""
    fetched = fetcher.load_source(layout, cell.build.package, cell.release.tag)
    computed = build_plan.compute_plan(facts, cell, host, options, fetched)
    inner = container.guest_layout(layout, cell.build.arch)
    there = disk_space.with_disk_space(host, facts, layout, _container_folders(inner, cell), fetched)
    question = BuildQuestion(facts, cell, there, computed, fetched)
    asked = cross_build.choose_options(options)
    seen = look_for_container(facts, cell, asked.image, host.system)
    emulated = seen.ground is None or seen.ground.arch != cell.build.arch
    said = container_findings(question, seen, cross_build.estimate_pace(facts, computed, emulated=emulated))
    return tuple(said)


def look_for_container(facts: Facts, cell: Cell, image: str, system: str) -> ContainerFacts:
    """Return what is there for the container of a cell; `image` was asked for, "" where none was."""
    handlers = read_binfmt_entries() if system == "linux" else None
    try:
        found = find_engine(os.environ)
        ground = run.find_engine_host(found, os.environ, system)
    except HostError as error:
        return ContainerFacts(None, str(error), handlers=handlers)
    name, there = cross_build.find_image(found, facts, cell, image)
    return ContainerFacts(found, "", ground, name, there, handlers)


def container_findings(
    question: BuildQuestion, seen: ContainerFacts, expected: CrossPace
) -> Iterator[Finding]:
    """Yield the findings on the way into a container, in the order in which a session needs it."""
    yield from _engine(seen)
    yield from _emulation(question, seen, expected)
    yield _image(question, seen)
    yield _source(question)
    yield from disk_and_memory.check_room(question)
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
        because, _, cure = seen.refusal.partition(": ")
        yield Finding(subject, "none that answers", needed, "failure", cure, because)
        return
    yield Finding(subject, f"{seen.engine.name} {seen.engine.version}".rstrip(), needed, "ok")
    if seen.ground is not None and seen.ground.remote:
        cure = "run the command there, or unset DOCKER_HOST and CONTAINER_HOST"
        because = "it does not see the files of this one"
        yield Finding("engine's machine", "another one", "this one", "failure", cure, because)


def _emulation(question: BuildQuestion, seen: ContainerFacts, expected: CrossPace) -> Iterator[Finding]:
    arch = question.build.arch
    subject, needed = f"programs for {arch}", "a processor or QEMU that runs them"
    if seen.ground is not None and not expected.emulated:
        yield Finding(subject, "run by the processor", needed, "ok")
        return
    why = None if seen.handlers is None else explain_no_emulation(arch, seen.handlers)
    if why is not None:
        because, _, cure = why.partition(": ")
        yield Finding(subject, "not run", needed, "failure", cure, because)
        return
    known = find_handler(arch, seen.handlers) if seen.handlers else None
    by = f"emulated by {known.name}" if known else "emulated"
    first, *more = cross_build.describe_pace(expected)
    yield Finding(subject, by, needed, "warning", more.pop(), "; ".join((first, *more)))


def _image(question: BuildQuestion, seen: ContainerFacts) -> Finding:
    subject, needed = "image", f"a builder for {question.build.arch}"
    if seen.has_image:
        return Finding(subject, seen.image, needed, "ok")
    cure = cross_build.builder_command(question.facts, question.cell)
    because = f"another one is named with {container.IMAGE_VARIABLE}=NAME, or after -- with --image NAME"
    found = f"no {seen.image}" if seen.image else "not known without an engine"
    return Finding(subject, found, needed, "failure" if seen.image else "unknown", cure, because)


def _source(question: BuildQuestion) -> Finding:
    tag = question.cell.release.tag
    if question.source is None:
        cure = fetch_command(question.facts, question.cell)
        because = "the session starts when it is there; the container sees it"
        return Finding("source", "not fetched", tag, "warning", cure, because)
    return Finding("source", f"{question.source.tag} from {question.source.provider}", tag, "ok")


def _container_folders(inner: Layout, cell: Cell) -> BuildFolders:
    """Return where a build in the container goes on, as this machine sees it."""
    tag, arch = cell.release.tag, cell.build.arch
    identifier = cell.build.identifier(arch)
    tree = disk_space.newest_tree(inner, tag, cell.build.family(arch), identifier)
    return BuildFolders(
        tree, inner.tree(tag, identifier), inner.state / "environments" / nox_environment_name(identifier)
    )
