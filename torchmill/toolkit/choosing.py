"""Which provider may have what is wanted, by the facts; what to say where none has it."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

from torchmill.host.kept import COMPILER
from torchmill.model import Part, ToolkitSource
from torchmill.toolkit.wanted import LIBRARIES, MAGMA, Lacking, Wanted


def candidates(
    wanted: Wanted, provider: str, sources: Sequence[ToolkitSource]
) -> tuple[ToolkitSource, ...] | Lacking:
    """Return those sources of a provider that may have it; where none may, it need not be asked.

    Of libraries newer versions appear all the time, so the facts do not know all.
    """
    kind = [one for one in sources if one.provider == provider and one.kind == wanted.kind]
    here = [one for one in kind if wanted.arch in one.arches]
    fitting = [one for one in here if one.cuda in {None, wanted.cuda}]
    any_version = wanted.kind in LIBRARIES
    named = tuple(one for one in fitting if any_version or not one.versions or wanted.version in one.versions)
    if named:
        return named
    if fitting:
        has = tuple(dict.fromkeys(version for one in fitting for version in one.versions))
        return Lacking(provider, f"it has {listed(wanted.kind, has)}", has)
    what = f"{wanted.kind} for CUDA {wanted.cuda}" if here else wanted.kind
    return Lacking(provider, f"it has no {what}" + (f" for {wanted.arch}" if kind and not here else ""))


def supply(
    version: str, arch: str, lacks: Iterable[Part], sources: Iterable[ToolkitSource]
) -> tuple[tuple[str, ...], tuple[Part, ...]]:
    """Return the packages of some parts of a toolkit, and those parts that have none."""
    known = [one for one in sources if one.kind == "parts" and version in one.versions and arch in one.arches]
    lines = [(Requirement(line).name, line) for one in known for line in one.packages]
    major = f"-cu{version.partition('.')[0]}"
    parts = tuple(lacks)
    wanted = {part.package for part in parts}
    found = {name.removesuffix(major): line for name, line in lines if name.removesuffix(major) in wanted}
    return tuple(found.values()), tuple(part for part in parts if part.package not in found)


def begins(version: str, beginning: str) -> bool:
    """Tell whether a version is another, or a more exact one: "8.5.0.96" of "8.5"; any of ""."""
    return not beginning or f"{version}.".startswith(f"{beginning}.")


def listed(kind: str, versions: Sequence[str]) -> str:
    """Return versions in words: "CUDA 11.3 to 11.8 and 12.4", "gcc-9, gcc-11"."""
    return f"CUDA {', '.join(versions)}" if kind == "toolkit" else ", ".join(versions)


def refusal(wanted: Wanted, lacking: Sequence[Lacking]) -> str:
    """Return the message for what no provider has: the reason of each, and what to do."""
    lines = [f"{wanted} cannot be had for {wanted.arch}:"]
    lines += [f"  {one.provider}: {one.sentence}" for one in lacking]
    has = sorted({version for one in lacking for version in one.has}, key=numbers)
    return "\n".join([*lines, f"  {_cure(wanted, has)}"])


def _cure(wanted: Wanted, has: Sequence[str]) -> str:
    if wanted.completes:
        return f"bring a whole one: `invoke toolkit --cuda {wanted.version}`"
    if wanted.kind == COMPILER:
        return "install it with the system's package manager, or name another that nvcc takes in CUDAHOSTCXX"
    if wanted.kind == MAGMA:
        return (
            "take one that you have for this toolkit, in the folder where it is installed or in an archive "
            "(`--from PATH`), or build without it (`-- --set USE_MAGMA=0`)"
        )
    if wanted.kind in LIBRARIES:
        another = f"`invoke toolkit --library {wanted.kind}-cu{wanted.cuda}=VERSION`"
        return f"bring another version ({another}), or install it"
    installed = "install it, and name its folder in CUDA_HOME"
    newer = [one for one in has if one.partition(".")[0] == wanted.version.partition(".")[0]]
    newer = [one for one in newer if numbers(one) > numbers(wanted.version)]
    if not newer:
        return installed
    return (
        f"bring a newer one of the same major version (`invoke toolkit --cuda {newer[0]}`) and build with it "
        f"(`-- --toolkit {newer[0]}`), or {installed}"
    )


def numbers(version: str) -> Version:
    """Return by what versions of toolkits, libraries and compilers are sorted."""
    try:
        return Version(version)
    except InvalidVersion:  # "gcc-11"
        return Version(version.rpartition("-")[2])
