"""Base images: the one of the facts that fits, or the one that a user gives in its place."""

import re
from collections.abc import Callable, Iterable
from dataclasses import replace

from packaging.version import Version

from torchmill.errors import ConfigError
from torchmill.model import BaseImage, Images

# As engines take it, and nothing that a line of a Dockerfile could not hold.
REFERENCE = re.compile(
    r"(?P<image>(?:[A-Za-z0-9][A-Za-z0-9.-]*(?::[0-9]+)?/)?[a-z0-9]+(?:[._/-]+[a-z0-9]+)*)"
    r"(?::(?P<tag>\w[\w.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?",
    re.ASCII,
)


def manylinux(images: Images, arch: str, glibc: str | None) -> BaseImage:
    """Return the image with the newest C library that is not newer than `glibc`, else with the oldest.

    Raises ConfigError where the facts have none for the machine.
    """
    found = sorted(_all(images, "manylinux", arch), key=lambda one: Version(one.glibc or "0"))
    fitting = [one for one in found if glibc and Version(one.glibc or "0") <= Version(glibc)]
    return (fitting or found[:1] or [_none(images, "manylinux", arch)])[-1]


def system(images: Images, arch: str) -> BaseImage:
    """Return the image of a distribution to develop on; raises ConfigError where the facts have none."""
    return _first(images, "system", arch, lambda _: True, "")


def with_toolkit(images: Images, role: str, arch: str, toolkit: str) -> BaseImage:
    """Return the image of the role ("cuda", "toolkit") that has a CUDA toolkit.

    Raises ConfigError where the facts have none, saying which toolkits they have.
    """
    has = sorted({one.toolkit or "" for one in _all(images, role, arch)}, key=Version)
    said = f" with CUDA {toolkit}; there is {', '.join(has) or 'none'}"
    return _first(images, role, arch, lambda one: one.toolkit == toolkit, said)


def python(images: Images, arch: str, version: str) -> BaseImage:
    """Return the image with a Python.

    Raises ConfigError where the facts have none, saying which Pythons they have.
    """
    has = ", ".join(one.pythons[0] for one in _all(images, "python", arch) if one.pythons)
    said = f" with Python {version}; there is {has or 'none'}"
    return _first(images, "python", arch, lambda one: one.pythons[:1] == (version,), said)


def stand_in(images: Images, role: str, arch: str, toolkit: str | None, version: str | None) -> BaseImage:
    """Return what is expected of an image that the facts lack: all that they say of their first, but this.

    Raises ConfigError where they have no such image at all.
    """
    like = _first(images, role, arch, lambda _: True, "")
    pythons = (version, *like.pythons[1:]) if version else like.pythons
    return replace(like, toolkit=toolkit, pythons=pythons, digest="")


def given(images: Images, reference: str, like: BaseImage) -> BaseImage:
    """Return the image that a user gives in place of `like`, of which everything but its name is expected.

    One that the facts know is taken from there, with its digest. Raises ConfigError for what is no name of
    an image, and for one that nothing of ours runs on.
    """
    said = REFERENCE.fullmatch(reference)
    if said is None:
        raise ConfigError(
            f"--base '{reference}' is no name of an image: write HOST/NAME:TAG or HOST/NAME@sha256:DIGEST, "
            "such as docker.io/library/debian:bookworm-slim"
        )
    words = re.split(r"[^a-z0-9]+", reference.lower())
    for word, reason in images.unsupported.items():
        if any(part.startswith(word) for part in words):
            raise ConfigError(f"--base {reference}: {reason}; take an image like {like.named}")
    image, tag, digest = said["image"], said["tag"] or "", said["digest"] or ""
    for known in images.bases:
        roles = known.role == like.role and known.toolkit == like.toolkit
        if roles and (known.image, known.tag) == (image, tag) and digest in {"", known.digest}:
            return known
    return replace(like, image=image, tag=tag, digest=digest, distribution="", source="given with --base")


def _all(images: Images, role: str, arch: str) -> list[BaseImage]:
    return [one for one in images.bases if one.role == role and arch in one.arches]


def _first(images: Images, role: str, arch: str, fits: Callable[[BaseImage], bool], said: str) -> BaseImage:
    found: Iterable[BaseImage] = filter(fits, _all(images, role, arch))
    return next(iter(found), None) or _none(images, role, arch, said)


def _none(images: Images, role: str, arch: str, said: str = "") -> BaseImage:
    if not images.bases:
        raise ConfigError("build_configs/images.toml is missing: without it no image can be built on another")
    raise ConfigError(
        f"build_configs/images.toml has no {role} image for {arch}{said}: "
        "give one of your own with --base, or add it there"
    )
