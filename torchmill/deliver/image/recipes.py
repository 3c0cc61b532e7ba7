"""Dockerfiles of builders, dev containers and small runtime images, and the wheels that go into the last."""

import re
import shlex
from collections.abc import Iterator, Sequence
from pathlib import Path

from millpress import wheel_file
from packaging.utils import canonicalize_name
from packaging.version import Version

from torchmill.cell.containers import engine, image
from torchmill.config.build import Build
from torchmill.config.facts import Facts
from torchmill.config.images import Archive, BaseImage
from torchmill.config.release import Release
from torchmill.config.release_lookup import paired_release
from torchmill.config.versions import is_within
from torchmill.core.errors import ConfigError, DeliveryError
from torchmill.deliver.image import dockerfile
from torchmill.deliver.image.dockerfile import (
    ImageRecipe,
    digest_notes,
    image_system_packages,
    plan_pythons,
    uv_image,
)
from torchmill.deliver.image.request import ImageRequest
from torchmill.deliver.templates import fill_template
from torchmill.host.native import native_arch
from torchmill.plan.cell import Cell
from torchmill.plan.cuda_libraries import official_version
from torchmill.plan.rules import CellConstraints
from torchmill.plan.wheel_name import promised_glibc, python_tag
from torchmill.wheel import dist_files, finished_wheel

HOME = "/home/builder"
RUN = "{engine} run --rm --volume torchmill:" + HOME + " {image} nox --list"
SHM_OPTION = "--shm-size=8G"
SHM_FAILURE = "'Bus error' or 'unable to allocate shared memory'"
SHM_REASON = (
    "DataLoader workers hand batches over in shared memory, and an engine gives 64 MB of it"
)
RUNTIME_RUN = "{engine} run --rm --interactive --tty " + SHM_OPTION + " {image} python"
ENTRY = Path(__file__).with_name("run-torch.sh")  # gives SHM_OPTION where it starts with less
CROSS_COMPILERS = Path(__file__).with_name(
    "cross-compilers.sh"
)  # of Debian and Ubuntu, which have them of every gcc
DEVELOPER_FILES = {  # requirements.txt names folders of packages/
    "requirements.txt": "requirements.txt",
    "packages": "packages",
}
VISION = "vision"  # the session of the package that stands beside torch


def builder_recipe(facts: Facts, request: ImageRequest) -> ImageRecipe:
    """Return the files of a builder. It has no side effects, and the same facts give the same files.

    Raises ConfigError where the facts have no base image for it, or none of its Pythons can be had.
    """
    images, like = facts.images, _like(facts, request)
    base = image.user_image(images, request.base, like) if request.base else like
    apart = (
        request.purpose == "distribution" and base.distribution
    )  # a base that only the user knows has its own
    toolkit = (
        image.toolkit_image(images, "toolkit", request.arch, request.toolkit) if apart else None
    )
    unpacked = (
        ()
        if base.toolkit or toolkit or not base.distribution
        else _toolkit_archives(facts, request)
    )
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
    crossed = request.emulated_on if base.manager == "apt" else ""
    text = fill_template(
        "builder.Dockerfile.jinja",
        request=request,
        base=base,
        like=like,
        toolkit=toolkit,
        unpacked=unpacked,
        unpacking=images.unpacking.get(base.manager, ()),
        sources=[
            one for one in images.archives if one.kind == "python" and one.version in found.compiled
        ],
        uv_image=uv_image(images, request.arch, base) if found.brought else None,
        programs=[*nvcc, *(f"python{one}" for one in expected)],
        packages=image_system_packages(facts, request, base, found),
        pythons=found,
        left=left,
        uv=images.uv,
        cuda=cuda,
        crossed=crossed,
        label=engine.CROSS_LABEL,
        home=HOME,
    )
    notes = digest_notes(toolkit, base)
    if unpacked and "cudnn" not in {one.kind for one in unpacked}:
        notes += (
            f"without cuDNN: no archive of one for CUDA {request.toolkit} is known that {request.release} takes",
        )
    notes += (f"Python {', '.join(left)} is left out: it is not available",) if left else ()
    texts = {"Dockerfile": text} | (
        {CROSS_COMPILERS.name: CROSS_COMPILERS.read_text("utf-8")} if crossed else {}
    )
    return ImageRecipe(texts, {"suite": "suite"}, notes, run=RUN)


