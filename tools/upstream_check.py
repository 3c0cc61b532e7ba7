"""Compare what build_configs/ says of releases with what their wheels on the package index say."""

import re
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from itertools import chain
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from tools.official_code import is_size_read
from tools.remote_wheel import READERS, RemoteWheel, cached_file, read_member, read_remote_wheels
from torchmill.config.facts import Facts
from torchmill.config.official_wheels import platform_of_tag
from torchmill.config.package import Edition, Package
from torchmill.config.release import Cuda, Release
from torchmill.config.release_lookup import all_pythons, base_package, find_release
from torchmill.config.versions import python_key
from torchmill.config.wheel_code import WheelCode
from torchmill.core.console import ProgressBar, ProgressDisplay
from torchmill.fetch import package_index
from torchmill.fetch.download import http_session
from torchmill.fetch.package_index import IndexFile, source_archives

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


def without_python2(wheels: Iterable[RemoteWheel]) -> list[RemoteWheel]:
    """Return the wheels without those of Python 2, which the suite leaves out."""
    return [wheel for wheel in wheels if not (wheel.python or "3").startswith("2.")]


def sort_pythons(pythons: Iterable[str]) -> tuple[str, ...]:
    """Return Pythons oldest first."""
    return tuple(sorted(set(pythons), key=python_key))


def pythons_by_platform(
    wheels: Iterable[RemoteWheel], every: Sequence[str]
) -> dict[str, tuple[str, ...]]:
    """Return the Pythons by platform tag; a wheel for any Python stands for `every`."""
    found: dict[str, set[str]] = {}
    for wheel in without_python2(wheels):
        found.setdefault(wheel.platform, set()).update([wheel.python] if wheel.python else every)
    return {name: sort_pythons(found[name]) for name in sorted(found, key=platform_key)}


def commits_not_tag(wheels: Iterable[RemoteWheel], tag: str | None) -> dict[str, tuple[str, ...]]:
    """Return the commits that wheels say and the tag is not: () for all wheels, else which."""
    telling = [wheel for wheel in without_python2(wheels) if wheel.commit]
    commits = Counter(wheel.commit or "" for wheel in telling)
    if len(commits) == 1:
        return {commit: () for commit in commits if commit != tag}
    return {commit: _where(telling, commit) for commit, _ in commits.most_common() if commit != tag}


def _where(wheels: Sequence[RemoteWheel], commit: str) -> tuple[str, ...]:
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


def claimed_commit(
    known: Mapping[str, Sequence[str]], tag: str | None, wheel: RemoteWheel
) -> str | None:
    """Return the commit that the facts say a wheel is built from."""
    for place in (f"{wheel.python} {wheel.platform}", wheel.platform):
        for commit, where in known.items():
            if place in where:
                return commit
    return next((commit for commit, where in known.items() if not where), tag)


def reference_wheels(wheels: Iterable[RemoteWheel]) -> list[RemoteWheel]:
    """Return the Linux x86_64 wheels: the newest rebuild of each Python, the oldest Python first."""
    mine = [
        wheel
        for wheel in without_python2(wheels)
        if wheel.python and _REFERENCE.fullmatch(wheel.platform)
    ]
    newest = {wheel.python: wheel for wheel in sorted(mine, key=lambda wheel: wheel.build)}
    return [
        newest[python] for python in sorted(newest, key=lambda python: python_key(python or "0"))
    ]


def wheel_toolkit(wheels: Iterable[RemoteWheel]) -> str | None:
    """Return the toolkit of the Linux x86_64 wheels."""
    return next((wheel.cuda for wheel in reference_wheels(wheels) if wheel.cuda), None)


def nvidia_requirements(wheel: RemoteWheel) -> tuple[str, ...]:
    """Return what a wheel requires of NVIDIA's packages, without markers."""
    required = (Requirement(text) for text in wheel.requires)
    return tuple(dict.fromkeys(_bare(one) for one in required if one.name.startswith(_NVIDIA)))


def _bare(requirement: Requirement) -> str:
    extras = f"[{','.join(sorted(requirement.extras))}]" if requirement.extras else ""
    return f"{requirement.name}{extras}{requirement.specifier}"


def pinned_specifier(wheel: RemoteWheel, project: str) -> str | None:
    """Return the specifier by which a wheel requires a project ("==1.13.1", ""); None: it does not."""
    required = (Requirement(text) for text in wheel.requires)
    return next((str(one.specifier) for one in required if one.name == project), None)


