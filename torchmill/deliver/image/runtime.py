"""Dockerfiles of small runtime images, and the wheels that go into them."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from packaging.utils import canonicalize_name

from torchmill.build.containers import image
from torchmill.config.matrix import is_within, paired_release
from torchmill.config.model import Facts, Release
from torchmill.core.errors import DeliveryError
from torchmill.deliver.image import dockerfile
from torchmill.deliver.image.dockerfile import ImageRecipe
from torchmill.deliver.image.request import ImageRequest
from torchmill.plan.wheel_name import python_tag
from torchmill.wheel import wheel_file

ADVICE = "--shm-size=8G"
FAILURE = "'Bus error' or 'unable to allocate shared memory'"
WHY = "DataLoader workers hand batches over in shared memory, and an engine gives 64 MB of it"
RUN = "{engine} run --rm --interactive --tty " + ADVICE + " {image} python"

ENTRY = f"""\
#!/bin/sh
# Says so when /dev/shm is too small for the workers of a DataLoader, and runs the command.
size=$(df -Pk /dev/shm 2> /dev/null | {{ read -r _; read -r _ blocks _ && echo "$blocks"; }})
if [ "${{size:-0}}" -lt 1048576 ]; then
    echo "note: /dev/shm has ${{size:-0}} KiB. DataLoader workers hand batches over in it:" \\
        "run the container with {ADVICE} or --ipc=host, or they can end with {FAILURE}." >&2
