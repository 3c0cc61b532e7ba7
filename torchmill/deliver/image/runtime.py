"""The recipe of a runtime image, and the wheels that go into it.

pip installs some packages with the wheels that their metadata does not require: the facts call
these *companions*. An example is NumPy with an upper bound, for old releases of torch.
"""

import re
import shlex
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import NamedTuple

from millpress import wheel_file
from millpress.file_names import BuildTag
from packaging.tags import Tag
from packaging.utils import canonicalize_name
from packaging.version import Version

from torchmill.cell.containers import image
from torchmill.config.facts import Facts
from torchmill.config.images import BaseImage
from torchmill.config.release import Release
from torchmill.config.release_lookup import paired_release
from torchmill.config.versions import is_within
from torchmill.core.errors import ConfigError, DeliveryError
from torchmill.deliver.image.recipe import ImageRecipe, digest_notes
from torchmill.deliver.image.request import ImageRequest
from torchmill.deliver.templates import fill_template
from torchmill.host.native import native_arch
from torchmill.plan.wheel_name import promised_glibc, python_tag
from torchmill.wheel import dist_files, finished_wheel

SHM_OPTION = "--shm-size=8G"
SHM_REASON = (
    "DataLoader workers hand batches over in shared memory, and an engine gives 64 MB of it"
)
SHM_FAILURE = "'Bus error' or 'unable to allocate shared memory'"
RUN = "{engine} run --rm --interactive --tty " + SHM_OPTION + " {image} python"

# The program that starts in a container; it warns if the container has too little shared memory.
ENTRY = Path(__file__).with_name("run-torch.sh")

# The word of the sessions of torchvision, which goes into an image of torch.
VISION = "vision"


def runtime_recipe(
    facts: Facts, request: ImageRequest, wheels: Sequence[str], packages: Sequence[str]
) -> ImageRecipe:
    """Return the recipe of a runtime image.

    `wheels` are file names, `packages` are pins such as "torch==1.13.1+cpu" for the request's
    index. Raises ConfigError if the facts have no base image with the requested Python, or if its
    glibc is too old for a wheel.
    """
    images = facts.images
    python = request.pythons[0]
    if request.base:
        expected_base = image.expected_python_image(images, request.arch, python)
        base = image.user_image(images, request.base, expected_base)
    else:
        base = image.python_image(images, request.arch, python)
    for wheel in wheels:
        _require_glibc(wheel, base, request.arch)
    # The package in "torch-1.13.1+cpu-cp310-….whl" and in "torch==1.13.1+cpu" is "torch".
    names = [re.split("-|==", requirement)[0] for requirement in (*wheels, *packages)]
    requirements = [shlex.quote(line) for line in companion_requirements(facts, request, names)]
    gpus = "--gpus all " if request.toolkit else ""
    text = fill_template(
        "runtime.Dockerfile.jinja",
        request=request,
        base=base,
        python=f"python{python}",
        wheels=wheels,
        packages=packages,
        installed=["/wheels/*.whl", *requirements],
        shm_option=SHM_OPTION,
        shm_reason=SHM_REASON,
        gpus=gpus,
    )
    return ImageRecipe(
        texts={"Dockerfile": text, "run-torch": ENTRY.read_text("utf-8")},
        copied={f"wheels/{wheel}": wheel for wheel in wheels},
        notes=digest_notes(base),
        programs=frozenset({"run-torch"}),
        run=RUN.replace("{image}", gpus + "{image}"),
    )


def _require_glibc(wheel: str, base: BaseImage, arch: str) -> None:
    """Raise ConfigError if a wheel needs a newer glibc than a base image has.

    The glibc of a user's own image is not known.
    """
    if not base.distribution or not base.glibc:
        return
    tags = wheel_file.parse_file_name(Path(wheel)).tags
    promises = [promised_glibc(tag.platform, arch) for tag in tags]
    versions = [Version(promise) for promise in promises if promise]
    if versions and min(versions) > Version(base.glibc):
        raise ConfigError(
            f"{wheel} needs glibc {min(versions)}, and {base.name} has {base.glibc}: give an "
            "image that has it with --base, or build the wheel in a builder (`invoke image --kind "
            "builder`)",
            code="unsupported-image",
        )


def companion_requirements(
    facts: Facts, request: ImageRequest, packages: Sequence[str]
) -> tuple[str, ...]:
    """Return the requirements on companions that pip installs with these packages: "numpy<2"."""
    requirements: list[str] = []
    for companion in facts.images.companions:
        # without a package, a companion is for all images of the release
        is_for_package = not companion.package or companion.package in packages
        if is_for_package and is_within(companion.release, request.release.version):
            requirements += companion.requires
    return tuple(requirements)