def pinned_version(wheel: RemoteWheel, project: str) -> str | None:
    """Return the version that a wheel pins a project to, or None."""
    match = re.fullmatch(r"[=~]=([^,+]+)(\+\w+)?", pinned_specifier(wheel, project) or "")
    return match[1] if match else None


def nvidia_version(wheel: RemoteWheel, library: str) -> str | None:
    """Return the version of cuDNN or NCCL that a wheel requires: library is "cudnn" or "nccl"."""
    pattern = re.compile(rf"nvidia-{library}-cu\d+==(.+)")
    return next(
        (match[1] for one in nvidia_requirements(wheel) if (match := pattern.fullmatch(one))), None
    )


def library_sizes(wheels: Iterable[RemoteWheel]) -> dict[str, int]:
    """Return the sizes of torch's own libraries in the Linux x86_64 wheel of the oldest Python."""
    first = next(iter(reference_wheels(wheels)), None)
    libraries = first.libraries if first else {}
    return {
        name: size
        for name, size in sorted(libraries.items())
        if _OURS.fullmatch(name) and size >= MILLION
    }


def first_upload(wheels: Iterable[RemoteWheel]) -> str | None:
    """Return the day of the first upload, where the index says when."""
    return min((wheel.uploaded[:10] for wheel in wheels if wheel.uploaded), default=None)


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


