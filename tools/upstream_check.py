"""Compare releases in build_configs/ with their wheels on the package index.

Each check is a generator of findings: the name of a difference, under which a release file can
explain it, and a sentence about it.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from packaging.specifiers import SpecifierSet
from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename
from packaging.version import Version

from tools.official_code import is_size_read
from tools.remote_wheel import RemoteWheel, read_remote_wheels
from tools.upstream_wheels import (
    claimed_commit,
    first_upload,
    library_sizes,
    nvidia_requirements,
    nvidia_version,
    pinned_specifier,
    pinned_version,
    pythons_by_platform,
    reference_wheels,
    union_of_pythons,
    without_python2,
)
from tools.wheel_capabilities import with_capabilities
from torchmill.config.facts import Facts
from torchmill.config.official_wheels import platform_of_tag
from torchmill.config.package import Edition, Package
from torchmill.config.release import OfficialCuda, Release
from torchmill.config.release_lookup import all_pythons, base_package, find_release
from torchmill.config.versions import python_key
from torchmill.config.wheel_code import WheelCode
from torchmill.core.console import ProgressDisplay
from torchmill.fetch import package_index
from torchmill.fetch.download import http_session
from torchmill.fetch.package_index import IndexFile, source_archives

# A Python is tested with this patch release, because ">=3.6.2" admits some patch releases of 3.6.
_SOME_PATCH = ".99"
_PARTNER_PROJECTS = ("triton",)  # that torch itself requires, and that have releases of their own
_LAST_M_ABI = "3.8"  # the first Python whose ABI tag has no "m" (PEP 3149)
# Pairs of the name and the text of a difference.
Findings = Iterator[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Difference:
    """A fact that PyPI contradicts."""

    package: str
    version: str
    name: str  # its key in [<package>.explained]: "rebuild 1 win_amd64"
    text: str
    reason: str | None  # why PyPI is odd; None: not explained


def release_differences(
    facts: Facts, observed: Mapping[str, Sequence[RemoteWheel]], chosen: Collection[str]
) -> tuple[Difference, ...]:
    """Return what the index contradicts of the releases in the facts.

    `observed` are the wheels on the index by package. `chosen` are the versions of torch whose
    releases, and those that go with them, are compared; all if there are none.
    """
    differences: list[Difference] = []
    for package, wheels in observed.items():
        for release in facts.releases[package]:
            if chosen and (release.torch or release.version) not in chosen:
                continue
            release_wheels = [wheel for wheel in wheels if wheel.version == release.version]
            for name, text in _compare_release(facts, release, release_wheels):
                reason = release.upstream.explained.get(name)
                differences.append(Difference(release.package, release.version, name, text, reason))
        if not chosen:
            differences += _releases_without_file(facts.releases[package], wheels)
    return tuple(dict.fromkeys(differences))


def unknown_versions(releases: Sequence[Release], wheels: Iterable[RemoteWheel]) -> list[str]:
    """Return the versions on the index that no release file has, oldest first.

    Versions older than the oldest known release, pre-releases, and withdrawn versions do not count.
    """
    known_versions = {release.version for release in releases}
    oldest = min(map(Version, known_versions), default=Version("0"))
    unknown = {wheel.version for wheel in wheels if not wheel.yanked} - known_versions
    releases_on_index: list[str] = []
    for version in unknown:
        if Version(version) > oldest and not Version(version).is_prerelease:
            releases_on_index.append(version)
    return sorted(releases_on_index, key=Version)


def _releases_without_file(
    releases: Sequence[Release], wheels: Sequence[RemoteWheel]
) -> Iterator[Difference]:
    """Yield a difference for each release on the index that has no file."""
    reasons: dict[str, str] = {}
    for release in releases:
        reasons.update(release.upstream.explained)
    for version in unknown_versions(releases, wheels):
        name = f"release {version}"
        text = "it is on PyPI, but has no file in releases/"
        yield Difference(releases[0].package, version, name, text, reasons.get(name))


def _compare_release(facts: Facts, release: Release, wheels: Sequence[RemoteWheel]) -> Findings:
    """Compare one release with its wheels."""
    if not wheels:
        if release.upstream.wheels:
            yield "absent", f"PyPI has no wheel, the file says {_join(release.upstream.wheels)}"
        return
    base = base_package(facts)
    torch = find_release(facts, base.name, release.torch) if release.torch else None
    pythons = torch.pythons if torch else all_pythons(facts)
    yield from chain(
        _compare_platforms(release, wheels),
        _compare_pythons(release, wheels, pythons),
        _compare_requires_python(release, wheels, pythons),
        _odd_tags(wheels),
        _rebuilds(wheels),
        _compare_date(release, wheels),
        _compare_commits(release, wheels),
        _compare_code(facts, release, wheels),
    )
    if torch is not None:
        yield from _compare_pairing(release, base.name, wheels)
        return
    yield from chain(
        _compare_toolkit(release, wheels),
        _compare_cuda(release, wheels),
        _compare_partners(release, wheels),
        _compare_sizes(release, wheels),
    )


def _compare_platforms(release: Release, wheels: Sequence[RemoteWheel]) -> Findings:
    """Compare the Pythons on each platform."""
    observed = pythons_by_platform(wheels, release.pythons)
    for platform in dict.fromkeys((*release.upstream.wheels, *observed)):
        recorded = release.upstream.wheels.get(platform, ())
        on_index = observed.get(platform, ())
        if set(recorded) != set(on_index):
            yield (
                f"wheels {platform}",
                f"PyPI has wheels for {_join(on_index)}, the file says {_join(recorded)}",
            )
    if all(wheel.yanked for wheel in wheels):
        yield "withdrawn", "PyPI withdrew it"


def _compare_pythons(
    release: Release, wheels: Sequence[RemoteWheel], possible: Sequence[str]
) -> Findings:
    """Compare the supported Pythons with those of the wheels, as far as they are possible."""
    on_index = union_of_pythons(wheels, release.pythons)
    missing = [python for python in release.pythons if python not in on_index]
    if missing:
        yield "pythons", f"there is no wheel for {_join(missing)}, which 'pythons' has"
    unlisted = [python for python in possible if python not in release.pythons]
    extra = [python for python in unlisted if python in on_index]
    if extra:
        yield "pythons", f"there are wheels for {_join(extra)}, which 'pythons' lacks"


def _compare_requires_python(
    release: Release, wheels: Sequence[RemoteWheel], possible: Sequence[str]
) -> Findings:
    """Compare the supported Pythons with Requires-Python of the wheels."""
    newest = python_key(release.pythons[-1])
    # Newer Pythons are left out, because bounds have no upper end; free-threaded ones, because
    # Requires-Python cannot tell them apart.
    unlisted = [
        python
        for python in possible
        if python not in release.pythons
        and not python.endswith("t")
        and python_key(python) < newest
    ]
    for text in dict.fromkeys(wheel.requires_python for wheel in without_python2(wheels)):
        bound = SpecifierSet(text or "")
        refused = [python for python in release.pythons if not _admits(bound, python)]
        if refused:
            yield "requires-python", f"Requires-Python is {text}, which excludes {_join(refused)}"
        admitted = [python for python in unlisted if text and _admits(bound, python)]
        if admitted:
            yield "requires-python", f"Requires-Python is {text}, which admits {_join(admitted)}"


def _admits(bound: SpecifierSet, python: str) -> bool:
    """Tell whether Requires-Python admits a Python such as "3.10"."""
    return bound.contains(python.rstrip("t") + _SOME_PATCH)


def _odd_tags(wheels: Sequence[RemoteWheel]) -> Findings:
    """Yield the wheels whose tags no interpreter accepts."""
    for wheel in without_python2(wheels):
        if wheel.python is None:
            continue
        number = wheel.python.rstrip("t").replace(".", "")
        usual = {f"cp{number}", f"cp{number}t", "none"}
        if python_key(wheel.python) < python_key(_LAST_M_ABI):
            usual.add(f"cp{number}m")
        if wheel.abi not in usual:
            name = f"tag {wheel.interpreter}-{wheel.abi}-{wheel.platform}"
            yield name, f"{wheel.name} has an ABI that no interpreter has"


def _rebuilds(wheels: Sequence[RemoteWheel]) -> Findings:
    """Yield the wheels that replace others: their names have a build number."""
    rebuilt = {(wheel.build, wheel.platform) for wheel in wheels if wheel.build}
    for build, platform in sorted(rebuilt):
        group = [wheel for wheel in wheels if (wheel.build, wheel.platform) == (build, platform)]
        pythons = pythons_by_platform(group, ())[platform]
        yield f"rebuild {build} {platform}", f"the wheels for {_join(pythons)} were built again"


def _compare_date(release: Release, wheels: Sequence[RemoteWheel]) -> Findings:
    """Compare the date of a release with the first upload."""
    first = first_upload(wheels)
    if first and first != release.upstream.date:
        yield (
            "date",
            f"the first wheel was uploaded on {first}, the file says {release.upstream.date}",
        )


def _compare_commits(release: Release, wheels: Sequence[RemoteWheel]) -> Findings:
    """Compare the commits in the wheels with the tag's, or with those that the file records."""
    with_commit = [wheel for wheel in without_python2(wheels) if wheel.commit]
    for commit in dict.fromkeys(wheel.commit for wheel in with_commit):
        contradicting = []
        for wheel in with_commit:
            recorded = claimed_commit(release.upstream.built_from, release.proof.commit, wheel)
            if wheel.commit == commit and recorded != commit:
                contradicting.append(wheel)
        if contradicting:
            first = contradicting[0]
            recorded = claimed_commit(release.upstream.built_from, release.proof.commit, first)
            names = first.name
            if len(contradicting) > 1:
                names += f" and {len(contradicting) - 1} more"
            text = f"commit {commit} is in {names}, the file says {recorded}"
            yield f"commit {str(commit)[:8]}", text
    for commit in release.upstream.built_from.keys() - {wheel.commit for wheel in with_commit}:
        yield f"commit {commit[:8]}", f"no wheel says commit {commit}, the file does"


