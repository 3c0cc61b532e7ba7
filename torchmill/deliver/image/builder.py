"""The recipe of a builder: an image with everything that builds wheels of one release.

An image is built from a base image: one that the facts know, with its `distribution`, or one that
the user gives with --base, whose `distribution` is "". What a user's own image contains is not
known here: the recipe has commands that check it when the image is built.
"""

from pathlib import Path
from typing import NamedTuple

from packaging.version import Version

from torchmill.cell.containers import engine, image
from torchmill.config.build import Build
from torchmill.config.facts import Facts
from torchmill.config.images import Archive, BaseImage
from torchmill.core.errors import ConfigError
from torchmill.deliver.image.contents import (
    ImagePythons,
    image_system_packages,
    plan_pythons,
    uv_image,
)
from torchmill.deliver.image.recipe import ImageRecipe, digest_notes
from torchmill.deliver.image.request import ImageRequest
from torchmill.deliver.templates import fill_template
from torchmill.plan.cell import Cell
from torchmill.plan.cuda_libraries import official_version
from torchmill.plan.rules import CellConstraints

HOME = "/home/builder"
RUN = "{engine} run --rm --volume torchmill:" + HOME + " {image} nox --list"

# A script that brings cross compilers into an image. Only Debian and Ubuntu have one for every gcc.
CROSS_COMPILERS = Path(__file__).with_name("cross-compilers.sh")


class _Toolkit(NamedTuple):
    """The source of a builder's CUDA toolkit: an image, archives, or neither if the base has it."""

    image: BaseImage | None  # to copy it from
    archives: tuple[Archive, ...]  # to unpack, with the libraries that go with it


def builder_recipe(facts: Facts, request: ImageRequest) -> ImageRecipe:
    """Return the recipe of a builder.

    Raises ConfigError if the facts have no base image for it, or if none of its Pythons is
    available.
    """
    images = facts.images
    expected_base = _expected_base(facts, request)
    base = expected_base
    if request.base:
        base = image.user_image(images, request.base, expected_base)
    toolkit = _toolkit_source(facts, request, base)
    pythons = plan_pythons(facts, base, request.pythons)
    unavailable = _unavailable_pythons(request, base, pythons)
    cuda = f"/usr/local/cuda-{request.toolkit}"
    # The programs that a user's own base image must have; other images are known to have them.
    programs = []
    if request.toolkit:
        programs.append(f"{cuda}/bin/nvcc")
    if not base.distribution:
        programs += [f"python{python}" for python in unavailable]
    left_out = unavailable if base.distribution else []
    emulator = request.emulated_on if base.manager == "apt" else ""
    python_archives = [
        archive
        for archive in images.archives
        if archive.kind == "python" and archive.version in pythons.compiled
    ]
    text = fill_template(
        "builder.Dockerfile.jinja",
        request=request,
        base=base,
        expected_base=expected_base,
        toolkit_image=toolkit.image,
        toolkit_archives=toolkit.archives,
        unpacking_packages=images.unpacking.get(base.manager, ()),
        python_archives=python_archives,
        uv_image=uv_image(images, request.arch, base) if pythons.from_uv else None,
        programs=programs,
        packages=image_system_packages(facts, request, base, pythons),
        pythons=pythons,
        left_out=left_out,
        uv=images.uv,
        cuda=cuda,
        emulator=emulator,
        label=engine.CROSS_LABEL,
        home=HOME,
    )
    texts = {"Dockerfile": text}
    if emulator:
        texts[CROSS_COMPILERS.name] = CROSS_COMPILERS.read_text("utf-8")
    notes = list(digest_notes(toolkit.image, base))
    if toolkit.archives and "cudnn" not in {archive.kind for archive in toolkit.archives}:
        notes.append(
            f"without cuDNN: no archive for CUDA {request.toolkit} is known that {request.release} "
            "takes"
        )
    if left_out:
        notes.append(f"Python {', '.join(left_out)} is left out: it is not available")
    return ImageRecipe(texts, {"suite": "suite"}, tuple(notes), run=RUN)


