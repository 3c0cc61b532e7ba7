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
from torchmill.build.tree import BuildFolders
from torchmill.commands import cross_build
from torchmill.commands.clean.in_use import nox_environment_name
from torchmill.config.matrix import Cell
from torchmill.config.model import Facts, Host, Options
from torchmill.core.errors import HostError
from torchmill.core.paths import Layout
from torchmill.fetch.source.record import load_source
from torchmill.plan import build_plan
from torchmill.plan.doctor import disk_and_memory
from torchmill.plan.doctor.finding import CheckContext, Finding
from torchmill.plan.doctor.system import source_finding


@dataclass(frozen=True, slots=True)
class ContainerFacts:
    """What this machine has for a container."""

    engine: Engine | None
    refusal: str  # why there is no engine, with the fix
    engine_host: EngineHost | None = None
    image: str = ""
    has_image: bool = False
    handlers: Mapping[str, str] | None = None  # of binfmt_misc; None if another kernel decides


def examine_way_into_container(
    facts: Facts, layout: Layout, host: Host, cell: Cell, options: Options
) -> tuple[Finding, ...]:
    """Return what this machine has and lacks to build a cell of another architecture in a container."""
    tag, arch = cell.release.tag, cell.build.arch
    fetched = load_source(layout, cell.build.package, tag)
    computed = build_plan.compute_plan(facts, cell, host, options, fetched)
    inner, identifier = container.guest_layout(layout, arch), cell.build.identifier(arch)
    folders = BuildFolders(  # in the container, as this machine sees them
        disk_space.newest_tree(inner, tag, cell.build.family(arch), identifier),
        inner.tree(tag, identifier),
        inner.state / "environments" / nox_environment_name(identifier),
    )
    with_space = disk_space.with_disk_space(host, facts, layout, folders, fetched)
    question = CheckContext(facts, cell, with_space, computed, fetched)
    return tuple(container_findings(question, look_for_container(facts, cell, host.system)))


def look_for_container(facts: Facts, cell: Cell, system: str) -> ContainerFacts:
    """Return what this machine has for the container of a cell."""
    handlers = read_binfmt_entries() if system == "linux" else None
    try:
        engine = find_engine(os.environ)
        engine_host = run.find_engine_host(engine, os.environ, system)
    except HostError as error:
        return ContainerFacts(None, str(error), handlers=handlers)
    name, exists = cross_build.find_image(engine, facts, cell, cross_build.default_image())
    return ContainerFacts(engine, "", engine_host, name, exists, handlers)


def container_findings(question: CheckContext, seen: ContainerFacts) -> Iterator[Finding]:
    """Yield the findings on the way into a container, in the order in which a session needs it."""
    yield from _engine(seen)
    yield _emulation(question, seen)
    yield _image(question, seen)
    yield source_finding(question)
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
    why = None if seen.handlers is None else explain_no_emulation(arch, seen.handlers)
    if why is not None:
        because, _, fix = why.partition(": ")
        return Finding(subject, "not run", needed, "failure", fix, because)
    handler = find_handler(arch, seen.handlers) if seen.handlers else None
    *pace, faster = cross_build.describe_pace(question.facts, question.plan, emulated=True)
    emulator = f"emulated by {handler.name}" if handler else "emulated"
    return Finding(subject, emulator, needed, "warning", faster, "; ".join(pace))


def _image(question: CheckContext, seen: ContainerFacts) -> Finding:
    subject, needed = "image", f"a builder for {question.build.arch}"
    if seen.has_image:
        return Finding(subject, seen.image, needed, "ok")
    cure = cross_build.builder_command(question.facts, question.cell)
    because = f"another one is named with {container.IMAGE_VARIABLE}=NAME, or after -- with --image NAME"
    found = f"no {seen.image}" if seen.image else "not known without an engine"
    return Finding(subject, found, needed, "failure" if seen.image else "unknown", cure, because)