def _compare_code(facts: Facts, release: Release, wheels: Sequence[RemoteWheel]) -> Findings:
    """Yield the wheels whose device code was not read, and lists of capabilities that differ.

    The lists are those of torch's own kernels, which the file of the release has as well.
    """
    for wheel in without_python2(wheels):
        arch = platform_of_tag(facts, wheel.platform)
        if arch is None:
            continue
        key = (release.package, release.version, arch.name)
        readings = [
            reading
            for reading in facts.official.wheel_code
            if (reading.package, reading.release, reading.arch) == key
        ]
        if not any(_is_of_reading(wheel, reading) for reading in readings):
            yield (
                f"code {wheel.platform}",
                f"the device code of {wheel.name} was not read: `invoke facts --code --write`",
            )
        if release.torch is not None:
            continue
        official = release.cuda.official.get(wheel.cuda or "", OfficialCuda())
        recorded = official.capabilities.get(arch.name, "")
        for reading in readings:
            is_same = set(reading.kernel_targets.split(";")) == set(recorded.split(";"))
            if reading.cuda == wheel.cuda and not is_same:
                name = f"capabilities {reading.arch}"
                code = f"{reading.files[0]} has code for {reading.kernel_targets}"
                yield name, f"{code}, the file says {recorded or None}"