def image_releases(facts: Facts, request: ImageRequest) -> tuple[Release, ...]:
    """Return the releases in a runtime image: torch, and the torchvision that goes with it."""
    releases = [request.release]
    for package in facts.packages.values():
        if package.session == VISION:
            partner = paired_release(facts, package.name, request.release)
            if partner is not None:
                releases.append(partner)
    return tuple(releases)


def image_wheels(facts: Facts, request: ImageRequest, dist: Path) -> tuple[Path, ...]:
    """Return the wheels for a runtime image: torch's, and torchvision's if there is one.

    Raises DeliveryError that names the session to run if torch's is missing, WheelError for a file
    that is not a sound wheel.
    """
    wheels = []
    for release in image_releases(facts, request):
        candidates = _matching_wheels(dist, release, request, request.pythons[0])
        if candidates:
            wheels.append(candidates[0])
        elif release == request.release:
            raise _no_wheel(request, dist)
    for wheel in wheels:
        finished_wheel.read_wheel(wheel)
    return tuple(wheels)


def _no_wheel(request: ImageRequest, dist: Path) -> DeliveryError:
    """Return the error for a missing wheel of torch; it names a Python that has one."""
    release = request.release
    python = request.pythons[0]
    available = [
        other for other in release.pythons if _matching_wheels(dist, release, request, other)
    ]
    advice = ""
    if available:
        advice = f"take a Python for which it has one (--python {available[-1]}), "
    session = f"wheel-{python}-{request.variant}"
    if request.arch != native_arch():
        session = f"{session}-{request.arch}"
    return DeliveryError(
        f"{dist} has no {release} ({request.variant}) for Python {python} on {request.arch}: "
        f"{advice}build it (`nox -s {session}`), or name an index that has it with --index URL",
        code="no-wheel",
    )


def missing_releases(
    facts: Facts, request: ImageRequest, wheels: Sequence[Path]
) -> tuple[Release, ...]:
    """Return the releases of a runtime image for which `wheels` has no wheel."""
    names = {wheel_file.parse_file_name(wheel).project for wheel in wheels}
    releases = image_releases(facts, request)
    return tuple(release for release in releases if canonicalize_name(release.package) not in names)


class _Candidate(NamedTuple):
    """A wheel that fits. Candidates are compared by their fields: the greatest is the best."""

    # True if the image slims its wheels, and this wheel is not slimmed yet.
    is_original: bool
    # By version and build, as pip compares wheels: a slim wheel's version is greater than that of
    # its original.
    version: Version
    build: BuildTag
    path: Path


def _matching_wheels(
    dist: Path, release: Release, request: ImageRequest, python: str
) -> list[Path]:
    """Return the wheels of a release that a Python in the image installs, the best first."""
    interpreter_tags = set(python_tag(python).split("-"))
    candidates = []
    for path in wheel_file.list_wheels(dist):
        file_name = wheel_file.parse_file_name(path)
        version = file_name.version
        is_package = file_name.project == canonicalize_name(release.package)
        # Of a variant, the image has the plain wheel, which it slims for its GPUs by itself.
        if not is_package or version.public != release.version or file_name.variant:
            continue
        label = version.local or ""
        if not label:
            # A wheel without a label has its variant only in its manifest: in the identifier of its
            # session, "wheel-3.10-cpu".
            identifier = str(dist_files.read_manifest(path).get("identifier", ""))
            label = "".join(identifier.split("-")[2:3])
        variant = label.partition(".")[0]
        fits = any(_installs(tag, interpreter_tags, request.arch) for tag in file_name.tags)
        if variant == request.variant and fits:
            is_slim = any(finished_wheel.SLIM_LABEL.fullmatch(part) for part in label.split("."))
            is_original = bool(request.arch_list) and not is_slim
            # Without a build number, a wheel comes before all that have one.
            build = file_name.build or (0, "")
            candidates.append(_Candidate(is_original, version, build, path))
    return [candidate.path for candidate in sorted(candidates, reverse=True)]


def _installs(tag: Tag, interpreter_tags: Collection[str], arch: str) -> bool:
    """Tell if a Python on Linux installs a wheel with a tag.

    `interpreter_tags` are the interpreter and the ABI of that Python: {"cp37", "cp37m"}.
    """
    accepted = {*interpreter_tags, "py3", "none", "abi3"}
    if tag.interpreter not in accepted or tag.abi not in accepted:
        return False
    platform = tag.platform
    return platform.endswith(f"_{arch}") and platform.startswith(("manylinux", "linux_"))
