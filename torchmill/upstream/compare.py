"""What the facts say of a release against what its wheels say: every difference, explained or not."""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

from packaging.specifiers import SpecifierSet
from packaging.version import Version

from torchmill import matrix
from torchmill.model import Cuda, Facts, Release
from torchmill.upstream import said
from torchmill.upstream.wheels import Wheel

_SOME_PATCH = ".99"  # ">=3.6.2" is true of some 3.6
Found = Iterator[tuple[str, str]]  # the name and the text of each difference


@dataclass(frozen=True, slots=True)
class Difference:
    """PyPI says something else than the facts."""

    package: str
    version: str
    name: str  # what [<package>.explained] calls it: "rebuild 1 win_amd64"
    text: str
    reason: str | None  # why PyPI is odd; None: not explained


def differences(
    facts: Facts, observed: Mapping[str, Sequence[Wheel]], chosen: Collection[str]
) -> tuple[Difference, ...]:
    """Compare releases with the wheels of each package: of the chosen versions of torch, or all."""
    found: list[Difference] = []
    for package, wheels in observed.items():
        for release in facts.releases[package]:
            if not chosen or (release.torch or release.version) in chosen:
                mine = [wheel for wheel in wheels if wheel.version == release.version]
                found += _explained(release, _of_release(facts, release, mine))
        if not chosen:
            found += _without_file(facts.releases[package], wheels)
    return tuple(dict.fromkeys(found))


def unknown(releases: Sequence[Release], wheels: Iterable[Wheel]) -> list[str]:
    """Return the versions on the index of which no file speaks, oldest first.

    What is older than the oldest known release, or was withdrawn, does not count.
    """
    known = {release.version for release in releases}
    there = {wheel.version for wheel in wheels if not wheel.yanked} - known
    oldest = min((Version(version) for version in known), default=Version("0"))
    return sorted((version for version in there if Version(version) > oldest), key=Version)


def _without_file(releases: Sequence[Release], wheels: Sequence[Wheel]) -> Iterator[Difference]:
    reasons = {name: reason for release in releases for name, reason in release.explained.items()}
    for version in unknown(releases, wheels):
        name = f"release {version}"
        text = "PyPI has it, no file in releases/ speaks of it"
        yield Difference(releases[0].package, version, name, text, reasons.get(name))


def _explained(release: Release, found: Iterable[tuple[str, str]]) -> Iterator[Difference]:
    for name, text in found:
        yield Difference(release.package, release.version, name, text, release.explained.get(name))


def _of_release(facts: Facts, release: Release, wheels: Sequence[Wheel]) -> Found:
    if not wheels:
        if release.wheels:
            yield "absent", f"PyPI has no wheel, the file says {_listed(release.wheels)}"
        return
    base = matrix.base_package(facts)
    after = matrix.find_release(facts, base.name, release.torch) if release.torch else None
    pythons = after.pythons if after else matrix.pythons(facts)
    yield from chain(
        _wheels(release, wheels),
        _pythons(release, wheels, pythons),
        _tags(wheels),
        _date(release, wheels),
        _commits(release, wheels),
    )
    if after is not None:
        yield from _pairing(release, base.name, wheels)
    else:
        yield from chain(_cuda(release, wheels), _partners(release, wheels), _sizes(release, wheels))


def _wheels(release: Release, wheels: Sequence[Wheel]) -> Found:
    """Compare the Pythons on each platform."""
    there = said.platforms(wheels, release.pythons)
    for platform in dict.fromkeys((*release.wheels, *there)):
        known, seen = release.wheels.get(platform, ()), there.get(platform, ())
        if set(known) != set(seen):
            yield f"wheels {platform}", f"PyPI has wheels for {_listed(seen)}, the file says {_listed(known)}"
    if all(wheel.yanked for wheel in wheels):
        yield "withdrawn", "PyPI withdrew it"


def _pythons(release: Release, wheels: Sequence[Wheel], possible: Sequence[str]) -> Found:
    """Compare the supported Pythons with the wheels and with Requires-Python, as far as they are possible."""
    union = {python for pythons in said.platforms(wheels, release.pythons).values() for python in pythons}
    if missing := [python for python in release.pythons if python not in union]:
        yield "pythons", f"there is no wheel for {_listed(missing)}, which 'pythons' has"
    if extra := [python for python in possible if python in union and python not in release.pythons]:
        yield "pythons", f"there are wheels for {_listed(extra)}, which 'pythons' lacks"
    newest = matrix.python_key(release.pythons[-1])
    for text in dict.fromkeys(wheel.requires_python for wheel in said.modern(wheels)):
        bound = SpecifierSet(text or "")
        refused = [python for python in release.pythons if not _admits(bound, python)]
        lacking = [
            python
            for python in possible
            if text and _admits(bound, python) and python not in release.pythons
            if not python.endswith("t") and matrix.python_key(python) < newest
        ]
        if refused:
            yield "requires-python", f"Requires-Python is {text}, which excludes {_listed(refused)}"
        if lacking:
            yield "requires-python", f"Requires-Python is {text}, which admits {_listed(lacking)}"