def _unavailable_pythons(
    request: ImageRequest, base: BaseImage, pythons: ImagePythons
) -> list[str]:
    """Return the requested Pythons that cannot be installed: not by the base, uv, or compiling.

    A user's own base image may have them: the image's build checks that. Raises ConfigError if any
    other base image has not a single one of the requested Pythons.
    """
    unavailable = [python for python in pythons.missing if python in request.pythons]
    if unavailable and base.distribution and len(unavailable) == len(request.pythons):
        raise ConfigError(
            f"{base.name} has no Python {' or '.join(unavailable)}, and uv brings none: "
            "give an image that has it with --base",
            code="image-without-python",
        )
    return unavailable


def _expected_base(facts: Facts, request: ImageRequest) -> BaseImage:
    """Return the base image that the facts choose for a request.

    A user's own image takes its place, and is expected to have the same things.
    """
    images = facts.images
    release = request.release
    if request.purpose == "distribution":
        return image.manylinux_image(images, request.arch, release.upstream.glibc)
    if request.purpose == "debian":
        debian = facts.packages[release.package].source.debian.sources.get(release.version, "")
        suite = debian.partition("/")[0]
        if not suite:
            raise ConfigError(
                f"invoke image: no Debian is known to have the source of {release}: take another "
                "--purpose",
                code="release-not-in-debian",
            )
        return image.system_image(images, request.arch, suite=suite)
    cuda_image = image.toolkit_image(images, "cuda", request.arch, request.toolkit)
    if cuda_image:
        return cuda_image
    toolkit = facts.toolkit(request.toolkit)
    gcc = toolkit.gcc if toolkit else None
    return image.system_image(images, request.arch, gcc, request.pythons)


def _toolkit_source(facts: Facts, request: ImageRequest, base: BaseImage) -> _Toolkit:
    """Return where a builder's toolkit comes from; neither image nor archives if it is in the base.

    A user's own base image must have it.
    """
    if not base.distribution:
        return _Toolkit(None, ())
    if request.purpose == "distribution":
        toolkit = image.toolkit_image(facts.images, "toolkit", request.arch, request.toolkit)
        if toolkit:
            return _Toolkit(toolkit, ())
    if base.toolkit:
        return _Toolkit(None, ())
    return _Toolkit(None, _toolkit_archives(facts, request))


def _toolkit_archives(facts: Facts, request: ImageRequest) -> tuple[Archive, ...]:
    """Return the archives of a builder's toolkit and of the libraries that go with it.

    cuDNN is that of the official wheels, else the newest that the release takes. Raises ConfigError
    if the facts have no archive of the toolkit for the machine.
    """
    if request.toolkit is None:
        return ()
    archives = [archive for archive in facts.images.archives if request.arch in archive.arches]
    toolkits = [
        archive
        for archive in archives
        if archive.kind == "toolkit" and archive.cuda == request.toolkit
    ]
    if not toolkits:
        raise ConfigError(
            f"no image and no archive of CUDA {request.toolkit} for {request.arch} is known (a "
            "Jetson's comes with JetPack): give an image that has it with --base",
            code="no-base-image",
        )
    package = facts.packages[request.release.package]
    build = Build(
        package=package.name,
        session=package.session,
        python=request.pythons[0],
        variant=request.variant,
        arch=request.arch,
        cuda=request.toolkit,
    )
    constraints = CellConstraints(facts, Cell(build, request.release))
    cudnn_bounds = constraints.needs("cudnn", None)
    official_cudnn = official_version(constraints, "cudnn")
    # Archives of libraries are for one version of CUDA, or for all of a major version.
    cuda_versions = {request.toolkit, str(Version(request.toolkit).major)}
    cudnn = []
    nccl = []
    for archive in archives:
        if archive.cuda not in cuda_versions:
            continue
        if archive.kind == "cudnn" and cudnn_bounds.allows(archive.version):
            cudnn.append(archive)
        elif archive.kind == "nccl":
            nccl.append(archive)
    # The best one comes last.
    cudnn.sort(key=lambda archive: (archive.version == official_cudnn, Version(archive.version)))
    return (toolkits[0], *cudnn[-1:], *nccl)