def _is_of_reading(wheel: RemoteWheel, reading: WheelCode) -> bool:
    """Tell whether a reading holds for a wheel, by the sizes of its libraries."""
    for name, library in reading.code.items():
        if not is_size_read(wheel.members.get(name), library.sizes):
            return False
    return True


def _compare_pairing(release: Release, base: str, wheels: Sequence[RemoteWheel]) -> Findings:
    """Compare the release of torch that the wheels require."""
    pins = {pinned_specifier(wheel, base) or "" for wheel in without_python2(wheels)}
    pins_of_others = sorted(
        pin for pin in pins if pin and not SpecifierSet(pin).contains(str(release.torch))
    )
    if pins_of_others:
        yield (
            "pairing",
            f"wheels ask for {base} {_join(pins_of_others)}, the file says {release.torch}",
        )
    elif not any(pin.startswith("==") for pin in pins):
        bounds = ", ".join(sorted(pins - {""})) or "none"
        yield (
            "pairing",
            f"wheels ask for no single {base} (they say {bounds}), the file says {release.torch}",
        )


def _compare_toolkit(release: Release, wheels: Sequence[RemoteWheel]) -> Findings:
    """Compare the toolkit that the CUDA wheels are built with."""
    toolkits = {wheel.cuda for wheel in wheels if wheel.cuda}
    if toolkits != {release.cuda.pypi} - {None}:
        built_with = _join(sorted(toolkits))
        recorded = release.cuda.pypi
        yield "cuda", f"wheels are built with CUDA {built_with}, the file says {recorded}"