def _admits(bound: SpecifierSet, python: str) -> bool:
    return bound.contains(python.rstrip("t") + _SOME_PATCH)


def _tags(wheels: Sequence[Wheel]) -> Found:
    """Name wheels that no interpreter installs, and wheels that replace others."""
    for wheel in said.modern(wheels):
        number = (wheel.python or "").rstrip("t").replace(".", "")
        usual = {f"cp{number}", f"cp{number}t", "none"} | ({f"cp{number}m"} if number < "38" else set())
        if wheel.python and wheel.abi not in usual:
            name = f"tag {wheel.interpreter}-{wheel.abi}-{wheel.platform}"
            yield name, f"{wheel.name} has an ABI that no interpreter has"
    rebuilt = {(wheel.build, wheel.platform) for wheel in wheels if wheel.build}
    for build, platform in sorted(rebuilt):
        again = [wheel for wheel in wheels if (wheel.build, wheel.platform) == (build, platform)]
        pythons = said.platforms(again, ())[platform]
        yield f"rebuild {build} {platform}", f"the wheels for {_listed(pythons)} were built again"


def _date(release: Release, wheels: Sequence[Wheel]) -> Found:
    first = said.date(wheels)
    if first and first != release.date:
        yield "date", f"the first wheel was uploaded on {first}, the file says {release.date}"


def _commits(release: Release, wheels: Sequence[Wheel]) -> Found:
    """Compare the commits in the wheels with the tag's, or with what the file says they are built from."""
    telling = [wheel for wheel in said.modern(wheels) if wheel.commit]
    for commit in dict.fromkeys(wheel.commit for wheel in telling):
        odd = [
            wheel
            for wheel in telling
            if wheel.commit == commit and said.claimed(release.built_from, release.commit, wheel) != commit
        ]
        if odd:
            known = said.claimed(release.built_from, release.commit, odd[0])
            named = odd[0].name + (f" and {len(odd) - 1} more" if len(odd) > 1 else "")
            text = f"commit {commit} is in {named}, the file says {known}"
            yield f"commit {str(commit)[:8]}", text
    for commit in release.built_from.keys() - {wheel.commit for wheel in telling}:
        yield f"commit {commit[:8]}", f"no wheel says commit {commit}, the file does"


def _pairing(release: Release, base: str, wheels: Sequence[Wheel]) -> Found:
    """Compare the release of torch that the wheels ask for."""
    pins = {said.pin(wheel, base) or "" for wheel in said.modern(wheels)}
    wrong = sorted(one for one in pins if one and not SpecifierSet(one).contains(str(release.torch)))
    if wrong:
        yield "pairing", f"wheels ask for {base} {_listed(wrong)}, the file says {release.torch}"
    elif not any(one.startswith("==") for one in pins):
        asked = ", ".join(sorted(pins - {""})) or "none"
        yield "pairing", f"wheels ask for no single {base} (they say {asked}), the file says {release.torch}"


def _cuda(release: Release, wheels: Sequence[Wheel]) -> Found:
    """Compare the toolkit of the CUDA wheels, and what they require of NVIDIA's packages on Linux x86_64."""
    toolkits = {wheel.cuda for wheel in wheels if wheel.cuda}
    if toolkits != ({release.cuda_pypi} - {None}):
        seen_toolkits = _listed(sorted(map(str, toolkits)))
        yield "cuda", f"wheels are built with CUDA {seen_toolkits}, the file says {release.cuda_pypi}"
    known = release.cuda_official.get(release.cuda_pypi or "", Cuda())
    for wheel in said.reference(wheels):
        listed = known.capabilities.get("x86_64", "")
        if wheel.capabilities and set(wheel.capabilities) != set(listed.split(";")):
            code = ";".join(wheel.capabilities)
            yield "capabilities", f"{wheel.name} has code for {code}, the file says {listed or None}"
        seen = said.nvidia(wheel)
        if set(seen) != set(known.requires):
            changed = sorted(set(seen) ^ set(known.requires))
            yield "requires", f"{wheel.name} and the file differ in {_listed(changed)}"
        for library, version in (("cudnn", known.cudnn), ("nccl", known.nccl)):
            required = said.nvidia_version(wheel, library)
            if required and required != version:
                yield library, f"wheels require {library} {required}, the file says {version}"


def _partners(release: Release, wheels: Sequence[Wheel]) -> Found:
    """Compare the packages that torch itself asks for and that have releases of their own."""
    for wheel in said.reference(wheels):
        for project in ("triton",):
            asked, known = said.version_of(wheel, project), release.partners.get(project)
            if asked != known:
                yield project, f"{wheel.name} asks for {project} {asked}, the file says {known}"


def _sizes(release: Release, wheels: Sequence[Wheel]) -> Found:
    seen = said.sizes(wheels)
    for name in sorted(seen.keys() | release.sizes.keys()):
        there, known = seen.get(name), release.sizes.get(name)
        if there != known:
            yield f"size {name}", f"{name} has {there} bytes, the file says {known}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "nothing"
