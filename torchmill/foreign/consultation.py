"""The doctor's answer for a build of another machine: what is examined is the way into a container of it."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torchmill import lookup, plan, source
from torchmill.containers import emulation, engine, running
from torchmill.containers.engine import Engine
from torchmill.containers.running import Ground
from torchmill.doctor import consultation, room
from torchmill.doctor.consultation import HELP, Visit, patient
from torchmill.doctor.finding import Finding, Question
from torchmill.doctor.system import fetch_command
from torchmill.errors import HostError
from torchmill.foreign import pace, planning, session
from torchmill.foreign.pace import Pace
from torchmill.housekeeping import foresight
from torchmill.housekeeping.foresight import Folders
from torchmill.housekeeping.running import environment_of
from torchmill.layout import Layout
from torchmill.matrix import Cell
from torchmill.model import Facts, Host, Options, Release

__all__ = ["HELP", "patient", "visit"]

_NONE = Options()


@dataclass(frozen=True, slots=True)
class Seen:
    """What is there of the way into a container."""

    engine: Engine | None
    refusal: str  # why there is no engine, with the cure
    ground: Ground | None = None
    image: str = ""
    has_image: bool = False
    handlers: Mapping[str, str] | None = None  # of binfmt_misc; None where another kernel decides


def visit(  # noqa: PLR0917 - what is examined, and for what
    facts: Facts,
    layout: Layout | None,
    host: Host,
    identifier: str,
    release: Release | None,
    options: Options = _NONE,
) -> Visit:
    """Return what the doctor says; of a build for another machine, what this one lacks to build it.

    Takes and raises what `torchmill.doctor.consultation.visit` does, which answers for all other builds.
    """
    cell = lookup.find(facts, identifier, host.arch, release) if identifier else None
    if layout is None or cell is None or not _needs_container(facts, cell, host):
        return consultation.visit(facts, layout, host, identifier, release, options)
    fetched = source.load(layout, cell.build.package, cell.release.tag)
    computed = plan.compute(facts, cell, host, options, fetched)
    inner = planning.guest(layout, cell.build.arch)
    there = foresight.looked_at(host, facts, layout, _folders(inner, cell), fetched)
    question = Question(facts, cell, there, computed, fetched)
    asked = session.chosen(options)
    seen = look(facts, cell, asked.image, host.system)
    emulated = seen.ground is None or seen.ground.arch != cell.build.arch
    said = findings(question, seen, pace.of(facts, computed, emulated=emulated))
    return Visit(f"{identifier} ({cell.release})", tuple(said), "cannot be built here yet")


def _needs_container(facts: Facts, cell: Cell, host: Host) -> bool:
    arch = facts.arches[cell.build.arch]
    return arch.name != host.arch and planning.has_containers(arch)


def look(facts: Facts, cell: Cell, image: str, system: str) -> Seen:
    """Return what is there for the container of a cell; `image` was asked for, "" where none was."""
    handlers = emulation.entries() if system == "linux" else None
    try:
        found = engine.find(os.environ)
        ground = running.ground(found, os.environ, system)
    except HostError as error:
        return Seen(None, str(error), handlers=handlers)
    name, there = session.image_of(found, facts, cell, image)
    return Seen(found, "", ground, name, there, handlers)


def findings(question: Question, seen: Seen, expected: Pace) -> Iterator[Finding]:
    """Yield the findings on the way into a container, in the order in which a session needs it."""
    yield from _engine(seen)
    yield from _emulation(question, seen, expected)
    yield _image(question, seen)
    yield _source(question)
    yield from room.check(question)
    yield Finding(
        "compilers, Pythons",
        "those of the image",
        "as for any build",
        "unknown",
        because="the session examines them in the container, before anything is compiled",
    )


def _engine(seen: Seen) -> Iterator[Finding]:
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


def _emulation(question: Question, seen: Seen, expected: Pace) -> Iterator[Finding]:
    arch = question.build.arch
    subject, needed = f"programs for {arch}", "a processor or QEMU that runs them"
    if seen.ground is not None and not expected.emulated:
        yield Finding(subject, "run by the processor", needed, "ok")
        return
    why = None if seen.handlers is None else emulation.refusal(arch, seen.handlers)
    if why is not None:
        because, _, cure = why.partition(": ")
        yield Finding(subject, "not run", needed, "failure", cure, because)
        return
    known = emulation.handler(arch, seen.handlers) if seen.handlers else None
    by = f"emulated by {known.name}" if known else "emulated"
    first, *more = pace.told(expected)
    yield Finding(subject, by, needed, "warning", more.pop(), "; ".join((first, *more)))


def _image(question: Question, seen: Seen) -> Finding:
    subject, needed = "image", f"a builder for {question.build.arch}"
    if seen.has_image:
        return Finding(subject, seen.image, needed, "ok")
    cure = session.builder_command(question.facts, question.cell)
    because = f"another one is named with {planning.IMAGE}=NAME, or after -- with --image NAME"
    found = f"no {seen.image}" if seen.image else "not known without an engine"
    return Finding(subject, found, needed, "failure" if seen.image else "unknown", cure, because)


def _source(question: Question) -> Finding:
    tag = question.cell.release.tag
    if question.source is None:
        cure = fetch_command(question.facts, question.cell)
        because = "the session starts when it is there; the container sees it"
        return Finding("source", "not fetched", tag, "warning", cure, because)
    return Finding("source", f"{question.source.tag} from {question.source.provider}", tag, "ok")


def _folders(inner: Layout, cell: Cell) -> Folders:
    """Return where a build in the container goes on, as this machine sees it."""
    tag, arch = cell.release.tag, cell.build.arch
    identifier = cell.build.identifier(arch)
    tree = foresight.newest_tree(inner, tag, cell.build.family(arch), identifier)
    return Folders(
        tree, inner.tree(tag, identifier), inner.state / "environments" / environment_of(identifier)
    )