def _compare_cuda(release: Release, wheels: Sequence[RemoteWheel]) -> Findings:
    """Compare the GPU code and NVIDIA's packages of the CUDA wheels on Linux x86_64."""
    recorded = release.cuda.official.get(release.cuda.pypi or "", OfficialCuda())
    capabilities = recorded.capabilities.get("x86_64", "")
    for wheel in reference_wheels(wheels):
        if wheel.capabilities and set(wheel.capabilities) != set(capabilities.split(";")):
            code = ";".join(wheel.capabilities)
            yield (
                "capabilities",
                f"{wheel.name} has code for {code}, the file says {capabilities or None}",
            )
        changed = set(nvidia_requirements(wheel)) ^ set(recorded.requires)
        if changed:
            yield "requires", f"{wheel.name} and the file differ in {_join(sorted(changed))}"
        for library, version in (("cudnn", recorded.cudnn), ("nccl", recorded.nccl)):
            required = nvidia_version(wheel, library)
            if required and required != version:
                yield library, f"wheels require {library} {required}, the file says {version}"


def _compare_partners(release: Release, wheels: Sequence[RemoteWheel]) -> Findings:
    """Compare the packages that torch requires and that have releases of their own."""
    for wheel in reference_wheels(wheels):
        for project in _PARTNER_PROJECTS:
            required = pinned_version(wheel, project)
            recorded = release.wheel.partners.get(project)
            if required != recorded:
                yield (
                    project,
                    f"{wheel.name} asks for {project} {required}, the file says {recorded}",
                )


def _compare_sizes(release: Release, wheels: Sequence[RemoteWheel]) -> Findings:
    """Compare the sizes of torch's own libraries in the wheel for Linux x86_64."""
    observed = library_sizes(wheels)
    for name in sorted(observed.keys() | release.upstream.sizes.keys()):
        size = observed.get(name)
        recorded = release.upstream.sizes.get(name)
        if size != recorded:
            yield f"size {name}", f"{name} has {size} bytes, the file says {recorded}"


def _join(names: Iterable[str]) -> str:
    """Return names as a list in a sentence; "nothing" without any."""
    return ", ".join(names) or "nothing"


def archive_differences(package: Package, files: Iterable[IndexFile]) -> Iterator[Difference]:
    """Yield what the index contradicts of a package's [[release]] tables, and newer versions.

    `files` are the files of the package's project on the index.
    """
    archives = dict(source_archives(files, package.source.pypi or package.name))
    for edition in package.editions:
        file = archives.get(Version(edition.version))
        for name, text in _compare_edition(edition, file):
            yield Difference(package.name, edition.version, name, text, None)
    newest = max(Version(edition.version) for edition in package.editions)
    for version, file in sorted(archives.items()):
        if version > newest and not file.yanked and not version.is_prerelease:
            text = "it is on PyPI, but has no [[release]]"
            yield Difference(package.name, str(version), f"release {version}", text, None)


def _compare_edition(edition: Edition, file: IndexFile | None) -> Findings:
    """Compare a [[release]] table with the archive of that version; None if there is none."""
    if file is None:
        yield "absent", "PyPI has no archive of it"
        return
    if edition.sha256 is not None and file.sha256 != edition.sha256:
        yield "sha256", f"PyPI says {file.sha256}, the file {edition.sha256}"
    day = (file.uploaded or "").partition("T")[0]
    if edition.date is not None and day and day != edition.date:
        yield "date", f"PyPI got it on {day}, the file says {edition.date}"


