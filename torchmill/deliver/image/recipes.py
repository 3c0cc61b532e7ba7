"""Dockerfiles of builders, dev containers and small runtime images, and the wheels that go into the last."""

import json
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from packaging.utils import canonicalize_name

from torchmill.build.containers import image
from torchmill.config.facts_model import BaseImage
from torchmill.config.matrix import is_within, paired_release
from torchmill.config.model import Facts, Release
from torchmill.core.errors import ConfigError, DeliveryError
from torchmill.deliver.image import dockerfile
from torchmill.deliver.image.dockerfile import (
    OLDEST_SUITE_PYTHON,
    ImagePythons,
    ImageRecipe,
    plan_pythons,
    system_packages_of_image,
)
from torchmill.deliver.image.request import ImageRequest
from torchmill.plan.wheel_name import python_tag
from torchmill.wheel import wheel_file

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
    head = [
        f"# Builds wheels of {request.release} ({request.variant}) on {request.arch}, for {request.purpose}.",
        dockerfile.WRITTEN,
    ]
    if left:
        head.append(f"# Without Python {', '.join(left)}, which is not available for this image.")
    nvcc = [f"{cuda}/bin/nvcc"] if request.toolkit else []  # tells that a base has the toolkit
    blocks = [
        "\n".join(head),
        dockerfile.from_block(toolkit, "toolkit") if toolkit else "",
        dockerfile.from_block(base),
        dockerfile.check_base_block(base, like, [*nvcc, *(f"python{one}" for one in expected)]),
        dockerfile.install_block(base, system_packages_of_image(facts, request, base, found)),
        f"COPY --from=toolkit {cuda}/ {cuda}/" if toolkit else "",
        *suite_block(facts, found),
        _user(request),
    ]
    notes = dockerfile.digest_notes(toolkit, base)
    notes += (f"Python {', '.join(left)} is left out: it is not available",) if left else ()
    texts = {"Dockerfile": dockerfile.join_blocks(blocks)}
    return ImageRecipe(texts, {"suite": "suite"}, notes, run=RUN)


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
    installed = requirements_block(python, "suite/requirements.txt", f"{SUITE}/requirements.txt")
    return (brought, installed, f"COPY suite/ {SUITE}/")


def requirements_block(python: str, source: str, place: str) -> str:
    """Return the steps that bring what the suite requires into an environment of its own."""
    return (
        f"COPY {source} {place}\n"
        f"RUN {python} -m venv /opt/suite \\\n"
        f" && /opt/suite/bin/pip install --no-cache-dir -r {place}"
    )


def _like(facts: Facts, request: ImageRequest) -> BaseImage:
    """Return the base image that the facts choose, or that they expect of the one a user gives."""
    images, arch = facts.images, request.arch
    if request.purpose == "distribution":
        return image.manylinux_image(images, arch, request.release.glibc)
    if request.purpose == "debian":
        release = request.release
        suite, _, _ = facts.packages[release.package].debian.get(release.version, "").partition("/")
        return image.debian_image(images, arch, suite, str(release))
    role, given = "cuda" if request.toolkit else "system", bool(request.base)
    return image.base_image(images, role, arch, toolkit=request.toolkit, given=given)


def _toolkit(facts: Facts, request: ImageRequest) -> BaseImage | None:
    """Return the image whose toolkit is copied; one that is given has it already."""
    if request.toolkit is None or request.purpose != "distribution" or request.base:
        return None
    return image.base_image(facts.images, "toolkit", request.arch, toolkit=request.toolkit)


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
            "take a newer --python, or give an image that has both with --base",
            code="image-without-python",
        )
    # Debian's own Python is not first on PATH
    own = "python" if found.suite == base.pythons[0] else "/usr/bin/python"
    blocks = [
        f"# A dev container for {request.release}, Python {python}.\n{dockerfile.WRITTEN}",
        dockerfile.from_block(base),
        dockerfile.check_base_block(base, like, [f"python{python}"]),
        dockerfile.install_block(base, system_packages_of_image(facts, request, base, found)),
        requirements_block(f"{own}{found.suite}", "requirements.txt", "/opt/suite-requirements.txt"),
        dockerfile.user_block(USER),
        dockerfile.env_block({"PATH": "/opt/suite/bin:$PATH", "PYTHONDONTWRITEBYTECODE": "1"}),
        f"USER {dockerfile.UID}",
    ]
    texts = {"Dockerfile": dockerfile.join_blocks(blocks), "devcontainer.json": _settings(request)}
    notes = dockerfile.digest_notes(base)
    run = "open the checkout in an editor that knows dev containers, or `devcontainer up --workspace-folder .`"
    return ImageRecipe(texts, {"requirements.txt": "requirements.txt"}, notes, run=run)


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


ADVICE = "--shm-size=8G"
FAILURE = "'Bus error' or 'unable to allocate shared memory'"
WHY = "DataLoader workers hand batches over in shared memory, and an engine gives 64 MB of it"
RUNTIME_RUN = "{engine} run --rm --interactive --tty " + ADVICE + " {image} python"

ENTRY = Path(__file__).with_name("run-torch.sh")  # gives ADVICE where it starts with less


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
    texts = {"Dockerfile": dockerfile.join_blocks(blocks), "run-torch": ENTRY.read_text("utf-8")}
    copied = {f"wheels/{name}": name for name in wheels}
    notes = dockerfile.digest_notes(base)
    return ImageRecipe(
        texts, copied, notes, frozenset({"run-torch"}), RUNTIME_RUN.replace("{image}", _gpus(request) + "{image}")
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
            # what is made slim is best the original
            found.append((bool(request.arch_list) and version.local == label, build or (0, ""), path))
    yield from (path for _, _, path in sorted(found, reverse=True))
