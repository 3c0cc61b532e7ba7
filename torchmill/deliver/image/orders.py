"""What `invoke image` does: write the folder of an image, build it where that is asked for, and say so."""

from __future__ import annotations

import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from torchmill import host, locks, selection
from torchmill.containers import building, engine
from torchmill.containers.engine import Engine
from torchmill.deliver.image import builder, devcontainer, folder, request, runtime, wheels
from torchmill.deliver.image.dockerfile import Recipe
from torchmill.deliver.image.request import KINDS, PURPOSES, Request, Said
from torchmill.errors import ConfigError
from torchmill.layout import Layout
from torchmill.model import Facts

HELP = {
    "kind": "; ".join(f"{name}: {text}" for name, text in KINDS.items()),
    "tag": "the release; default: the selected one, else the newest",
    "python": "the Python, such as 3.10; a builder may have several: repeat it; default: all of the release",
    "toolkit": "with this CUDA toolkit, such as 11.8; default: none, for the CPU",
    "arch": "x86_64 or aarch64; default: this machine's",
    "purpose": "of a builder: " + "; ".join(f"{name}: {text}" for name, text in PURPOSES.items()),
    "base": "build on this image instead of the one in build_configs/images.toml, best NAME@sha256:DIGEST",
    "index": "a runtime image takes torch from this index instead of dist/",
    "into": "write into this folder; default: .torchmill/images/NAME, for a dev container "
    ".devcontainer/NAME in the checkout",
    "build": f"build it too. A runtime image is run with {runtime.ADVICE} (or --ipc=host): {runtime.WHY}",
    "engine": "docker, podman or buildah; default: the first that answers",
}
OPTIONS: dict[str, Any] = {"iterable": ["python"], "help": HELP}


def image(  # noqa: PLR0917 - every one is an option
    known: Facts,
    layout: Layout,
    kind: str = "",
    tag: str = "",
    python: list[str] | None = None,
    toolkit: str = "",
    arch: str = "",
    purpose: str = "",
    base: str = "",
    index: str = "",
    into: str = "",
    build: bool = False,
    engine: str = "",
) -> str:
    """Write a Dockerfile from the facts, for a builder, a runtime or a dev container; build it."""
    release = selection.selected_or_newest(known, layout, tag)
    said = Said(kind, tuple(python or ()), toolkit, arch, purpose, base, index)
    wanted = request.of(known, said, release, host.native_arch())
    recipe, brought = recipe_of(known, wanted, layout.dist)
    with_engine = _engine(engine, asked=build)  # refused before anything is written
    place = Path(into).expanduser().resolve() if into else default_folder(layout, wanted)
    notes = [f"note: {note}" for note in recipe.notes]
    with locks.locked(layout.images / ".locks" / wanted.name, wanted.tag):
        root = Path(__file__).parents[3]
        folder.write(place, recipe, {path.name: path for path in brought}, root, known.patches.parent)
        if with_engine is None:
            return "\n".join((*notes, f"{place}: written", *_how_to_build(wanted, place, recipe)))
        log = layout.logs / f"image-{wanted.name}.log"
        built = _built(known, with_engine, wanted, place, log)
    return "\n".join((*notes, built, *_how_to_run(wanted, recipe, with_engine)))


def recipe_of(facts: Facts, wanted: Request, dist: Path) -> tuple[Recipe, tuple[Path, ...]]:
    """Return the files of an image, and the wheels that go into it.

    Raises what the kinds' own recipes raise.
    """
    if wanted.kind == "builder":
        return builder.recipe(facts, wanted), ()
    if wanted.kind == "devcontainer":
        return devcontainer.recipe(facts, wanted), ()
    if wanted.index:
        return runtime.recipe(facts, wanted, (), wheels.requirements(facts, wanted)), ()
    brought = wheels.chosen(facts, wanted, dist)
    recipe = runtime.recipe(facts, wanted, [path.name for path in brought], ())
    lacking = wheels.lacking(facts, wanted, brought)
    notes = tuple(f"{dist} has no {one} ({wanted.variant}) for it: the image has none" for one in lacking)
    return replace(recipe, notes=recipe.notes + notes), brought


def default_folder(layout: Layout, wanted: Request) -> Path:
    """Return where an image is written unless --into says otherwise."""
    if wanted.kind == "devcontainer":
        return layout.root / ".devcontainer" / wanted.name.removeprefix("devcontainer-")
    return layout.images / wanted.name


def _built(known: Facts, with_engine: Engine, wanted: Request, place: Path, log: Path) -> str:
    """Build an image and say what came of it."""
    native = {"arm64": "aarch64", "amd64": "x86_64"}.get(host.native_arch(), host.native_arch())
    job = building.Job(with_engine, place, wanted.tag, wanted.arch, native)
    built = building.build(job, log, os.environ, _say, known.causes)
    return f"{built.tag}: built by {with_engine.name}, {built.size}"


def _engine(name: str, *, asked: bool) -> Engine | None:
    if not asked:
        if name:
            raise ConfigError("invoke image: --engine says with what to build: give --build too")
        return None
    return engine.find(os.environ, name)


def _how_to_build(wanted: Request, place: Path, recipe: Recipe) -> tuple[str, ...]:
    if wanted.kind == "devcontainer":
        return (f"use it: {recipe.run}",)
    build = f"docker build --tag {wanted.tag} {shlex.quote(str(place))}"
    run = recipe.run.format(engine="docker", image=wanted.tag)
    return (f"build it: invoke image … --build, or {build}", f"run it: {run}", *_advice(wanted))


def _how_to_run(wanted: Request, recipe: Recipe, built: Engine) -> tuple[str, ...]:
    if wanted.kind == "devcontainer":
        return (f"use it: {recipe.run}",)
    # buildah keeps its images where podman does, and runs none itself
    name = "podman" if built.name == "buildah" else built.name
    return (f"run it: {recipe.run.format(engine=name, image=wanted.tag)}", *_advice(wanted))


def _advice(wanted: Request) -> tuple[str, ...]:
    if wanted.kind != "runtime":
        return ()
    return (f"{runtime.ADVICE}, or --ipc=host: {runtime.WHY}; with less they can end with {runtime.FAILURE}",)


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")
