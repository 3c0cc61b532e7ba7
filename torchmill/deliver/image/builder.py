"""Dockerfiles of builders and dev containers."""

from __future__ import annotations

import json

from torchmill.build.containers import image
from torchmill.config.facts_model import BaseImage
from torchmill.config.model import Facts
from torchmill.core.errors import ConfigError
from torchmill.deliver.image import dockerfile
from torchmill.deliver.image.dockerfile import (
    OLDEST_SUITE_PYTHON,
    ImagePythons,
    ImageRecipe,
    plan_pythons,
    system_packages_of_image,
)
from torchmill.deliver.image.request import ImageRequest

HOME = "/home/builder"
SUITE = "/opt/torchmill"
RUN = "{engine} run --rm --volume torchmill:" + HOME + " {image} nox --list"


def builder_recipe(facts: Facts, request: ImageRequest) -> ImageRecipe:
    """Return the files of a builder. It has no side effects, and the same facts give the same files.

    Raises ConfigError where the facts have no base image for it, or none of its Pythons can be had.
    """
    images, like = facts.images, _like(facts, request)
    base = image.user_image(images, request.base, like) if request.base else like
    toolkit = _toolkit(facts, request)
    found = plan_pythons(facts, base, request.pythons)
    missing = [one for one in found.missing if one in request.pythons]
    expected = () if base.distribution else missing  # a base of the user's own may have any
    if missing and not expected and len(missing) == len(request.pythons):
        raise ConfigError(
            f"{base.named} has no Python {' or '.join(missing)}, and uv brings none: "
            "give an image that has it with --base",
            code="image-without-python",
        )
    left = [] if expected else missing
    cuda = f"/usr/local/cuda-{request.toolkit}"
    nvcc = [f"{cuda}/bin/nvcc"] if request.toolkit else []  # tells that a base has the toolkit
    blocks = [
        _head(request, left),
        dockerfile.from_block(toolkit, "toolkit") if toolkit else "",
        dockerfile.from_block(base),
        dockerfile.check_base_block(base, like, [*nvcc, *(f"python{one}" for one in expected)]),
        dockerfile.install_block(base, system_packages_of_image(facts, request, base, found)),
        f"COPY --from=toolkit {cuda}/ {cuda}/" if toolkit else "",
        *suite_block(facts, found),
        _user(request),
    ]
    notes = [dockerfile.digest_note(one) for one in (toolkit, base) if one]
    notes += [f"Python {', '.join(left)} is left out: it is not available"] if left else []
    texts = {"Dockerfile": dockerfile.join_blocks(blocks)}
    return ImageRecipe(texts, {"suite": "suite"}, tuple(filter(None, notes)), run=RUN)


def suite_block(facts: Facts, found: ImagePythons) -> tuple[str, ...]:
    """Return the steps that bring further Pythons, and the suite into an environment of its own."""
    python = f"python{found.suite}"
    brought = ""
    if found.brought:
        ours = "python3" if found.suite in found.brought else python
        brought = (
            f"RUN {ours} -m venv /opt/uv \\\n"
            f" && /opt/uv/bin/pip install --no-cache-dir uv=={facts.images.uv} \\\n"
            " && UV_PYTHON_INSTALL_DIR=/opt/pythons UV_PYTHON_BIN_DIR=/usr/local/bin \\\n"
            f"    /opt/uv/bin/uv python install --no-cache {' '.join(found.brought)}"
        )
    installed = (
        f"COPY suite/requirements.txt {SUITE}/requirements.txt\n"
        f"RUN {python} -m venv /opt/suite \\\n"
        f" && /opt/suite/bin/pip install --no-cache-dir -r {SUITE}/requirements.txt"
    )
    return (brought, installed, f"COPY suite/ {SUITE}/")


def _like(facts: Facts, request: ImageRequest) -> BaseImage:
    """Return the base image that the facts choose, or that they expect of the one a user gives."""
    images, arch = facts.images, request.arch
    if request.purpose == "distribution":
        return image.manylinux_image(images, arch, request.release.glibc)
    role, given = "cuda" if request.toolkit else "system", bool(request.base)
    return image.base_image(images, role, arch, toolkit=request.toolkit, given=given)


