"""Upstream's wheels: their Pythons and machines, and the indexes that have them."""

from collections.abc import Iterator

from torchmill.config.build import CPU, Arch
from torchmill.config.facts import Facts, OfferedWheels
from torchmill.config.release import Release
from torchmill.config.release_lookup import find_release
from torchmill.config.versions import is_within, python_key

# How platform tags of a system begin:
# https://packaging.python.org/en/latest/specifications/platform-compatibility-tags/
_TAGS = {"linux": ("manylinux", "linux_"), "macos": ("macosx_",), "windows": ("win_",)}


def platform_of_tag(facts: Facts, tag: str) -> Arch | None:
    """Return the platform of a wheel's platform tag, "manylinux_2_17_x86_64"; None if unknown."""
    for arch in facts.arches.values():
        if tag.endswith(f"_{arch.name}") and tag.startswith(_TAGS.get(arch.system, ())):
            return arch
    return None


def wheel_pythons(facts: Facts, release: Release, arch: str) -> tuple[str, ...]:
    """Return the Pythons for which PyPI has upstream's wheels of a release, oldest first.

    `arch` is the name of the machine that the wheels are for.
    """
    pythons: set[str] = set()
    starts = _TAGS.get(facts.arches[arch].system, ())
    for tag, tag_pythons in release.upstream.wheels.items():
        if tag.endswith(f"_{arch}") and tag.startswith(starts):
            pythons.update(tag_pythons)
    return tuple(sorted(pythons, key=python_key))


def wheel_places(
    facts: Facts, release: Release, variant: str, arch: str
) -> Iterator[OfferedWheels]:
    """Yield the indexes that have upstream's wheels of a release, of a variant for a machine.

    There is none if PyPI has no wheel of the release for that machine.
    """
    # One release of a dependent package can go with several torch, and is here once for each. The
    # indexes have its wheels for the torch that the facts name first.
    release = find_release(facts, release.package, release.tag)
    if not wheel_pythons(facts, release, arch):
        return
    kinds = _variant_kinds(facts, release, variant)
    for index in facts.offered_wheels:
        fits = release.package in index.packages and is_within(index.release, release.torch_version)
        if fits and arch in index.arches and not kinds.isdisjoint(index.variants):
            yield index


def _variant_kinds(facts: Facts, release: Release, variant: str) -> set[str]:
    """Return the words of `OfferedWheels.variants` that mean a variant of a release.

    There is none if upstream did not build that variant.
    """
    cuda = ""
    for toolkit in facts.toolkits:
        if toolkit.variant == variant and toolkit.version in release.cuda.official:
            cuda = toolkit.version
    kinds: set[str] = set()
    if variant == CPU:
        kinds.add(CPU)
    elif cuda:
        kinds.add("cuda")
    if cuda == release.cuda.pypi:
        kinds.add("pypi")
    return kinds
