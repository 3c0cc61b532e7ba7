"""A builder: compilers, system packages, the suite and the Pythons of a release, for one arch and toolkit."""

from __future__ import annotations

from torchmill.containers import bases
from torchmill.deliver.image import dockerfile
from torchmill.deliver.image.dockerfile import Recipe
from torchmill.deliver.image.request import Request
from torchmill.deliver.image.system import Pythons, packages, pythons
from torchmill.errors import ConfigError
from torchmill.model import BaseImage, Facts

HOME = "/home/builder"
SUITE = "/opt/torchmill"
RUN = "{engine} run --rm --volume torchmill:" + HOME + " {image} nox --list"


def recipe(facts: Facts, request: Request) -> Recipe:
    """Return the files of a builder. It has no side effects, and the same facts give the same files.

    Raises ConfigError where the facts have no base image for it, or none of its Pythons can be had.
    """
    images, like = facts.images, _like(facts, request)
    base = bases.given(images, request.base, like) if request.base else like
    toolkit = _toolkit(facts, request)
    found = pythons(facts, base, request.pythons)
    missing = [one for one in found.missing if one in request.pythons]
    expected = () if base.distribution else missing  # a base of the user's own may have any
    if missing and not expected and len(missing) == len(request.pythons):
        raise ConfigError(
            f"{base.named} has no Python {' or '.join(missing)}, and uv brings none: "
            "give an image that has it with --base"
        )
    left = [] if expected else missing
    blocks = [
        _head(request, left),
        dockerfile.start(toolkit, "toolkit") if toolkit else "",
        dockerfile.start(base),
        dockerfile.check(base, like, [*_nvcc(request), *(f"python{one}" for one in expected)]),
        dockerfile.install(base, packages(facts, request, base, found)),
        _copy_toolkit(toolkit),
        *suite(facts, found),
        _user(request),
    ]
    notes = [dockerfile.note(one) for one in (toolkit, base) if one]
    notes += [f"Python {', '.join(left)} is left out: there is none to be had"] if left else []
    texts = {"Dockerfile": dockerfile.joined(blocks)}
    return Recipe(texts, {"suite": "suite"}, tuple(filter(None, notes)), run=RUN)


def suite(facts: Facts, found: Pythons) -> tuple[str, ...]:
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


def _like(facts: Facts, request: Request) -> BaseImage:
    """Return the base image that the facts choose, or that they expect of the one a user gives."""
    images, arch = facts.images, request.arch
    if request.purpose == "distribution":
        return bases.manylinux(images, arch, request.release.glibc)
    if request.toolkit is None:
        return bases.system(images, arch)
    if request.base:
        return bases.stand_in(images, "cuda", arch, request.toolkit, None)
    return bases.with_toolkit(images, "cuda", arch, request.toolkit)


def _toolkit(facts: Facts, request: Request) -> BaseImage | None:
    """Return the image whose toolkit is copied; one that is given has it already."""
    if request.toolkit is None or request.purpose != "distribution" or request.base:
        return None
    return bases.with_toolkit(facts.images, "toolkit", request.arch, request.toolkit)


def _nvcc(request: Request) -> tuple[str, ...]:
    """Return the program that tells that a base has the toolkit."""
    return (f"/usr/local/cuda-{request.toolkit}/bin/nvcc",) if request.toolkit else ()


def _head(request: Request, left: list[str]) -> str:
    lines = [
        f"# Builds wheels of {request.release} ({request.variant}) on {request.arch}, for {request.purpose}.",
        "# Written by `invoke image` from build_configs/; run it again instead of changing this.",
    ]
    if left:
        lines.append(f"# Without Python {', '.join(left)}: there is none to be had for this image.")
    return "\n".join(lines)


def _copy_toolkit(toolkit: BaseImage | None) -> str:
    folder = f"/usr/local/cuda-{toolkit.toolkit}" if toolkit else ""
    return f"COPY --from=toolkit {folder}/ {folder}/" if toolkit else ""


def _user(request: Request) -> str:
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
            dockerfile.user("builder"),
            dockerfile.environment(variables),
            f"WORKDIR {SUITE}",
            f"USER {dockerfile.UID}",
            'CMD ["nox", "--list"]',
        )
    )
