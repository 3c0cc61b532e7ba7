"""The image that a user asks for with `invoke image`, checked against the facts.

There are three kinds: a builder builds wheels of a release, a runtime image has finished wheels
installed, and a dev container is for those who work on torchmill. The purpose of a builder decides
its base image: "distribution" is manylinux, for wheels that are given to others, "development" is
Debian or Ubuntu, for wheels for systems like this one, and "debian" is the Debian that has the
source of the release (`invoke fetch --from debian`).
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from torchmill.config.arch_list import capability_key
from torchmill.config.build import CPU
from torchmill.config.facts import Facts
from torchmill.config.gpu_names import find_gpus
from torchmill.config.release import Release
from torchmill.config.versions import python_key
from torchmill.core import urls
from torchmill.core.errors import ConfigError, ImpossibleBuildError, require_choice
from torchmill.host.native import container_arch
from torchmill.plan.matrix import ReleaseTerms

KINDS = ("builder", "runtime", "devcontainer")
PURPOSES = ("distribution", "development", "debian")
INDEX = "https://wheels.example/whl"  # an example for messages


@dataclass(frozen=True, slots=True)
class ImageOptions:
    """The options of `invoke image`; "" is an option that was not given."""

    kind: str
    pythons: tuple[str, ...] = ()
    toolkit: str = ""
    arch: str = ""
    purpose: str = ""
    base: str = ""
    index: str = ""
    gpus: tuple[str, ...] = ()
    clients: tuple[str, ...] = ()  # the user's own wheels


@dataclass(frozen=True, slots=True)
class ImageRequest:
    """An image that the facts allow."""

    kind: str  # one of KINDS
    release: Release
    arch: str  # "x86_64", "aarch64"
    pythons: tuple[str, ...]  # oldest first; a runtime image and a dev container have one
    variant: str = CPU
    toolkit: str | None = None
    purpose: str = ""  # one of PURPOSES for a builder
    base: str = ""  # the user's own base image; "": one of the facts
    index: str = ""  # where the wheels come from; "": dist/
    arch_list: str = ""  # the capabilities that its wheels are slimmed for, "8.6;9.0"; "": all
    emulated_on: str = ""  # the arch of a machine that emulates a builder; "": none does

    @property
    def name(self) -> str:
        """Return the name of the image, such as "builder-1.13.1-cu118-x86_64-development"."""
        parts = [self.kind, self.release.version]
        if self.kind != "devcontainer":
            parts.append(self.variant)
        if self.arch_list:
            capabilities = self.arch_list.split(";")
            parts.append("".join(f"sm{name.replace('.', '')}" for name in capabilities))
        if self.kind != "builder":
            parts.append(f"py{self.pythons[0]}")
        parts.append(self.arch)
        if self.purpose:
            parts.append(self.purpose)
        return "-".join(parts)

    @property
    def tag(self) -> str:
        """Return the name that an engine gives the image: "localhost/torch-builder:1.13.1-…"."""
        version = self.name.removeprefix(f"{self.kind}-")
        return f"localhost/{self.release.package}-{self.kind}:{version}"


def make_image_request(
    facts: Facts, options: ImageOptions, release: Release, native: str
) -> ImageRequest:
    """Return the image that the options ask for; `native` is this machine's arch.

    Raises ConfigError for an unknown choice and for options that do not go together,
    ImpossibleBuildError if the release does not exist for the machine, the Python or the toolkit.
    """
    if not options.kind:
        raise ConfigError("invoke image needs --kind: " + ", ".join(KINDS), code="no-image-kind")
    kind = require_choice("--kind", options.kind, KINDS, "unknown-choice")
    _require_options_of_kind(options, kind)
    purpose = require_choice(
        "--purpose", options.purpose or "development", PURPOSES, "unknown-choice"
    )
    if options.index:
        no_login = (
            "user and password would be readable in the Dockerfile and in the image's history: "
            "bring the wheels into dist/ (`pip download --no-deps`) and leave it out"
        )
        urls.validate_url("--index", options.index, ("https", "http"), INDEX, no_login=no_login)
    local_arch = container_arch(native)
    linux = [name for name, arch in facts.arches.items() if arch.system == "linux"]
    arch = require_choice("--arch", options.arch or local_arch, linux, "unknown-choice")
    _require_built(release, "", arch, release.arches)
    # Several names can stand for GPUs of one capability, and one name for several GPUs.
    capabilities = set()
    for name in options.gpus:
        for gpu in find_gpus(facts, name):
            capabilities.add(gpu.capability.name)
    pythons = _choose_pythons(facts, kind, release, options.pythons)
    variant, toolkit = _choose_toolkit(facts, release, arch, options.toolkit)
    is_builder = kind == "builder"
    return ImageRequest(
        kind=kind,
        release=release,
        arch=arch,
        pythons=pythons,
        variant=variant,
        toolkit=toolkit,
        purpose=purpose if is_builder else "",
        base=options.base,
        index=options.index,
        arch_list=";".join(sorted(capabilities, key=capability_key)),
        # A builder of another architecture runs emulated, and gets cross compilers for this one.
        emulated_on=local_arch if is_builder and local_arch != arch else "",
    )


def _require_options_of_kind(options: ImageOptions, kind: str) -> None:
    """Raise ConfigError for an option that images of a kind do not have."""
    problem = ""
    if options.purpose and kind != "builder":
        problem = f"--purpose is for builders, and the kind is {kind}"
    elif options.toolkit and kind == "devcontainer":
        command = f"`invoke toolkit --cuda {options.toolkit}`"
        problem = f"--toolkit is not for dev containers: in one, {command} brings it"
    elif options.index and kind != "runtime":
        problem = f"--index is for runtime images, and the kind is {kind}"
    elif options.clients and kind != "runtime":
        problem = f"--client is for runtime images, and the kind is {kind}"
    elif options.gpus and (kind != "runtime" or options.index):
        problem = "--gpu is for runtime images with the wheels of dist/, which it makes slim"
    if problem:
        raise ConfigError(f"invoke image: {problem}", code="option-not-for-kind")


def _require_built(release: Release, title: str, value: str, built: Collection[str]) -> None:
    """Raise ImpossibleBuildError if a value is not among those that a release is built for."""
    if value not in built:
        raise ImpossibleBuildError(
            f"{release} is not built for {title}{value}, only for {', '.join(built) or 'none'}",
            code="impossible-build",
        )


def _choose_pythons(
    facts: Facts, kind: str, release: Release, requested: Sequence[str]
) -> tuple[str, ...]:
    """Return the Pythons of an image, oldest first: those that the user names, if any.

    By default a builder has all Pythons of the release, any other image the newest one that has an
    official wheel, and preferably an image of its own.
    """
    for python in requested:
        _require_built(release, "Python ", python, release.pythons)
    if kind == "builder":
        return tuple(sorted(set(requested) or release.pythons, key=python_key))
    if len(set(requested)) > 1:
        raise ConfigError(
            f"invoke image: a {kind} has one Python, and --python names {', '.join(requested)}",
            code="one-python",
        )
    if requested:
        return tuple(requested[:1])
    published: set[str] = set()
    for pythons in release.upstream.wheels.values():
        published.update(pythons)
    with_image: set[str] = set()  # the Pythons that have an image of their own
    for base in facts.images.bases:
        if base.role == "python":
            with_image.update(base.pythons[:1])
    candidates = [
        python
        for python in release.pythons
        if not python.endswith("t") and (not published or python in published)
    ]
    return (max(candidates, key=lambda python: (python in with_image, python_key(python))),)


def _choose_toolkit(
    facts: Facts, release: Release, arch: str, version: str
) -> tuple[str, str | None]:
    """Return the variant and the CUDA toolkit of an image."""
    if not version:
        return CPU, None
    versions = [toolkit.version for toolkit in facts.toolkits]
    require_choice("--toolkit", version, versions, "unknown-choice")
    _, toolkits = ReleaseTerms.for_release(facts, release).axes(arch)
    variants = {toolkit.version: toolkit.variant for toolkit in toolkits}
    _require_built(release, f"{arch} with CUDA ", version, variants)
    return variants[version], version
