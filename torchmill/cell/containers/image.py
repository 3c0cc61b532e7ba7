"""Container images: the base image that fits, and building an image from a folder with a Dockerfile."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from torchmill.cell.containers.engine import COPIES, PLATFORMS, Engine
from torchmill.config.facts import FailureCause
from torchmill.config.images import BaseImage, ImageFacts
from torchmill.config.versions import format_bounds, is_within
from torchmill.core.errors import BuildError, ConfigError, HostError
from torchmill.core.process import CommandError, capture, stream
from torchmill.plan import causes

# As engines accept it, and nothing that a line of a Dockerfile could not hold.
_REFERENCE = re.compile(
    r"(?P<image>(?:[A-Za-z0-9][A-Za-z0-9.-]*(?::[0-9]+)?/)?[a-z0-9]+(?:[._/-]+[a-z0-9]+)*)"
    r"(?::(?P<tag>\w[\w.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?",
    re.ASCII,
)
_SHOWN_CHARACTERS = 100  # of a step: a RUN has hundreds
_STEP = re.compile(r"(?:(?:\[\d+/\d+\] )?STEP \d+/\d+: |Step \d+/\d+ : |#\d+ \[.*\d+/\d+\] )\w.*")
# What an engine prints about a step that failed, below what the step itself printed.
_WRAPPING = re.compile(
    r"(?:#\d+ )?(?:subprocess exited|exit status|Error: building at STEP|ERROR: (?:failed to solve|process )"
    r"|The command .* returned a non-zero code|-+$|> \[|(?:>+ )?\d* ?\|).*"
)
# What a step of ours prints when it refuses an image; BuildKit writes the step's number and time before it.
_REFUSAL = re.compile(r"(?:#\d+ )?(?:[\d.]+ )?torchmill: (?P<why>.+)")


def manylinux_image(images: ImageFacts, arch: str, glibc: str | None) -> BaseImage:
    """Return the image with the newest C library that is not newer than `glibc`, else with the oldest.

    Raises ConfigError where the facts have none for the machine.
    """
    found = sorted(_images(images, "manylinux", arch), key=lambda one: Version(one.glibc or "0"))
    fitting = [one for one in found if glibc and Version(one.glibc or "0") <= Version(glibc)]
    return (fitting or found[:1])[-1]


def toolkit_image(
    images: ImageFacts, role: str, arch: str, toolkit: str | None
) -> BaseImage | None:
    """Return the image of a role ("cuda", "toolkit") that has a CUDA toolkit, or None."""
    found = (one for one in images.bases if one.role == role and arch in one.arches)
    return next((one for one in found if toolkit and one.toolkit == toolkit), None)


def system_image(
    images: ImageFacts,
    arch: str,
    gcc: SpecifierSet | None = None,
    pythons: Sequence[str] = (),
    suite: str = "",
) -> BaseImage:
    """Return the image of a distribution with a gcc in bounds: with most of the Pythons, then with such a gcc in use.

    `suite` is how its tag begins, "trixie". Raises ConfigError where the facts have none, or none with such a gcc.
    """
    found = [one for one in _images(images, "system", arch) if one.tag.startswith(suite)]
    able = [
        one
        for one in found
        if gcc is None or any(is_within(gcc, each) for each in (one.gcc, *one.compilers))
    ]
    if not able:
        wanted = f" of {suite}" if suite else f" with gcc {format_bounds(gcc or SpecifierSet())}"
        raise _no_image("system", arch, wanted)

    def rank(one: BaseImage) -> tuple[int, bool]:
        return len({*pythons} - {*one.pythons, *one.compiled, *images.uv_pythons}), not is_within(
            gcc, one.gcc
        )

    return min(able, key=rank)


def python_image(images: ImageFacts, arch: str, python: str, *, given: bool = False) -> BaseImage:
    """Return Python's own image of a version.

    Where the user gives one in its place, this returns what is expected of that one: all that the facts say
    of their first, but for the Python. Raises ConfigError where the facts have none, saying which they have.
    """
    found = _images(images, "python", arch)
    if given:
        return replace(found[0], pythons=(python, *found[0].pythons[1:]), digest="")
    for one in found:
        if one.pythons[:1] == (python,):
            return one
    raise _no_image(
        "python",
        arch,
        f" with Python {python}; there is {', '.join(one.pythons[0] for one in found)}",
    )


def user_image(images: ImageFacts, reference: str, like: BaseImage) -> BaseImage:
    """Return the image that a user gives in place of `like`, of which everything but its name is expected.

    One that the facts have is taken from there, with its digest. Raises ConfigError for an invalid name, and
    for an image that nothing of ours runs on.
    """
    match = _REFERENCE.fullmatch(reference)
    if match is None:
        raise ConfigError(
            f"--base '{reference}' is not a valid image name: write HOST/NAME:TAG or HOST/NAME@sha256:DIGEST, "
            "such as docker.io/library/debian:bookworm-slim",
            code="invalid-image-name",
        )
    words = re.split(r"[^a-z0-9]+", reference.lower())
    for word, why in images.unsupported.items():
        if any(part.startswith(word) for part in words):
            raise ConfigError(
                f"--base {reference}: {why}; take an image like {like.name}",
                code="unsupported-image",
            )
    image, tag, digest = match["image"], match["tag"] or "", match["digest"] or ""
    for one in images.bases:
        same = (one.role, one.toolkit, one.image, one.tag) == (like.role, like.toolkit, image, tag)
        if same and digest in {"", one.digest}:
            return one
    return replace(
        like, image=image, tag=tag, digest=digest, distribution="", source="given with --base"
    )


def _images(images: ImageFacts, role: str, arch: str) -> list[BaseImage]:
    """Return the images of a role for a machine, of which there is one at least."""
    if not images.bases:
        raise ConfigError(
            "build_configs/images.toml is missing: without it no image can be built on another",
            code="no-image-facts",
        )
    found = [one for one in images.bases if one.role == role and arch in one.arches]
    if not found:
        raise _no_image(role, arch)
    return found


def _no_image(role: str, arch: str, wanted: str = "") -> ConfigError:
    return ConfigError(
        f"build_configs/images.toml has no {role} image for {arch}{wanted}: "
        "give one of your own with --base, or add it there",
        code="no-base-image",
    )


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
        # chroot asks nothing of the kernel that a container without privileges does not have. What is built again
        # keeps the layers that are as they were, and with them the dates of headers, as docker and podman do unasked
        layers = () if COPIES[-1] in self.engine.options else ("--layers",)
        isolation = ("--isolation", "chroot", *layers) if self.engine.name == "buildah" else ()
        unasked = (
            self.arch == self.native and self.engine.name != "docker"
        )  # which heeds DOCKER_DEFAULT_PLATFORM
        platform = () if unasked else ("--platform", PLATFORMS[self.arch])
        files = ("--tag", self.tag, "--file", str(self.folder / "Dockerfile"), str(self.folder))
        return self.engine.command("build", *isolation, *platform, *files)


def build_image(
    build: ImageBuild,
    log: Path,
    environ: Mapping[str, str],
    say: Callable[[str], None],
    catalogue: Sequence[FailureCause] = (),
) -> str:
    """Build an image, saying each step; return its size as the engine prints it ("812 MB").

    What the engine prints goes to the file `log`. A failure that the catalogue has is reported with its fix.
    Raises HostError where a step refused the base image, BuildError where anything else failed.
    """

    def on_line(line: str) -> None:
        if _STEP.fullmatch(line):
            say(line if len(line) <= _SHOWN_CHARACTERS else f"{line[:_SHOWN_CHARACTERS]}…")

    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as file:
        try:
            stream(build.command, cwd=None, env=environ, log=file, on_line=on_line)
        except CommandError as error:
            lines = [line.strip() for line in error.output.splitlines() if line.strip()]
            refusals = [match["why"] for line in lines if (match := _REFUSAL.fullmatch(line))]
            if refusals:
                raise HostError(
                    f"{build.tag} was not built: {refusals[-1]}", code="base-image-refused"
                ) from None
            silent = f"{build.engine.name} ended with exit code {error.returncode}"
            raise BuildError(
                f"{build.tag} was not built: {_why(lines, catalogue) or silent}; the whole log: {log}",
                code="image-build-failed",
            ) from None
    size = capture(build.engine.command("images", "--format", "{{.Size}}", build.tag), env=environ)
    return size.strip().partition("\n")[0]


def _why(lines: Sequence[str], catalogue: Sequence[FailureCause]) -> str:
    """Return what went wrong, and its fix where the catalogue has one; "" where nothing was printed."""
    match = causes.diagnose(catalogue, lines).match
    if match is not None:
        return (
            f"{match.cause.cause}: {match.cause.cure} (in an image, of the image that --base names)"
        )
    return next(reversed([line for line in lines if not _WRAPPING.fullmatch(line)] or lines), "")
