"""`invoke image`: write Dockerfiles for a builder, a runtime or a dev container, and build them."""

import os
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from torchmill.cell.containers import image
from torchmill.cell.containers.engine import Engine, find_engine
from torchmill.commands.slim import slim_for_image
from torchmill.config import selection
from torchmill.config.facts import Facts
from torchmill.core import locks
from torchmill.core.atomic_writes import fresh_path
from torchmill.core.errors import ConfigError
from torchmill.core.lenient_paths import real_path
from torchmill.core.paths import Layout
from torchmill.core.plain_text import as_plain_text
from torchmill.deliver.image import builder, devcontainer, folder, request, runtime
from torchmill.deliver.image.recipe import ImageRecipe
from torchmill.deliver.image.request import ImageOptions, ImageRequest
from torchmill.host.native import container_arch, native_arch
from torchmill.wheel import finished_wheel


def write_image(  # noqa: PLR0917 - every one is an option
    facts: Facts,
    layout: Layout,
    kind: str = "",
    tag: str = "",
    python: list[str] | None = None,
    toolkit: str = "",
    arch: str = "",
    purpose: str = "",
    base: str = "",
    index: str = "",
    gpu: list[str] | None = None,
    client: list[str] | None = None,
    into: str = "",
    build: bool = False,
    engine: str = "",
) -> str:
    """Write a Dockerfile: a builder, a runtime, a dev container; build it."""
    release = selection.selected_or_newest(facts, layout, tag)
    own = tuple(
        map(os.path.expanduser, client or ())
    )  # which leaves an unknown user's name as it is
    options = ImageOptions(
        kind, tuple(python or ()), toolkit, arch, purpose, base, index, tuple(gpu or ()), own
    )
    wanted = request.make_image_request(facts, options, release, native_arch())
    if engine and not build:
        raise ConfigError(
            "invoke image: --engine names what builds the image: give --build, too",
            code="engine-without-build",
        )
    with_engine = (
        find_engine(os.environ, engine) if build else None
    )  # refused before anything is written
    place = layout.images / wanted.name
    if into:
        place = real_path(os.path.expanduser(into))  # noqa: PTH111 - as above
    elif wanted.kind == "devcontainer":
        place = layout.root / ".devcontainer" / wanted.name.removeprefix("devcontainer-")
    with (
        locks.hold_lock(layout.images / ".locks" / wanted.name, wanted.tag),
        fresh_path(layout.images / f"{wanted.name}.slim") as slim_folder,
    ):
        recipe, wheels = recipe_of(facts, wanted, layout, slim_folder, [Path(one) for one in own])
        lines = [f"note: {note}" for note in recipe.notes]
        folder.write_image_folder(
            place, recipe, {path.name: path for path in wheels}, facts.patches.parent
        )
        if with_engine is None:
            lines.append(f"{place}: written")
            if wanted.kind != "devcontainer":
                lines.append(f"build it: docker build --tag {wanted.tag} {shlex.quote(str(place))}")
        else:
            job = image.ImageBuild(
                with_engine, place, wanted.tag, wanted.arch, container_arch(native_arch())
            )
            size = image.build_image(
                job, layout.logs / f"image-{wanted.name}.log", os.environ, _say, facts.causes
            )
            lines.append(f"{wanted.tag}: built by {with_engine.name}, {size}")
    return "\n".join((*lines, *_how_to_run(wanted, recipe, with_engine, place)))


def recipe_of(
    facts: Facts,
    wanted: ImageRequest,
    layout: Layout,
    slim_folder: Path,
    clients: Sequence[Path] = (),
) -> tuple[ImageRecipe, Sequence[Path]]:
    """Return the files of an image, and the wheels that go into it, made slim in a folder where that is wanted.

    `clients` are the user's own. Raises what the kinds' own recipes raise, DeliveryError for what is no wheel.
    """
    if wanted.kind == "builder":
        return builder.builder_recipe(facts, wanted), ()
    if wanted.kind == "devcontainer":
        return devcontainer.devcontainer_recipe(facts, wanted), ()
    own = [finished_wheel.read_wheel(one).path for one in clients]
    if wanted.index:
        there = runtime.image_releases(facts, wanted)
        required = [f"{one.package}=={one.version}+{wanted.variant}" for one in there]
        return runtime.runtime_recipe(facts, wanted, [one.name for one in own], required), own
    brought: Sequence[Path] = runtime.image_wheels(facts, wanted, layout.dist)
    if wanted.arch_list:
        _say(f"making {', '.join(path.name for path in brought)} slim for {wanted.arch_list}")
        brought = slim_for_image(facts, layout, wanted.arch_list, slim_folder, brought)
    brought = [*brought, *own]
    recipe = runtime.runtime_recipe(facts, wanted, [path.name for path in brought], ())
    lacking = runtime.missing_releases(facts, wanted, brought)
    notes = tuple(
        f"{layout.dist} has no {one} ({wanted.variant}) for it: the image has none"
        for one in lacking
    )
    return replace(recipe, notes=recipe.notes + notes), brought


def _how_to_run(
    wanted: ImageRequest, recipe: ImageRecipe, engine: Engine | None, place: Path
) -> Iterator[str]:
    if wanted.kind == "devcontainer":
        yield f"use it: {recipe.run.format(place=shlex.quote(str(place)))}"
        return
    name = engine.name if engine else "docker"
    # buildah keeps its images where podman does, and runs none itself
    program = "podman" if name == "buildah" else name
    yield f"run it: {recipe.run.format(engine=program, image=wanted.tag)}"
    if wanted.kind == "runtime":
        reason = f"{runtime.SHM_REASON}; with less they can end with {runtime.SHM_FAILURE}"
        yield f"{runtime.SHM_OPTION}, or --ipc=host: {reason}"


def _say(line: str) -> None:
    sys.stderr.write(as_plain_text(line) + "\n")