fi
exec "$@"
"""


def runtime_recipe(facts: Facts, request: ImageRequest, wheels: Sequence[str], packages: Sequence[str]) -> ImageRecipe:
    """Return the files of a runtime image. It has no side effects, and the same facts give the same files.

    `wheels` are file names in dist/; where there are none, `packages` ("torch==1.13.1+cpu") come from the
    request's index. Raises ConfigError where the facts have no base image with that Python.
    """
    python, images = request.pythons[0], facts.images
    like = image.base_image(images, "python", request.arch, python=python, given=bool(request.base))
    base = image.user_image(images, request.base, like) if request.base else like
    command = f"python{python}"
    blocks = [
        f"# {request.release} ({request.variant}) for Python {python}, to run it.\n{dockerfile.WRITTEN}",
        dockerfile.from_block(base, "python"),
        "" if base.distribution else f"RUN {dockerfile.has_program(command)}",
        _installed(facts, request, command, wheels, packages),
        _final(request),
    ]
    texts = {"Dockerfile": dockerfile.join_blocks(blocks), "run-torch": ENTRY}
    copied = {f"wheels/{name}": name for name in wheels}
    notes = tuple(filter(None, (dockerfile.digest_note(base),)))
    return ImageRecipe(
        texts, copied, notes, frozenset({"run-torch"}), RUN.replace("{image}", _gpus(request) + "{image}")
    )


def _gpus(request: ImageRequest) -> str:
    return "--gpus all " if request.toolkit else ""


def _installed(
    facts: Facts, request: ImageRequest, command: str, wheels: Sequence[str], packages: Sequence[str]
) -> str:
    """Return the stage that makes the environment; its wheels and its cache stay behind in it.

    From an index come the named packages alone: what they require comes from PyPI, so that no other
    index can put its own in place of that.
    """
    if wheels:
        brought = "COPY wheels/ /wheels/\n"
        download = ""
    else:
        wanted = " ".join(shlex.quote(one) for one in packages)
        brought = ""
        download = (
            f" && /opt/torch/bin/pip download --no-cache-dir --no-deps --dest /wheels \\\n"
            f"        --index-url {shlex.quote(request.index)} {wanted} \\\n"
        )
    names = [one.partition("-")[0] for one in wheels] or [one.partition("==")[0] for one in packages]
    beside = "".join(f" {shlex.quote(one)}" for one in companion_options(facts, request, names))
    return (
        "FROM python AS install\n"
        f"{brought}"
        f"RUN {command} -m venv /opt/torch \\\n"
        f"{download}"
        f" && /opt/torch/bin/pip install --no-cache-dir /wheels/*.whl{beside}"
    )


def companion_options(facts: Facts, request: ImageRequest, names: Sequence[str]) -> tuple[str, ...]:
    """Return what pip must install beside the packages of these names."""
    return tuple(
        requirement
        for one in facts.images.companions
        if is_within(one.release, request.release.version) and one.package in {"", *names}
        for requirement in one.requires
    )


def _final(request: ImageRequest) -> str:
    variables = {"PATH": "/opt/torch/bin:$PATH"}
    if request.toolkit:
        variables |= {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
    labels = {
        "org.opencontainers.image.title": f"{request.release} ({request.variant})",
        "org.opencontainers.image.version": request.release.version,
        "org.opencontainers.image.description": f"Run it with {ADVICE} or --ipc=host: {WHY}.",
        "run": f"podman run --rm -it {ADVICE} {_gpus(request)}IMAGE",
    }
    return "\n".join(
        (
            "FROM python",
            "COPY --from=install /opt/torch/ /opt/torch/",
            "COPY run-torch /usr/local/bin/run-torch",
            dockerfile.user_block("app"),
            dockerfile.env_block(variables),
            dockerfile.label_block(labels),
            "WORKDIR /home/app",
            f"USER {dockerfile.UID}",
            'ENTRYPOINT ["run-torch"]',
            'CMD ["python"]',
        )
    )


VISION = "vision"  # the session of the package that stands beside torch


def image_releases(facts: Facts, request: ImageRequest) -> tuple[Release, ...]:
    """Return what a runtime image holds: the release, and that of torchvision which goes with it."""
    vision = [one.name for one in facts.packages.values() if one.session == VISION]
    partners = [paired_release(facts, name, request.release) for name in vision]
    return (request.release, *(one for one in partners if one is not None))


def image_requirements(facts: Facts, request: ImageRequest) -> tuple[str, ...]:
    """Return what is asked of an index: "torch==1.13.1+cpu". A local version must be pinned with `==`."""
    return tuple(f"{one.package}=={one.version}+{request.variant}" for one in image_releases(facts, request))


def image_wheels(facts: Facts, request: ImageRequest, dist: Path) -> tuple[Path, ...]:
    """Return the wheels for a runtime image: torch's, and torchvision's where there is one.

    Raises DeliveryError where torch's is missing, saying which session builds it, or where one is no wheel.
    """
    found = [next(_fitting(dist, one, request), None) for one in image_releases(facts, request)]
    if found[0] is None:
        cell = f"wheel-{request.pythons[0]}-{request.variant}"
        raise DeliveryError(
            f"{dist} has no {request.release} ({request.variant}) for Python {request.pythons[0]} on "
            f"{request.arch}: build it (`nox -s {cell}`), or name an index that has it with --index URL",
            code="no-wheel",
        )
    wheels = tuple(path for path in found if path is not None)
    for path in wheels:
        wheel_file.read_wheel(path)
    return wheels


def missing_releases(facts: Facts, request: ImageRequest, brought: Sequence[Path]) -> tuple[Release, ...]:
    """Return the releases that a runtime image should hold, and of which there is no wheel."""
    names = {wheel_file.parse_file_name(path)[0] for path in brought}
    return tuple(one for one in image_releases(facts, request) if canonicalize_name(one.package) not in names)


def _fitting(dist: Path, release: Release, request: ImageRequest) -> Iterator[Path]:
    """Yield the wheels of a release that a request's Python installs, the newest build first."""
    plain = set(python_tag(request.pythons[0]).split("-"))
    found = []
    for path in wheel_file.list_wheels(dist):
        name, version, build, tags = wheel_file.parse_file_name(path)
        label = (version.local or "").partition(".")[0]
        same = name == canonicalize_name(release.package) and version.public == release.version
        fits = any(
            {tag.interpreter, tag.abi} <= plain | {"py3", "none", "abi3"}
            and tag.platform.endswith(f"_{request.arch}")
            and "linux" in tag.platform
            for tag in tags
        )
        if same and label == request.variant and fits:
            found.append((build or (0, ""), path))
    yield from (path for _, path in sorted(found, reverse=True))
