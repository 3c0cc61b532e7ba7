"""`invoke image`: write Dockerfiles for a builder, a runtime or a dev container; build them."""

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
from torchmill.deliver.image import builder, devcontainer, runtime
from torchmill.deliver.image.folder import write_image_folder
from torchmill.deliver.image.recipe import ImageRecipe
from torchmill.deliver.image.request import ImageOptions, ImageRequest, make_image_request
from torchmill.host.native import container_arch, native_arch
from torchmill.wheel import finished_wheel


def write_image(
    facts: Facts,
    layout: Layout,
    *,
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
    """Write the folder of an image, and with `build` make the image; return how to use it."""
    release = selection.selected_or_newest(facts, layout, tag)
    # Unlike Path.expanduser, it leaves the name of an unknown user as it is.
    clients = [os.path.expanduser(path) for path in client or ()]  # noqa: PTH111
    options = ImageOptions(
        kind=kind,
        pythons=tuple(python or ()),
        toolkit=toolkit,
        arch=arch,
        purpose=purpose,
        base=base,
        index=index,
        gpus=tuple(gpu or ()),
        clients=tuple(clients),
    )
    request = make_image_request(facts, options, release, native_arch())
    if engine and not build:
        raise ConfigError(
            "invoke image: --engine names what builds the image: give --build, too",
            code="engine-without-build",
        )
    # Before anything is written: without an engine there will be no image.
    image_engine = find_engine(os.environ, engine) if build else None
    folder = _image_folder(layout, request, into)
    with (
        locks.hold_work_folder(layout.images / ".locks" / request.name, request.tag),
        fresh_path(layout.images / f"{request.name}.slim") as slim_folder,
    ):
        recipe, wheels = image_recipe(
            facts, request, layout, slim_folder, [Path(path) for path in clients]
        )
        write_image_folder(folder, recipe, {path.name: path for path in wheels}, facts.folder)
        lines = [f"note: {note}" for note in recipe.notes]
        if image_engine is None:
            lines.append(f"{folder}: written")
            if request.kind != "devcontainer":
                command = f"docker build --tag {request.tag} {shlex.quote(str(folder))}"
                lines.append(f"build it: {command}")
        else:
            machine = container_arch(native_arch())
            job = image.ImageBuild(image_engine, folder, request.tag, request.arch, machine)
            log = layout.logs / f"image-{request.name}.log"
            size = image.build_image(job, log, os.environ, _print_to_stderr, facts.causes)
            lines.append(f"{request.tag}: built by {image_engine.name}, {size}")
    lines += _usage(request, recipe, image_engine, folder)
    return "\n".join(lines)


def _image_folder(layout: Layout, request: ImageRequest, into: str) -> Path:
    """Return the folder that an image's files are written to."""
    if into:
        return real_path(os.path.expanduser(into))  # noqa: PTH111 - as for clients
    if request.kind == "devcontainer":
        # Editors look there: https://containers.dev/implementors/spec/#devcontainerjson
        return layout.root / ".devcontainer" / request.name.removeprefix("devcontainer-")
    return layout.images / request.name


def image_recipe(
    facts: Facts,
    request: ImageRequest,
    layout: Layout,
    slim_folder: Path,
    clients: Sequence[Path] = (),
) -> tuple[ImageRecipe, Sequence[Path]]:
    """Return the recipe of an image, and the wheels that are copied into it.

    Wheels are copied into a runtime: those of dist/, made slim in `slim_folder` if the image is for
    some GPUs, and `clients`, the wheels of the user's own program. With --index, the runtime
    installs torch from there instead. Raises what the recipe of the kind raises, and DeliveryError
    for a client that is no wheel.
    """
    if request.kind == "builder":
        return builder.builder_recipe(facts, request), ()
    if request.kind == "devcontainer":
        return devcontainer.devcontainer_recipe(facts, request), ()
    own_wheels = [finished_wheel.read_wheel(path).path for path in clients]
    if request.index:
        requirements = [
            f"{release.package}=={release.version}+{request.variant}"
            for release in runtime.image_releases(facts, request)
        ]
        names = [path.name for path in own_wheels]
        return runtime.runtime_recipe(facts, request, names, requirements), own_wheels
    wheels: Sequence[Path] = runtime.image_wheels(facts, request, layout.dist)
    if request.arch_list:
        names = [path.name for path in wheels]
        _print_to_stderr(f"making {', '.join(names)} slim for {request.arch_list}")
        wheels = slim_for_image(facts, layout, request.arch_list, slim_folder, wheels)
    wheels = [*wheels, *own_wheels]
    recipe = runtime.runtime_recipe(facts, request, [path.name for path in wheels], ())
    notes = [
        f"{layout.dist} has no {release} ({request.variant}) for it: the image has none"
        for release in runtime.missing_releases(facts, request, wheels)
    ]
    return replace(recipe, notes=(*recipe.notes, *notes)), wheels


def _usage(
    request: ImageRequest, recipe: ImageRecipe, engine: Engine | None, folder: Path
) -> Iterator[str]:
    """Yield lines on how an image is used: the command that runs it, and its shared memory."""
    if request.kind == "devcontainer":
        yield f"use it: {recipe.run.format(place=shlex.quote(str(folder)))}"
        return
    program = engine.name if engine else "docker"
    if program == "buildah":
        # buildah keeps its images in the same place as podman, and runs no images itself.
        program = "podman"
    yield f"run it: {recipe.run.format(engine=program, image=request.tag)}"
    if request.kind == "runtime":
        reason = f"{runtime.SHM_REASON}; with less they can end with {runtime.SHM_FAILURE}"
        yield f"{runtime.SHM_OPTION}, or --ipc=host: {reason}"


def _print_to_stderr(line: str) -> None:
    """Print a line on standard error."""
    sys.stderr.write(as_plain_text(line) + "\n")
