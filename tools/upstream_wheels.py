"""Facts about releases that their wheels on the package index reveal."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from packaging.requirements import Requirement

from tools.remote_wheel import RemoteWheel
from torchmill.config.versions import python_key

MILLION = 1_000_000  # bytes; smaller libraries are left out of `sizes`
# Platform tags in the order of release files: Linux, macOS, Windows.
_PLATFORMS = (
    "manylinux.*_x86_64",
    "manylinux.*_aarch64",
    "macosx.*_x86_64",
    "macosx.*_arm64",
    "win_amd64",
    "any",
)
_REFERENCE_PLATFORM = re.compile(_PLATFORMS[0])
_TORCH_LIBRARY = re.compile(r"lib(torch|caffe2|c10)\w*\.so")
_NVIDIA_PREFIXES = ("nvidia-", "cuda-")
_PIN = re.compile(r"[=~]=([^,+]+)(\+\w+)?")


def platform_key(platform: str) -> tuple[int, str]:
    """Return the key that sorts platform tags as release files do."""
    for number, pattern in enumerate(_PLATFORMS):
        if re.fullmatch(pattern, platform):
            return number, platform
    return len(_PLATFORMS), platform


def without_python2(wheels: Iterable[RemoteWheel]) -> list[RemoteWheel]:
    """Return the wheels without those for Python 2, which the suite leaves out."""
    return [wheel for wheel in wheels if not (wheel.python or "3").startswith("2.")]


def sort_pythons(pythons: Iterable[str]) -> tuple[str, ...]:
    """Return Pythons, each once, oldest first."""
    return tuple(sorted(set(pythons), key=python_key))


def pythons_by_platform(
    wheels: Iterable[RemoteWheel], all_pythons: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    """Return the Pythons by platform tag; a wheel for any Python counts for `all_pythons`."""
    pythons: dict[str, set[str]] = {}
    for wheel in without_python2(wheels):
        of_wheel = [wheel.python] if wheel.python else all_pythons
        pythons.setdefault(wheel.platform, set()).update(of_wheel)
    platforms = sorted(pythons, key=platform_key)
    return {platform: sort_pythons(pythons[platform]) for platform in platforms}


def union_of_pythons(wheels: Iterable[RemoteWheel], all_pythons: Sequence[str]) -> tuple[str, ...]:
    """Return the Pythons of wheels on any platform, oldest first."""
    union: set[str] = set()
    for pythons in pythons_by_platform(wheels, all_pythons).values():
        union.update(pythons)
    return sort_pythons(union)


def commits_not_tag(wheels: Iterable[RemoteWheel], tag: str | None) -> dict[str, tuple[str, ...]]:
    """Return the commits in wheels that are not the tag's, with the wheels that have them.

    () stands for all wheels; otherwise there are platforms, or "3.9 win_amd64" for single wheels.
    """
    with_commit = [wheel for wheel in without_python2(wheels) if wheel.commit]
    commits = Counter(wheel.commit or "" for wheel in with_commit)
    if len(commits) == 1:
        return {commit: () for commit in commits if commit != tag}
    return {
        commit: _places_of_commit(with_commit, commit)
        for commit, _ in commits.most_common()
        if commit != tag
    }


def _places_of_commit(wheels: Sequence[RemoteWheel], commit: str) -> tuple[str, ...]:
    """Return the platforms that are built from a commit alone, and "3.9 win_amd64" elsewhere."""
    places: list[str] = []
    for platform in sorted({wheel.platform for wheel in wheels}, key=platform_key):
        of_platform = [wheel for wheel in wheels if wheel.platform == platform]
        of_commit = [wheel for wheel in of_platform if wheel.commit == commit]
        if len(of_commit) == len(of_platform):
            places.append(platform)
        else:
            pythons = sort_pythons(wheel.python for wheel in of_commit if wheel.python)
            places.extend(f"{python} {platform}" for python in pythons)
    return tuple(places)


def claimed_commit(
    built_from: Mapping[str, Sequence[str]], tag: str | None, wheel: RemoteWheel
) -> str | None:
    """Return the commit that a wheel is built from according to the facts.

    `built_from` has commits with places as `commits_not_tag` returns them; the place of the single
    wheel counts before its platform, and both before a commit for all wheels.
    """
    for place in (f"{wheel.python} {wheel.platform}", wheel.platform):
        for commit, places in built_from.items():
            if place in places:
                return commit
    return next((commit for commit, places in built_from.items() if not places), tag)


def reference_wheels(wheels: Iterable[RemoteWheel]) -> list[RemoteWheel]:
    """Return the Linux x86_64 wheels: the newest rebuild for each Python, oldest Python first."""
    newest: dict[str, RemoteWheel] = {}
    for wheel in sorted(without_python2(wheels), key=lambda wheel: wheel.build):
        if wheel.python and _REFERENCE_PLATFORM.fullmatch(wheel.platform):
            newest[wheel.python] = wheel
    return [newest[python] for python in sorted(newest, key=python_key)]


def wheel_toolkit(wheels: Iterable[RemoteWheel]) -> str | None:
    """Return the CUDA toolkit of the Linux x86_64 wheels, or None."""
    return next((wheel.cuda for wheel in reference_wheels(wheels) if wheel.cuda), None)


def nvidia_requirements(wheel: RemoteWheel) -> tuple[str, ...]:
    """Return a wheel's requirements of NVIDIA's packages, without markers, each once."""
    texts = []
    for line in wheel.requires:
        requirement = Requirement(line)
        if requirement.name.startswith(_NVIDIA_PREFIXES):
            texts.append(_without_marker(requirement))
    return tuple(dict.fromkeys(texts))


def _without_marker(requirement: Requirement) -> str:
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return f"{requirement.name}{extras}{requirement.specifier}"


def pinned_specifier(wheel: RemoteWheel, project: str) -> str | None:
    """Return the specifier of a wheel's requirement ("==1.13.1", ""); None if it has none."""
    for line in wheel.requires:
        requirement = Requirement(line)
        if requirement.name == project:
            return str(requirement.specifier)
    return None


def pinned_version(wheel: RemoteWheel, project: str) -> str | None:
    """Return the version that a wheel pins a project to, or None."""
    match = _PIN.fullmatch(pinned_specifier(wheel, project) or "")
    return match[1] if match else None


def nvidia_version(wheel: RemoteWheel, library: str) -> str | None:
    """Return the version of a library ("cudnn", "nccl") that a wheel requires, or None."""
    pattern = re.compile(rf"nvidia-{library}-cu\d+==(.+)")
    for requirement in nvidia_requirements(wheel):
        match = pattern.fullmatch(requirement)
        if match:
            return match[1]
    return None


def library_sizes(wheels: Iterable[RemoteWheel]) -> dict[str, int]:
    """Return the sizes of torch's own libraries in the Linux x86_64 wheel for the oldest Python."""
    reference = next(iter(reference_wheels(wheels)), None)
    if reference is None:
        return {}
    return {
        name: size
        for name, size in sorted(reference.libraries.items())
        if _TORCH_LIBRARY.fullmatch(name) and size >= MILLION
    }


def first_upload(wheels: Iterable[RemoteWheel]) -> str | None:
    """Return the day of the first upload ("2022-12-15"), or None if the index does not say."""
    return min((wheel.uploaded[:10] for wheel in wheels if wheel.uploaded), default=None)
