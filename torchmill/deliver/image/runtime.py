"""A small runtime image: a Python, torch, torchvision where there is one, and nothing else."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from torchmill.containers import bases
from torchmill.deliver.image import dockerfile
from torchmill.deliver.image.dockerfile import Recipe
from torchmill.deliver.image.request import Request
from torchmill.model import Facts
from torchmill.rules import within

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


def recipe(facts: Facts, request: Request, wheels: Sequence[str], packages: Sequence[str]) -> Recipe:
    """Return the files of a runtime image. It has no side effects, and the same facts give the same files.

    `wheels` are file names in dist/; where there are none, `packages` ("torch==1.13.1+cpu") come from the
    request's index. Raises ConfigError where the facts have no base image with that Python.
    """
    python, images = request.pythons[0], facts.images
    like = (
        bases.stand_in(images, "python", request.arch, None, python)
        if request.base
        else bases.python(images, request.arch, python)
    )
    base = bases.given(images, request.base, like) if request.base else like
    command = f"python{python}"
    head = (
        f"# {request.release} ({request.variant}) for Python {python}, to run it.\n"
        "# Written by `invoke image` from build_configs/; run it again instead of changing this."
    )
    blocks = [
        head,
        dockerfile.start(base, "python"),
        "" if base.distribution else f"RUN {dockerfile.has(command)}",
        _installed(facts, request, command, wheels, packages),
        _final(request),
    ]
    texts = {"Dockerfile": dockerfile.joined(blocks), "run-torch": ENTRY}
    copied = {f"wheels/{name}": name for name in wheels}
    notes = tuple(filter(None, (dockerfile.note(base),)))
    return Recipe(
        texts, copied, notes, frozenset({"run-torch"}), RUN.replace("{image}", _gpus(request) + "{image}")
    )


def _gpus(request: Request) -> str:
    return "--gpus all " if request.toolkit else ""


def _installed(
    facts: Facts, request: Request, command: str, wheels: Sequence[str], packages: Sequence[str]
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
    beside = "".join(f" {shlex.quote(one)}" for one in companions(facts, request, names))
    return (
        "FROM python AS install\n"
        f"{brought}"
        f"RUN {command} -m venv /opt/torch \\\n"
        f"{download}"
        f" && /opt/torch/bin/pip install --no-cache-dir /wheels/*.whl{beside}"
    )


def companions(facts: Facts, request: Request, names: Sequence[str]) -> tuple[str, ...]:
    """Return what pip must be told beside the packages of these names."""
    return tuple(
        requirement
        for one in facts.images.companions
        if within(one.release, request.release.version) and one.package in {"", *names}
        for requirement in one.requires
    )


def _final(request: Request) -> str:
    variables = {"PATH": "/opt/torch/bin:$PATH"}
    if request.toolkit:
        variables |= {"NVIDIA_VISIBLE_DEVICES": "all", "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
    told = {
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
            dockerfile.user("app"),
            dockerfile.environment(variables),
            dockerfile.labels(told),
            "WORKDIR /home/app",
            f"USER {dockerfile.UID}",
            'ENTRYPOINT ["run-torch"]',
            'CMD ["python"]',
        )
    )
