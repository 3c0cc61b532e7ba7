"""Container images: choose a base image, and build an image from a folder with a Dockerfile.

The facts (images.toml) have base images for several roles, such as "system" (a distribution with
its compilers) and "manylinux". With `--base` users name one of their own.
"""

import re
import time
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

# A name that engines accept, and that a line of a Dockerfile can hold.
# https://pkg.go.dev/github.com/distribution/reference
_REFERENCE = re.compile(
    r"(?P<image>(?:[A-Za-z0-9][A-Za-z0-9.-]*(?::[0-9]+)?/)?[a-z0-9]+(?:[._/-]+[a-z0-9]+)*)"
    r"(?::(?P<tag>\w[\w.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?",
    re.ASCII,
)
_SHOWN_CHARACTERS = 100  # of a step: a RUN has hundreds
# The announcement of a step by buildah and podman, by docker's old builder, and by BuildKit.
_STEP = re.compile(r"(?:(?:\[\d+/\d+\] )?STEP \d+/\d+: |Step \d+/\d+ : |#\d+ \[.*\d+/\d+\] )\w.*")
# Lines of an engine about a step that failed, below the output of the step itself.
_ENGINE_LINE = re.compile(
    r"(?:#\d+ )?(?:subprocess exited|exit status|Error: building at STEP"
    r"|ERROR: (?:failed to solve|process )"
    r"|The command .* returned a non-zero code|-+$|> \[|(?:>+ )?\d* ?\|).*"
)
# The message of one of our own steps that refuses an image; BuildKit puts the step's number and
# time before it.
_REFUSAL = re.compile(r"(?:#\d+ )?(?:[\d.]+ )?torchmill: (?P<reason>.+)")


def manylinux_image(images: ImageFacts, arch: str, glibc: str | None) -> BaseImage:
    """Return the manylinux image with the newest glibc that is not newer than `glibc`, "2.28".

    If every image is newer, or `glibc` is None, this is the oldest image. Raises ConfigError if the
    facts have no image for the architecture.
    """
    oldest_first = sorted(_list_images(images, "manylinux", arch), key=_glibc_version)
    best = oldest_first[0]
    if glibc:
        for image in oldest_first:
            if _glibc_version(image) <= Version(glibc):
                best = image
    return best


def _glibc_version(image: BaseImage) -> Version:
    """Return the version of glibc of an image, to order by; 0 if the facts have none."""
    return Version(image.glibc or "0")


def toolkit_image(
    images: ImageFacts, role: str, arch: str, toolkit: str | None
) -> BaseImage | None:
    """Return the image of a role ("cuda", "toolkit") that has a CUDA toolkit, such as "11.8".

    None if there is no such image, or no toolkit.
    """
    if not toolkit:
        return None
    for image in images.bases:
        if image.role == role and arch in image.arches and image.toolkit == toolkit:
            return image
    return None


def system_image(
    images: ImageFacts,
    arch: str,
    gcc: SpecifierSet | None = None,
    pythons: Sequence[str] = (),
    suite: str = "",
) -> BaseImage:
    """Return the image of a Linux distribution that has a gcc within the bounds `gcc`.

    Of several, an image that lacks the fewest of `pythons` is taken, and of those an image whose
    default gcc is in bounds. `suite` is the beginning of its tag, "trixie". Raises ConfigError if
    the facts have no image for the architecture, or none with such a gcc and tag.
    """
    fitting = []
    for image in _list_images(images, "system", arch):
        compilers = (image.gcc, *image.compilers)
        has_gcc = gcc is None or any(is_within(gcc, version) for version in compilers)
        if image.tag.startswith(suite) and has_gcc:
            fitting.append(image)
    if not fitting:
        requirement = (
            f" of {suite}" if suite else f" with gcc {format_bounds(gcc or SpecifierSet())}"
        )
        raise _no_image("system", arch, requirement)

    def rank(image: BaseImage) -> tuple[int, bool]:
        """Return a key that is smallest for the best image."""
        available = {*image.pythons, *image.compiled, *images.uv_pythons}
        missing = set(pythons) - available
        return len(missing), not is_within(gcc, image.gcc)

    return min(fitting, key=rank)


def expected_python_image(images: ImageFacts, arch: str, python: str) -> BaseImage:
    """Return what is expected of an image with a version of Python that the user names.

    That is everything that the facts say of their first image of Python, except for the Python and
    the digest. Raises ConfigError if the facts have no image of Python for the architecture.
    """
    first = _list_images(images, "python", arch)[0]
    return replace(first, pythons=(python, *first.pythons[1:]), digest="")


def python_image(images: ImageFacts, arch: str, python: str) -> BaseImage:
    """Return the official image of a version of Python.

    Raises ConfigError, which lists the Pythons that have an image, if the facts have none for this
    one.
    """
    candidates = _list_images(images, "python", arch)
    for image in candidates:
        if image.pythons[:1] == (python,):
            return image
    available = ", ".join(image.pythons[0] for image in candidates)
    raise _no_image("python", arch, f" with Python {python}; there is {available}")


