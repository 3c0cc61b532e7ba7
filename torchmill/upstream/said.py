"""What the wheels of one release say together, in the words of a release file."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from packaging.requirements import Requirement

from torchmill.matrix import python_key
from torchmill.upstream.wheels import Wheel

MILLION = 1_000_000  # bytes; smaller libraries are left out of `sizes`
_PLATFORMS = (
    "manylinux.*_x86_64",
    "manylinux.*_aarch64",
    "macosx.*_x86_64",
    "macosx.*_arm64",
    "win_amd64",
    "any",
)
_REFERENCE = re.compile(_PLATFORMS[0])
_OURS = re.compile(r"lib(torch|caffe2|c10)\w*\.so")
_NVIDIA = ("nvidia-", "cuda-")


def platform_key(platform: str) -> tuple[int, str]:
    """Order platform tags as release files do: Linux, macOS, Windows."""
    place = (number for number, pattern in enumerate(_PLATFORMS) if re.fullmatch(pattern, platform))
    return next(place, len(_PLATFORMS)), platform


def modern(wheels: Iterable[Wheel]) -> list[Wheel]:
    """Return the wheels without those of Python 2, which the suite leaves out."""
    return [wheel for wheel in wheels if not (wheel.python or "3").startswith("2.")]


def ordered(pythons: Iterable[str]) -> tuple[str, ...]:
    """Return Pythons oldest first."""
    return tuple(sorted(set(pythons), key=python_key))


def platforms(wheels: Iterable[Wheel], every: Sequence[str]) -> dict[str, tuple[str, ...]]:
    """Return the Pythons by platform tag; a wheel for any Python stands for `every`."""
    found: dict[str, set[str]] = {}
    for wheel in modern(wheels):
        found.setdefault(wheel.platform, set()).update([wheel.python] if wheel.python else every)
    return {name: ordered(found[name]) for name in sorted(found, key=platform_key)}


def built_from(wheels: Iterable[Wheel], tag: str | None) -> dict[str, tuple[str, ...]]:
    """Return the commits that wheels say and the tag is not: () for all wheels, else which."""
    telling = [wheel for wheel in modern(wheels) if wheel.commit]
    commits = Counter(wheel.commit or "" for wheel in telling)
    if len(commits) == 1:
        return {commit: () for commit in commits if commit != tag}
    return {commit: _where(telling, commit) for commit, _ in commits.most_common() if commit != tag}


def _where(wheels: Sequence[Wheel], commit: str) -> tuple[str, ...]:
    """Return the platforms that are built from a commit alone, and "3.9 win_amd64" for single wheels."""
    found: list[str] = []
    for platform in sorted({wheel.platform for wheel in wheels}, key=platform_key):
        there = [wheel for wheel in wheels if wheel.platform == platform]
        mine = [wheel for wheel in there if wheel.commit == commit]
        if len(mine) == len(there):
            found.append(platform)
        else:
            pythons = sorted({wheel.python for wheel in mine if wheel.python}, key=python_key)
            found.extend(f"{python} {platform}" for python in pythons)
    return tuple(found)


def claimed(known: Mapping[str, Sequence[str]], tag: str | None, wheel: Wheel) -> str | None:
    """Return the commit that the facts say a wheel is built from."""
    for place in (f"{wheel.python} {wheel.platform}", wheel.platform):
        for commit, where in known.items():
            if place in where:
                return commit
    return next((commit for commit, where in known.items() if not where), tag)


def reference(wheels: Iterable[Wheel]) -> list[Wheel]:
    """Return the Linux x86_64 wheels: the newest rebuild of each Python, the oldest Python first."""
    mine = [wheel for wheel in modern(wheels) if wheel.python and _REFERENCE.fullmatch(wheel.platform)]
    newest = {wheel.python: wheel for wheel in sorted(mine, key=lambda wheel: wheel.build)}
    return [newest[python] for python in sorted(newest, key=lambda python: python_key(python or "0"))]


def toolkit(wheels: Iterable[Wheel]) -> str | None:
    """Return the toolkit of the Linux x86_64 wheels."""
    return next((wheel.cuda for wheel in reference(wheels) if wheel.cuda), None)


def nvidia(wheel: Wheel) -> tuple[str, ...]:
    """Return what a wheel requires of NVIDIA's packages, without markers."""
    required = (Requirement(text) for text in wheel.requires)
    return tuple(dict.fromkeys(_bare(one) for one in required if one.name.startswith(_NVIDIA)))


def _bare(requirement: Requirement) -> str:
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return f"{requirement.name}{extras}{requirement.specifier}"


def pin(wheel: Wheel, project: str) -> str | None:
    """Return the specifier by which a wheel requires a project ("==1.13.1", ""); None: it does not."""
    required = (Requirement(text) for text in wheel.requires)
    return next((str(one.specifier) for one in required if one.name == project), None)


def version_of(wheel: Wheel, project: str) -> str | None:
    """Return the version that a wheel pins a project to, or None."""
    match = re.fullmatch(r"[=~]=([^,+]+)(\+\w+)?", pin(wheel, project) or "")
    return match[1] if match else None


def nvidia_version(wheel: Wheel, library: str) -> str | None:
    """Return the version of cuDNN or NCCL that a wheel requires: library is "cudnn" or "nccl"."""
    pattern = re.compile(rf"nvidia-{library}-cu\d+==(.+)")
    return next((match[1] for one in nvidia(wheel) if (match := pattern.fullmatch(one))), None)


def sizes(wheels: Iterable[Wheel]) -> dict[str, int]:
    """Return the sizes of torch's own libraries in the Linux x86_64 wheel of the oldest Python."""
    first = next(iter(reference(wheels)), None)
    libraries = first.libraries if first else {}
    return {
        name: size for name, size in sorted(libraries.items()) if _OURS.fullmatch(name) and size >= MILLION
    }


def date(wheels: Iterable[Wheel]) -> str | None:
    """Return the day of the first upload, where the index says when."""
    return min((wheel.uploaded[:10] for wheel in wheels if wheel.uploaded), default=None)