@dataclass(frozen=True, slots=True)
class UpstreamReport:
    """The result of a comparison with the index."""

    wheels: dict[str, int]  # package -> wheels that were read
    releases: dict[str, int]  # package -> releases that they belong to
    differences: tuple[Difference, ...]

    @property
    def unexplained(self) -> tuple[Difference, ...]:
        """Return the differences for which the facts give no reason."""
        return tuple(difference for difference in self.differences if difference.reason is None)

    def lines(self) -> list[str]:
        """Return the report for people: each difference, its explanation, and the numbers."""
        lines = []
        for difference in self.differences:
            verdict = "explained" if difference.reason else "DIFFERENT"
            title = f"{difference.package} {difference.version}"
            lines.append(f"{verdict}  {title}: {difference.text}")
            lines.append(f"           {difference.name}: {difference.reason or 'not explained'}")
        for package, number in self.wheels.items():
            lines.append(f"{package}: {number} wheels of {self.releases[package]} releases read")
        unexplained = len(self.unexplained)
        explained = len(self.differences) - unexplained
        lines.append(f"{unexplained} unexplained differences, {explained} explained")
        return lines


def observe_index(
    facts: Facts, chosen: Collection[str], index: str, cache: Path, bars: ProgressDisplay
) -> dict[str, tuple[RemoteWheel, ...]]:
    """Return the wheels of every package on an index, as far as they are to be compared.

    `chosen` are versions of torch: then only their wheels, and those of the releases that go with
    them, are read. Results stay in the folder `cache`. Raises NetworkError.
    """
    observed = {}
    for package in _packages_with_wheels(facts):
        with http_session() as session:
            files = package_index.project_files(session, index, package)
        if chosen:
            versions = set(chosen)
            for release in facts.releases[package]:
                if (release.torch or release.version) in chosen:
                    versions.add(release.version)
            files = tuple(file for file in files if file.name.split("-")[1] in versions)
        bar = bars.start_bar(package, len(files))
        try:
            wheels = read_remote_wheels(files, cache, bar)
            observed[package] = with_capabilities(wheels, files, cache, bar)
        finally:
            bar.close()
    return observed


def observe_release(
    facts: Facts, version: str, index: str, cache: Path, bars: ProgressDisplay
) -> dict[str, tuple[RemoteWheel, ...]]:
    """Return the wheels on an index of one release of torch, and those that may go with it.

    Of the other packages, these are the wheels of the newest release in the facts, and of newer
    ones. Withdrawn wheels are left out. A package that the index does not have has no wheels.
    Results stay in the folder `cache`. Raises NetworkError.
    """
    base = base_package(facts).name
    observed = {}
    for package in _packages_with_wheels(facts):
        oldest = version if package == base else facts.releases[package][-1].version
        with http_session() as session:
            on_index = package_index.find_project_files(session, index, package, hint="")
        files = []
        for file in on_index or ():
            file_version = _version_of_wheel(file)
            if file_version is None or file.yanked or file_version < Version(oldest):
                continue
            if package != base or file_version == Version(version):
                files.append(file)
        bar = bars.start_bar(package, len(files))
        try:
            wheels = read_remote_wheels(files, cache, bar)
            observed[package] = with_capabilities(wheels, files, cache, bar)
        finally:
            bar.close()
    return observed


def _version_of_wheel(file: IndexFile) -> Version | None:
    """Return the version in the name of a wheel; None if the file is not a wheel."""
    try:
        _, version, _, _ = parse_wheel_filename(file.name)
    except InvalidWheelFilename:
        return None
    return version


def compare_with_index(
    facts: Facts, chosen: Collection[str], index: str, cache: Path, bars: ProgressDisplay
) -> UpstreamReport:
    """Compare the facts with the index; see `observe_index`. Raises NetworkError."""
    observed = observe_index(facts, chosen, index, cache, bars)
    releases = {}
    for package, wheels in observed.items():
        releases[package] = len({wheel.version for wheel in wheels})
    return UpstreamReport(
        wheels={package: len(wheels) for package, wheels in observed.items()},
        releases=releases,
        differences=(
            *release_differences(facts, observed, chosen),
            *_declared_differences(facts, index),
        ),
    )


def _packages_with_wheels(facts: Facts) -> list[str]:
    """Return the packages whose releases have wheels on PyPI, not only archives."""
    return [package.name for package in facts.packages.values() if not package.editions]


def _declared_differences(facts: Facts, index: str) -> Iterator[Difference]:
    """Yield what the index contradicts of releases that packages declare themselves."""
    for package in facts.packages.values():
        if package.editions and package.source.pypi:
            with http_session() as session:
                files = package_index.project_files(
                    session, index, canonicalize_name(package.source.pypi)
                )
            yield from archive_differences(package, files)
