"""A dev container: this checkout opened in a container with a release's Python and system packages.

Releases before 2.0 have none of their own; this one lies beside the suite and not in the sources.
"""

from __future__ import annotations

import json

from torchmill.containers import bases
from torchmill.deliver.image import dockerfile
from torchmill.deliver.image.dockerfile import Recipe
from torchmill.deliver.image.request import Request
from torchmill.deliver.image.system import SUITE, packages, pythons
from torchmill.errors import ConfigError
from torchmill.model import BaseImage, Facts

USER = "dev"


def recipe(facts: Facts, request: Request) -> Recipe:
    """Return the files of a dev container. It has no side effects, and the same facts give the same files.

    Raises ConfigError where the facts have no base image with that Python on which the suite runs.
    """
    python, images = request.pythons[0], facts.images
    like = (
        bases.stand_in(images, "python", request.arch, None, python)
        if request.base
        else bases.python(images, request.arch, python)
    )
    base = bases.given(images, request.base, like) if request.base else like
    found = pythons(facts, base, (python,))
    if found.suite not in base.pythons:
        raise ConfigError(
            f"{base.named} has no Python {SUITE} or newer, on which the suite runs: take a newer --python, "
            "or give an image that has both with --base"
        )
    blocks = [
        _head(request),
        dockerfile.start(base),
        dockerfile.check(base, like, [f"python{python}"]),
        dockerfile.install(base, packages(facts, request, base, found)),
        _suite(found.suite, base),
        dockerfile.user(USER),
        dockerfile.environment({"PATH": "/opt/suite/bin:$PATH", "PYTHONDONTWRITEBYTECODE": "1"}),
        f"USER {dockerfile.UID}",
    ]
    texts = {"Dockerfile": dockerfile.joined(blocks), "devcontainer.json": _settings(request)}
    notes = tuple(filter(None, (dockerfile.note(base),)))
    run = (
        "open the checkout in an editor that knows dev containers, or `devcontainer up --workspace-folder .`"
    )
    return Recipe(texts, {"requirements.txt": "requirements.txt"}, notes, run=run)


def _head(request: Request) -> str:
    return (
        f"# A dev container for {request.release}, Python {request.pythons[0]}.\n"
        "# Written by `invoke image` from build_configs/; run it again instead of changing this."
    )


def _suite(suite: str, base: BaseImage) -> str:
    """Return the steps that bring the suite's requirements; Debian's own Python is not first on PATH."""
    own = f"python{suite}" if suite == base.pythons[0] else f"/usr/bin/python{suite}"
    return (
        "COPY requirements.txt /opt/suite-requirements.txt\n"
        f"RUN {own} -m venv /opt/suite \\\n"
        " && /opt/suite/bin/pip install --no-cache-dir -r /opt/suite-requirements.txt"
    )


def _settings(request: Request) -> str:
    """Return devcontainer.json. The base is an index of images: on Apple silicon it is linux/aarch64."""
    release, python = request.release, request.pythons[0]
    state = "${containerWorkspaceFolder}/.torchmill"
    settings: dict[str, object] = {
        "name": f"{release}, Python {python}",
        "build": {"dockerfile": "Dockerfile", "context": "."},
        "remoteUser": USER,
        "init": True,
        "runArgs": ["--shm-size=8g"],
        "containerEnv": {
            "TORCHMILL_TAG": release.tag,
            "NOX_ENVDIR": f"/home/{USER}/nox",
            "XDG_CACHE_HOME": f"{state}/cache",
        },
        "postCreateCommand": ["invoke", "fetch", "--tag", release.tag],
    }
    return json.dumps(settings, indent=2) + "\n"
