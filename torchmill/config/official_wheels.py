"""Upstream's wheels by the facts: for which machines and Pythons there are any, and which indexes have them."""

from collections.abc import Iterator

from torchmill.config.build import CPU, Arch
from torchmill.config.facts import Facts, OfferedWheels
from torchmill.config.release import Release
from torchmill.config.release_lookup import find_release
from torchmill.config.versions import is_within, python_key

_TAGS = {"linux": ("manylinux", "linux_"), "macos": ("macosx_",), "windows": ("win_",)}


def platform_of_tag(facts: Facts, tag: str) -> Arch | None:
    """Return the platform of a wheel's platform tag, "manylinux_2_17_x86_64"; None where we know none."""
    for arch in facts.arches.values():
        if tag.endswith(f"_{arch.name}") and tag.startswith(_TAGS.get(arch.system, ())):
            return arch
    return None


def wheel_pythons(facts: Facts, release: Release, arch: str) -> tuple[str, ...]:
    """Return the Pythons that a release has wheels for on a machine, oldest first."""
    tagged = (
        pythons
        for tag, pythons in release.wheels.items()
        if platform_of_tag(facts, tag) == facts.arches[arch]
    )
    return tuple(sorted({python for some in tagged for python in some}, key=python_key))


def wheel_places(
    facts: Facts, release: Release, variant: str, arch: str
) -> Iterator[OfferedWheels]:
    """Yield the indexes that have a release's wheels of a variant for a machine."""
    release = find_release(
        facts, release.package, release.tag
    )  # its own, not those of a later torch that it goes with
    official = {
        one.variant: one.version for one in facts.toolkits if one.version in release.cuda_official
    }
    kinds = {CPU} if variant == CPU else {"cuda"} if variant in official else set()
    if official.get(variant, "") == release.cuda_pypi:
        kinds.add("pypi")
    for one in facts.elsewhere if wheel_pythons(facts, release, arch) else ():
        fits = release.package in one.packages and is_within(one.release, release.torch_version)
        if fits and arch in one.arches and not kinds.isdisjoint(one.variants):
            yield one
