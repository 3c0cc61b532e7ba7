"""Container images: the base image that fits, and building an image from a folder with a Dockerfile."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.version import Version

from torchmill.build.containers.engine import Engine
from torchmill.build.containers.run import PLATFORMS
from torchmill.config.delivery_model import BaseImage, ImageFacts
from torchmill.config.model import FailureCause
from torchmill.core.errors import BuildError, ConfigError, HostError
from torchmill.core.process import CommandError, capture, stream
from torchmill.plan.diagnosis import causes

# As engines take it, and nothing that a line of a Dockerfile could not hold.
REFERENCE = re.compile(
    r"(?P<image>(?:[A-Za-z0-9][A-Za-z0-9.-]*(?::[0-9]+)?/)?[a-z0-9]+(?:[._/-]+[a-z0-9]+)*)"
    r"(?::(?P<tag>\w[\w.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?",
    re.ASCII,
)


def manylinux_image(images: ImageFacts, arch: str, glibc: str | None) -> BaseImage:
    """Return the image with the newest C library that is not newer than `glibc`, else with the oldest.

    Raises ConfigError where the facts have none for the machine.
    """
    found = sorted(_all(images, "manylinux", arch), key=lambda one: Version(one.glibc or "0"))
    fitting = [one for one in found if glibc and Version(one.glibc or "0") <= Version(glibc)]
    return (fitting or found[:1] or [_none(images, "manylinux", arch)])[-1]


def system_image(images: ImageFacts, arch: str) -> BaseImage:
    """Return the image of a distribution to develop on; raises ConfigError where the facts have none."""
    return _first(images, "system", arch, lambda _: True, "")


def toolkit_image(images: ImageFacts, role: str, arch: str, toolkit: str) -> BaseImage:
    """Return the image of the role ("cuda", "toolkit") that has a CUDA toolkit.

    Raises ConfigError where the facts have none, saying which toolkits they have.
    """
    has = sorted({one.toolkit or "" for one in _all(images, role, arch)}, key=Version)
    said = f" with CUDA {toolkit}; there is {', '.join(has) or 'none'}"
    return _first(images, role, arch, lambda one: one.toolkit == toolkit, said)


def python_image(images: ImageFacts, arch: str, version: str) -> BaseImage:
    """Return the image with a Python.

    Raises ConfigError where the facts have none, saying which Pythons they have.
    """
    has = ", ".join(one.pythons[0] for one in _all(images, "python", arch) if one.pythons)
    said = f" with Python {version}; there is {has or 'none'}"
    return _first(images, "python", arch, lambda one: one.pythons[:1] == (version,), said)


def expected_image(
    images: ImageFacts, role: str, arch: str, toolkit: str | None, version: str | None
) -> BaseImage:
    """Return what is expected of an image that the facts lack: all that they say of their first, but this.

    Raises ConfigError where they have no such image at all.
    """
    like = _first(images, role, arch, lambda _: True, "")
    pythons = (version, *like.pythons[1:]) if version else like.pythons
    return replace(like, toolkit=toolkit, pythons=pythons, digest="")


def user_image(images: ImageFacts, reference: str, like: BaseImage) -> BaseImage:
    """Return the image that a user gives in place of `like`, of which everything but its name is expected.

    One that the facts know is taken from there, with its digest. Raises ConfigError for what is no name of
    an image, and for one that nothing of ours runs on.
    """
    said = REFERENCE.fullmatch(reference)
    if said is None:
        raise ConfigError(
            f"--base '{reference}' is no valid image name: write HOST/NAME:TAG or HOST/NAME@sha256:DIGEST, "
            "such as docker.io/library/debian:bookworm-slim",
            code="invalid-image-name",
        )
    words = re.split(r"[^a-z0-9]+", reference.lower())
    for word, reason in images.unsupported.items():
        if any(part.startswith(word) for part in words):
            raise ConfigError(
                f"--base {reference}: {reason}; take an image like {like.named}", code="unsupported-image"
            )
    image, tag, digest = said["image"], said["tag"] or "", said["digest"] or ""
    for known in images.bases:
        roles = known.role == like.role and known.toolkit == like.toolkit
        if roles and (known.image, known.tag) == (image, tag) and digest in {"", known.digest}:
            return known
    return replace(like, image=image, tag=tag, digest=digest, distribution="", source="given with --base")


def _all(images: ImageFacts, role: str, arch: str) -> list[BaseImage]:
    return [one for one in images.bases if one.role == role and arch in one.arches]


def _first(
    images: ImageFacts, role: str, arch: str, fits: Callable[[BaseImage], bool], said: str
) -> BaseImage:
    found: Iterable[BaseImage] = filter(fits, _all(images, role, arch))
    return next(iter(found), None) or _none(images, role, arch, said)


def _none(images: ImageFacts, role: str, arch: str, said: str = "") -> BaseImage:
    if not images.bases:
        raise ConfigError(
            "build_configs/images.toml is missing: without it no image can be built on another",
            code="no-image-facts",
        )
    raise ConfigError(
        f"build_configs/images.toml has no {role} image for {arch}{said}: "
        "give one of your own with --base, or add it there",
        code="no-base-image",
    )


WIDTH = 100  # characters of a step that are shown: a RUN has hundreds
STEP = re.compile(r"(?:(?:\[\d+/\d+\] )?STEP \d+/\d+: |Step \d+/\d+ : |#\d+ \[.*\d+/\d+\] )\w.*")
# What an engine says of a step that failed, below what the step itself said.
WRAPPING = re.compile(
    r"(?:#\d+ )?(?:subprocess exited|exit status|Error: building at STEP|ERROR: (?:failed to solve|process )"
    r"|The command .* returned a non-zero code|-+$|> \[|(?:>+ )?\d* ?\|).*"
)
# What a step of ours says when it refuses an image; BuildKit writes the step's number and the time before it.
REFUSAL = re.compile(r"(?:#\d+ )?(?:[\d.]+ )?torchmill: (?P<why>.+)")


@dataclass(frozen=True, slots=True)
class BuiltImage:
    """An image that an engine made."""

    tag: str
    size: str  # as the engine says it: "812 MB"


@dataclass(frozen=True, slots=True)
class ImageBuild:
    """An image to build."""

    engine: Engine
    folder: Path  # with its Dockerfile, and what that copies
    tag: str
    arch: str
    native: str  # the arch that needs no emulation here

    @property
    def command(self) -> tuple[str, ...]:
        """Return the command that builds it."""
        # chroot asks nothing of the kernel that a container without privileges does not have
        isolation = ("--isolation", "chroot") if self.engine.name == "buildah" else ()
        platform = () if self.arch == self.native else ("--platform", PLATFORMS[self.arch])
        place = ("--tag", self.tag, "--file", str(self.folder / "Dockerfile"), str(self.folder))
        return self.engine.command("build", *isolation, *platform, *place)


def build_image(
    job: ImageBuild,
    log: Path,
    environ: Mapping[str, str],
    say: Callable[[str], None],
    catalogue: Sequence[FailureCause] = (),
) -> BuiltImage:
    """Build an image, saying each step. What the engine prints goes to the file `log`.

    A failure that the catalogue knows is told with its cure.
    Raises HostError where a step refused the base image, BuildError where anything else failed.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as file:
        try:
            stream(job.command, cwd=None, env=environ, log=file, on_line=lambda line: _tell(line, say))
        except CommandError as error:
            lines = [line.strip() for line in error.output.splitlines() if line.strip()]
            refusals = [match["why"] for line in lines if (match := REFUSAL.fullmatch(line))]
            if refusals:
                raise HostError(
                    f"{job.tag} was not built: {refusals[-1]}", code="base-image-refused"
                ) from None
            silent = f"{job.engine.name} ended with exit code {error.returncode}"
            why = _why(lines, catalogue) or silent
            raise BuildError(
                f"{job.tag} was not built: {why}; the whole log: {log}", code="image-build-failed"
            ) from None
    listed = capture(job.engine.command("images", "--format", "{{.Size}}", job.tag), env=environ)
    return BuiltImage(job.tag, listed.strip().partition("\n")[0])


def _why(lines: Sequence[str], catalogue: Sequence[FailureCause]) -> str:
    """Return what went wrong, and what cures it where the catalogue knows that; "" where nothing was said."""
    told = causes.diagnose(catalogue, lines).match
    if told is not None:
        return f"{told.cause.cause}: {told.cause.cure} (in an image, of the image that --base names)"
    own = [line for line in lines if not WRAPPING.fullmatch(line)]
    return next(reversed(own or lines), "")


def _tell(line: str, say: Callable[[str], None]) -> None:
    if STEP.fullmatch(line):
        say(line if len(line) <= WIDTH else f"{line[:WIDTH]}…")
