"""What image is wanted: what a user said, checked against the facts."""

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
INDEX = "https://wheels.example/whl"


@dataclass(frozen=True, slots=True)
class ImageOptions:
    """What a user said to `invoke image`; "" was not said."""

    kind: str
    pythons: tuple[str, ...] = ()
    toolkit: str = ""
    arch: str = ""
    purpose: str = ""
    base: str = ""
    index: str = ""
    gpus: tuple[str, ...] = ()
    clients: tuple[str, ...] = ()  # wheels of the user's own


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
    base: str = ""  # "": the facts choose
    index: str = ""  # "": the wheels of dist/
    arch_list: str = (
        ""  # the capabilities that its wheels are slimmed for, "8.6;9.0"; "": all that they have
    )
    emulated_on: str = ""  # the arch of the machine that emulates a builder's; "": none does

    @property
    def name(self) -> str:
        """Return what tells it from others: "builder-1.13.1-cu118-x86_64-development"."""
        python = "" if self.kind == "builder" else f"py{self.pythons[0]}"
        variant = "" if self.kind == "devcontainer" else self.variant
        slim = "".join(f"sm{each.replace('.', '')}" for each in self.arch_list.split(";") if each)
        parts = (self.kind, self.release.version, variant, slim, python, self.arch, self.purpose)
        return "-".join(part for part in parts if part)

    @property
    def tag(self) -> str:
        """Return the name that an engine gives the image."""
        return f"localhost/{self.release.package}-{self.kind}:{self.name.removeprefix(f'{self.kind}-')}"


def make_image_request(
    facts: Facts, said: ImageOptions, release: Release, native: str
) -> ImageRequest:
    """Return the image that was asked for; `native` is this machine's arch.

    Raises ConfigError for a word that is none of those there are, and for options that do not go together;
    ImpossibleBuildError where the release does not exist for the machine, the Python or the toolkit.
    """
    if not said.kind:
        raise ConfigError("invoke image needs --kind: " + ", ".join(KINDS), code="no-image-kind")
    kind = require_choice("--kind", said.kind, KINDS, "unknown-choice")
    wrong = ""
    if said.purpose and kind != "builder":
        wrong = f"--purpose is for builders, and the kind is {kind}"
    elif said.toolkit and kind == "devcontainer":
        wrong = f"--toolkit is not for dev containers: in one, `invoke toolkit --cuda {said.toolkit}` brings it"
    elif said.index and kind != "runtime":
        wrong = f"--index is for runtime images, and the kind is {kind}"
    elif said.clients and kind != "runtime":
        wrong = f"--client is for runtime images, and the kind is {kind}"
    elif said.gpus and (kind != "runtime" or said.index):
        wrong = "--gpu is for runtime images with the wheels of dist/, which it makes slim"
    if wrong:
        raise ConfigError(f"invoke image: {wrong}", code="option-not-for-kind")
    purpose = require_choice("--purpose", said.purpose or "development", PURPOSES, "unknown-choice")
    if said.index:
        no_login = (
            "user and password would be readable in the Dockerfile and in the image's history: bring the wheels into "
            "dist/ (`pip download --no-deps`) and leave it out"
        )
        urls.validate_url("--index", said.index, ("https", "http"), INDEX, no_login)
    linux = tuple(name for name, one in facts.arches.items() if one.system == "linux")
    arch = require_choice("--arch", said.arch or container_arch(native), linux, "unknown-choice")
    _require_built(release, "", arch, release.arches)
    capabilities = {one.capability.name for name in said.gpus for one in find_gpus(facts, name)}
    pythons, toolkit = (
        _pythons(facts, kind, release, said.pythons),
        _toolkit(facts, release, arch, said.toolkit),
    )
    slim, here = ";".join(sorted(capabilities, key=capability_key)), container_arch(native)
    own, emulated_on = (purpose, here if here != arch else "") if kind == "builder" else ("", "")
    return ImageRequest(
        kind, release, arch, pythons, *toolkit, own, said.base, said.index, slim, emulated_on
    )


def _require_built(release: Release, title: str, word: str, there: Collection[str]) -> None:
    if word not in there:
        built = f"{release} is not built for {title}{word}, only for {', '.join(there) or 'none'}"
        raise ImpossibleBuildError(built, code="impossible-build")


def _pythons(facts: Facts, kind: str, release: Release, said: Sequence[str]) -> tuple[str, ...]:
    """Return the Pythons, oldest first: those that were said, else all for a builder, else the newest of its wheels."""
    for python in said:
        _require_built(release, "Python ", python, release.pythons)
    if kind == "builder":
        return tuple(sorted(set(said) or release.pythons, key=python_key))
    if len(set(said)) > 1:
        raise ConfigError(
            f"invoke image: a {kind} has one Python, and --python names {', '.join(said)}",
            code="one-python",
        )
    published = {python for pythons in release.wheels.values() for python in pythons} or {
        *release.pythons
    }
    plain = [
        python for python in release.pythons if not python.endswith("t") and python in published
    ]
    based = {base.pythons[:1] for base in facts.images.bases if base.role == "python"}
    best = max(plain, key=lambda one: ((one,) in based, python_key(one)))
    return tuple(said[:1]) or (best,)


def _toolkit(facts: Facts, release: Release, arch: str, version: str) -> tuple[str, str | None]:
    """Return the variant and the toolkit of an image."""
    if not version:
        return CPU, None
    require_choice("--toolkit", version, [one.version for one in facts.toolkits], "unknown-choice")
    _, toolkits = ReleaseTerms.for_release(facts, release).axes(arch)
    variants = {one.version: one.variant for one in toolkits}
    _require_built(release, f"{arch} with CUDA ", version, variants)
    return variants[version], version