def _toolkit_archives(facts: Facts, request: ImageRequest) -> tuple[Archive, ...]:
    """Return the archives of the toolkit, if any, and of the libraries that go with it, where no image has them.

    Raises ConfigError where the facts have no archive of the toolkit for the machine.
    """
    if request.toolkit is None:
        return ()
    found = [one for one in facts.images.archives if request.arch in one.arches]
    toolkit = next(
        (one for one in found if (one.kind, one.cuda) == ("toolkit", request.toolkit)), None
    )
    if toolkit is None:
        raise ConfigError(
            f"no image and no archive of CUDA {request.toolkit} for {request.arch} is known (a Jetson's comes with "
            "JetPack): give an image that has it with --base",
            code="no-base-image",
        )
    release, package = request.release, facts.packages[request.release.package]
    build = Build(
        package.name,
        package.session,
        request.pythons[0],
        request.variant,
        request.arch,
        request.toolkit,
    )
    constraints = CellConstraints(facts, Cell(build, release))
    theirs, needs = official_version(constraints, "cudnn"), constraints.needs("cudnn", None)
    fitting = [
        one for one in found if one.cuda in {request.toolkit, str(Version(request.toolkit).major)}
    ]
    cudnn = [one for one in fitting if one.kind == "cudnn" and needs.allows(one.version)]
    cudnn.sort(key=lambda one: (one.version == theirs, Version(one.version)))
    return (toolkit, *cudnn[-1:], *(one for one in fitting if one.kind == "nccl"))


def _like(facts: Facts, request: ImageRequest) -> BaseImage:
    """Return the base image that the facts choose, or that they expect of the one a user gives."""
    images, arch = facts.images, request.arch
    if request.purpose == "distribution":
        return image.manylinux_image(images, arch, request.release.glibc)
    if request.purpose == "debian":
        release = request.release
        suite, _, _ = facts.packages[release.package].debian.get(release.version, "").partition("/")
        if not suite:
            raise ConfigError(
                f"invoke image: no Debian is known to have the source of {release}: take another --purpose",
                code="release-not-in-debian",
            )
        return image.system_image(images, arch, suite=suite)
    if found := image.toolkit_image(images, "cuda", arch, request.toolkit):
        return found
    toolkit = facts.toolkit(request.toolkit)
    return image.system_image(images, arch, toolkit.gcc if toolkit else None, request.pythons)


def devcontainer_recipe(facts: Facts, request: ImageRequest) -> ImageRecipe:
    """Return the files of a dev container. It has no side effects, and the same facts give the same files.

    Raises ConfigError where the facts have no base image with that Python on which the suite runs.
    """
    python, images = request.pythons[0], facts.images
    like = image.python_image(images, request.arch, python, given=bool(request.base))
    base = image.user_image(images, request.base, like) if request.base else like
    found = plan_pythons(facts, base, (python,))
    if found.suite not in base.pythons:
        raise ConfigError(
            f"{base.named} has no Python {dockerfile.OLDEST_SUITE_PYTHON} or newer, on which the suite runs: "
            "take a newer --python, or give an image that has both with --base",
            code="image-without-python",
        )
    packages = image_system_packages(facts, request, base, found)
    values = {
        "request": request,
        "base": base,
        "like": like,
        "packages": packages,
        "pythons": found,
    }
    texts = {
        "Dockerfile": fill_template("devcontainer.Dockerfile.jinja", **values),
        "devcontainer.json": fill_template("devcontainer.json.jinja", request=request),
    }
    command = "devcontainer up --workspace-folder . --config {place}/devcontainer.json"
    run = f"open the checkout in an editor that knows dev containers, or `{command}`"
    return ImageRecipe(texts, DEVELOPER_FILES, digest_notes(base), run=run)