def _toolkit(facts: Facts, request: ImageRequest) -> BaseImage | None:
    """Return the image whose toolkit is copied; one that is given has it already."""
    if request.toolkit is None or request.purpose != "distribution" or request.base:
        return None
    return image.base_image(facts.images, "toolkit", request.arch, toolkit=request.toolkit)


def _head(request: ImageRequest, left: list[str]) -> str:
    lines = [
        f"# Builds wheels of {request.release} ({request.variant}) on {request.arch}, for {request.purpose}.",
        dockerfile.WRITTEN,
    ]
    if left:
        lines.append(f"# Without Python {', '.join(left)}, which is not available for this image.")
    return "\n".join(lines)


def _user(request: ImageRequest) -> str:
    """Return the steps after which an ordinary user works, whose home holds all that builds make."""
    variables = {
        "PATH": "/opt/suite/bin:$PATH",
        "PYTHONDONTWRITEBYTECODE": "1",
        "TORCHMILL_HOME": f"{HOME}/torchmill",
        "NOX_ENVDIR": f"{HOME}/nox",
        "TORCHMILL_TAG": request.release.tag,
    }
    if request.toolkit:
        variables["CUDA_HOME"] = f"/usr/local/cuda-{request.toolkit}"
    return "\n".join(
        (
            dockerfile.user_block("builder"),
            dockerfile.env_block(variables),
            f"WORKDIR {SUITE}",
            f"USER {dockerfile.UID}",
            'CMD ["nox", "--list"]',
        )
    )


USER = "dev"


def devcontainer_recipe(facts: Facts, request: ImageRequest) -> ImageRecipe:
    """Return the files of a dev container. It has no side effects, and the same facts give the same files.

    Raises ConfigError where the facts have no base image with that Python on which the suite runs.
    """
    python, images = request.pythons[0], facts.images
    like = image.base_image(images, "python", request.arch, python=python, given=bool(request.base))
    base = image.user_image(images, request.base, like) if request.base else like
    found = plan_pythons(facts, base, (python,))
    if found.suite not in base.pythons:
        raise ConfigError(
            f"{base.named} has no Python {OLDEST_SUITE_PYTHON} or newer, on which the suite runs: "
            f"take a newer --python, "
            "or give an image that has both with --base",
            code="image-without-python",
        )
    blocks = [
        f"# A dev container for {request.release}, Python {python}.\n{dockerfile.WRITTEN}",
        dockerfile.from_block(base),
        dockerfile.check_base_block(base, like, [f"python{python}"]),
        dockerfile.install_block(base, system_packages_of_image(facts, request, base, found)),
        _suite(found.suite, base),
        dockerfile.user_block(USER),
        dockerfile.env_block({"PATH": "/opt/suite/bin:$PATH", "PYTHONDONTWRITEBYTECODE": "1"}),
        f"USER {dockerfile.UID}",
    ]
    texts = {"Dockerfile": dockerfile.join_blocks(blocks), "devcontainer.json": _settings(request)}
    notes = tuple(filter(None, (dockerfile.digest_note(base),)))
    run = "open the checkout in an editor that knows dev containers, or `devcontainer up --workspace-folder .`"
    return ImageRecipe(texts, {"requirements.txt": "requirements.txt"}, notes, run=run)


def _suite(suite: str, base: BaseImage) -> str:
    """Return the steps that bring the suite's requirements; Debian's own Python is not first on PATH."""
    own = f"python{suite}" if suite == base.pythons[0] else f"/usr/bin/python{suite}"
    return (
        "COPY requirements.txt /opt/suite-requirements.txt\n"
        f"RUN {own} -m venv /opt/suite \\\n"
        " && /opt/suite/bin/pip install --no-cache-dir -r /opt/suite-requirements.txt"
    )


def _settings(request: ImageRequest) -> str:
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