def release_differences(
    facts: Facts, observed: Mapping[str, Sequence[RemoteWheel]], chosen: Collection[str]
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


def unknown_versions(releases: Sequence[Release], wheels: Iterable[RemoteWheel]) -> list[str]:
    """Return the versions on the index of which no file speaks, oldest first.

    What is older than the oldest known release, or was withdrawn, does not count.
    """
    known = {release.version for release in releases}
    there = {wheel.version for wheel in wheels if not wheel.yanked} - known
    oldest = min((Version(version) for version in known), default=Version("0"))
    return sorted((version for version in there if Version(version) > oldest), key=Version)


def _without_file(
    releases: Sequence[Release], wheels: Sequence[RemoteWheel]
) -> Iterator[Difference]:
    reasons = {name: reason for release in releases for name, reason in release.explained.items()}
    for version in unknown_versions(releases, wheels):
        name = f"release {version}"
        text = "PyPI has it, no file in releases/ speaks of it"
        yield Difference(releases[0].package, version, name, text, reasons.get(name))


def _explained(release: Release, found: Iterable[tuple[str, str]]) -> Iterator[Difference]:
    for name, text in found:
        yield Difference(release.package, release.version, name, text, release.explained.get(name))


def _of_release(facts: Facts, release: Release, wheels: Sequence[RemoteWheel]) -> Found:
    if not wheels:
        if release.wheels:
            yield "absent", f"PyPI has no wheel, the file says {_listed(release.wheels)}"
        return
    base = base_package(facts)
    after = find_release(facts, base.name, release.torch) if release.torch else None
    pythons = after.pythons if after else all_pythons(facts)
    yield from chain(
        _wheels(release, wheels),
        _pythons(release, wheels, pythons),
        _tags(wheels),
        _date(release, wheels),
        _commits(release, wheels),
        _code(facts, release, wheels),
    )
    if after is not None:
        yield from _pairing(release, base.name, wheels)
    else:
        yield from chain(
            _cuda(release, wheels), _partners(release, wheels), _sizes(release, wheels)
        )


def _wheels(release: Release, wheels: Sequence[RemoteWheel]) -> Found:
    """Compare the Pythons on each platform."""
    there = pythons_by_platform(wheels, release.pythons)
    for platform in dict.fromkeys((*release.wheels, *there)):
        known, seen = release.wheels.get(platform, ()), there.get(platform, ())
        if set(known) != set(seen):
            yield (
                f"wheels {platform}",
                f"PyPI has wheels for {_listed(seen)}, the file says {_listed(known)}",
            )
    if all(wheel.yanked for wheel in wheels):
        yield "withdrawn", "PyPI withdrew it"


def _pythons(release: Release, wheels: Sequence[RemoteWheel], possible: Sequence[str]) -> Found:
    """Compare the supported Pythons with the wheels and with Requires-Python, as far as they are possible."""
    union = {
        python
        for pythons in pythons_by_platform(wheels, release.pythons).values()
        for python in pythons
    }
    if missing := [python for python in release.pythons if python not in union]:
        yield "pythons", f"there is no wheel for {_listed(missing)}, which 'pythons' has"
    if extra := [
        python for python in possible if python in union and python not in release.pythons
    ]:
        yield "pythons", f"there are wheels for {_listed(extra)}, which 'pythons' lacks"
    newest = python_key(release.pythons[-1])
    for text in dict.fromkeys(wheel.requires_python for wheel in without_python2(wheels)):
        bound = SpecifierSet(text or "")
        refused = [python for python in release.pythons if not _admits(bound, python)]
        lacking = [
            python
            for python in possible
            if text and _admits(bound, python) and python not in release.pythons
            if not python.endswith("t") and python_key(python) < newest
        ]
        if refused:
            yield "requires-python", f"Requires-Python is {text}, which excludes {_listed(refused)}"
        if lacking:
            yield "requires-python", f"Requires-Python is {text}, which admits {_listed(lacking)}"


def _admits(bound: SpecifierSet, python: str) -> bool:
    return bound.contains(python.rstrip("t") + _SOME_PATCH)


def _tags(wheels: Sequence[RemoteWheel]) -> Found:
    """Name wheels that no interpreter installs, and wheels that replace others."""
    for wheel in without_python2(wheels):
        number = (wheel.python or "").rstrip("t").replace(".", "")
        old = wheel.python is not None and python_key(wheel.python) < python_key(
            "3.8"
        )  # PEP 3149's "m" ended with it
        usual = {f"cp{number}", f"cp{number}t", "none"} | ({f"cp{number}m"} if old else set())
        if wheel.python and wheel.abi not in usual:
            name = f"tag {wheel.interpreter}-{wheel.abi}-{wheel.platform}"
            yield name, f"{wheel.name} has an ABI that no interpreter has"
    rebuilt = {(wheel.build, wheel.platform) for wheel in wheels if wheel.build}
    for build, platform in sorted(rebuilt):
        again = [wheel for wheel in wheels if (wheel.build, wheel.platform) == (build, platform)]
        pythons = pythons_by_platform(again, ())[platform]
        yield f"rebuild {build} {platform}", f"the wheels for {_listed(pythons)} were built again"


def _date(release: Release, wheels: Sequence[RemoteWheel]) -> Found:
    first = first_upload(wheels)
    if first and first != release.date:
        yield "date", f"the first wheel was uploaded on {first}, the file says {release.date}"


def _commits(release: Release, wheels: Sequence[RemoteWheel]) -> Found:
    """Compare the commits in the wheels with the tag's, or with what the file says they are built from."""
    telling = [wheel for wheel in without_python2(wheels) if wheel.commit]
    for commit in dict.fromkeys(wheel.commit for wheel in telling):
        odd = [
            wheel
            for wheel in telling
            if wheel.commit == commit
            and claimed_commit(release.built_from, release.commit, wheel) != commit
        ]
        if odd:
            known = claimed_commit(release.built_from, release.commit, odd[0])
            named = odd[0].name + (f" and {len(odd) - 1} more" if len(odd) > 1 else "")
            text = f"commit {commit} is in {named}, the file says {known}"
            yield f"commit {str(commit)[:8]}", text
    for commit in release.built_from.keys() - {wheel.commit for wheel in telling}:
        yield f"commit {commit[:8]}", f"no wheel says commit {commit}, the file does"


def _code(facts: Facts, release: Release, wheels: Sequence[RemoteWheel]) -> Found:
    """Name wheels whose device code nobody read, and a list of torch's own that the file says otherwise."""
    for wheel in without_python2(wheels):
        arch = platform_of_tag(facts, wheel.platform)
        known = [
            one
            for one in facts.wheel_code
            if arch
            and (one.package, one.release, one.arch)
            == (release.package, release.version, arch.name)
        ]
        if arch and not any(_is_of_reading(wheel, one) for one in known):
            yield (
                f"code {wheel.platform}",
                f"the device code of {wheel.name} was not read: `invoke facts --code --write`",
            )
        said = release.cuda_official.get(wheel.cuda or "", Cuda()).capabilities.get(
            arch.name if arch else "", ""
        )
        for one in known if release.torch is None else ():
            if one.cuda == wheel.cuda and set(one.own.split(";")) != set(said.split(";")):
                yield (
                    f"capabilities {one.arch}",
                    f"{one.files[0]} has code for {one.own}, the file says {said or None}",
                )


def _is_of_reading(wheel: RemoteWheel, reading: WheelCode) -> bool:
    return all(
        is_size_read(wheel.members.get(name), one.sizes) for name, one in reading.code.items()
    )


def _pairing(release: Release, base: str, wheels: Sequence[RemoteWheel]) -> Found:
    """Compare the release of torch that the wheels ask for."""
    pins = {pinned_specifier(wheel, base) or "" for wheel in without_python2(wheels)}
    wrong = sorted(
        one for one in pins if one and not SpecifierSet(one).contains(str(release.torch))
    )
    if wrong:
        yield "pairing", f"wheels ask for {base} {_listed(wrong)}, the file says {release.torch}"
    elif not any(one.startswith("==") for one in pins):
        asked = ", ".join(sorted(pins - {""})) or "none"
        yield (
            "pairing",
            f"wheels ask for no single {base} (they say {asked}), the file says {release.torch}",
        )


def _cuda(release: Release, wheels: Sequence[RemoteWheel]) -> Found:
    """Compare the toolkit of the CUDA wheels, and what they require of NVIDIA's packages on Linux x86_64."""
    toolkits = {wheel.cuda for wheel in wheels if wheel.cuda}
    if toolkits != ({release.cuda_pypi} - {None}):
        seen_toolkits = _listed(sorted(map(str, toolkits)))
        yield (
            "cuda",
            f"wheels are built with CUDA {seen_toolkits}, the file says {release.cuda_pypi}",
        )
    known = release.cuda_official.get(release.cuda_pypi or "", Cuda())
    for wheel in reference_wheels(wheels):
        listed = known.capabilities.get("x86_64", "")
        if wheel.capabilities and set(wheel.capabilities) != set(listed.split(";")):
            code = ";".join(wheel.capabilities)
            yield (
                "capabilities",
                f"{wheel.name} has code for {code}, the file says {listed or None}",
            )
        seen = nvidia_requirements(wheel)
        if set(seen) != set(known.requires):
            changed = sorted(set(seen) ^ set(known.requires))
            yield "requires", f"{wheel.name} and the file differ in {_listed(changed)}"
        for library, version in (("cudnn", known.cudnn), ("nccl", known.nccl)):
            required = nvidia_version(wheel, library)
            if required and required != version:
                yield library, f"wheels require {library} {required}, the file says {version}"


def _partners(release: Release, wheels: Sequence[RemoteWheel]) -> Found:
    """Compare the packages that torch itself asks for and that have releases of their own."""
    for wheel in reference_wheels(wheels):
        for project in ("triton",):
            asked, known = pinned_version(wheel, project), release.partners.get(project)
            if asked != known:
                yield project, f"{wheel.name} asks for {project} {asked}, the file says {known}"


def _sizes(release: Release, wheels: Sequence[RemoteWheel]) -> Found:
    seen = library_sizes(wheels)
    for name in sorted(seen.keys() | release.sizes.keys()):
        there, known = seen.get(name), release.sizes.get(name)
        if there != known:
            yield f"size {name}", f"{name} has {there} bytes, the file says {known}"


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "nothing"


def archive_differences(package: Package, files: Iterable[IndexFile]) -> Iterator[Difference]:
    """Yield what the index says otherwise; newer versions too, which no [[release]] speaks of."""
    found = dict(source_archives(files, package.pypi or package.name))
    for edition in package.editions:
        file = found.get(Version(edition.version))
        for name, text in _archive_versions(edition, file):
            yield Difference(package.name, edition.version, name, text, None)
    newest = max(Version(one.version) for one in package.editions)
    for version, file in sorted(found.items()):
        if version > newest and not file.yanked and not version.is_prerelease:
            text = "PyPI has it, no [[release]] speaks of it"
            yield Difference(package.name, str(version), f"release {version}", text, None)


def _archive_versions(edition: Edition, file: IndexFile | None) -> Iterator[tuple[str, str]]:
    if file is None:
        yield "absent", "PyPI has no archive of it"
        return
    if edition.sha256 is not None and file.sha256 != edition.sha256:
        yield "sha256", f"PyPI says {file.sha256}, the file {edition.sha256}"
    day = (file.uploaded or "").partition("T")[0]
    if edition.date is not None and day and day != edition.date:
        yield "date", f"PyPI got it on {day}, the file says {edition.date}"


LIBRARY = "libtorch_python.so"  # holds the list as text, from torch 1.6 on
_LIST = re.compile(rb"(?:(?:sm|compute)_\d+[af]? ?){2,}")


def with_capabilities(
    wheels: Sequence[RemoteWheel], files: Iterable[IndexFile], cache: Path, bar: ProgressBar
) -> tuple[RemoteWheel, ...]:
    """Return the wheels; one CUDA wheel of each release, the reference of its sizes, with its capabilities.

    What was read stays in `cache`. Raises NetworkError.
    """
    by_name = {file.name: file for file in files}
    releases = {
        wheel.version: [one for one in wheels if one.version == wheel.version] for wheel in wheels
    }
    firsts = [one for group in releases.values() for one in reference_wheels(group)[:1]]
    asked = [wheel for wheel in firsts if wheel.cuda and LIBRARY in wheel.libraries]
    found: dict[str, RemoteWheel] = {}
    with ThreadPoolExecutor(READERS) as pool:
        told = pool.map(lambda wheel: _capabilities(by_name[wheel.name], cache), asked)
        for done, (wheel, capabilities) in enumerate(zip(asked, told, strict=True), 1):
            found[wheel.name] = replace(wheel, capabilities=capabilities)
            bar.update(done, len(asked), "lists of compute capabilities")
    return tuple(found.get(wheel.name, wheel) for wheel in wheels)


def _capabilities(file: IndexFile, cache: Path) -> tuple[str, ...]:
    known = cached_file(cache, file, "capabilities")
    if not known.exists():
        with http_session() as session:
            library = read_member(file, f"{file.name.partition('-')[0]}/lib/{LIBRARY}", session)
        match = _LIST.search(library)
        half = known.with_suffix(".part")
        half.write_text(match[0].decode() if match else "", encoding="utf-8")
        half.rename(known)
    return _named(known.read_text(encoding="utf-8"))


def _named(flags: str) -> tuple[str, ...]:
    """Return what the list says as the release files do: PTX, which it calls compute_120, is "12.0+PTX"."""
    found = re.findall(r"(sm|compute)_(\d+)(\d)([af]?)", flags)
    intermediate = {
        f"{major}.{minor}{suffix}" for kind, major, minor, suffix in found if kind == "compute"
    }
    names = dict.fromkeys(f"{major}.{minor}{suffix}" for _, major, minor, suffix in found)
    return tuple(f"{name}+PTX" if name in intermediate else name for name in names)


@dataclass(frozen=True, slots=True)
class UpstreamReport:
    """What a check looked at and found."""

    wheels: dict[str, int]  # package -> wheels that were read
    releases: dict[str, int]  # package -> releases that they belong to
    differences: tuple[Difference, ...]

    @property
    def unexplained(self) -> tuple[Difference, ...]:
        """Return what the facts give no reason for."""
        return tuple(one for one in self.differences if one.reason is None)

    def lines(self) -> list[str]:
        """Return it for people: each difference, what explains it, and the numbers."""
        found = []
        for one in self.differences:
            found.append(
                f"{'explained' if one.reason else 'DIFFERENT'}  {one.package} {one.version}: {one.text}"
            )
            found.append(f"           {one.name}: {one.reason or 'not explained'}")
        for package, number in self.wheels.items():
            found.append(f"{package}: {number} wheels of {self.releases[package]} releases read")
        explained = len(self.differences) - len(self.unexplained)
        found.append(f"{len(self.unexplained)} unexplained differences, {explained} explained")
        return found


def observe_index(
    facts: Facts, chosen: Collection[str], where: str, cache: Path, bars: ProgressDisplay
) -> dict[str, tuple[RemoteWheel, ...]]:
    """Read the wheels of every package: of the chosen versions of torch and what pairs with them, or all.

    Raises NetworkError.
    """
    found = {}
    for package in _of_wheels(facts):
        with http_session() as session:
            files = package_index.project_files(session, where, package)
        if chosen:
            mine = [one for one in facts.releases[package] if (one.torch or one.version) in chosen]
            versions = {one.version for one in mine} | set(chosen)
            files = tuple(file for file in files if file.name.split("-")[1] in versions)
        bar = bars.task(package, len(files))
        try:
            found[package] = with_capabilities(
                read_remote_wheels(files, cache, bar), files, cache, bar
            )
        finally:
            bar.close()
    return found


def compare_with_index(
    facts: Facts, chosen: Collection[str], where: str, cache: Path, bars: ProgressDisplay
) -> UpstreamReport:
    """Compare the facts with the index; raises NetworkError."""
    observed = observe_index(facts, chosen, where, cache, bars)
    return UpstreamReport(
        wheels={package: len(wheels) for package, wheels in observed.items()},
        releases={
            package: len({one.version for one in wheels}) for package, wheels in observed.items()
        },
        differences=(*release_differences(facts, observed, chosen), *_declared(facts, where)),
    )


def _of_wheels(facts: Facts) -> list[str]:
    """Return the packages of whose releases PyPI has wheels, not archives alone."""
    return [package.name for package in facts.packages.values() if not package.editions]


def _declared(facts: Facts, where: str) -> Iterator[Difference]:
    """Yield what the index says otherwise of releases that packages declare themselves."""
    for package in facts.packages.values():
        if package.editions and package.pypi:
            with http_session() as session:
                files = package_index.project_files(session, where, canonicalize_name(package.pypi))
            yield from archive_differences(package, files)