def runtime_recipe(
    facts: Facts, request: ImageRequest, wheels: Sequence[str], packages: Sequence[str]
) -> ImageRecipe:
    """Return the files of a runtime image. It has no side effects, and the same facts give the same files.

    `wheels` are file names, `packages` ("torch==1.13.1+cpu") come from the request's index. Raises ConfigError where
    the facts have no base image with that Python.
    """
    python, images = request.pythons[0], facts.images
    like = image.python_image(images, request.arch, python, given=bool(request.base))
    base = image.user_image(images, request.base, like) if request.base else like
    glibc = (
        Version(base.glibc) if base.distribution and base.glibc else None
    )  # of a user's own image it is not known
    for name in wheels:
        tags = wheel_file.parse_file_name(Path(name))[3]
        needs = [
            Version(one) for tag in tags if (one := promised_glibc(tag.platform, request.arch))
        ]
        if glibc and needs and min(needs) > glibc:
            raise ConfigError(
                f"{name} needs glibc {min(needs)}, and {base.named} has {glibc}: give an image that has it with "
                "--base, or build the wheel in a builder (`invoke image --kind builder`)",
                code="unsupported-image",
            )
    gpus = "--gpus all " if request.toolkit else ""
    names = [re.split("-|==", one)[0] for one in (*wheels, *packages)]
    text = fill_template(
        "runtime.Dockerfile.jinja",
        request=request,
        base=base,
        python=f"python{python}",
        wheels=wheels,
        packages=packages,
        brought=["/wheels/*.whl", *map(shlex.quote, companion_options(facts, request, names))],
        advice=SHM_OPTION,
        why=SHM_REASON,
        gpus=gpus,
    )
    return ImageRecipe(
        {"Dockerfile": text, "run-torch": ENTRY.read_text("utf-8")},
        {f"wheels/{name}": name for name in wheels},
        digest_notes(base),
        frozenset({"run-torch"}),
        RUNTIME_RUN.replace("{image}", gpus + "{image}"),
    )


def companion_options(facts: Facts, request: ImageRequest, names: Sequence[str]) -> tuple[str, ...]:
    """Return what pip must install beside the packages of these names."""
    return tuple(
        requirement
        for one in facts.images.companions
        if is_within(one.release, request.release.version) and one.package in {"", *names}
        for requirement in one.requires
    )


def image_releases(facts: Facts, request: ImageRequest) -> tuple[Release, ...]:
    """Return what a runtime image holds: the release, and that of torchvision which goes with it."""
    vision = [one.name for one in facts.packages.values() if one.session == VISION]
    partners = [paired_release(facts, name, request.release) for name in vision]
    return (request.release, *(one for one in partners if one is not None))


def image_wheels(facts: Facts, request: ImageRequest, dist: Path) -> tuple[Path, ...]:
    """Return the wheels for a runtime image: torch's, and torchvision's where there is one.

    Raises DeliveryError where torch's is missing, saying which session builds it, or where one is no wheel.
    """
    found = [next(_fitting(dist, one, request), None) for one in image_releases(facts, request)]
    if found[0] is None:
        elsewhere = "" if request.arch == native_arch() else f"-{request.arch}"
        cell = f"wheel-{request.pythons[0]}-{request.variant}{elsewhere}"
        others = [
            one
            for one in request.release.pythons
            if any(_fitting(dist, request.release, request, one))
        ]
        take = f"take a Python for which it has one (--python {others[-1]}), " if others else ""
        raise DeliveryError(
            f"{dist} has no {request.release} ({request.variant}) for Python {request.pythons[0]} on "
            f"{request.arch}: {take}build it (`nox -s {cell}`), or name an index that has it with --index URL",
            code="no-wheel",
        )
    wheels = tuple(path for path in found if path is not None)
    for path in wheels:
        finished_wheel.read_wheel(path)
    return wheels


def missing_releases(
    facts: Facts, request: ImageRequest, brought: Sequence[Path]
) -> tuple[Release, ...]:
    """Return the releases that a runtime image should hold, and of which there is no wheel."""
    names = {wheel_file.parse_file_name(path)[0] for path in brought}
    return tuple(
        one for one in image_releases(facts, request) if canonicalize_name(one.package) not in names
    )


def _fitting(
    dist: Path, release: Release, request: ImageRequest, python: str = ""
) -> Iterator[Path]:
    """Yield the wheels of a release that a request's Python installs, or another one, the newest build first."""
    plain = set(python_tag(python or request.pythons[0]).split("-"))
    found = []
    for path in wheel_file.list_wheels(dist):
        name, version, build, tags = wheel_file.parse_file_name(path)
        identifier = str(
            dist_files.read_manifest(path).get("identifier", "")
        )  # of one without a label
        label = (version.local or "".join(identifier.split("-")[2:3])).partition(".")[0]
        same = name == canonicalize_name(release.package) and version.public == release.version
        fits = any(
            {tag.interpreter, tag.abi} <= plain | {"py3", "none", "abi3"}
            and tag.platform.endswith(f"_{request.arch}")
            and tag.platform.startswith(("manylinux", "linux_"))
            for tag in tags
        )
        if same and label == request.variant and fits:
            # what is made slim is best the original
            found.append(
                (bool(request.arch_list) and version.local == label, build or (0, ""), path)
            )
    yield from (path for _, _, path in sorted(found, reverse=True))