def user_image(images: ImageFacts, reference: str, like: BaseImage) -> BaseImage:
    """Return the image that the user names by `reference`, in place of `like`.

    Everything but its name is expected to be as that of `like`. An image that the facts have is
    returned as they describe it, with its digest. Raises ConfigError for an invalid name, and for
    an image on which none of our wheels runs.
    """
    match = _REFERENCE.fullmatch(reference)
    if match is None:
        raise ConfigError(
            f"--base '{reference}' is not a valid image name: write HOST/NAME:TAG or "
            "HOST/NAME@sha256:DIGEST, such as docker.io/library/debian:bookworm-slim",
            code="invalid-image-name",
        )
    _refuse_unsupported(images, reference, like)
    name = match["image"]
    tag = match["tag"] or ""
    digest = match["digest"] or ""
    expected = (like.role, like.toolkit, name, tag)
    for image in images.bases:
        is_same = (image.role, image.toolkit, image.image, image.tag) == expected
        if is_same and digest in {"", image.digest}:
            return image
    return replace(
        like, image=name, tag=tag, digest=digest, distribution="", source="given with --base"
    )


def _refuse_unsupported(images: ImageFacts, reference: str, like: BaseImage) -> None:
    """Raise ConfigError if a word of an image's name, such as "alpine", rules the image out."""
    words = re.split(r"[^a-z0-9]+", reference.lower())
    for prefix, reason in images.unsupported.items():
        if any(word.startswith(prefix) for word in words):
            raise ConfigError(
                f"--base {reference}: {reason}; take an image like {like.name}",
                code="unsupported-image",
            )


def _list_images(images: ImageFacts, role: str, arch: str) -> list[BaseImage]:
    """Return the images of a role for an architecture, at least one. Raises ConfigError."""
    if not images.bases:
        raise ConfigError(
            "build_configs/images.toml is missing: without it no image can be built on another",
            code="no-image-facts",
        )
    candidates = [image for image in images.bases if image.role == role and arch in image.arches]
    if not candidates:
        raise _no_image(role, arch)
    return candidates


def _no_image(role: str, arch: str, requirement: str = "") -> ConfigError:
    """Return the error for a missing image; `requirement` is a clause, " with gcc <11"."""
    return ConfigError(
        f"build_configs/images.toml has no {role} image for {arch}{requirement}: "
        "give one of your own with --base, or add it there",
        code="no-base-image",
    )


@dataclass(frozen=True, slots=True)
class ImageBuild:
    """An image to build."""

    engine: Engine
    folder: Path  # with its Dockerfile, and the files that it copies
    tag: str
    arch: str
    native: str  # the arch that needs no emulation on this machine

    @property
    def command(self) -> tuple[str, ...]:
        """Return the command that builds the image."""
        options: list[str] = []
        if self.engine.name == "buildah":
            # chroot needs nothing of the kernel that a container without privileges lacks.
            options += ["--isolation", "chroot"]
            # A rebuild reuses unchanged layers, and so keeps the dates of headers in them. Docker
            # and podman do so by default; storage by copies would make each layer a whole copy.
            if COPIES[-1] not in self.engine.options:
                options.append("--layers")
        # Docker needs it even for the native arch, because it obeys DOCKER_DEFAULT_PLATFORM.
        if self.arch != self.native or self.engine.name == "docker":
            options += ["--platform", PLATFORMS[self.arch]]
        dockerfile = str(self.folder / "Dockerfile")
        options += ["--tag", self.tag, "--file", dockerfile, str(self.folder)]
        return self.engine.command("build", *options)


def build_image(
    build: ImageBuild,
    log: Path,
    environ: Mapping[str, str],
    report: Callable[[str], None],
    catalogue: Sequence[FailureCause] = (),
) -> str:
    """Build an image, and return its size as the engine prints it ("812 MB").

    `report` gets a line for each step of the Dockerfile, and `environ` is the engine's. The
    engine's output goes to the file `log`. A failure that `catalogue` describes is reported with
    its fix. Raises HostError if a step refused the base image, BuildError if anything else failed.
    """

    def on_line(line: str) -> None:
        """Report a line of the engine's output if it announces a step."""
        if not _STEP.fullmatch(line):
            return
        if len(line) > _SHOWN_CHARACTERS:
            line = f"{line[:_SHOWN_CHARACTERS]}…"
        report(line)

    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("w", encoding="utf-8") as file:
        try:
            stream(build.command, cwd=None, env=environ, log=file, on_line=on_line)
        except CommandError as error:
            raise _explain_failure(build, error, log, catalogue) from None
    question = build.engine.command("images", "--format", "{{.Size}}", build.tag)
    size = capture(question, env=environ)
    return size.strip().partition("\n")[0]


def _explain_failure(
    build: ImageBuild, error: CommandError, log: Path, catalogue: Sequence[FailureCause]
) -> HostError | BuildError:
    """Return the error that says why an image was not built."""
    lines = [line.strip() for line in error.output.splitlines() if line.strip()]
    for line in reversed(lines):
        refusal = _REFUSAL.fullmatch(line)
        if refusal is not None:
            message = f"{build.tag} was not built: {refusal['reason']}"
            return HostError(message, code="base-image-refused")
    reason = _find_reason(lines, catalogue)
    if not reason:
        reason = f"{build.engine.name} ended with exit code {error.returncode}"
    return BuildError(
        f"{build.tag} was not built: {reason}; the whole log: {log}", code="image-build-failed"
    )


def _find_reason(lines: Sequence[str], catalogue: Sequence[FailureCause]) -> str:
    """Return what went wrong, with the fix if the catalogue has one; "" if there is no output."""
    match = causes.diagnose(catalogue, lines, clock=time.process_time).match
    if match is not None:
        cause = match.cause
        return f"{cause.cause}: {cause.cure} (in an image, of the image that --base names)"
    # The engine's own last lines say only that a step failed: the step's last line says why.
    for line in reversed(lines):
        if not _ENGINE_LINE.fullmatch(line):
            return line
    return lines[-1] if lines else ""
